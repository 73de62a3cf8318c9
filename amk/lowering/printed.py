"""A schedule's programs as they are printed: parts of a product that differ in their number alone are one loop.

Property: with every `PartLoop` written out, the steps are those of the schedule, in its order (`written_out`).
Algorithm: from a step on that is of a part, the longest run of equal groups of steps, in each of which every
    `k_part` is one higher than in the group before. Steps that wait or signal end it, and steps before which lanes of a
    warp meet in one group and not in another. The last part is mostly apart, because something else follows it.
Cost: linear in the steps, times `LONGEST`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from amk.lowering.lanes import lane_barriers, met_before
from amk.schedule_ir.schedule import Loop, Node, Schedule, Step

LEAST = 2
"""Parts of a product that are a loop."""
LONGEST = 6
"""Most steps of one part: staging, a product, and barriers around them."""


@dataclass(frozen=True)
class PrintedStep:
    """path: in the schedule, of the first step of those that a loop stands for. lanes_meet, warps_met: see `lanes`."""

    step: Step
    path: str
    lanes_meet: bool
    warps_met: bool

    def later(self, parts: int) -> PrintedStep | None:
        """The step of a later part; None for one that cannot be in a loop."""
        step, part = self.step, getattr(self.step.op, "k_part", None)
        if step.waits or step.signals:
            return None
        op = step.op if part is None else step.op.model_copy(update={"k_part": part + parts})
        return replace(self, step=step.model_copy(update={"op": op}))


@dataclass(frozen=True)
class PrintedLoop:
    loop: Loop
    body: tuple[Printed, ...]


@dataclass(frozen=True)
class PartLoop:
    """body: the steps of the first of `count` parts."""

    body: tuple[PrintedStep, ...]
    count: int


Printed = PrintedStep | PrintedLoop | PartLoop


def printed(schedule: Schedule) -> list[tuple[Printed, ...]]:
    """Of every program, its nodes."""
    meets, met = iter(lane_barriers(schedule)), iter(met_before(schedule))

    def walk(body: tuple[Node, ...], path: str) -> tuple[Printed, ...]:
        nodes: list[PrintedStep | PrintedLoop] = []
        for n, node in enumerate(body):
            here = f"{path}/{n}"
            if isinstance(node, Loop):
                nodes.append(PrintedLoop(node, walk(node.body, f"{here}/body")))
            else:
                nodes.append(PrintedStep(node, here, next(meets), next(met)))
        return tuple(_rolled(nodes))

    return [walk(program.body, f"/programs/{n}/body") for n, program in enumerate(schedule.programs)]


def written_out(nodes: Sequence[Printed]) -> Iterator[PrintedStep | PrintedLoop]:
    """The nodes without loops over parts; paths are those of the first part."""
    for node in nodes:
        if isinstance(node, PartLoop):
            for part in range(node.count):
                yield from (later for step in node.body if (later := step.later(part)) is not None)
        else:
            yield node


def _rolled(nodes: Sequence[PrintedStep | PrintedLoop]) -> Iterator[Printed]:
    at = 0
    while at < len(nodes):
        length, count = max(((n, _parts(nodes, at, n)) for n in range(1, LONGEST + 1)), key=lambda run: run[1])
        if count < 2:
            yield nodes[at]
            at += 1
            continue
        yield PartLoop(tuple(node for node in nodes[at : at + length] if isinstance(node, PrintedStep)), count)
        at += length * count


def _parts(nodes: Sequence[PrintedStep | PrintedLoop], at: int, length: int) -> int:
    """How many groups of so many steps from there on are parts of one product; 0 if the first step is of none."""
    first = nodes[at : at + length]
    steps = [node for node in first if isinstance(node, PrintedStep)]
    if len(steps) < length or getattr(steps[0].step.op, "k_parts", 1) < LEAST:
        return 0
    count = 0
    while True:
        expected = [step.later(count) for step in steps]
        found = nodes[at + count * length : at + (count + 1) * length]
        same = len(found) == length and all(
            isinstance(node, PrintedStep) and later is not None and node == replace(later, path=node.path)
            for node, later in zip(found, expected, strict=True)
        )
        if not same:
            return count
        count += 1
