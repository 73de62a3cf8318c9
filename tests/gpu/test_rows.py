"""Steps of several rows of a sequence on the GPU, against torch in fp64 row by row, and against steps of one row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amk.lowering.launch import Device
from amk.models.model import load_model
from amk.models.model_spec import ModelSpec
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST
from amk.targets.target import Target
from amk.weights.weight_format import FormatName
from tests.tiny import VARIANTS

pytestmark = pytest.mark.gpu

CASES: list[tuple[ModelSpec, int, FormatName]] = [
    *((model, rows, "bf16") for model in VARIANTS for rows in (3, 8)),
    *((load_model(name), rows, "bf16") for name in ("smollm2-135m", "llama3.2-1b", "llama3-8b") for rows in (8, 16)),
    (VARIANTS[0], 16, "int4-g64-zp"),
    (load_model("llama3.2-1b"), 8, "int8"),
]
CONTEXT = 2048
POSITIONS = (0, 1, 61, 125, 2040)
"""From the first to the last; of rows in one block and across two."""


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join((case[0].name, *map(str, case[1:]))))
def subject(request: pytest.FixtureRequest, torch_gpu: Device, gpu: Target) -> Iterator[Any]:
    from tests.gpu.subjects import loaded

    model, rows, form = request.param
    settings, context = replace(FAST, rows=rows), min(CONTEXT, model.max_context)
    with loaded(plan(model, gpu, settings=settings, formats=formats(form), max_context=context)) as found:
        yield found


def row_tokens(subject: Any, pos: int) -> list[int]:
    """The tokens of the rows of a step at `pos`."""
    vocab, rows = subject.schedule.model.vocab, subject.schedule.rows
    return [(1000 + pos + 7 * r) % vocab for r in range(rows)]


def run(subject: Any, pos: int) -> Any:
    """One step at `pos`, scratch poisoned before: (tokens [rows], logits f32 [rows, vocab] on the GPU)."""
    import torch

    engine, schedule = subject.engine, subject.schedule
    subject.load_cache()
    engine.poison()
    engine.upload("request", np.array([0, -1, -1, -1, -1], np.int32))
    prompt = np.zeros(schedule.kv.context, np.int32)
    prompt[pos : pos + schedule.rows] = row_tokens(subject, pos)
    engine.upload("prompt", prompt)
    engine.set_state(token=row_tokens(subject, pos)[0], pos=pos, done=0)
    tokens = engine.step(1)[0]
    return tokens, torch.from_numpy(engine.logits()).cuda()


def torch_rows(subject: Any, pos: int, dtype: Any) -> Any:
    """The same rows by torch, one after the other."""
    import torch

    from amk.bench.tools.torch_model import TorchDecoder

    caches = subject.k_cache.clone(), subject.v_cache.clone()
    decoder = TorchDecoder(subject.source(dtype), *caches, dtype, subject.schedule.kv.dtype)
    rows = enumerate(row_tokens(subject, pos))
    return torch.stack(
        [decoder.step(torch.tensor([t], device="cuda"), pos + r, decoder.rope(pos + r)).double() for r, t in rows]
    )


def positions(subject: Any) -> list[int]:
    last = subject.schedule.kv.context - subject.schedule.rows
    return [pos for pos in POSITIONS if pos <= last]


def test_logits_of_every_row_are_as_close_to_fp64_as_torch_bf16(subject: Any) -> None:
    import torch

    from amk.bench.tools.accuracy import relative_error, within_tolerance

    for pos in positions(subject):
        tokens, found = run(subject, pos)
        assert torch.isfinite(found).all(), f"position {pos}"
        assert tokens.tolist() == found.argmax(-1).tolist()
        reference = torch_rows(subject, pos, torch.float64)
        error = relative_error(found, reference)
        torch_error = relative_error(torch_rows(subject, pos, torch.bfloat16), reference)
        print(f"{subject.schedule.name} position {pos}: error {error:.3e}, torch's {torch_error:.3e}")
        assert within_tolerance(error, torch_error), f"position {pos}: error {error:.3e}, torch's {torch_error:.3e}"


def test_two_runs_are_bitwise_equal(subject: Any) -> None:
    for pos in positions(subject):
        found = [run(subject, pos)[1].cpu().numpy().view(np.uint32) for _ in range(2)]
        np.testing.assert_array_equal(found[0], found[1], err_msg=f"position {pos}")


def test_one_launch_of_n_steps_is_n_launches_of_one(subject: Any) -> None:
    engine, rows, steps, pos = subject.engine, subject.schedule.rows, 5, 2
    prompt = np.arange(subject.schedule.kv.context, dtype=np.int32) * 7 % subject.schedule.model.vocab
    engine.upload("prompt", prompt)
    engine.upload("request", np.array([pos + steps * rows, -1, -1, -1, -1], np.int32))
    found = []
    for launches in ([steps], [1] * steps):
        subject.load_cache()
        engine.set_state(token=int(prompt[pos]), pos=pos, done=0)
        tokens = np.concatenate([engine.step(n) for n in launches])
        assert tokens.reshape(-1)[:-1].tolist() == prompt[pos + 1 : pos + steps * rows].tolist()
        found.append((tokens, engine.logits(), engine.state() | {"epoch": 0}))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1].view(np.uint32), found[1][1].view(np.uint32))
    assert found[0][2] == found[1][2]
