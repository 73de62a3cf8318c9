"""Must-happen-before between workers, from claimed vectors that are checked to be a post-fixpoint.

S[w, j][x] = number of first items of worker x that are over (on all warps) before any warp of worker w starts item j,
in every execution. In one pass in run order each warp carries its own vector: it grows by the claims K(c, t) of its
waits, by the start of the steps whose words it has read, and meets the others at barriers. A claim v = K(c, t)[x] > 0
holds if the signals that may be given while worker x has not finished v items weigh less than t - init(c).

Three orders: `fence` (releases and acquires: what was written is visible), `time` (these and tagged words: what was
read has been read, because what is stored in a word was computed from it), `wait` (these and all that blocks: a word
has been seen with its tag, because whoever waits behind hints for its reader does not go on before).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from amk.checker.counters import AMOUNT, INSTANCE, ITEM, WARP, WEAK, WORKER, Counters
from amk.checker.programs import CREW, Program, require
from amk.checker.words import Words
from amk.schedule_ir.ops import BarrierOp

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Claims = dict[tuple[int, int], I64]
CELLS: Final = 1 << 28


class Order:
    """Rows of S for one kind of edges, and the crews of every counter that signal it."""

    def __init__(
        self, edges: str, programs: list[Program], counters: Counters, words: Words, level: I64, claims: Claims
    ) -> None:
        self.programs, self.counters, self.claims = programs, counters, claims
        self.words = words if edges != "fence" else None
        self.hints = edges == "wait"
        self.workers, self.longest = level.shape
        warps = programs[0].warps
        require(self.workers * self.workers * max(self.longest, warps) <= CELLS, "schedule: too large")
        self.starts: I32 = np.zeros((self.workers, self.longest, self.workers), np.int32)
        waits = counters.waits[(counters.waits[:, WEAK] == 0) | self.hints]
        self._waits = {
            (g, j, a): rows for g, program in enumerate(programs) for j, a, rows in _grouped(waits, program.workers)
        }
        state = np.zeros((self.workers, warps, self.workers), np.int32)
        for g, j in sorted(_steps(programs), key=lambda step: int(level[programs[step[0]].workers.start, step[1]])):
            self._run(g, j, state)

    def _run(self, g: int, j: int, state: I32) -> None:
        """Item j on all workers of program g."""
        program = self.programs[g]
        mine, role = slice(program.workers.start, program.workers.stop), program.roles[j]
        workers = np.arange(mine.start, mine.stop)
        for a in role:
            state[workers, a, workers] = np.maximum(state[workers, a, workers], program.ahead[j, a, CREW])
            for row in self._waits.get((g, j, a), np.zeros((0, 6), np.int64)).tolist():
                claim = self.claims.get((row[INSTANCE], row[AMOUNT]))
                if claim is not None:
                    np.maximum(state[row[WORKER], a], claim, out=state[row[WORKER], a], casting="unsafe")
        crew = slice(role.start, role.stop)
        self.starts[mine, j] = state[mine, crew].min(axis=1)
        if self.words is not None:
            for a in role:
                self._read(mine, j, a, state)
        if isinstance(program.items[j].step.op, BarrierOp):
            state[mine, crew] = state[mine, crew].max(axis=1, keepdims=True)

    def _read(self, mine: slice, j: int, a: int, state: I32) -> None:
        assert self.words is not None
        for reading in self.words.readings.get((j, a), ()):
            here = (reading.workers >= mine.start) & (reading.workers < mine.stop)
            masks, which = np.unique(reading.mask[here], axis=0, return_inverse=True)
            known = np.zeros((len(masks), self.workers), np.int32)
            for i, mask in enumerate(masks):
                owner = np.flatnonzero(mask)
                if len(owner):
                    known[i] = self.starts[owner, reading.writer[owner]].max(axis=0)
            at = reading.workers[here]
            state[at, a] = np.maximum(state[at, a], known[which.reshape(-1)])

    def producers(self, instance: int) -> tuple[I64, I32, I64, I64]:
        """Crews that signal: (worker, item) rows, their starts, their weight, what is missing while a crew is not over.
        Signals that are weak for this order know nothing."""
        rows = self.counters.signals[self.counters.signals[:, INSTANCE] == instance]
        weak = (rows[:, WEAK] != 0) & (not self.hints)
        warps, part = np.unique(rows[~weak][:, [WORKER, ITEM, WARP]], axis=0, return_inverse=True)
        amount = np.bincount(part.reshape(-1), rows[~weak, AMOUNT], minlength=len(warps)).astype(np.int64)
        crews, which = np.unique(warps[:, :2], axis=0, return_inverse=True)
        weight = np.bincount(which.reshape(-1), amount, minlength=len(crews)).astype(np.int64)
        least = np.zeros(len(crews), np.int64)
        parts = np.bincount(which.reshape(-1), minlength=len(crews))
        sizes = np.array([self._crew_size(w, j) for w, j in crews.tolist()], np.int64)
        smallest = np.full(len(crews), np.iinfo(np.int64).max)
        np.minimum.at(smallest, which.reshape(-1), amount)
        least[parts == sizes] = smallest[parts == sizes]
        starts = self.starts[crews[:, 0], crews[:, 1]]
        loose = int(rows[weak, AMOUNT].sum())
        nothing = np.zeros((1, self.workers), np.int32)
        crews = np.concatenate((crews, [[-1, -1]]))
        return crews, np.concatenate((starts, nothing)), np.append(weight, loose), np.append(least, 0)

    def _crew_size(self, worker: int, item: int) -> int:
        return next(len(p.roles[item]) for p in self.programs if worker in p.workers)

    def check(self) -> None:
        """Every claim is a consequence of the others."""
        for instance in sorted({c for c, _ in self.claims}):
            found = self.producers(instance)
            for (c, threshold), claim in self.claims.items():
                if c == instance:
                    least = int(self.counters.init[instance])
                    require(holds(claim, found, threshold - least), "clocks: not a post-fixpoint")

    def before(self, worker: I64, item: I64, other: I64, later: I64) -> npt.NDArray[np.bool_]:
        """Item `item` of `worker` is over before any warp of `other` starts item `later` (elementwise)."""
        seen: npt.NDArray[np.bool_] = self.starts[other, later, worker] > item
        return seen


def holds(claim: I64, found: tuple[I64, I32, I64, I64], need: int) -> bool:
    """Signals that may be given while worker x has not finished claim[x] items weigh less than `need`."""
    crews, starts, weight, least = found
    given = weight @ (starts < claim[None, :])
    worker, item = crews[:-1].T
    row = np.arange(len(worker))
    last = (claim[worker] == item + 1) & (starts[row, worker] >= item)
    np.subtract.at(given, worker[last], least[:-1][last])
    return bool((given[claim > 0] < need).all())


def _steps(programs: list[Program]) -> list[tuple[int, int]]:
    return [(g, j) for g, program in enumerate(programs) for j in range(len(program.items))]


def _grouped(rows: I64, workers: range) -> list[tuple[int, int, I64]]:
    mine = rows[(rows[:, WORKER] >= workers.start) & (rows[:, WORKER] < workers.stop)]
    keys = np.unique(mine[:, [ITEM, WARP]], axis=0)
    return [(j, a, mine[(mine[:, ITEM] == j) & (mine[:, WARP] == a)]) for j, a in keys.tolist()]
