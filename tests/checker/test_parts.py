"""Parts that the checker leaves out are touched as those that it keeps: byte by byte."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from amk.checker.footprints import READ, WRITE
from amk.checker.parts import Parts
from amk.schedule_ir.schedule import Schedule
from tests.validator.plans import MODELS, SMALL, small_plan

I64 = npt.NDArray[np.int64]
Touch = tuple[int, int, int, int]


def touches(rows: I64) -> dict[tuple[int, int], set[Touch]]:
    """By (memory, byte): (worker, kind, value, displacement). Each row has a worker of its own."""
    found: dict[tuple[int, int], set[Touch]] = defaultdict(set)
    for worker, _, _, memory, lo, hi, kind, value, moved, _, _, _, times, step, turn in rows.tolist():
        for k in range(times):
            for byte in range(lo + k * step, hi + k * step):
                found[memory, byte].add((worker, kind, value, moved + k * turn))
    return found


def classes(touches: dict[tuple[int, int], set[Touch]]) -> set[tuple[int, frozenset[Touch]]]:
    """Up to one displacement for each value."""
    signatures = set()
    for (memory, _), own in touches.items():
        first = {value: min(t[3] for t in own if t[2] == value) for _, _, value, _ in own}
        signatures.add((memory, frozenset((w, kind, value, moved - first[value]) for w, kind, value, moved in own)))
    return signatures


def random_rows(rng: np.random.Generator, schedule: Schedule, parts: Parts) -> I64:
    """In arrays of a few bytes a part, global ones and shared ones that overlap."""
    arrays = [n for n, size in enumerate(parts.size) if size <= 600 and schedule.buffers[n].role != "constant"]
    some = rng.choice(arrays, 2)
    found = []
    for worker in range(int(rng.integers(2, 9))):
        n = int(rng.choice(some))
        buffer, count = schedule.buffers[n], schedule.vectors
        own, start = buffer.bytes // count, buffer.offset or 0 if buffer.space == "shared" else 0
        lo = int(rng.integers(0, own))
        hi, times, step, turn = int(rng.integers(lo, own)) + 1, count, own, int(rng.choice([0, 0, own]))
        if rng.random() < 0.3:
            lo, hi = sorted(rng.integers(0, buffer.bytes + 1, 2).tolist())
            lo, hi, times, step, turn = min(lo, buffer.bytes - 1), max(hi, lo + 1), 1, 0, 0
        elif rng.random() < 0.3:
            lo, hi, times = lo + own, hi + own, count - 1
        memory = 10_000 if buffer.space == "shared" else n
        kind, value = int(rng.choice([READ, WRITE])), int(rng.choice([5, 6]))
        found.append((worker, 0, 0, memory, lo + start, hi + start, kind, value, 0, 15, 0, n, times, step, turn))
    return np.array(found, np.int64)


def test_what_is_kept_is_touched_as_what_is_left_out() -> None:
    schedule = small_plan(replace(SMALL["fast"], batch=4, plan="custom"), MODELS["plain"], workers=8)
    parts, rng, fewer = Parts(schedule), np.random.default_rng(2), 0
    assert any(len(arrays) > 1 for arrays in parts.memories) and schedule.vectors == 4
    for _ in range(60):
        rows = random_rows(rng, schedule, parts)
        every, kept = touches(rows), touches(np.pad(parts.different(rows), ((0, 0), (0, 3)), constant_values=1))
        assert classes(kept) == classes(every)
        assert all(own == every[byte] for byte, own in kept.items())
        fewer += len(kept) < len(every)
    assert fewer > 10
