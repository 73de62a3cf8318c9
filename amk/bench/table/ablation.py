"""What each part of a decode kernel costs: the kernel as it is emitted with parts left out, and what the times say.

An ablated kernel computes nothing that is of use. Two definitions in front of the emitted source make it: one switches
parts off (`ablation.cuh` says what each bit leaves out), the other renames the symbol. It carries no schedule's hash.
So a schedule cannot ask for it, `AdmittedKernel` refuses its code (AMK606), and only `amk.bench.table.ablated` launches
it.

The *worth* of a part is the time of the kernel less the time without the part. Parts overlap: the worth of a pair is
not the sum of two worths, and the difference says which of them hide behind each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

from amk.bench.table.row import Key
from amk.bench.tools.times import Times, finite
from amk.lowering.emit import KERNEL, emit
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.ops import BarrierOp
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.schedule import Loop, Node, Schedule, Step

SYMBOL = "amk_ablated"

PARTS = {
    "waits": "waits between SMs pass at once, words count as fresh",
    "staging": "no vector is read from L2 and written for a product",
    "sums": "no partial sum is read",
    "product": "chunks arrive and are given back unread",
    "fence": "slots are refilled without the proxy fence",
    "attention": "the cache is not read",
    "argmax": "neither logits nor candidates are looked at",
    "place": "every copy of a warp is of its first chunk: from L2, not from memory",
    "depth": "rings have twice the slots, which share their bytes",
    "words": "every second fetch of a vector is not made, and stands for the one before it",
    "meeting": "no barrier between staging and its product: a warp multiplies when its own share is there",
    "conversion": "a vector for codes is stored as it was read: no scales, no digits",
    "input": "the counter that says that the input of `down` is there is not waited for",
}
"""Names in the order of the bits of AMK_ABLATION."""

WAITS = "waits"
INPUT = "act"
"""The counter of the input of `down`."""
PARTS_OF_PAIRS = tuple(name for name in PARTS if name != WAITS)
WORK = ("waits", "staging", "sums", "product", "fence", "attention", "argmax")
"""All of a worker but its copies."""

Parts = frozenset[str]
NOTHING: Parts = frozenset()


def mask(parts: Iterable[str]) -> int:
    """AMK_ABLATION for these parts; AMK005 for a name that is none."""
    names = list(PARTS)
    if unknown := sorted(set(parts) - set(names)):
        raise AmkError(Diagnostic("AMK005", f"no part is called {unknown[0]}", help=f"parts: {', '.join(names)}"))
    return sum(1 << names.index(part) for part in parts)


def variants(parts: Sequence[str] = PARTS_OF_PAIRS) -> list[Parts]:
    """The kernel itself, each of `parts` and each pair, with the waits and without; last the copies alone."""
    few = [frozenset(chosen) for size in (0, 1, 2) for chosen in combinations(parts, size)]
    found = [one | extra for extra in (NOTHING, frozenset({WAITS})) for one in few]
    return list(dict.fromkeys([*found, frozenset(WORK)]))


def ablated_source(schedule: Schedule, parts: Parts) -> str:
    """The translation unit without `parts`. AMK005 for none, which is the product's own kernel, and where the input of
    `down` is behind no counter; AMK601 for a target whose rings are not filled by bulk copies."""
    schedule.target.require("bulk_copy", "an ablated kernel")
    if not parts:
        raise AmkError(Diagnostic("AMK005", "an ablation leaves something out"))
    if "meeting" in parts:
        schedule = unmet(schedule)
    if "input" in parts:
        schedule = unfed(schedule)
    return f"#define AMK_ABLATION {mask(parts)}u\n#define {KERNEL} {SYMBOL}\n{emit(schedule)}"


def unmet(schedule: Schedule) -> Schedule:
    """The schedule without the barriers that stand directly before a product. It has races; only ablations use it."""
    programs = [p.model_copy(update={"body": _unmet(p.body)}) for p in schedule.programs]
    return schedule.model_copy(update={"programs": tuple(programs)})


def _unmet(body: Sequence[Node]) -> tuple[Node, ...]:
    kept: list[Node] = []
    for node in body:
        if isinstance(node, Loop):
            node = node.model_copy(update={"body": _unmet(node.body)})
        elif isinstance(node.op, GemvOp) and kept and isinstance(kept[-1], Step) and isinstance(kept[-1].op, BarrierOp):
            kept.pop()
        kept.append(node)
    return tuple(kept)


def unfed(schedule: Schedule) -> Schedule:
    """The schedule whose `down` does not wait for its input. It has races; only ablations use it. AMK005 where the
    words of that input say themselves that they are there."""
    programs = tuple(p.model_copy(update={"body": _unfed(p.body)}) for p in schedule.programs)
    if programs == schedule.programs:
        raise AmkError(Diagnostic("AMK005", "the input of `down` is behind no counter"))
    return schedule.model_copy(update={"programs": programs})


def _unfed(body: Sequence[Node]) -> tuple[Node, ...]:
    kept: list[Node] = []
    for node in body:
        if isinstance(node, Loop):
            kept.append(node.model_copy(update={"body": _unfed(node.body)}))
        else:
            waits = tuple(wait for wait in node.waits if wait.counter != INPUT or wait.order != "acquire")
            kept.append(node.model_copy(update={"waits": waits}))
    return tuple(kept)


def named(parts: Parts) -> str:
    """`waits+sums`; `-` for the kernel as it is."""
    return "+".join(name for name in PARTS if name in parts) or "-"


def parts_of(name: str) -> Parts:
    parts = NOTHING if name == "-" else frozenset(name.split("+"))
    mask(parts)
    return parts


@dataclass(frozen=True)
class Ablation:
    """A measured row. times: ms per step by `named` parts, "-" being the kernel itself; left_out: why other kernels
    have none; ceiling_gbps: of the same process; error, torch_error, correct: of the kernel itself.
    """

    key: Key
    layers: int
    bytes: int
    l2_bytes: int
    ceiling_gbps: float
    times: dict[str, Times]
    error: float
    torch_error: float
    correct: bool
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def ms(self) -> float:
        return self.times["-"].ms

    @property
    def floor_ms(self) -> float:
        """Bytes that L2 cannot have kept, over the ceiling of the same run."""
        return max(0, self.bytes - self.l2_bytes) / self.ceiling_gbps / 1e6

    def worth(self, parts: Parts, without: Parts = NOTHING) -> float | None:
        """ms that `parts` cost where `without` is left out already; None unless both kernels were measured."""
        base, less = self.times.get(named(without)), self.times.get(named(parts | without))
        return None if base is None or less is None else base.ms - less.ms

    def hidden(self, pair: Parts) -> float | None:
        """ms by which a pair is worth more than its parts, which hide behind each other; negative if they overlap."""
        both, each = self.worth(pair), [self.worth(frozenset({one})) for one in pair]
        return None if both is None or None in each else both - sum(value for value in each if value is not None)

    @property
    def bound_ms(self) -> float | None:
        """The copies alone, by the same rings: no kernel with this plan's stream is faster."""
        found = self.times.get(named(frozenset(WORK)))
        return None if found is None else found.ms

    def record(self) -> dict[str, Any]:
        """JSON values: the fields and what follows from them."""
        worth = {name: self.worth(parts_of(name)) for name in self.times if name != "-"}
        us = {name: None if ms is None else 1e3 * ms / self.layers for name, ms in worth.items()}
        derived = {"floor_ms": self.floor_ms, "bound_ms": self.bound_ms, "worth_ms": worth, "worth_us_per_layer": us}
        return dict(finite(asdict(self) | derived))


