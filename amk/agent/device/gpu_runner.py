"""The worker's GPU: two loaded programs on the same model, checked against torch, timed by events.

Imports torch and the driver, so only a worker process may import it.
"""

from __future__ import annotations

import base64
import gc
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from amk.agent.device.wire import Block as BlockQuestion
from amk.agent.device.wire import Check, Load, PositionCheck, Slot
from amk.agent.gate.admitting import unpacked
from amk.bench.tools.accuracy import relative_error
from amk.bench.tools.device_packing import Packings, streamed
from amk.bench.tools.subject import Subject
from amk.bench.tools.timing import timed
from amk.bench.tools.torch_model import TorchWeights
from amk.models.matrices import MATRICES
from amk.schedule_ir.schedule import Schedule

CANARY_SIZE = 1 << 20
WARM_UP = 2
HEAD_START = 150_000
"""Clock cycles (75 us), several times what the host needs for a launch. Its time differs on a busy machine, and between
programs whose objects lie elsewhere in the host's memory, by more than is looked for."""
ROOM = 3
"""Programs of its size that have room when nothing is given back before one is loaded."""
Kind = tuple[object, ...]
References = tuple[tuple[torch.Tensor, torch.Tensor], ...]


@dataclass
class GpuRunner:
    """Weights are drawn once per process, shared by both slots; caches and tokens afresh for every check.

    streams: by the formats of a stream, the numbers that its codes stand for. references: logits of the last check, in
    fp64 and by a bf16 implementation; both slots are asked with one seed, and what they have to compute is the same.
    """

    subjects: dict[Slot, Subject] = field(default_factory=dict)
    running: Subject | None = None
    weights: TorchWeights | None = None
    streams: dict[Kind, tuple[TorchWeights, TorchWeights]] = field(default_factory=dict)
    references: dict[Kind, References] = field(default_factory=dict)
    packings: Packings = field(default_factory=Packings)

    def open(self) -> str:
        return str(torch.cuda.get_device_name())

    def load(self, question: Load) -> None:
        kernel = unpacked(base64.b64decode(question.kernel))
        old = self.subjects.pop(question.slot, None)
        if old is not None:
            old.free()
            del old
            self.make_room(kernel.schedule)
        self.weights = self.weights or TorchWeights.random(kernel.schedule.model, question.seed % 2**31)
        kind = formats_of(kernel.schedule)
        if kind not in self.streams:
            self.streams[kind] = streamed(kernel.schedule, self.weights, rounded_kept=False)
        packed = self.packings.of(kernel.schedule, self.weights)
        subject = Subject.random(kernel, question.seed % 2**31, self.weights, self.streams[kind], packed)
        subject.load_cache()
        self.subjects[question.slot] = subject

    def make_room(self, schedule: Schedule) -> None:
        """Give back what torch holds for later, which takes long, where the next program may need it."""
        needed = sum(buffer.bytes for buffer in schedule.buffers if buffer.space == "global")
        if torch.cuda.mem_get_info()[0] < ROOM * needed:
            self.packings.by_key.clear()
            gc.collect()
            torch.cuda.empty_cache()

    def check(self, question: Check) -> Sequence[PositionCheck]:
        """Fresh token and fresh cache from the seed; scratch is poisoned by `Subject.logits` before each run."""
        subject = self.subjects[question.slot]
        gen = torch.Generator("cuda").manual_seed(question.seed % 2**31)
        for cache in (subject.k_cache, subject.v_cache):
            cache.normal_(generator=gen)
        vocab = subject.schedule.model.vocab
        tokens = torch.randint(vocab, (len(question.positions),), generator=gen, device="cuda")
        places = list(zip(tokens.tolist(), question.positions, strict=True))
        kind = (question.seed, question.positions, subject.schedule.batch, *formats_of(subject.schedule))
        if kind not in self.references:
            self.references = {kind: references(subject, tokens, question.positions)}
        return [
            self._check(subject, *place, *known) for place, known in zip(places, self.references[kind], strict=True)
        ]

    def _check(
        self, subject: Subject, token: int, pos: int, reference: torch.Tensor, own: torch.Tensor
    ) -> PositionCheck:
        subject.load_cache()
        self.running = subject
        first, second = subject.logits(token, pos), subject.logits(token, pos)
        self.running = None
        finite = bool(torch.isfinite(first).all())
        return PositionCheck(
            pos=pos, error=relative_error(first, reference) if finite else -1.0,
            oracle_error=relative_error(own, reference), finite=finite, repeated=bool(torch.equal(first, second)),
        )  # fmt: skip

    def block(self, question: BlockQuestion) -> tuple[Sequence[Sequence[float]], int]:
        subject = self.subjects[question.slot]
        engine, self.running = subject.engine, subject
        argument, handle = engine.argument(1), engine.stream.handle
        stream = torch.cuda.ExternalStream(int(handle))
        times, tokens = [], 0
        for pos in question.positions:
            for _ in range(WARM_UP):
                engine.set_state(pos=pos, done=0)
                engine.step(1)
            before, series = engine.state()["epoch"], []
            for _ in range(question.steps):
                engine.set_state(pos=pos, done=0)
                series.append(timed(stream, lambda: engine.launch(argument, handle), HEAD_START))
            engine.check()
            times.append(series)
            tokens += engine.state()["epoch"] - before
        self.running = None
        return times, tokens

    def canary(self) -> bool:
        """A sum whose value is known, on the device."""
        values = torch.arange(CANARY_SIZE, device="cuda", dtype=torch.int64)
        return int((values * 3).sum().item()) == 3 * CANARY_SIZE * (CANARY_SIZE - 1) // 2

    def abort(self) -> None:
        """Set the abort word of the running kernel: mapped host memory, so no CUDA call is needed."""
        subject = self.running
        if subject is not None:
            subject.engine.abort.words[0] = 1


def references(subject: Subject, tokens: torch.Tensor, positions: tuple[int, ...]) -> References:
    """Logits in fp64 and by a bf16 implementation, of one token ([positions]) at each position: [vocab] each, or
    [batch, vocab] where the other sequences have the tokens that the subject gives them.
    """
    exact, own = torch.float64, torch.bfloat16
    if subject.schedule.batch > 1:
        places = zip(tokens.tolist(), positions, strict=True)
        return tuple((subject.torch_logits(*at, exact), subject.torch_logits(*at, own)) for at in places)
    both = (subject.torch_logits_at(tokens, positions, dtype) for dtype in (exact, own))
    return tuple(zip(*both, strict=True))


def formats_of(schedule: Schedule) -> Kind:
    """What of a schedule decides the numbers that it has to compute."""
    stream = schedule.streams[0]
    return (schedule.kv.dtype, *(chunk.weights for name in MATRICES for chunk in stream.kinds(name)))
