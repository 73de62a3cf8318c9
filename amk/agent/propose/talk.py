"""One conversation with a language model, as data: how it begins, how far it may go, and what became of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

FAULTS: Final = 20
"""Of a conversation that are written down."""
HEARD_OUT: Final = frozenset({"answered", "turns", "seconds", "tokens", "dollars"})
"""Ends that are no failure: the model had said all, or the conversation had its share."""
STOPPED: Final = "stopped"
"""The session ended."""


@dataclass(frozen=True)
class Opening:
    """What a conversation begins with. `system` is the same for the whole run, so that it and the tools are read from
    the provider's cache; max_tokens: of each answer."""

    number: int
    model: str
    system: str
    prompt: str
    max_tokens: int = 4096


@dataclass(frozen=True)
class Bounds:
    """Of one conversation, beside the limits of the run. A limit is looked at before each request, so that the tools of
    the last answer still run; an attempt under way ends with the time that is left."""

    turns: int = 24
    tokens: int = 400_000
    dollars: float = float("inf")
    seconds: float = 900.0


@dataclass(frozen=True)
class Skill:
    """A tool as a model may call it. `run` answers in words, or raises RefusedError."""

    name: str
    description: str
    schema: dict[str, Any]
    run: Callable[[dict[str, Any]], str]


@dataclass
class Talk:
    """What became of a conversation. kind: one of HEARD_OUT; refusal, truncated, context_full, malformed;
    refused_by_budget, no_key, unavailable, not_recorded, stopped; or the name of the SDK's error. turns: answers of the
    model; tools: how often each was called; faults: attempts that failed and calls that were refused, in words."""

    kind: str = "unavailable"
    detail: str = ""
    turns: int = 0
    tools: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    submitted: int = 0
    last_stop: str | None = None

    @property
    def heard_out(self) -> bool:
        return self.kind in HEARD_OUT

    def fault(self, words: str) -> None:
        if len(self.faults) < FAULTS:
            self.faults.append(words[:300])


@dataclass
class Cassette:
    """The answers of a run's conversations, one JSON object a line: conversation, turn, digest of the request, answer.

    A replay gives the recorded answers in their order, whatever the requests hold: the tools run again, and what they
    say depends on the run."""

    path: Path
    replay: bool
    _answers: dict[tuple[int, int], dict[str, Any]] | None = None

    def answer(self, conversation: int, turn: int) -> dict[str, Any] | None:
        return self._read().get((conversation, turn))

    @property
    def conversations(self) -> int:
        """The last that was recorded."""
        return max((number for number, _ in self._read()), default=0)

    def record(self, conversation: int, turn: int, digest: str, answer: dict[str, Any]) -> None:
        line = {"conversation": conversation, "turn": turn, "request": digest, "answer": answer}
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _read(self) -> dict[tuple[int, int], dict[str, Any]]:
        """Of the file as it was at first; a line that was cut off is left out."""
        if self._answers is None:
            self._answers = {}
            text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
            for line in text.splitlines():
                try:
                    found = json.loads(line)
                    self._answers[int(found["conversation"]), int(found["turn"])] = dict(found["answer"])
                except (ValueError, TypeError, KeyError):
                    continue
        return self._answers