HEADER = ("left out", "ms", "p10", "p90", "worth ms", "us a layer", "%", "without waits", "worth ms", "us a layer")
PAIRS = ("pair", "worth ms", "us a layer", "more than the sum", "without waits", "us a layer")


def cells(ablation: Ablation) -> list[tuple[str, ...]]:
    """A line for the kernel itself and each single part, in the order of `HEADER`: with the waits, and without."""
    waits = frozenset({WAITS})
    singles = [NOTHING, *(frozenset({p}) for p in PARTS if p in ablation.times)]
    lines: list[tuple[str, ...]] = []
    for parts in singles:
        own = ablation.times[named(parts)]
        other = ablation.times.get(named(parts | waits)) if WAITS not in parts else None
        worth, alone = ablation.worth(parts), ablation.worth(parts, waits)
        lines.append((
            named(parts), f"{own.ms:.4f}", f"{own.p10:.4f}", f"{own.p90:.4f}", *_worth(worth, ablation.layers),
            "-" if worth is None else f"{100 * worth / ablation.ms:.1f}", "-" if other is None else f"{other.ms:.4f}",
            *(_worth(alone, ablation.layers) if other is not None else ("-", "-")),
        ))  # fmt: skip
    return lines


def pairs(ablation: Ablation) -> list[tuple[str, ...]]:
    """A line for each pair of parts, what it is worth, most first."""
    waits = frozenset({WAITS})
    lines: list[tuple[float, tuple[str, ...]]] = []
    for name in ablation.times:
        parts = parts_of(name)
        worth, hidden = ablation.worth(parts), ablation.hidden(parts) if len(parts) == 2 else None
        if worth is None or hidden is None:
            continue
        alone = ablation.worth(parts, waits) if WAITS not in parts else None
        lines.append((worth, (
            name, *_worth(worth, ablation.layers), f"{hidden:+.4f}", *_worth(alone, ablation.layers),
        )))  # fmt: skip
    return [line for _, line in sorted(lines, key=lambda each: -each[0])]


def summary(ablation: Ablation) -> str:
    """One sentence: the time, the floor, the copies alone, and the part that is worth most."""
    singles = {p: w for p in PARTS if (w := ablation.worth(frozenset({p}))) is not None}
    most = max(singles, key=lambda p: singles[p], default=None)
    bound = "not measured" if ablation.bound_ms is None else f"{ablation.bound_ms:.4f}"
    text = f"{ablation.ms:.4f} ms; floor {ablation.floor_ms:.4f}; copies alone {bound}"
    if most is None:
        return text
    return (
        f"{text}; most is worth {most}: {singles[most]:.4f} ms, {1e3 * singles[most] / ablation.layers:.2f} us a layer"
    )


def _worth(ms: float | None, layers: int) -> tuple[str, str]:
    return ("-", "-") if ms is None else (f"{ms:.4f}", f"{1e3 * ms / layers:.2f}")
