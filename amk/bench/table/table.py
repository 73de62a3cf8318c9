"""A table of cases, each with a target and a stretch target, and what recorded runs say about each.

The cases are data (`tables/NAME.json`). A run is one process; the time of a case is the median over its runs of their
medians, the spread their least and largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from amk.bench.table.row import OWN, Key, Row, power_cells
from amk.bench.tools.times import Power
from amk.models.model import load_model
from amk.planner.formats import formats
from amk.planner.settings import FAST, Settings
from amk.report.diagnostic import AmkError, Diagnostic
from amk.report.json_file import read_json
from amk.report.schema import Name, closest, schema_error
from amk.schedule_ir.schedule import CacheDtype, Schedule
from amk.targets.target import load_target
from amk.weights.weight_format import FormatName

_Positive = Annotated[int, Field(ge=1, le=2**24)]
_Ms = Annotated[float, Field(gt=0, lt=1e6)]
Link = Annotated[str, Field(pattern=r"^https://[^ ]{1,200}$")]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class OtherTime(_Data):
    """A time of somebody else's program for the case, ms per token.

    how: whether it was measured here beside the kernel, or published by the program's authors. method: what was timed,
    on what, and what the kernel took there if it was measured.
    """

    program: Annotated[str, Field(max_length=60)]
    ms: _Ms
    how: Literal["measured", "published"]
    method: Annotated[str, Field(max_length=400)]
    source: Link


class Case(_Data):
    """One row. target_ms, stretch_ms: targets in ms per token.

    settings: changes of the fast plan, by field of `amk.planner.settings.Settings`.
    """

    case: Annotated[str, Field(max_length=100)]
    model: Name
    dtype: FormatName = "bf16"
    lm_head: FormatName | None = None
    kv: CacheDtype = "bf16"
    pos: Annotated[int, Field(ge=0, le=2**24)]
    context: _Positive
    settings: Annotated[dict[str, bool | int | float | str], Field(max_length=16)] = {}
    target_ms: _Ms
    stretch_ms: _Ms
    others: Annotated[tuple[OtherTime, ...], Field(strict=False, max_length=10)] = ()
    baselines: Annotated[tuple[str, ...], Field(strict=False)] = ()

    def schedule(self, gpu: str) -> Schedule:
        """The plan of the case; AMK005 for a setting that plans do not have."""
        # Imported here: reading a table needs no planner.
        from amk.planner.decode import plan

        if unknown := sorted(set(self.settings) - set(Settings.__dataclass_fields__)):
            raise AmkError(
                Diagnostic("AMK005", f"plans have no setting {', '.join(unknown)}, which {self.case} asks for")
            )
        settings = replace(FAST, kv_dtype=self.kv, **self.settings)  # type: ignore[arg-type]
        wanted = formats(self.dtype, self.lm_head)
        model, target = load_model(self.model), load_target(gpu)
        return plan(model, target, settings=settings, formats=wanted, max_context=self.context)


class Published(_Data):
    """A figure that others published and that was not measured here: labelled so wherever it is shown.

    what: model, weights, GPU and load as the source states them.
    """

    program: Annotated[str, Field(max_length=60)]
    what: Annotated[str, Field(max_length=200)]
    figure: Annotated[str, Field(max_length=100)]
    source: Link
    date: Annotated[str, Field(pattern=r"^20[0-9]{2}-[0-9]{2}$")] | None = None


class Table(_Data):
    """Cases on one GPU. steps, tokens: measured launches and tokens of each, as of `amk bench`."""

    gpu: Name
    steps: _Positive
    tokens: _Positive
    cases: Annotated[tuple[Case, ...], Field(strict=False, min_length=1, max_length=200)]
    published: Annotated[tuple[Published, ...], Field(strict=False, max_length=50)] = ()


def load_table(name: str) -> Table:
    """A shipped table by name, or a JSON file; AMK005 for an unknown name, or what is no table."""
    shipped = {
        Path(str(f)).stem: Path(str(f)) for f in (files("amk.bench") / "tables").iterdir() if f.name[-5:] == ".json"
    }
    path = shipped.get(name, Path(name))
    if name not in shipped and not path.exists():
        hint = closest(name, list(shipped)) or f"known tables: {', '.join(sorted(shipped))}"
        raise AmkError(Diagnostic("AMK005", f"no table is called '{name}', and no file", help=hint))
    try:
        return Table.model_validate(read_json(path, 1 << 20))
    except ValidationError as error:
        raise schema_error(error, str(path)) from error


@dataclass(frozen=True)
class Judged:
    """A case and its rows, one a run, with its targets."""

    case: Case
    rows: tuple[Row, ...]
    target_ms: float
    stretch_ms: float
    l2_bytes: int

    @property
    def ms(self) -> float | None:
        return median(row.times.ms for row in self.rows) if self.rows else None

    @property
    def floor_ms(self) -> float | None:
        """Bytes that L2 cannot have kept, at the read ceiling of the run; nothing is faster."""
        floors = [(row.bytes - self.l2_bytes) / row.ceiling_gbps / 1e6 for row in self.rows]
        return median(floors) if floors else None

    @property
    def wrong(self) -> list[str]:
        """Why the rows do not count: a gate of the protocol that one of them fails."""
        found = [f"run {row.key.run}: error or two runs differ" for row in self.rows if not row.correct]
        floor, ms = self.floor_ms, self.ms
        return [*found, "faster than its floor"] if floor is not None and ms is not None and ms < floor else found

    @property
    def notes(self) -> list[str]:
        """What fails no gate and has to stand beside the time: a token that fp64 would not have chosen."""
        runs = [str(row.key.run) for row in self.rows if not row.argmax_agrees]
        return [f"argmax differs from fp64 in run {', '.join(runs)}"] if runs else []

    @property
    def cards(self) -> int | None:
        """How many GPUs the rows are of; None where a record does not say."""
        found = {row.uuid for row in self.rows}
        return None if "" in found or not found else len(found)

    def best_other(self) -> OtherTime | None:
        return min(self.case.others, key=lambda other: other.ms, default=None)

    def reaches(self, limit: float | None) -> bool | None:
        """Whether the case's time is at most `limit`; None while either is unknown."""
        return None if limit is None or self.ms is None else self.ms <= limit and not self.wrong

    def beaten(self) -> dict[str, float]:
        """Median over the runs of how many times faster than each baseline."""
        names = dict.fromkeys(name for row in self.rows for name in row.baselines)
        return {name: median(row.ratio(name) for row in self.rows if name in row.baselines) for name in names}

    def left_out(self) -> dict[str, str]:
        """Why: of each baseline that no run has a time of."""
        beaten = self.beaten()
        return {name: why for name, why in self._reasons().items() if name not in beaten}

    def power(self) -> Power | None:
        """Medians over the runs, like the time; every reason why clocks were held down in any of them."""
        found = [row.power[OWN] for row in self.rows if OWN in row.power]
        if not found:
            return None
        reasons = tuple(dict.fromkeys(reason for each in found for reason in each.throttled))
        numbers = (f.name for f in fields(Power) if f.name != "throttled")
        return Power(**{name: median(getattr(each, name) for each in found) for name in numbers}, throttled=reasons)

    def _reasons(self) -> dict[str, str]:
        return {name: why for row in self.rows for name, why in row.left_out.items()}


