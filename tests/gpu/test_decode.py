"""The generated kernel against torch: logits, reproducibility, launches of several tokens, graphs, greedy text.

A kernel passes when its logits are no further from an fp64 reference than torch's own bf16 forward is, times 1.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread
from typing import Any

import numpy as np
import pytest

from amk.lowering.launch import Device
from amk.lowering.stream import Graph
from amk.models.model import load_model
from amk.models.model_spec import ModelSpec
from amk.targets.target import Target
from tests.tiny import VARIANTS

pytestmark = pytest.mark.gpu

POSITIONS = (0, 1, 127, 2048, 8191)
REAL = ("smollm2-135m", "qwen2.5-0.5b", "qwen3-0.6b", "llama3.2-1b", "llama3-8b")
"""Ragged widths, QKV bias, QK norm, and the two shapes whose speed is reported."""

MODELS = [pytest.param(model, id=model.name) for model in (*VARIANTS, *(load_model(name) for name in REAL))]
CONTEXT = 8192
GREEDY = 24


@pytest.fixture(scope="module", params=MODELS)
def subject(request: pytest.FixtureRequest, torch_gpu: Device, gpu: Target) -> Iterator[Any]:
    from tests.gpu.subjects import loaded, planned

    model: ModelSpec = request.param
    with loaded(planned(model, gpu, CONTEXT)) as found:
        yield found


def positions(subject: Any) -> list[int]:
    return [pos for pos in POSITIONS if pos < subject.schedule.kv.context]


def start(subject: Any, token: int, pos: int) -> None:
    """Decode freely from `token` at `pos`, over the subject's random cache."""
    from amk.bench.tools.subject import no_prompt

    subject.load_cache()
    no_prompt(subject.engine)
    subject.engine.set_state(token=token, pos=pos, done=0)


def logits(subject: Any) -> np.ndarray:
    return subject.engine.read("logits", np.float32, subject.schedule.model.vocab)


def test_logits_are_as_close_to_fp64_as_torch_bf16(subject: Any) -> None:
    import torch

    from amk.bench.tools.accuracy import relative_error, within_tolerance

    for pos in positions(subject):
        subject.load_cache()
        token = (1000 + pos) % subject.schedule.model.vocab
        found = subject.logits(token, pos)
        assert torch.isfinite(found).all(), f"position {pos}"
        reference = subject.torch_logits(token, pos, torch.float64)
        error = relative_error(found, reference)
        torch_error = relative_error(subject.torch_logits(token, pos, torch.bfloat16), reference)
        assert within_tolerance(error, torch_error), f"position {pos}: error {error:.3e}, torch's {torch_error:.3e}"


def test_two_runs_are_bitwise_equal(subject: Any) -> None:
    for pos in positions(subject):
        subject.load_cache()
        first = subject.logits(3, pos).cpu().numpy()
        subject.load_cache()
        second = subject.logits(3, pos).cpu().numpy()
        np.testing.assert_array_equal(first.view(np.uint32), second.view(np.uint32), err_msg=f"position {pos}")


def test_one_launch_of_n_tokens_is_n_launches_of_one(subject: Any) -> None:
    count, pos = 9, 5
    start(subject, 11, pos)
    together = subject.engine.step(count).tolist()
    last = logits(subject)
    start(subject, 11, pos)
    apart = [int(subject.engine.step(1)[0]) for _ in range(count)]
    assert apart == together
    np.testing.assert_array_equal(logits(subject).view(np.uint32), last.view(np.uint32))
    assert subject.engine.state()["pos"] == pos + count


def test_a_replayed_graph_does_what_launches_do(subject: Any) -> None:
    engine, each, replays = subject.engine, 3, 3
    start(subject, 11, 7)
    expected = engine.step(each * replays).tolist()
    last = logits(subject)
    start(subject, 11, 7)
    found: list[int] = []
    with Graph(engine.stream, lambda handle: engine.enqueue(each, handle)) as graph:
        for _ in range(replays):
            graph.replay(engine.stream)
            engine.stream.synchronise()
            engine.check()
            found += engine.read("output", np.int32, each).tolist()
    assert found == expected
    np.testing.assert_array_equal(logits(subject).view(np.uint32), last.view(np.uint32))


def test_given_tokens_are_read_and_end_of_text_is_repeated(subject: Any) -> None:
    engine, prompt = subject.engine, [7, 30, 2, 9]
    engine.request(prompt)
    free = engine.step(8).tolist()
    assert free[:3] == prompt[1:], "given tokens come back until the last of them has been read"
    stop = free[4]
    engine.request(prompt, eos=(stop,))
    stopped = engine.step(8).tolist()
    end = stopped.index(stop, 3)
    assert stopped[: end + 1] == free[: end + 1]
    assert set(stopped[end:]) == {stop}


def test_a_text_goes_on_in_another_thread(subject: Any) -> None:
    engine, prompt, found = subject.engine, [7, 30, 2, 9], []

    def text() -> None:
        engine.request(prompt)
        found.append((engine.step(8).tolist(), engine.logits().tobytes()))

    text()
    thread = Thread(target=text)
    thread.start()
    thread.join()
    assert len(found) == 2 and found[0] == found[1]


def test_greedy_tokens_are_torchs_or_nearly_tied(subject: Any) -> None:
    """Where the kernel chose another token, the reference's gap is below what bf16 rounding does to torch's logits."""
    import torch

    from tests.gpu.subjects import forced_logits, fresh_decoder

    engine = subject.engine
    engine.request([1])
    chosen = engine.step(GREEDY).tolist()
    read = [1, *chosen[:-1]]
    reference = forced_logits(fresh_decoder(subject, torch.float64, GREEDY), read)
    rounded = forced_logits(fresh_decoder(subject, torch.bfloat16, GREEDY), read)
    for step, token in enumerate(chosen):
        gap = float(reference[step].max() - reference[step, token])
        noise = float((rounded[step] - reference[step]).abs().max())
        assert gap <= 2 * noise, f"token {step}: {token} is {gap:.3g} below the best, torch's rounding is {noise:.3g}"
