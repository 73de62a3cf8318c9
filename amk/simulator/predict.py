"""Schedule and position -> time of one token, by phase.

Layers repeat: a window of a few layers is simulated, and the others take the time of the last one in it. The window
grows until its last two layers agree. Rings that run ahead start full, as they are in a running text.

The prediction is never below the floor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.layout import stream_layout
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.schedule import Schedule
from amk.simulator.constants import Constants, constants_for
from amk.simulator.engine import PARTS, Arrow, Engine, Part, Span, Stuck
from amk.simulator.floor import simulated_floor_ms
from amk.simulator.program import Unrolled, Window, layer_count
from amk.simulator.runs import runs
from amk.simulator.words import Footprints, Words
from amk.validator.program.trace import Item

WINDOWS = (3, 5, 9)
AGREE = 0.005
UNEQUAL = 1.06
"""Shares that differ by more than this are meant to; less is rounding to whole row groups."""


STREAMED: tuple[Part, ...] = ("memory",)
"""Time in which the memory is what a step waits for: no change of the order makes it shorter."""


@dataclass(frozen=True)
class Phase:
    """Steps between two waits, summed over layers: mean microseconds of a worker by what it does."""

    name: str
    runs: int
    parts: dict[Part, float]

    @property
    def us(self) -> float:
        return sum(self.parts.values())

    @property
    def bottleneck(self) -> Part:
        return max(PARTS, key=lambda p: self.parts.get(p, 0.0))


@dataclass(frozen=True, eq=False)
class Prediction:
    """`ms` per token at `pos`; the spans and arrows are those of the simulated window."""

    schedule: Schedule
    pos: int
    ms: float
    floor_ms: float
    layer_us: float
    phases: tuple[Phase, ...]
    window: Window
    spans: tuple[Span, ...]
    arrows: tuple[Arrow, ...]
    constants: Constants

    @property
    def bottleneck(self) -> str:
        """The phase that loses most while no memory is at work, and to what: `down: drain`."""
        lost = [(us, phase.name, part) for phase in self.phases for part, us in phase.parts.items()
                if part not in STREAMED]  # fmt: skip
        _, phase, part = max(lost, default=(0.0, "none", "memory"))
        return f"{phase}: {part}"

    def __repr__(self) -> str:
        subject = f"{self.schedule.model.name} on {self.schedule.target.name} at position {self.pos}"
        return f"<simulated, not measured: {self.ms:.4g} ms a token of {subject}, bottleneck {self.bottleneck}>"


@dataclass(eq=False)
class Unfolded:
    """What no position changes of a schedule: its steps by number of layers, and what they touch of words."""

    schedule: Schedule
    unrolled: dict[int, Unrolled] = field(default_factory=dict)

    @cached_property
    def footprints(self) -> Footprints:
        return Footprints(self.schedule)

    @cached_property
    def parts(self) -> tuple[tuple[float, Unfolded], ...]:
        """Share of the layers of each layer loop, and the schedule with that loop alone."""
        return tuple((share, Unfolded(part)) for share, part in runs(self.schedule))

    def words(self, pos: int, layers: int, fast: tuple[bool, ...]) -> Words:
        """Who waits for whom in a window of `layers` layers; fast[w]: worker w runs on a faster SM."""
        if layers not in self.unrolled:
            self.unrolled[layers] = Unrolled(self.schedule, layers)
        return Words(self.unrolled[layers].at(pos, fast), pos, self.footprints)


@dataclass(eq=False)
class Prepared:
    """A schedule at a position, unrolled and grouped once, to be timed with one set of constants or many.

    unfolded: that of the schedule, if it is timed at several positions.
    """

    schedule: Schedule
    pos: int
    unfolded: Unfolded | None = None
    windows: dict[tuple[int, tuple[bool, ...]], Words] = field(default_factory=dict)

    def step_ms(self, constants: Constants | None = None) -> float:
        """ms per token, at least the floor. Of several layer loops each is timed as if it were the only one."""
        if len(self.parts) > 1:
            return sum(share * part.step_ms(constants) for share, part in self.parts)
        constants = constants or constants_for(self.schedule.target)
        _, total, last, seen = self.converged(constants, traced=False)
        rest = layer_count(self.schedule) - seen
        return max((total + rest * last) / 1e3, simulated_floor_ms(self.schedule, self.pos, constants))

    @cached_property
    def parts(self) -> tuple[tuple[float, Prepared], ...]:
        """Share of the layers of each layer loop, and the schedule with that loop alone."""
        return tuple((share, Prepared(part.schedule, self.pos, part)) for share, part in self._unfolded.parts)

    @cached_property
    def _unfolded(self) -> Unfolded:
        return self.unfolded or Unfolded(self.schedule)

    def converged(self, constants: Constants, traced: bool = True) -> tuple[Engine, float, float, int]:
        """(engine, time of the window, time of its last layer, layers in it). AMK201 if the schedule gets stuck."""
        layers = layer_count(self.schedule)
        for size in WINDOWS:
            seen = min(size, layers)
            engine, total = self._run(constants, seen, traced)
            ends = _layer_ends(engine)
            times = [b - a for a, b in zip([0.0, *ends], ends, strict=False)]
            if seen == layers or abs(times[-1] - times[-2]) <= AGREE * times[-1]:
                break
        return engine, total, times[-1], seen

    def _run(self, constants: Constants, layers: int, traced: bool) -> tuple[Engine, float]:
        key = layers, fast_workers(self.schedule, constants)
        if key not in self.windows:
            self.windows[key] = self._unfolded.words(self.pos, *key)
        words = self.windows[key]
        words.forget()
        engine = Engine(words.window, constants.shared_by(self.schedule.launch.ctas_per_sm), words, traced)
        try:
            return engine, engine.run()
        except Stuck:
            message = f"{self.schedule.name} waits for something that no step gives"
            raise AmkError(Diagnostic("AMK201", message, help="`amk verify` names the step")) from None


def predict(schedule: Schedule, pos: int, constants: Constants | None = None) -> Prediction:
    """The time of the token at position `pos`. AMK201 if the schedule gets stuck.

    Of several layer loops the longest is shown, with the time of all.
    """
    if len(parts := runs(schedule)) > 1:
        longest = max(parts, key=lambda part: part[0])[1]
        return replace(predict(longest, pos, constants), schedule=schedule, ms=step_ms(schedule, pos, constants))
    constants = constants or constants_for(schedule.target)
    layers = layer_count(schedule)
    engine, total, last, seen = Prepared(schedule, pos).converged(constants)
    floor = simulated_floor_ms(schedule, pos, constants)
    ms = max((total + (layers - seen) * last) / 1e3, floor)
    phases = _phases(engine, seen, layers)
    return Prediction(
        schedule, pos, ms, floor, last, phases, engine.window, tuple(engine.spans),
        tuple(engine.arrows), constants,
    )  # fmt: skip


@dataclass(frozen=True)
class Simulator:
    """The simulator as a value: with the constants of each schedule's target, or with others."""

    constants: Constants | None = None

    def step_ms(self, schedule: Schedule, pos: int) -> float:
        """ms per token at `pos`, at least the floor."""
        return step_ms(schedule, pos, self.constants)

    def steps_ms(self, schedule: Schedule, positions: Sequence[int]) -> tuple[float, ...]:
        """ms per token at each of the positions."""
        return steps_ms(schedule, positions, self.constants)

    def predict(self, schedule: Schedule, pos: int) -> Prediction:
        """ms per token at `pos`, and where it goes. AMK201 if the schedule gets stuck."""
        return predict(schedule, pos, self.constants)


