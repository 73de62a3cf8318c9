"""What is searched: settings of the planner, and typed edits of the schedule that it plans with them.

A design names one schedule: the plan of its settings, then each edit in order, then the repairs that have only one
answer. Settings are the edits that every plan has; a design without further edits is a plan of the planner. Edits are
kept as canonical JSON, so that designs can be compared, hashed, journaled and read back without loss.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, get_args

from pydantic import TypeAdapter, ValidationError

from amk.models.matrices import MATRICES
from amk.planner.settings import Settings
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.edits.apply import edit_text
from amk.schedule_ir.edits.difference import PROBLEM
from amk.schedule_ir.edits.file import shown
from amk.schedule_ir.edits.kinds import Edit, Knobs
from amk.schedule_ir.schedule import Schedule, mode_of

MAX_EDITS: Final = 64
"""Of one design: a list that has grown beyond is not read by anybody."""
MAX_TEXT: Final = 64 * 1024
_EDIT: TypeAdapter[Edit] = TypeAdapter(Edit)
_KINDS: Final = [cls.model_fields["do"].default for cls in get_args(get_args(Edit)[0]) if cls is not Knobs]


@dataclass(frozen=True)
class Design:
    """edits: each in canonical JSON, in the order in which they are made."""

    settings: Settings
    edits: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Settings, edits: Sequence[Edit]) -> Design:
        return cls(settings, tuple(map(text_of, edits)))

    @property
    def parsed(self) -> tuple[Edit, ...]:
        return tuple(map(edit_of, self.edits))


def text_of(edit: Edit) -> str:
    """Canonical JSON of an edit; fields that have their default are left out."""
    return json.dumps(shown(edit), sort_keys=True)


@lru_cache(maxsize=4096)
def edit_of(text: str) -> Edit:
    """The edit in canonical JSON."""
    return _EDIT.validate_json(text)


def read_edits(edits: Sequence[Any]) -> tuple[str, ...]:
    """Edits from outside, checked, as canonical JSON. ValueError, in words, for anything else.

    Settings are given apart, so that their change is told as what it is: an edit of kind `knobs` is refused.
    """
    if len(edits) > MAX_EDITS:
        raise ValueError(f"a design has {MAX_EDITS} edits at most, not {len(edits)}")
    return tuple(_read(number, edit) for number, edit in enumerate(edits))


def _read(number: int, edit: Any) -> str:
    try:
        text = json.dumps(edit, allow_nan=False)
        if len(text) > MAX_TEXT:
            raise ValueError(f"it is longer than {MAX_TEXT} characters")
        parsed = _EDIT.validate_json(text)
        if isinstance(parsed, Knobs):
            raise ValueError("settings of the planner are given as settings")
    except ValidationError as error:
        raise ValueError(f"edit {number} is no edit of a schedule: {_wrong(error)}"[:500]) from error
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"edit {number} is no edit of a schedule: {error}"[:500]) from error
    return text_of(parsed)


def _wrong(error: ValidationError) -> str:
    """What is wrong with the first field that is, by its place in the edit."""
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"].startswith("union_tag"):
        said = first.get("ctx", {}).get("tag")
        what = "it has no field 'do'" if said is None else f"'do' cannot be '{said[:40]}'"
        return f"{what}, which is one of {', '.join(sorted(_KINDS))}"
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else str(first["msg"])


def in_words(edits: Sequence[str]) -> list[str]:
    """Each edit on one line."""
    return [edit_text(edit_of(text)) for text in edits]


def difference(design: Design, parent: Design, changes: dict[str, Any]) -> dict[str, Any]:
    """How a design differs from its parent: `changes` of knobs, edits that came, edits that went, each on a line."""
    came = [text for text in design.edits if text not in parent.edits]
    went = [text for text in parent.edits if text not in design.edits]
    return {**changes, **({"edits": in_words(came)} if came else {}), **({"without": in_words(went)} if went else {})}


CACHE: Final = ("context", "dtype")


def same_problem(edited: Schedule, plan: Schedule) -> None:
    """AMK018 if the edits changed what is computed, for how long a text, or from which weights, instead of how."""
    changed = [name for name in PROBLEM if getattr(edited, name) != getattr(plan, name)]
    changed += [f"kv.{name}" for name in CACHE if getattr(edited.kv, name) != getattr(plan.kv, name)]
    changed += ["launch.max_tokens"] if edited.launch.max_tokens != plan.launch.max_tokens else []
    changed += ["sampling"] if _mode(edited) != _mode(plan) else []
    changed += ["format of the weights"] if _formats(edited) != _formats(plan) else []
    if changed:
        raise AmkError(Diagnostic("AMK018", f"the edits change the problem: {', '.join(changed)}"))


def _mode(schedule: Schedule) -> object:
    try:
        return mode_of(schedule)
    except (AmkError, LookupError, ValueError):
        return None


def _formats(schedule: Schedule) -> object:
    """By stream source, layer and matrix."""
    layers = range(schedule.model.layers)
    return [
        {(m, layer): stream.chunk(m, layer).format for m in MATRICES for layer in layers} for stream in schedule.streams
    ]
