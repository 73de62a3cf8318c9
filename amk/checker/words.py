"""Flag words: who waits for whom by reading them.

Every byte of a tagged buffer is written by one worker, whose steps carry growing tags. A warp that has read words with
tag v knows that the step of the owner that writes tag v had started; nothing more is claimed. Reads that happen at some
positions only (and those of `select`, which looks at candidates only when it has to choose) order nothing, except in
`cases`: each position belongs to a split, and what is read at the first and at the last that do, and where all rows of
a step do, is read at it. Of a live batch that is so for each sequence by itself, whatever the positions of the others
are (`together`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from amk.checker.counters import WORD
from amk.checker.footprints import READ, WRITE
from amk.checker.parts import spread
from amk.checker.programs import MAX_ITEMS, require
from amk.schedule_ir.schedule import Loop, Node, Schedule

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Reading:
    """One warp of each worker reads words with one tag: whose at every position (always) and at some (awaited), both
    [readers, owners]; writer [workers]: the item that writes them, or -1."""

    always: Bools
    awaited: Bools
    writer: I64

    def of(self, readers: Bools) -> Reading:
        """What these workers read of it."""
        return replace(self, always=self.always & readers[:, None], awaited=self.awaited & readers[:, None])

    @cached_property
    def sets(self) -> tuple[Bools, I64]:
        """(different rows of `always`, which of them each worker has)."""
        texts = [row.tobytes() for row in self.always]
        number = {text: n for n, text in enumerate(dict.fromkeys(texts))}
        which = np.array([number[text] for text in texts])
        return self.always[np.unique(which, return_index=True)[1]], which


Readings = dict[tuple[int, int], list[Reading]]
"""By (item, warp)."""


def passes(schedule: Schedule) -> int:
    """The most passes of a loop over layers: l is below it in every step."""

    def most(body: tuple[Node, ...]) -> int:
        loops = [node for node in body if isinstance(node, Loop)]
        own = [loop.count or schedule.model.layers for loop in loops if loop.var == "l"]
        return max((*own, *(most(loop.body) for loop in loops)), default=1)

    return max(most(program.body) for program in schedule.programs)


class FlagWords:
    """Rejects words with two owners, tags that do not grow or that wrap within a launch, words that nobody writes.
    split_rows: the rows of the steps at the positions of each split that stand for all of its."""

    def __init__(
        self, schedule: Schedule, layers: int, rows: I64, split_rows: Callable[[], list[I64]] | None = None
    ) -> None:
        self.schedule, self.layers, self.split_rows = schedule, layers, split_rows
        self.readings: Readings = {}
        for number, buffer in enumerate(schedule.buffers):
            mine = rows[rows[:, 3] == number]
            if buffer.tag is not None and len(mine):
                tag = buffer.tag if isinstance(buffer.tag, dict) else {}
                grows = set(tag) <= {"t", "l", "1"} and 0 <= tag.get("l", 0) * (layers - 1) < tag.get("t", 0)
                # the layers of a token stay below t, so every tag lies below this
                beyond = tag.get("t", 0) * schedule.launch.max_tokens + tag.get("1", 0)
                require(grows and beyond < WORD, f"tags: of '{buffer.name}'")
                self._add(mine[mine[:, 6] == WRITE], mine[mine[:, 6] == READ])

    @cached_property
    def together(self) -> list[Bools]:
        """[workers] of those that see one position, for each position that there is."""
        sequence = np.array(self.schedule.sequences)
        return [sequence == s for s in np.unique(sequence)]

    @cached_property
    def cases(self) -> list[Readings]:
        """What is read at least at the positions of each split."""
        rows = self.split_rows() if self.split_rows else []
        return [FlagWords(self.schedule, self.layers, r).readings for r in rows] or [self.readings]

    def _add(self, written: I64, read: I64) -> None:
        workers = self.schedule.launch.workers
        steps = written[np.unique(written[:, 0] * MAX_ITEMS + written[:, 1], return_index=True)[1]][:, [0, 1, 10]]
        same = steps[1:, 0] == steps[:-1, 0]
        require((steps[:, 2] > 0).all() and (np.diff(steps[:, 2])[same] > 0).all(), "tags: do not grow")
        bounds = np.unique(np.concatenate((written, read))[:, 4:6])
        owner = np.full((4, len(bounds)), -1, np.int64)  # who writes each byte at the first, the last, both positions
        for need in (1, 2, 3):
            row, atom = spread(*np.searchsorted(bounds, written[written[:, 9] & need == need][:, 4:6]).T)
            who = written[written[:, 9] & need == need][row, 0]
            owner[need, atom] = who
            require((owner[need, atom] == who).all(), "tags: two workers write the same words")
        key = np.unique(read[:, 10], return_inverse=True)[1].reshape(-1) * self.schedule.launch.warps + read[:, 2]
        _, at, which = np.unique(key * MAX_ITEMS + read[:, 1], return_index=True, return_inverse=True)
        order = np.argsort(which.reshape(-1), kind="stable")
        parts = np.split(read[order], np.cumsum(np.bincount(which.reshape(-1)))[:-1])
        for rows, (item, warp, tag) in zip(parts, read[at][:, [1, 2, 10]].tolist(), strict=False):
            writer = np.full(workers, -1, np.int64)
            writer[steps[steps[:, 2] == tag, 0]] = steps[steps[:, 2] == tag, 1]
            row, atom = spread(*np.searchsorted(bounds, rows[:, 4:6]).T)
            where, reader = rows[row, 9], rows[row, 0]
            who = owner[np.where(where & 3, where & 3, 3), atom]
            require((who >= 0).all() and (writer[who] >= 0).all(), "tags: a word is read that nobody writes")
            seen, pair = np.zeros((5, workers * workers), bool), reader * workers + who
            for bits in np.unique(rows[:, 9]).tolist():
                here = np.zeros(workers * workers, bool)
                here[pair[where == bits]] = True
                seen[[4, *(bit for bit in range(4) if bits >> bit & 1)]] |= here
            always, awaited = np.logical_and.reduce(seen[:4]), seen[4]
            square = workers, workers
            found = Reading(always.reshape(square), awaited.reshape(square), writer)
            self.readings.setdefault((item, warp), []).append(found)