def judge(table: Table, keys: dict[str, Key], measured_rows: Sequence[Row]) -> list[Judged]:
    """Each case with those of `measured_rows` that are its own, one a run; keys: by name of the case, of any run.

    Baselines may differ from run to run: of two rows of one run the one with more of them counts.
    """
    l2 = load_target(table.gpu).l2_bytes
    mine = {name: _runs(key, measured_rows) for name, key in keys.items()}
    judged = []
    for case in table.cases:
        rows = mine.get(case.case, ())
        judged.append(Judged(case, rows, case.target_ms, case.stretch_ms, l2))
    return judged


def _runs(key: Key, measured_rows: Sequence[Row]) -> tuple[Row, ...]:
    rows: dict[int, Row] = {}
    for row in sorted(measured_rows, key=lambda r: len(r.baselines)):
        if replace(row.key, run=key.run, baselines=key.baselines) == key:
            rows[row.key.run] = row
    return tuple(rows[number] for number in sorted(rows))


HEADER = (
    "case", "runs", "cards", "floor", "ms/token", "least", "most", "target", "", "stretch", "", "best other", "mJ", "W",
    "MHz", "throttled", "against baselines", "gates",
)  # fmt: skip
OTHERS = ("case", "program", "ms", "how", "method", "source")


def cells(judgement: Judged) -> tuple[str, ...]:
    """One line of the table, in the order of `HEADER`."""
    times = [row.times.ms for row in judgement.rows]
    other = judgement.best_other()
    return (
        judgement.case.case,
        str(len(judgement.rows)),
        "-" if judgement.cards is None else str(judgement.cards),
        _ms(judgement.floor_ms),
        _ms(judgement.ms),
        _ms(min(times, default=None)),
        _ms(max(times, default=None)),
        _ms(judgement.target_ms),
        _answer(judgement.reaches(judgement.target_ms)),
        _ms(judgement.stretch_ms),
        _answer(judgement.reaches(judgement.stretch_ms)),
        f"{other.ms:.3f} {other.how}" if other else "-",
        *power_cells(judgement.power()),
        ", ".join(
            [
                *(f"{name} {ratio:.2f}x" for name, ratio in judgement.beaten().items()),
                *(f"{name} left out" for name in judgement.left_out()),
            ]
        ),
        "; ".join([*(judgement.wrong or ["ok"]), *judgement.notes]) if judgement.rows else "not measured",
    )


def others(table: Table) -> list[tuple[str, ...]]:
    """A line for each time of somebody else's program, in the order of `OTHERS`."""
    return [
        (case.case, other.program, _ms(other.ms), other.how, other.method, other.source)
        for case in table.cases for other in case.others
    ]  # fmt: skip


def as_json(judgement: Judged) -> dict[str, Any]:
    """The same with the rows of every run."""
    known = [other.model_dump() for other in judgement.case.others]
    return {
        "case": judgement.case.case, "ms": judgement.ms, "floor_ms": judgement.floor_ms, "wrong": judgement.wrong,
        "target_ms": judgement.target_ms, "target_met": judgement.reaches(judgement.target_ms),
        "stretch_ms": judgement.stretch_ms, "stretch_met": judgement.reaches(judgement.stretch_ms),
        "notes": judgement.notes, "cards": judgement.cards, "others": known, "times_faster": judgement.beaten(),
        "left_out": judgement.left_out(),
        "runs": [row.record() for row in judgement.rows],
    }  # fmt: skip


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _answer(reached: bool | None) -> str:
    return "-" if reached is None else "met" if reached else "NOT MET"
