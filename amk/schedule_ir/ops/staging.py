"""What the ops that stage a vector for a product have in common: the layouts of the vector, and who writes which part.

A staged vector is bf16, in the order of `x_place`, or, for weights that are codes, numbers in blocks of 64 that share a
scale (block_point.py): then shares are whole blocks, and the last block is filled up with zeros. The dtype of `x` says
which.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from amk.report.schema import unless
from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Name
from amk.schedule_ir.ops.base import Access, Geometry, Memory, Op, ValueKey, part_columns, split
from amk.schedule_ir.ops.precondition import AGENTS, ALONE, Need, Term, has, is_a, lacks, own, row, wide
from amk.weights.weight_format import BLOCK, whole_blocks

I = TypeVar("I", int, NDArray[np.int64])  # noqa: E741


def staged_share(count: int, blocks: bool, parts: int, index: int) -> tuple[int, int]:
    """The index-th of `parts` contiguous shares of `count` staged elements, whole blocks where there are any."""
    if not blocks:
        return split(count, parts, index)
    lo, hi = split(whole_blocks(count), parts, index)
    return min(lo * BLOCK, count), min(hi * BLOCK, count)


RUN = 8
"""Elements of a vector in bf16 whose order the layout changes among themselves."""


def x_place(i: I) -> I:
    """Where element i of a vector in bf16 stands: in each run the second and the third pair change places. Its own
    inverse. Twin of x_place() in context.cuh."""
    return i & ~6 | (i & 2) << 1 | (i & 4) >> 1


def x_places(lo: int, hi: int) -> list[tuple[int, int]]:
    """Where elements [lo, hi) of a vector in bf16 stand, as maximal ranges: one if lo and hi are multiples of RUN."""
    first, last = -(-lo // RUN) * RUN, hi // RUN * RUN
    cut = [*range(lo, first), *range(last, hi)] if first <= last else range(lo, hi)
    ranges: list[tuple[int, int]] = []
    for a, b in sorted([(x_place(i), x_place(i) + 1) for i in cut] + ([(first, last)] if first < last else [])):
        if ranges and ranges[-1][1] == a:
            ranges[-1] = ranges[-1][0], b
        else:
            ranges.append((a, b))
    return ranges


def whole_fetches(count: Term, field: str) -> tuple[Need, ...]:
    """What an op relies on that shares out `count` elements of a hand-off in fetches."""
    fetch = wide(field)
    return (
        Need("fetches", count.multiple_of(fetch), "the vector is whole fetches"),
        Need("shares", has("scales") | count.multiple_of(fetch * AGENTS), "every warp's share is whole fetches"),
        Need("rows", ALONE | row(field).multiple_of(fetch), "every sequence's row is whole fetches"),
    )


LANES = 32
NORM_FETCHES = 8
"""Fetches that a lane keeps in flight while it stages a normalised vector: all of its share, as many weights beside."""


def one_batch(count: Term, field: str) -> Need:
    """What an op relies on that weights `count` elements of a hand-off by a norm: all of a warp's share is in flight at
    once. Whole blocks need no more: what a warp has at most is whole blocks itself."""
    most = wide(field) * AGENTS * (LANES * NORM_FETCHES)
    return Need("one-batch", count <= most, "what a warp norms at once is one batch of fetches")


def in_parts(count: Term, field: str, parts: Term) -> tuple[Need, ...]:
    """`whole_fetches` of one of `parts` equal parts of the elements, of which the op goes through `k_parts`."""
    return (
        *whole_fetches(count // parts, field),
        Need("parts", count.multiple_of(parts), "the parts of the columns are equal"),
        Need("part", own("k_part") < own("k_parts"), "the part is one of them"),
        # The last block of a part is filled up with zeros, which are not the elements that follow.
        Need("undivided", lacks("scales") | parts.equals(1), "a vector in blocks is staged as a whole"),
    )


class Staging(Op):
    """An op that writes x, a row for each sequence of the batch, and the same in the layout of `also`.

    scales, f32 [blocks]: the power of two of each block, where x or also is in blocks. sums, f32 [blocks]: the sum of a
    block's elements, where a reader needs it. Blocks are those of a single sequence. Both are whole blocks then: the
    elements beyond the vector's are zeros.
    """

    needs: ClassVar[tuple[Need, ...]] = (
        Need("batch-in-bf16", ALONE | (lacks("scales") & lacks("also")), "a batch is staged in bf16"),
        Need("blocks", has("scales") | is_a("x", "bf16"), "a vector in blocks has scales"),
        Need("second", lacks("also") | has("scales"), "a second layout has scales"),
        Need(
            "sums",
            lacks("sums") | (has("scales") & (is_a("x", "digits") | is_a("also", "digits"))),
            "sums are those of blocks of digits",
        ),
        Need("x-rows", ALONE | row("x").multiple_of(8), "every sequence's row of x is whole 16 bytes"),
    )
    in_flight: ClassVar[int] = 8192
    x: Name
    also: Name | None = None
    scales: Name | None = None
    sums: Name | None = None

    @property
    def scale_run(self) -> int:
        """Neighbouring blocks of an agent's share that have one scale, from its beginning on."""
        return 1

    def by_rows(self, geo: Geometry) -> bool:
        return geo.vectors > 1

    def _staged_share(self, count: int, env: Env, geo: Geometry) -> tuple[int, int]:
        """The agent's elements [lo, hi) of a staged vector of `count`."""
        return staged_share(count, self.scales is not None, geo.role_size[self.role], int(env.agent))

    def _part_share(self, count: int, env: Env, geo: Geometry) -> tuple[int, int, int]:
        """Of an op that stages part k_part of k_parts of the columns: (first column, the agent's share from there)."""
        parts, part = getattr(self, "k_parts"), getattr(self, "k_part")  # noqa: B009
        first, size = part_columns(count, env, part, parts, getattr(self, "k_splits", 1))
        return (first, *self._staged_share(size, env, geo))

    def _staged(
        self, geo: Geometry, lo: int, hi: int, value: ValueKey, width: int, origin: int | None = None
    ) -> list[Access]:
        """The writes of elements [lo, hi), from `origin` (lo unless given) on of the `width` that a vector has.

        A value's elements are numbered by their places in x, where writers and readers agree.
        """
        if hi <= lo:
            return []
        out: list[Access] = []
        before = 0 if origin is None else origin - lo
        for name in (self.x, self.also):
            if name is not None:
                plain = geo.buffers[name].dtype == "bf16"
                for a, b in x_places(lo, hi) if plain else [(lo, whole_blocks(hi) * BLOCK)]:
                    out += geo.rows("write", name, a, b, value, width, before + a)
                if plain and self.scales is not None:  # beside a vector in blocks it is filled up with zeros
                    for a, b in x_places(hi, whole_blocks(hi) * BLOCK):
                        out += geo.span("write", name, a, b, None)
        for name, kind in ((self.scales, "scales"), (self.sums, "sums")):
            if name is not None:
                out += geo.span("write", name, lo // BLOCK, whole_blocks(hi), (f"{value[0]}.{kind}", value[1]))
        return out

    def _stage(self, geo: Geometry, mem: Memory, lo: int, values: NDArray[Any], sequence: int = 0) -> None:
        """Write elements [lo, lo + values.size) of a sequence, a share."""
        if not values.size:
            return
        values = np.asarray(values, np.float32)
        filled = np.pad(values, (0, -values.size % BLOCK))
        run = self.scale_run
        for name in (self.x, self.also):
            if name is not None and geo.buffers[name].dtype != "bf16":
                mem.write(name, geo.row(name, sequence) + lo, filled, run)
            elif name is not None:
                written = values if self.scales is None else filled
                for a, b in x_places(lo, lo + written.size):
                    mem.write(name, geo.row(name, sequence) + a, written[x_place(np.arange(a, b)) - lo])
        from amk.weights.block_point import block_scales, block_sums  # no footprint needs their numbers

        if self.scales is not None:
            mem.write(self.scales, lo // BLOCK, block_scales(filled, run))
        if self.sums is not None:
            mem.write(self.sums, lo // BLOCK, block_sums(filled, run))


ScaleBlocks = Literal[1, 2, 4, 8, 16]


def whole_runs(field: str) -> Need:
    """What an op relies on whose fetches of `field` are runs of blocks with one scale."""
    runs = own("scale_blocks")
    whole = has("scales") & (runs * 2).multiple_of(wide(field))
    return Need("runs-of-blocks", runs.equals(1) | whole, "blocks that share a scale are whole fetches of a warp")


class RunStaging(Staging):
    """An op that stages what it fetches, several neighbouring blocks at a time.

    scale_blocks: of an agent's share so many blocks, from its beginning on, share a scale.
    """

    scale_blocks: ScaleBlocks = unless(1)

    @property
    def scale_run(self) -> int:
        return self.scale_blocks
