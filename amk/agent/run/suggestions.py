"""A suggestion as a design, and as the event that writes it down."""

from __future__ import annotations

from amk.agent.gate.candidate import Candidate, Impossible
from amk.agent.gate.design import Design, difference, read_edits
from amk.agent.journal.events import Proposed
from amk.agent.journal.inbox import Suggestion
from amk.planner.settings import Settings
from amk.planner.space import OutsideSpaceError, Space


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
    design, made, outside = read
    if outside:
        edit = _asked(space, suggestion, base.settings)
    else:
        edit = difference(design, base, space.changes(design.settings, base.settings))
    return Proposed(
        index=index, proposer=suggestion.proposer, settings=space.point(design.settings), edits=design.edits,
        why=suggestion.why[:1000], parent=parent, other=suggestion.other, operator=suggestion.operator,
        handle=suggestion.handle, edit=edit,
        key=made.key if isinstance(made, Candidate) and not outside else None,
    )  # fmt: skip


def _asked(space: Space, suggestion: Suggestion, base: Settings) -> dict[str, str]:
    """The change that an unusable suggestion asks for, in words and cut short."""
    known = space.point(base)
    asked = {k: v for k, v in suggestion.settings.items() if k not in known or known[k] != v}
    return {str(k)[:60]: repr(v)[:60] for k, v in list(asked.items())[:16]}
