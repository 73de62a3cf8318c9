"""Suggestions in turn; a suggestion as a design, and as the event that writes it down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from amk.agent.gate.candidate import Candidate, Impossible
from amk.agent.gate.design import Design, difference, read_edits
from amk.agent.journal.events import Proposed
from amk.agent.journal.inbox import MCP, Suggestion
from amk.agent.journal.state import State
from amk.planner.settings import Settings
from amk.planner.space import OutsideSpaceError, Space


@dataclass
class Queue:
    """What is proposed next. What came from outside goes first; clients, who have no other limit to their evaluations,
    have every second turn while a proposer has something. A proposer that had nothing is asked again once more is
    decided."""

    waiting: list[Suggestion] = field(default_factory=list)
    silent_at: int | None = None

    def next(
        self,
        state: State,
        inbox: Callable[[], Sequence[Suggestion]],
        ask: Callable[[], Sequence[Suggestion]],
    ) -> Suggestion | None:
        outside = _new(inbox(), state)
        turn = not state.trials or state.trials[-1].proposed.proposer != MCP
        if first := next((s for s in outside if turn or s.proposer != MCP), None):
            return first
        self.waiting = _new(self.waiting, state)
        closed = sum(trial.closed for trial in state.trials)
        if not self.waiting and self.silent_at != closed:
            self.waiting = list(ask())
            self.silent_at = None if self.waiting else closed
        if self.waiting:
            return self.waiting.pop(0)
        return outside[0] if outside else None


def _new(suggestions: Sequence[Suggestion], state: State) -> list[Suggestion]:
    """Those that were not proposed yet."""
    return [each for each in suggestions if each.handle is None or each.handle not in state.handles]


def parsed(space: Space, suggestion: Suggestion) -> tuple[Design, str]:
    """The design, or that of the start and why it is none."""
    try:
        return Design(space.parse(suggestion.settings), read_edits(suggestion.edits)), ""
    except (OutsideSpaceError, ValueError) as error:
        return Design(space.start), str(error)


def written(
    space: Space,
    index: int,
    suggestion: Suggestion,
    read: tuple[Design, Candidate | Impossible, str],
    parent: int,
    base: Design,
) -> Proposed:
    """read: what `parsed` made of it, and what the gate makes of the design. base: the design of the parent."""
    design, candidate, outside = read
    if outside:
        edit = _request(space, suggestion, base.settings)
    else:
        edit = difference(design, base, space.changes(design.settings, base.settings))
    return Proposed(
        index=index, proposer=suggestion.proposer, settings=space.point(design.settings), edits=design.edits,
        why=suggestion.why[:1000], parent=parent, other=suggestion.other, operator=suggestion.operator,
        handle=suggestion.handle, edit=edit,
        key=candidate.key if isinstance(candidate, Candidate) and not outside else None,
    )  # fmt: skip


def _request(space: Space, suggestion: Suggestion, base: Settings) -> dict[str, str]:
    """The change that an unusable suggestion asks for, in words and cut short."""
    known = space.point(base)
    asked = {k: v for k, v in suggestion.settings.items() if k not in known or known[k] != v}
    return {str(k)[:60]: repr(v)[:60] for k, v in list(asked.items())[:16]}
