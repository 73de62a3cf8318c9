"""How far predictions were off, by kind of plan: what a prediction's error is known from.

A kind is what changes where the time goes: weights in bf16 or in codes, one sequence, several, or several rows of one,
a short or a long context. The errors of a target's kinds are data, made by
`amk simulate --against RUN... --errors FILE`; a target that has none was never compared with a measurement.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from amk.models.matrices import MATRICES
from amk.report.json_file import read_json
from amk.report.schema import schema_error
from amk.schedule_ir.schedule import Schedule
from amk.simulator.constants import Constants

LONG = 8192
"""Positions from which attention takes a good part of the time."""
MANY = 16
"""Rows that a step stages at once; more take the inputs of products in parts."""
MOST_BYTES = 1 << 20

_Share = Annotated[float, Field(gt=-1, lt=100, allow_inf_nan=False)]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class KindError(_Data):
    """Of predicted / measured - 1 over `runs` measurements: median and largest magnitude, the median with its sign."""

    runs: Annotated[int, Field(ge=1)]
    median: _Share
    worst: _Share
    bias: _Share

    def __str__(self) -> str:
        parts = f"median error {100 * self.median:.1f}%, worst {100 * self.worst:.1f}%, bias {100 * self.bias:+.1f}%"
        return f"{parts} ({self.runs} runs)"


class Errors(_Data):
    """kinds: by target, then by kind. sources: by target, which runs were compared."""

    kinds: dict[str, dict[str, KindError]]
    sources: dict[str, str]


def kind_of(schedule: Schedule, pos: int) -> str:
    """For example `bf16, one sequence`, `codes, one sequence, long context`."""
    stream = schedule.streams[0]
    bf16 = all(chunk.format == "bf16" for name in MATRICES for chunk in stream.kinds(name))
    return named_kind(bf16, schedule.batch, pos, schedule.rows)


def named_kind(bf16: bool, batch: int, pos: int, rows: int = 1) -> str:
    several = f"2 to {MANY} rows" if 1 < rows <= MANY else f"more than {MANY} rows"
    together = "a batch" if batch <= MANY else f"a batch of more than {MANY}"
    parts = ["bf16" if bf16 else "codes", together if batch > 1 else several if rows > 1 else "one sequence"]
    return ", ".join([*parts, "long context"] if pos >= LONG else parts)


def errors_of(pairs: Iterable[tuple[Schedule, int, float, float]]) -> dict[str, KindError]:
    """By kind, of (schedule, position, measured ms, predicted ms)."""
    ratios: dict[str, list[float]] = {}
    for schedule, pos, measured, predicted in pairs:
        ratios.setdefault(kind_of(schedule, pos), []).append(predicted / measured - 1)
    return {kind: _error(np.array(each)) for kind, each in sorted(ratios.items())}


def _error(off: np.ndarray) -> KindError:
    median, worst, bias = np.median(np.abs(off)), np.abs(off).max(), np.median(off)
    return KindError(
        runs=len(off), median=round(float(median), 4), worst=round(float(worst), 4), bias=round(float(bias), 4)
    )


@cache
def stored_errors() -> Errors:
    return read_errors(Path(str(files("amk.simulator") / "errors.json")))


def read_errors(path: Path) -> Errors:
    """AMK003 and its like if the file is no such table."""
    try:
        return Errors.model_validate(read_json(path, MOST_BYTES))
    except ValidationError as error:
        raise schema_error(error, str(path)) from error


def known_error(schedule: Schedule, pos: int, errors: Errors | None = None, constants: Constants | None = None) -> str:
    """One sentence on how far predictions for such a plan were off, or that nobody knows. constants: that somebody
    gave, of which only their file can say something."""
    return error_of_kind(schedule.target.name, kind_of(schedule, pos), errors, constants)


def error_of_kind(target: str, kind: str, errors: Errors | None = None, constants: Constants | None = None) -> str:
    """The same, of any plan of the kind."""
    if constants is not None:
        return f"not known of other plans than these constants are from ({constants.origin})"
    known = (errors or stored_errors()).kinds
    own = known.get(target)
    if own is None:
        text = f"no plan was ever measured on {target}: the error is not known"
        worst = max(((kinds[kind].worst, name) for name, kinds in known.items() if kind in kinds), default=None)
        if worst is None:
            return text
        return f"{text}; of this kind ({kind}) plans were off by up to {100 * worst[0]:.0f}% on {worst[1]}"
    if kind not in own:
        return f"no plan of this kind ({kind}) was ever compared with a measurement on {target}"
    return f"of this kind ({kind}) on {target}: {own[kind]}"


def errors_on(targets: Iterable[str]) -> str:
    """One line for each target, to stand below a table of simulated times."""
    known = stored_errors().kinds
    lines = []
    for target in dict.fromkeys(targets):
        text = "; ".join(f"{kind}: {error}" for kind, error in known.get(target, {}).items())
        lines.append(f"* Error on {target}: {text or 'not known, no plan was ever measured there'}.")
    return "\n".join(lines)


def saved(kinds: Mapping[str, dict[str, KindError]], source: str, before: Errors | None = None) -> str:
    """The file's text: errors of these targets, and of the other targets that were known `before`."""
    known = before or Errors(kinds={}, sources={})
    errors = Errors(kinds={**known.kinds, **kinds}, sources={**known.sources, **dict.fromkeys(kinds, source)})
    return json.dumps(errors.model_dump(mode="json"), indent=1) + "\n"