def step_ms(schedule: Schedule, pos: int, constants: Constants | None = None) -> float:
    """ms per token alone."""
    return Prepared(schedule, pos).step_ms(constants)


def steps_ms(schedule: Schedule, positions: Sequence[int], constants: Constants | None = None) -> tuple[float, ...]:
    """ms per token at each of the positions."""
    unfolded = Unfolded(schedule)
    return tuple(Prepared(schedule, pos, unfolded).step_ms(constants) for pos in positions)


def fast_workers(schedule: Schedule, constants: Constants) -> tuple[bool, ...]:
    """Which workers run on faster SMs. A plan with unequal shares gives the larger ones to faster SMs; otherwise
    nothing says which they are, and they are spread evenly."""
    workers = schedule.launch.workers
    count = round(workers * constants.fast_sms) if constants.fast_gain > 1 else 0
    load = sum(stream_layout(schedule, s).totals.sum(axis=1) for s in schedule.streams)
    if max(load) > UNEQUAL * min(load):
        chosen = set(sorted(range(workers), key=lambda w: -load[w])[:count])
        return tuple(w in chosen for w in range(workers))
    return tuple((w + 1) * count // workers > w * count // workers for w in range(workers))


def _layer_ends(engine: Engine) -> list[float]:
    """When the last group finished each layer."""
    ends = [s.layer_ends for s in engine.states if s.layer_ends]
    return [max(column) for column in zip(*ends, strict=True)] or [engine.now]


def _phases(engine: Engine, simulated_layers: int, layers: int) -> tuple[Phase, ...]:
    """Mean over workers. The layers that were not simulated count as the last one."""
    groups = engine.window.groups
    workers = sum(len(g.workers) for g in groups)
    names = [phase_names(items) for items in engine.window.items]
    sums: dict[str, dict[Part, float]] = defaultdict(lambda: defaultdict(float))
    runs: dict[str, int] = {}
    for span in engine.spans:
        group = groups[span.group]
        item = engine.window.items[group.program][span.item]
        name, layer = names[group.program][span.item], item.loops.get("l")
        factor = 1 + layers - simulated_layers if layer == simulated_layers - 1 else 1
        runs[name] = layers if layer is not None else runs.get(name, 1)
        sums[name][span.part] += (span.end - span.start) * factor * len(group.workers) / workers
    return tuple(Phase(name, runs[name], dict(parts)) for name, parts in sums.items())


def phase_names(items: Sequence[Item]) -> list[str]:
    """The phase of each item: a phase ends before a step that waits, and is named by what it is there for.

    The steps of a layer are a circle: what follows its last wait belongs to what precedes its first.
    """
    layer = [i for i, item in enumerate(items) if item.loops.get("l") == 0]
    first, last = (layer[0], layer[-1] + 1) if layer else (len(items), len(items))
    later = [i for i in range(last, len(items)) if "l" not in items[i].loops]
    names: dict[int, str] = {}
    for part in (list(range(first)), later):
        _name(names, [items[i] for i in part])
    waits = [k for k, i in enumerate(layer) if items[i].step.waits]
    turn = waits[-1] if waits else 0
    _name(names, [items[i] for i in layer[turn:] + layer[:turn]])
    return [names[item.site.number] for item in items]


def _name(names: dict[int, str], items: Sequence[Item]) -> None:
    """Names of the sites of `items`."""
    bounds = [0, *(k for k, item in enumerate(items) if k and item.step.waits), len(items)]
    for lo, hi in pairwise(bounds):
        for item in items[lo:hi]:
            names[item.site.number] = _main(items[lo:hi])


def _main(items: Sequence[Item]) -> str:
    ops = [item.step.op for item in items]
    matrices = [op.matrix for op in ops if isinstance(op, GemvOp)]
    if matrices:
        return matrices[0]
    kinds = [op.op for op in ops if op.op not in ("wait", "signal", "barrier", "begin", "finish")]
    return "attention" if "attend" in kinds else kinds[0] if kinds else "launch"
