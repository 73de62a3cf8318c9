"""What evaluations of one op say of its bytes: of one worker, of consecutive workers, from one layer to the next."""

from __future__ import annotations

from dataclasses import dataclass

from amk.schedule_ir.ops import Access
from amk.validator.program.aliases import Clash
from amk.validator.program.slopes import Slope
from amk.validator.program.system import I64


@dataclass(frozen=True, eq=False)
class Footprint:
    """Rows [n, 6] of one evaluation, coalesced. beyond: the first access outside its buffer; constants: those written.
    clash: two accesses of a byte by way of two buffers, one a write. names: what was read from the environment."""

    rows: I64
    beyond: Access | None
    clash: Clash | None
    constants: frozenset[str]
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Rows:
    """Footprints of one step on one agent of consecutive workers: rows [n, 6], how many each worker has.

    beyond: (worker, access) of the first access outside its buffer. names, loops: tables and loop variables read.
    """

    rows: I64
    counts: tuple[int, ...]
    beyond: tuple[int, Access] | None
    clash: Clash | None
    constants: frozenset[str]
    positional: bool
    names: tuple[str, ...]
    loops: frozenset[str]


@dataclass(frozen=True, eq=False)
class Change:
    """What some workers' rows change by from one layer to the next, None if that is no slope; the footprints seen.

    anywhere: the slope is the same wherever the shared buffers lie.
    """

    slope: Slope | None
    seen: tuple[tuple[int, Footprint], ...]
    names: tuple[str, ...]
    anywhere: bool = False
