"""All rows of one command: each plan is built once, rows already recorded are not measured again."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from amk.bench.decode_bench import bench_position
from amk.bench.row import Key, Row
from amk.bench.subject import Subject
from amk.bench.torch_model import TorchWeights
from amk.engine.admission import admitted
from amk.lowering.kernel import build
from amk.schedule_ir.schedule import Schedule

Find = Callable[[Key], Row | None]


@dataclass(frozen=True)
class Suite:
    """schedules: one per plan and batch, all of one model. deadline: no row is begun after this time.monotonic()."""

    schedules: tuple[Schedule, ...]
    positions: tuple[int, ...]
    baselines: tuple[str, ...]
    steps: int
    tokens: int
    seed: int
    deadline: float

    def key(self, schedule: Schedule, pos: int) -> Key:
        tokens = max(1, min(self.tokens, schedule.kv.context - pos, schedule.launch.max_tokens))
        name, target = schedule.model.name, schedule.target.name
        return Key(
            name, target, schedule.weights_label, schedule.plan, pos, tokens, self.steps, self.baselines, schedule.batch
        )  # fmt: skip

    def rows(self, find: Find) -> Iterator[tuple[Row, bool]]:
        """(row, whether it was measured now), until everything is there or the deadline has passed."""
        weights: TorchWeights | None = None
        for schedule in self.schedules:
            subject: Subject | None = None
            for pos in self.positions:
                if (known := find(self.key(schedule, pos))) is not None:
                    yield known, False
                    continue
                if time.monotonic() > self.deadline:
                    return
                weights = weights or TorchWeights.random(schedule.model, self.seed)
                kernel = admitted(schedule, build(schedule).compiled.cubin) if subject is None else None
                subject = Subject.random(kernel, self.seed, weights) if kernel is not None else subject
                assert subject is not None
                yield bench_position(subject, pos, steps=self.steps, tokens=self.tokens, baselines=self.baselines), True
            if subject is not None:
                subject.free()
                del subject
                gc.collect()
                torch.cuda.empty_cache()
