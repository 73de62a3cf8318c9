"""The worker's GPU: two loaded programs on the same model, checked against torch, timed by events.

Imports torch and the driver, so only a worker process may import it.
"""

from __future__ import annotations

import base64
import gc
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from amk.agent.wire import Block as BlockQuestion
from amk.agent.wire import Check, Load, PositionCheck, Slot
from amk.bench.accuracy import relative_error
from amk.bench.subject import Subject
from amk.bench.timing import timed
from amk.engine.admission import AdmittedKernel
from amk.schedule_ir.schedule import Schedule

CANARY_SIZE = 1 << 20
WARM_UP = 2


@dataclass
class GpuRig:
    """Weights are drawn once per process, shared by both slots; caches and tokens afresh for every check."""

    subjects: dict[Slot, Subject] = field(default_factory=dict)
    running: Subject | None = None

    def open(self, device: int) -> str:
        torch.cuda.set_device(device)
        return str(torch.cuda.get_device_name(device))

    def load(self, question: Load) -> None:
        old = self.subjects.pop(question.slot, None)
        if old is not None:
            old.free()
            del old
            gc.collect()
            torch.cuda.empty_cache()
        schedule = Schedule.model_validate_json(question.schedule)
        known = next(iter(self.subjects.values()), None)
        weights = known.weights if known is not None else None
        kernel = AdmittedKernel(schedule, json.loads(question.certificate), base64.b64decode(question.cubin))
        subject = Subject.random(kernel, question.seed % 2**31, weights)
        subject.load_cache()
        self.subjects[question.slot] = subject

    def check(self, question: Check) -> Sequence[PositionCheck]:
        """Fresh token and fresh cache from the seed; scratch is poisoned by `Subject.logits` before each run."""
        subject = self.subjects[question.slot]
        gen = torch.Generator("cuda").manual_seed(question.seed % 2**31)
        for cache in (subject.k_cache, subject.v_cache):
            cache.normal_(generator=gen)
        vocab = subject.schedule.model.vocab
        tokens = torch.randint(vocab, (len(question.positions),), generator=gen, device="cuda").tolist()
        return [self._check(subject, int(t), p) for t, p in zip(tokens, question.positions, strict=True)]

    def _check(self, subject: Subject, token: int, pos: int) -> PositionCheck:
        subject.load_cache()
        self.running = subject
        first, second = subject.logits(token, pos), subject.logits(token, pos)
        self.running = None
        reference = subject.torch_logits(token, pos, torch.float64)
        own = subject.torch_logits(token, pos, torch.bfloat16)
        finite = bool(torch.isfinite(first).all())
        return PositionCheck(
            pos=pos, error=relative_error(first, reference) if finite else -1.0,
            oracle_error=relative_error(own, reference), finite=finite, repeated=bool(torch.equal(first, second)),
        )  # fmt: skip

    def block(self, question: BlockQuestion) -> tuple[Sequence[Sequence[float]], int]:
        subject = self.subjects[question.slot]
        engine, self.running = subject.engine, subject
        stream = torch.cuda.ExternalStream(int(engine.stream.handle))
        times, tokens = [], 0
        for pos in question.positions:
            for _ in range(WARM_UP):
                engine.set_state(pos=pos, done=0)
                engine.step(1)
            before, series = engine.state()["epoch"], []
            for _ in range(question.steps):
                engine.set_state(pos=pos, done=0)
                series.append(timed(stream, lambda: engine.enqueue(1)))
            engine.check()
            times.append(series)
            tokens += engine.state()["epoch"] - before
        self.running = None
        return times, tokens

    def canary(self, device: int) -> bool:
        """A sum whose value is known, on the device."""
        with torch.cuda.device(device):
            values = torch.arange(CANARY_SIZE, device="cuda", dtype=torch.int64)
            return int((values * 3).sum().item()) == 3 * CANARY_SIZE * (CANARY_SIZE - 1) // 2

    def abort(self) -> None:
        """Set the abort word of the running kernel: mapped host memory, so no CUDA call is needed."""
        subject = self.running
        if subject is not None:
            subject.engine.abort.words[0] = 1
