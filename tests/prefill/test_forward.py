"""Prompts by torch beside the interpreter: the same keys and values, and the same tokens behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="prompts are read by torch")

from amk.engine.backends.cpu_engine import CpuEngine  # noqa: E402  after torch is known to be there
from amk.engine.backends.schedule_backend import ScheduleBackend  # noqa: E402
from amk.engine.backends.session import Session  # noqa: E402
from amk.models.model_spec import ModelSpec  # noqa: E402
from amk.planner.formats import formats  # noqa: E402
from amk.prefill import forward  # noqa: E402
from amk.prefill.forward import PromptForward  # noqa: E402
from amk.schedule_ir.sampling import GREEDY  # noqa: E402
from amk.schedule_ir.schedule import Schedule  # noqa: E402
from tests.engine.tiny import NEOX, RandomTensors, tiny_model, tiny_plan  # noqa: E402
from tests.prefill.rows import stored_rows  # noqa: E402

PROMPT = [3, 17, 5, 60, 2, 44]
NEW = 2
MANY = {"workers": 6, "warps": 6}
CASES: dict[str, tuple[ModelSpec, dict[str, Any]]] = {
    "plain": (tiny_model(), {}),
    "tied, group of three": (tiny_model(heads=3, kv_heads=1, hidden=96, tied_embeddings=True), {"workers": 5}),
    "bias": (tiny_model(qkv_bias=True), {}),
    "head norms": (tiny_model(qk_norm=True), {}),
    "beside each other": (tiny_model(**NEOX), {}),
    "one after the other, tanh": (tiny_model(**(NEOX | {"parallel": False, "activation": "gelu-tanh"})), {}),
    "int8 in groups": (tiny_model(ffn=160), {"weights": formats("int8-g64", "bf16"), "chunk_bytes": 1024} | MANY),
    "fp8 cache": (tiny_model(heads=3, kv_heads=1, hidden=96), {"kv_dtype": "fp8"} | MANY),
}


class Interpreted:
    """The interpreter, and torch over its memory."""

    def __init__(self, schedule: Schedule, source: RandomTensors, dtype: Any = torch.float32) -> None:
        self.engine = CpuEngine(schedule, source)
        memory = self.engine._machine._storage.globals
        shapes = {buffer.name: buffer.shape for buffer in schedule.buffers if buffer.name in memory}
        buffers = {name: torch.from_numpy(memory[name]).view(shape) for name, shape in shapes.items()}
        self.caches = [buffers[name].numpy() for name in ("k_cache", "v_cache")]
        names = [name for name in schedule.model.graph.products if name != "lm_head"]

        def matrices(layer: int) -> Any:
            return {name: torch.from_numpy(stored_rows(schedule, source, name, layer)).to(dtype) for name in names}

        head = torch.from_numpy(stored_rows(schedule, source, "lm_head", 0)).to(dtype)
        self.prompt = PromptForward(schedule, buffers, matrices, dtype, head)

    def rows(self, end: int) -> np.ndarray[Any, Any]:
        return np.stack([cache[:, :, :end] for cache in self.caches])


@pytest.mark.turns(16)
@pytest.mark.parametrize("name", CASES)
def test_the_cache_is_the_one_of_reading_token_by_token(name: str) -> None:
    model, settings = CASES[name]
    source, schedule = RandomTensors(model), tiny_plan(model, **settings)
    alone, both, end = Interpreted(schedule, source), Interpreted(schedule, source), len(PROMPT) - 1
    alone.engine.request(PROMPT)
    expected = alone.engine.step(end + NEW).tolist()
    both.prompt.read(PROMPT[:3], 0)
    both.prompt.read(PROMPT[3:end], 3)
    step = 2**-3 if schedule.kv.dtype == "fp8" else 2e-5  # a number next to a tie may be rounded to either side
    np.testing.assert_allclose(both.rows(end), alone.rows(end), rtol=step, atol=2e-5)
    assert np.isnan(both.caches[0][:, :, end:]).all(), "nothing is written behind the prompt"
    both.engine.request(PROMPT, start=end)
    assert both.engine.step(NEW).tolist() == expected[end:]


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", CASES)
def test_logits_behind_a_prompt_are_those_of_reading_token_by_token(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From position 0, behind what the cache holds, and where the prompt takes several blocks; the token that is asked
    for may stand before others, whose keys it does not see."""
    model, settings = CASES[name]
    source, schedule = RandomTensors(model), tiny_plan(model, **settings)
    alone, both, end = Interpreted(schedule, source), Interpreted(schedule, source), len(PROMPT) - 1
    alone.engine.request(PROMPT)
    alone.engine.step(len(PROMPT))
    expected = alone.engine.logits()
    step = 2**-5 if schedule.kv.dtype == "fp8" else 2e-5
    limits = {"rtol": step, "atol": step * np.abs(expected).max()}
    np.testing.assert_allclose(both.prompt.behind(PROMPT, 0).numpy(), expected, **limits)
    both.prompt.read(PROMPT[:2], 0)
    np.testing.assert_allclose(both.prompt.behind(PROMPT[2:], 2).numpy(), expected, **limits)
    padded, row = torch.tensor([*PROMPT, 9, 11]), torch.tensor([end])
    np.testing.assert_allclose(both.prompt.behind_block(padded, row, 0).numpy(), expected, **limits)
    monkeypatch.setattr(forward, "BLOCK", 4)
    np.testing.assert_allclose(both.prompt.behind(PROMPT, 0).numpy(), expected, **limits)


