"""Models loaded for the GPU tests. Imported inside tests, after it is known that torch and a GPU are there."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from amk.bench.tools.subject import Subject
from amk.bench.tools.torch_model import TorchDecoder, TorchWeights
from amk.engine.admission.admission import AdmittedKernel, admitted
from amk.lowering.kernel import build
from amk.models.model_spec import ModelSpec
from amk.planner.decode import plan
from amk.planner.settings import FAST, Settings
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import Target

SEED = 20


@contextmanager
def loaded(
    schedule: Schedule, weights: TorchWeights | None = None, image: bytes | str | None = None
) -> Iterator[Subject]:
    """The schedule's kernel with random weights on the GPU; its memory is free again afterwards."""
    with running(admitted(schedule, image or build(schedule).compiled.cubin), weights) as subject:
        yield subject


@contextmanager
def running(kernel: AdmittedKernel, weights: TorchWeights | None = None) -> Iterator[Subject]:
    subject = Subject.random(kernel, SEED, weights)
    torch.cuda.empty_cache()  # what packing took: other processes test on this GPU too
    try:
        yield subject
    finally:
        subject.free()
        del subject
        gc.collect()
        torch.cuda.empty_cache()


def without_torch(subject: Subject) -> Subject:
    """The same with torch's weights and caches given back; only its engine can be used."""
    del subject.weights, subject.exact, subject.k_cache, subject.v_cache
    gc.collect()
    torch.cuda.empty_cache()
    return subject


def planned(
    model: ModelSpec, target: Target, context: int, settings: Settings = FAST, workers: int | None = None
) -> Schedule:
    context = min(context, model.max_context)
    return plan(model, target, settings=settings, max_context=context, workers=workers)


def fresh_decoder(subject: Subject, dtype: torch.dtype, positions: int) -> TorchDecoder:
    """Torch's model with an empty cache of its own."""
    model = subject.schedule.model
    shape = (model.layers, model.kv_heads, positions, model.head_dim)
    caches = [torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    return TorchDecoder(subject.source(dtype), caches[0], caches[1], dtype, subject.schedule.kv.dtype)


def forced_logits(decoder: TorchDecoder, tokens: list[int]) -> torch.Tensor:
    """Logits [len(tokens), vocab] after each of `tokens`, read from position 0 on; fp64."""
    rows = [
        decoder.step(torch.tensor([token], device="cuda"), pos, decoder.rope(pos)).double()
        for pos, token in enumerate(tokens)
    ]
    return torch.stack(rows)
