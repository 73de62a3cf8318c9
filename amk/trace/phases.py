"""What a recorded token spent its time on: by phase, by SM, and how much weight data was on its way.

* A *phase* is the steps of a warp up to and including a gemv, named after its matrix. What follows the last is `end`.
* *Exposed wait* is the time in wait steps, and in barriers where other warps wait for the one that waits. Steps that
  read tagged words wait inside themselves, so that time counts with the step.
* *In flight* are the bytes of weight chunks that were issued and not yet drained. Each drain issues the next, so after
  j of a warp's n chunks these are min(slots, n - j) chunks. That includes chunks that have landed. Every chunk counts
  with the size of a slot. Inside a gemv chunks are taken to be drained evenly.
* *Drained* bytes of a phase may lie in the ring when it begins. At most that many are *resident*. The rest *arrives*,
  and only its rate is bounded by the memory's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from amk.models.matrices import MatrixName
from amk.report.timeline import Cell, Series, Table
from amk.schedule_ir.layout import stream_layout
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.schedule import Schedule
from amk.trace.recording import Recording
from amk.trace.steps import kind_of, name_of
from amk.validator.program.trace import Item, unroll

F64 = npt.NDArray[np.float64]
GRID: Final = 500
"""Points of a series."""
WORST: Final = 6
"""SMs listed on either end."""


def token_items(schedule: Schedule, worker: int) -> list[Item]:
    """The steps of one token of a worker, in program order."""
    for number, program in enumerate(schedule.programs):
        if program.first <= worker < program.first + program.count:
            return [item for item in unroll(program, number, 1) if item.token >= 0]
    raise IndexError(worker)


def phase_names(items: list[Item]) -> list[str]:
    """The phase of each step."""
    names = [item.step.op.matrix if isinstance(item.step.op, GemvOp) else "" for item in items]
    following = "end"
    for i in range(len(names) - 1, -1, -1):
        following = names[i] or following
        names[i] = following
    return names


@dataclass(frozen=True, eq=False)
class Measured:
    """A recording with the schedule it is of; times in microseconds."""

    schedule: Schedule
    recording: Recording

    @cached_property
    def marks(self) -> F64:
        """[workers, warps, length] microseconds since the worker began the token; beyond a warp's steps, anything."""
        microseconds: F64 = self.recording.cycles().astype(np.float64) * self.us_per_cycle
        return microseconds

    @cached_property
    def us_per_cycle(self) -> float:
        """From the measured time of a token and the longest run of marks."""
        cycles = self.recording.cycles()
        longest = max(
            int(cycles[worker, warp, len(self.steps(worker, warp))])
            for worker in range(cycles.shape[0])
            for warp in range(cycles.shape[1])
        )
        return self.recording.token_us / max(longest, 1)

    @cached_property
    def _items(self) -> dict[int, list[Item]]:
        """By first worker of the program."""
        return {program.first: token_items(self.schedule, program.first) for program in self.schedule.programs}

    def items(self, worker: int) -> list[Item]:
        return self._items[max(first for first in self._items if first <= worker)]

    @cached_property
    def _steps(self) -> dict[tuple[int, int], list[int]]:
        roles = {r.name: range(r.first, r.first + r.count) for r in self.schedule.roles}
        return {
            (first, warp): [i for i, item in enumerate(items) if warp in roles[item.step.op.role]]
            for first, items in self._items.items()
            for warp in range(self.schedule.launch.warps)
        }

    def steps(self, worker: int, warp: int) -> list[int]:
        """The items that a warp runs, one mark each."""
        return self._steps[max(first for first in self._items if first <= worker), warp]

    def lengths(self, worker: int, warp: int) -> F64:
        """Microseconds of each step of the warp."""
        marks = self.marks[worker, warp, : len(self.steps(worker, warp)) + 1]
        microseconds: F64 = np.diff(marks)
        return microseconds

    @cached_property
    def spent(self) -> dict[tuple[str, str], F64]:
        """(phase, kind) -> [workers] microseconds, the mean of the worker's warps."""
        launch = self.schedule.launch
        times: dict[tuple[str, str], F64] = {}
        for worker in range(launch.workers):
            items = self.items(worker)
            phases, kinds = phase_names(items), [kind_of(item.step) for item in items]
            for warp in range(launch.warps):
                for i, length in zip(self.steps(worker, warp), self.lengths(worker, warp).tolist(), strict=True):
                    row = times.setdefault((phases[i], kinds[i]), np.zeros(launch.workers))
                    row[worker] += length / launch.warps
        return times

    def phases(self) -> list[str]:
        firsts = [program.first for program in self.schedule.programs]
        return list(dict.fromkeys(phase for first in firsts for phase in phase_names(self.items(first))))

    def time(self, phase: str | None, *kinds: str) -> F64:
        """[workers] microseconds in steps of these kinds (none: all), of one phase or of all."""
        rows = [
            row for (name, kind), row in self.spent.items() if phase in (None, name) and (not kinds or kind in kinds)
        ]
        return np.sum(rows, axis=0) if rows else np.zeros(self.schedule.launch.workers)

    @cached_property
    def bytes(self) -> dict[str, int]:
        """Weight bytes of a token by phase."""
        stream = self.schedule.streams[0]
        layout = stream_layout(self.schedule, stream)
        sums: dict[str, int] = {}
        for name, layer, _ in layout.drains:
            size = stream.chunk(name, layer).bytes
            sums[name] = sums.get(name, 0) + int(layout.counts[name, layer].sum()) * size
        return sums

    @cached_property
    def resident(self) -> dict[str, int]:
        """Weight bytes of a token, by phase, that rings can have held when a drain of the phase began: a slot each."""
        stream = self.schedule.streams[0]
        if not stream.run_ahead:
            return {}
        layout = stream_layout(self.schedule, stream)
        sums: dict[str, int] = {}
        for name, layer, _ in layout.drains:
            held = np.minimum(stream.slots, layout.counts[name, layer])
            sums[name] = sums.get(name, 0) + int(held.sum()) * stream.chunk(name, layer).bytes
        return sums

    def tables(self) -> tuple[Table, ...]:
        return self._phase_table(), self._step_table(), self._sm_table()

    def _step_table(self) -> Table:
        """Steps that stand alike in several programs are one row; a step of a loop has the time of all its passes."""
        launch = self.schedule.launch
        spent, first = dict[str, float](), dict[str, int]()
        for worker in range(launch.workers):
            items = self.items(worker)
            for warp in range(launch.warps):
                for i, us in zip(self.steps(worker, warp), self.lengths(worker, warp).tolist(), strict=True):
                    name = self._step_name(items[i])
                    spent[name] = spent.get(name, 0.0) + us
                    first.setdefault(name, items[i].site.number)
        warps = launch.workers * launch.warps
        rows = tuple((name, spent[name] / warps) for name in sorted(first, key=first.__getitem__))
        return Table("Where a token's time goes, by step (mean of all warps)", ("step", "us a token"), rows)

    def _step_name(self, item: Item) -> str:
        """With its number in its program, as `barrier 1` stands at many places."""
        return f"{item.site.number}: {name_of(item.step)}"

    def _phase_table(self) -> Table:
        header = (
            "phase", "us a token", "weights us", "exposed wait us", "of it in barriers us", "other us", "MB drained",
            "of it resident at most", "GB/s drained", "GB/s arriving at least", "slowest SM / mean",
        )  # fmt: skip
        rows: list[tuple[Cell, ...]] = []
        for name in (*self.phases(), None):
            whole, weights = self.time(name), self.time(name, "weights")
            waits, barriers = self.time(name, "wait", "barrier"), self.time(name, "barrier")
            size = sum(self.bytes.values()) if name is None else self.bytes.get(name, 0)
            mean, other = float(whole.mean()), whole - weights - waits
            uneven = float(weights.max() / weights.mean()) if weights.any() else 1.0
            held = sum(self.resident.values()) if name is None else self.resident.get(name, 0)
            rate, arriving = (amount / mean / 1e3 if mean else 0.0 for amount in (size, size - held))
            rows.append(
                (name or "sum", mean, float(weights.mean()), float(waits.mean()), float(barriers.mean()),
                 float(other.mean()), size / 1e6, held / 1e6, rate, arriving, uneven)
            )  # fmt: skip
        return Table("Where a token's time goes (mean of all warps)", header, tuple(rows))

    def _sm_table(self) -> Table:
        weights, waits = self.time(None, "weights"), self.time(None, "wait", "barrier")
        order = np.argsort(-weights, kind="stable").tolist()
        shown = order if len(order) <= 2 * WORST else order[:WORST] + order[-WORST:]
        mean = float(weights.mean()) or 1.0
        rows = tuple((w, float(weights[w]), float(waits[w]), float(weights[w]) / mean) for w in shown)
        header = ("worker", "weights us", "exposed wait us", "weights / mean")
        return Table("SM imbalance: slowest and fastest on weights", header, rows)

    def series(self) -> tuple[Series, ...]:
        """Rate at which weights are drained, and bytes in flight, of all SMs."""
        stream = self.schedule.streams[0]
        grid = np.linspace(0.0, self.recording.token_us, GRID + 1)
        drained, flying = np.zeros(GRID + 1), np.zeros(GRID + 1)
        role = next(r for r in self.schedule.roles if r.name == stream.role)
        layout = stream_layout(self.schedule, stream)
        for worker in range(self.schedule.launch.workers):
            for agent in range(role.count):
                counts = {key: int(each[worker, agent]) for key, each in layout.counts.items()}
                sizes = {key: count * stream.chunk(*key).bytes for key, count in counts.items()}
                done = self._drained(worker, role.first + agent, counts, grid)
                drained += self._drained(worker, role.first + agent, sizes, grid)
                flying += np.minimum(stream.slots if stream.run_ahead else 0, layout.totals[worker, agent] - done)
        rate = np.diff(drained) / np.diff(grid) / 1e3
        at, megabytes = grid.tolist(), (flying * stream.chunk_bytes / 1e6).tolist()
        return (
            Series("weights drained", "GB/s", tuple(zip(at[:-1], rate.tolist(), strict=True))),
            Series("in flight or landed", "MB", tuple(zip(at, megabytes, strict=True))),
        )

    def _drained(self, worker: int, warp: int, amounts: dict[tuple[MatrixName, int], int], grid: F64) -> F64:
        """What a warp has drained at the times of the grid, if a gemv of a matrix and layer drains that amount."""
        items, steps = self.items(worker), self.steps(worker, warp)
        marks = self.marks[worker, warp, : len(steps) + 1]
        times, chunks = [0.0], [0]
        for k, i in enumerate(steps):
            op = items[i].step.op
            if isinstance(op, GemvOp):
                times += [float(marks[k]), float(marks[k + 1])]
                chunks += [chunks[-1], chunks[-1] + amounts[op.matrix, op.layer_at(items[i].loops)]]
        return np.interp(grid, times, chunks)