class Reader:
    """Torch for every prompt; asked: what it was to read."""

    def __init__(self, run: Interpreted) -> None:
        self._run = run
        self.asked: list[tuple[list[int], int, int]] = []

    def read(self, tokens: Sequence[int], start: int, sequence: int = 0) -> bool:
        self.asked.append((list(tokens), start, sequence))
        self._run.prompt.read(tokens, start, sequence)
        return True


def test_turns_of_a_conversation_read_what_is_new() -> None:
    model, source = tiny_model(), RandomTensors(tiny_model())
    schedule = tiny_plan(model)
    plain, run = ScheduleBackend(CpuEngine(schedule, source)), Interpreted(schedule, source)
    reader = Reader(run)
    fast = ScheduleBackend(run.engine, prompts=reader)
    text = list(PROMPT)
    for said in ([], [7, 8, 9]):
        text += said
        expected = plain.extend(text, 1, GREEDY, ())
        assert fast.extend(text, 1, GREEDY, ()) == expected
        text += expected
    np.testing.assert_allclose(fast.logits(text), plain.logits(text), rtol=1e-4, atol=1e-4)
    first, second, third = reader.asked
    assert first == (PROMPT[:-1], 0, 0)
    assert second == (text[len(PROMPT) : -2], len(PROMPT), 0), "the kernel has read the first turn's last token"
    assert third == ([], len(text) - 1, 0)


def test_a_batch_is_read_prompt_by_prompt_up_to_the_shortest() -> None:
    model, source = tiny_model(), RandomTensors(tiny_model())
    schedule = tiny_plan(model, batch=2)
    prompts = [PROMPT, PROMPT[::-1][:4]]
    expected = list(Session(CpuEngine(schedule, source)).generate_batch(prompts, NEW))
    run = Interpreted(schedule, source)
    reader = Reader(run)
    assert list(Session(run.engine, prompts=reader).generate_batch(prompts, NEW)) == expected
    assert reader.asked == [(prompt[:3], 0, sequence) for sequence, prompt in enumerate(prompts)]


def test_in_bf16_keys_and_values_differ_by_its_rounding() -> None:
    model, source = tiny_model(), RandomTensors(tiny_model())
    schedule, end = tiny_plan(model), len(PROMPT) - 1
    exact, rounded = Interpreted(schedule, source), Interpreted(schedule, source, torch.bfloat16)
    for each in (exact, rounded):
        each.prompt.read(PROMPT[:end], 0)
    error = np.linalg.norm(rounded.rows(end) - exact.rows(end)) / np.linalg.norm(exact.rows(end))
    assert 2**-12 < error < 2**-6
