"""What a machine's parts cost: one set of numbers per target, stored as data with their sources.

Times in microseconds, rates in 10^9 bytes per second. A set that was fitted or measured is stored whole. A target
without one has only published figures (clock, L2 latency); its constants are those of the reference set, scaled: what
an SM's instructions do by the ratio of clocks, what crosses the chip by the ratio of L2 latencies.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from amk.report.diagnostic import AmkError, Diagnostic, Where, printable
from amk.report.json_file import read_json
from amk.report.schema import schema_error
from amk.targets.target import Target

Cost = Annotated[float, Field(ge=0, lt=1e6, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, lt=1e9, allow_inf_nan=False)]
REFERENCE = "h200"
MOST_BYTES = 1 << 20
FILE_BYTES = 1 << 14
"""Of one target's constants: a search hands them to every process that it starts."""
LEARNED = "learned"
"""Key of `sources`: which measurements the set was fitted to, and how far off it is on them."""


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Constants(_Data):
    """What a GPU takes: rates in 10^9 bytes/s (`_gbps`), times in microseconds (`_us`)."""

    target: str
    read_gbps: Rate
    """Device memory, all SMs together."""
    sm_gbps: Rate
    """Device memory, one SM alone."""
    fast_sms: Annotated[float, Field(ge=0, le=1)]
    """Share of the SMs that stand in small groups of the chip."""
    fast_gain: Annotated[float, Field(ge=1, le=4)]
    """Their bandwidth relative to that of the others."""
    copy_us: Cost
    """Latency of a copy into shared memory."""
    copy_overhead: Cost
    """Bytes of the memory's time that a copy costs beside its own."""
    gemv_us: Cost
    """A product's time beside its chunks: the first one is looked for, the last sums are written."""
    chunk_us: Cost
    """A warp's time for a chunk, whatever its size."""
    chunk_gbps: Rate
    """What a warp multiplies, beside that."""
    drain_gbps: Rate
    """Chunks that all warps of an SM drain."""
    refill_fence_us: Cost
    """Per chunk."""
    l2_us: Cost
    """A load that the L2 answers."""
    l2_gbps: Rate
    """One SM from the L2."""
    miss_us: Cost
    """What cache rows take longer that were not asked for ahead."""
    hop_us: Cost
    """From a signal until others can see it."""
    poll_us: Cost
    """What each warp that polls a counter, of all workers, adds to `hop_us`: requests of one line are answered one
    after the other."""
    skew_us: Cost
    """Spread of equal SMs: the last of n is late by sqrt(2 ln n) of it."""
    fence_us: Cost
    """A release."""
    fence_us_per_kib: Cost
    """What each KiB of copies in flight before a release adds to it."""
    queue_us_per_kib: Cost
    """What each KiB of copies in flight adds to `l2_us`."""
    issue_us: Cost
    """Asking for a copy that was held back."""
    barrier_us: Cost
    """A CTA barrier."""
    barrier_warp_us: Cost
    """What each warp adds to it."""
    step_us: Cost
    """Entering a step."""
    round_us: Cost
    """512 bytes through a warp's registers."""
    far_us_per_kib: Cost
    """A KiB of the cache rows that attention reads."""
    sources: dict[str, str]
    """Where each number is from, by its name."""

    @property
    def origin(self) -> str:
        """Where the set is from, in a line."""
        return printable(self.sources.get(LEARNED) or "; ".join(sorted(set(self.sources.values()))), 160)

    def perturbed(self, rng: np.random.Generator, spread: float) -> Constants:
        """Every cost times exp(N(0, spread)): another machine of the same kind, with the same memory."""
        names = sorted((*INSTRUCTIONS, *CROSSINGS))
        factors = np.exp(spread * rng.standard_normal(len(names)))
        return self.model_copy(
            update={n: getattr(self, n) * float(f) for n, f in zip(names, factors, strict=True)}
            | {"sources": {"all": "perturbed"}}
        )

    def shared_by(self, workers: int) -> Constants:
        """What one of `workers` on an SM has of the SM's rates, while all of them use them."""
        names = ("drain_gbps", "l2_gbps", "sm_gbps")
        return self.model_copy(update={name: getattr(self, name) / workers for name in names}) if workers > 1 else self


