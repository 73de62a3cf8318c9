"""The way to a language model and back; the only module that imports `anthropic`, and only when a model is called.

A conversation is the SDK's tool loop: it sends the tools, runs those that an answer calls, and sends what they say,
until the model has said all. Its requests pass the ledger, which bounds and pays for them. What goes wrong is no error
of the run but a kind of end (`Talk`), and the search goes on.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from amk.agent.journal.store import Journal
from amk.agent.propose.ledger import ATTEMPTS, TIMEOUT, Ledger, OverError
from amk.agent.propose.prices import Price
from amk.agent.propose.talk import Bounds, Cassette, Opening, Skill, Talk
from amk.agent.tools.refused import RefusedError

ENDS: Final = {
    "end_turn": "answered", "stop_sequence": "answered", "tool_use": "turns", "pause_turn": "turns",
    "max_tokens": "truncated", "model_context_window_exceeded": "context_full",
}  # fmt: skip
"""What the reason of the last stop says of the conversation; any other is its own name."""

FAILURES: Final = (ValueError, TypeError, LookupError, AttributeError, AssertionError, ArithmeticError, RuntimeError,
                   OSError)  # fmt: skip
"""Of code that was given what it does not expect."""


@dataclass
class Transport:
    """api_key and base_url are for tests; without them the SDK finds its own credentials. `pause`: instead of waiting
    between attempts. Conversations may run at once, each in a thread of its own."""

    journal: Journal
    price: Price
    api_key: str | None = None
    base_url: str | None = None
    timeout: float = TIMEOUT
    attempts: int = ATTEMPTS
    cassette: Cassette | None = None
    pause: Callable[[float], object] | None = None

    @property
    def replays(self) -> bool:
        return self.cassette is not None and self.cassette.replay

    def impossible(self) -> Talk | None:
        """How every conversation would end before a request, if there is nothing to send one with."""
        try:
            import anthropic  # noqa: F401
        except ImportError:
            return Talk(detail="the anthropic package is not installed: pip install amk[llm]")
        if not (self.replays or self.api_key or os.environ.get("ANTHROPIC_API_KEY")):
            return Talk(kind="no_key", detail="ANTHROPIC_API_KEY is not set")
        return None

    def converse(self, opening: Opening, skills: Sequence[Skill], bounds: Bounds, stopped: threading.Event) -> Talk:
        """The whole conversation, from the model or from the record. AmkError only if the journal cannot be written."""
        if (impossible := self.impossible()) is not None:
            return impossible
        import anthropic

        talk, key = Talk(), "recorded" if self.replays else self.api_key
        quieten()
        ledger = Ledger(
            self.journal, self.price, opening, bounds, talk, stopped, self.cassette, _message, self.attempts,
            self.timeout, self.pause or stopped.wait,
        )  # fmt: skip
        try:
            with self._client(ledger, key) as client:
                self._talk(client, opening, skills, bounds, talk)
        except OverError as error:
            talk.kind, talk.detail = error.kind, str(error)
        except anthropic.AnthropicError as error:
            talk.kind, talk.detail = type(error).__name__, str(error)[:300]
        except FAILURES as error:  # an answer that is no JSON, or not of the form that the SDK expects
            talk.kind, talk.detail = "malformed", f"{type(error).__name__}: {error}"[:300]
        return talk

    def _client(self, ledger: Ledger, key: str | None) -> Any:
        import anthropic

        class Accounts(anthropic.Middleware):  # type: ignore[misc]
            def handle(self, request: Any, call_next: Any) -> Any:
                return ledger.handle(request, call_next)

        return anthropic.Anthropic(api_key=key, base_url=self.base_url, max_retries=0, middleware=[Accounts()])

    def _talk(self, client: Any, opening: Opening, skills: Sequence[Skill], bounds: Bounds, talk: Talk) -> None:
        """The tool loop. There is no temperature; what is repeatable is the record."""
        known = {skill.name for skill in skills}
        runner = client.beta.messages.tool_runner(
            model=opening.model, max_tokens=opening.max_tokens, max_iterations=bounds.turns, thread=False,
            system=[{"type": "text", "text": opening.system, "cache_control": {"type": "ephemeral"}}],
            messages=[{"role": "user", "content": opening.prompt}], cache_control={"type": "ephemeral"},
            tools=[_runnable(skill, talk) for skill in skills],
        )  # fmt: skip
        for message in runner:
            talk.turns, talk.last_stop = talk.turns + 1, message.stop_reason
            for block in message.content:
                if block.type == "tool_use" and block.name not in known:
                    talk.fault(f"there is no tool {str(block.name)[:60]!r}")
        talk.kind = ENDS.get(talk.last_stop or "", talk.last_stop or "malformed")
        if talk.kind == "turns":
            talk.detail = f"{bounds.turns} turns of a conversation are used"


def quieten() -> None:
    """The SDK tells of calls that fail by warnings and tracebacks; here they are answers, and written down."""
    warnings.filterwarnings("ignore", message="Tool '.*' not found in tool runner", category=UserWarning)
    logger = logging.getLogger("anthropic")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def _runnable(skill: Skill, talk: Talk) -> Any:
    """The SDK's tool. Whatever goes wrong in it is an answer to the model; the driver's journal failing ends all."""
    import anthropic
    from anthropic.tools import ToolError

    def call(**arguments: Any) -> str:
        talk.tools[skill.name] += 1
        try:
            return skill.run(arguments)
        except RefusedError as error:
            talk.fault(str(error))
            raise ToolError(str(error)) from error
        except FAILURES as error:
            talk.fault(f"{skill.name} failed: {type(error).__name__}: {error}")
            raise ToolError(f"{skill.name} failed: {type(error).__name__}") from error

    return anthropic.beta_tool(call, name=skill.name, description=skill.description, input_schema=skill.schema)


def _message(answer: dict[str, Any]) -> Any:
    """The SDK's message of a recorded answer."""
    from anthropic.types.beta import BetaMessage

    found = BetaMessage.construct(**answer)
    found._request_id = found._workspace_id = None  # documented attributes, which a response sets
    return found
