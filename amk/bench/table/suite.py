"""All rows of one command: each plan is built once, rows already recorded are not measured again."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

import torch

from amk.bench.table.decode_bench import bench_position
from amk.bench.table.measurement import Measurement
from amk.bench.table.row import Key, Row
from amk.bench.tools.ahead import Ahead
from amk.bench.tools.subject import Subject
from amk.bench.tools.torch_model import TorchWeights

Find = Callable[[Key], Row | None]


@dataclass
class Suite:
    """measurements: what is measured, in order; neighbours with one schedule share its kernel.

    deadline: no row is begun when it would not end before this time.monotonic(), if it takes as long as the longest so
    far.
    """

    measurements: tuple[Measurement, ...]
    seed: int
    deadline: float
    longest: float = 0.0

    def rows(self, find: Find) -> Iterator[tuple[Row, bool]]:
        """(row, whether it was measured now), until everything is there or there is no time for another."""
        missing = {id(each.schedule): each.schedule for each in self.measurements if find(each.key) is None}
        with Ahead(tuple(missing.values())) as ahead:
            yield from self._rows(find, ahead)

    def _rows(self, find: Find, ahead: Ahead) -> Iterator[tuple[Row, bool]]:
        weights: TorchWeights | None = None
        for _, group in groupby(self.measurements, key=lambda each: id(each.schedule)):
            subject: Subject | None = None
            for each in group:
                if (known := find(each.key)) is not None:
                    yield known, False
                    continue
                began = time.monotonic()
                if began + self.longest > self.deadline:
                    return
                if weights is None or weights.model != each.schedule.model:
                    weights = None  # before the next ones are made
                    weights = TorchWeights.random(each.schedule.model, self.seed)
                if subject is None:
                    subject = Subject.random(ahead.kernel(each.schedule), self.seed, weights)
                row = bench_position(subject, each.key)
                self.longest = max(self.longest, time.monotonic() - began)
                yield row, True
            if subject is not None:
                subject.free()
                del subject
                gc.collect()
                torch.cuda.empty_cache()