INSTRUCTIONS = (
    "gemv_us", "chunk_us", "issue_us", "refill_fence_us", "barrier_us", "barrier_warp_us", "step_us", "round_us",
    "far_us_per_kib",
)  # fmt: skip
"""Costs of an SM's own instructions: they scale with its clock."""

CROSSINGS = (
    "copy_us", "l2_us", "hop_us", "poll_us", "skew_us", "fence_us", "fence_us_per_kib", "queue_us_per_kib", "miss_us",
)  # fmt: skip
"""Costs of crossing the chip: they scale with the L2's latency."""

THROUGHPUTS = ("chunk_gbps", "drain_gbps", "l2_gbps", "sm_gbps")
"""Rates of an SM: they scale with its clock."""


class Published(_Data):
    """Figures that others published for a target: boost clock, and latency of a load that hits the L2, in cycles."""

    target: str
    mhz: Rate
    l2_cycles: Rate
    sources: dict[str, str]

    @property
    def l2_us(self) -> float:
        return self.l2_cycles / self.mhz


class DataFile(_Data):
    constants: Annotated[tuple[Constants, ...], Field(strict=False)]
    published: Annotated[tuple[Published, ...], Field(strict=False)]


@cache
def stored() -> DataFile:
    path = Path(str(files("amk.simulator") / "constants.json"))
    try:
        return DataFile.model_validate(read_json(path, MOST_BYTES))
    except ValidationError as error:
        raise schema_error(error, str(path)) from error


def constants_for(target: Target) -> Constants:
    """The stored set of the target, else the reference set scaled by published figures."""
    known = {c.target: c for c in stored().constants}
    if target.name in known:
        return known[target.name]
    return scaled(known[REFERENCE], target)


def scaled(reference: Constants, target: Target) -> Constants:
    """`reference` for another target; a target without published figures keeps the reference's clock and latency."""
    figures = {p.target: p for p in stored().published}
    base = figures[REFERENCE]
    own = figures.get(target.name, base)
    clock, crossing = base.mhz / own.mhz, own.l2_us / base.l2_us
    update: dict[str, object] = {name: getattr(reference, name) * clock for name in INSTRUCTIONS}
    update |= {name: getattr(reference, name) * crossing for name in CROSSINGS}
    update |= {name: getattr(reference, name) / clock for name in THROUGHPUTS}
    sources = own.sources if own is not base else {"clock": f"assumed: that of {REFERENCE}"}
    update |= {
        "target": target.name, "read_gbps": target.read_ceiling_gbps, "fast_sms": 0.0, "fast_gain": 1.0,
        "sources": {
            "read_gbps": target.sources.get("read_ceiling_gbps", ""), **sources,
            "all others": f"constants of {reference.target}, scaled by clock and by L2 latency",
        },
    }  # fmt: skip
    return reference.model_copy(update=update)


def load_constants(path: Path) -> Constants:
    """A file that `amk calibrate --learn` or `amk simulate --calibrate` wrote."""
    try:
        return Constants.model_validate(read_json(path, FILE_BYTES))
    except ValidationError as error:
        raise schema_error(error, str(path)) from error


def given_constants(path: Path | None, target: Target) -> Constants | None:
    """Those of the file, if there is one. AMK005 if it is about another target."""
    return None if path is None else constants_of(load_constants(path), target, str(path))


def constants_of(constants: Constants, target: Target, origin: str = "") -> Constants:
    """Those that were given for `target`, in a file if `origin` names one. AMK005 if they are about another."""
    if constants.target != target.name:
        message = f"constants of {constants.target}, and {target.name} was asked for"
        raise AmkError(Diagnostic("AMK005", message, where=Where(file=origin) if origin else None))
    return constants


def save_constants(constants: Constants, path: Path) -> None:
    """AMK001 if it cannot be written."""
    try:
        path.write_text(as_text(constants))
    except OSError as error:
        raise AmkError(Diagnostic("AMK001", f"cannot write: {error}", where=Where(file=str(path)))) from error


def as_text(constants: Constants) -> str:
    """The file's content."""
    return json.dumps(constants.model_dump(mode="json"), indent=1, sort_keys=True) + "\n"
