"""Who reads a prompt, where torch is missing or cannot use a GPU."""

from __future__ import annotations

import contextlib
import importlib.util
import time
import warnings
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from amk.prefill import reader
from amk.prefill.reader import FROM_TOKENS, Prefill, prompts_of, why_not
from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.schedule_ir.ops import OPS
from amk.schedule_ir.schedule import Schedule
from tests.engine.tiny import tiny_model, tiny_plan

LONG = [1] * FROM_TOKENS


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    return tiny_plan(tiny_model())


def engine(schedule: Schedule, broken: bool = False) -> Any:
    """Of which nothing can be used: torch fails as it prepares. broken: the device answers no call any more."""

    def synchronise() -> None:
        if broken:
            raise AmkError(Diagnostic("AMK603", "cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS"), Exit.INTERNAL)

    return SimpleNamespace(
        schedule=schedule,
        device=SimpleNamespace(make_current=lambda: None),
        stream=SimpleNamespace(synchronise=synchronise),
    )


def test_the_kernel_reads_where_it_is_asked_for_or_torch_is_missing(
    schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prompts_of(engine(schedule), "kernel") is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert prompts_of(engine(schedule), "auto") is None
    with pytest.raises(AmkError, match=r"AMK019.*not installed"):
        prompts_of(engine(schedule), "torch")


def test_an_activation_that_torch_has_no_form_of_is_left_to_the_kernel(
    schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: True)
    assert reader.why_not(schedule) is None
    monkeypatch.delattr(OPS["swiglu"], "activated_in_torch")
    assert reader.why_not(schedule) == "it has no swiglu"


@pytest.mark.parametrize("choice", ["auto", "torch"])
def test_torch_that_cannot_be_used_is_told_if_it_was_asked_for(
    choice: Prefill, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader.TorchPrompts, "_start", lambda _: 1 / 0)
    monkeypatch.setattr(reader, "why_not", lambda _: None)
    found = prompts_of(engine(schedule), choice)
    assert found is not None and not found.read([], 0), "no token is nothing to read"
    if choice == "auto":
        with pytest.warns(RuntimeWarning, match="kernel reads prompts, as torch cannot: division"):
            assert not found.read(LONG, 0)
        with warnings.catch_warnings(action="error"):
            assert not found.read(LONG, 0), "told once"
    else:
        with pytest.raises(AmkError, match=r"AMK019.*division"):
            found.read(LONG[:1], 0)


@pytest.mark.parametrize("choice", ["auto", "torch"])
def test_a_device_that_breaks_while_torch_prepares_is_its_error(
    choice: Prefill, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a reason to let the kernel read, nor the fault of one request."""
    monkeypatch.setattr(reader.TorchPrompts, "_start", lambda _: 1 / 0)
    monkeypatch.setattr(reader, "why_not", lambda _: None)
    found = prompts_of(engine(schedule, broken=True), choice)
    assert found is not None
    with pytest.raises(AmkError, match="AMK603") as raised:
        found.read(LONG, 0)
    assert raised.value.exit_code is Exit.INTERNAL


@pytest.mark.parametrize("broken", [True, False])
def test_an_error_of_torch_is_the_device_s_where_that_answers_no_more(
    broken: bool, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it is of this prompt alone."""
    torch = pytest.importorskip("torch")

    def fails(*_: object) -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(reader.TorchPrompts, "_prepare", lambda self: setattr(self, "_stream", None))
    found = reader.TorchPrompts(engine(schedule, broken))
    found._preparing.join()
    monkeypatch.setattr(found, "_forward", SimpleNamespace(read=fails))
    with pytest.raises(
        AmkError if broken else torch.AcceleratorError, match="AMK603" if broken else "illegal"
    ) as raised:
        found.read(LONG, 3)
    if broken:
        assert raised.value.exit_code is Exit.INTERNAL
        assert isinstance(raised.value.__context__, torch.AcceleratorError), "what torch said is told as well"


def test_nothing_is_prepared_for_an_engine_that_is_freed(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither behind its end, nor while its memory goes."""
    begun, ended = Event(), list[str]()

    def start(_: Any) -> Any:
        begun.set()
        time.sleep(0.2)
        ended.append("prepared")
        return SimpleNamespace()

    monkeypatch.setattr(reader.TorchPrompts, "_start", start)
    monkeypatch.setattr(reader, "PAUSE", 60)
    early, late = reader.TorchPrompts(engine(schedule)), reader.TorchPrompts(engine(schedule))
    early.free()
    assert not early._preparing.is_alive() and not begun.is_set()
    late._demand.set()
    assert begun.wait(10)
    late.free()
    assert ended == ["prepared"] and not late.read(LONG, 0)


def test_a_pause_is_not_waited_for(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader.TorchPrompts, "_start", lambda _: 1 / 0)
    monkeypatch.setattr(reader, "PAUSE", 60)
    with pytest.warns(RuntimeWarning, match="as torch cannot"):
        assert not reader.TorchPrompts(engine(schedule)).read(LONG, 0)


def test_few_tokens_are_left_to_the_kernel(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without asking torch, which may still be importing."""
    monkeypatch.setattr(reader.TorchPrompts, "_prepare", lambda self: setattr(self, "_forward", None))
    found = reader.TorchPrompts(engine(schedule), forced=True)
    assert not found.read(LONG[1:], 0)
    with pytest.raises(AmkError, match="AMK019"):
        found.read(LONG, 0)


def test_what_follows_is_told_by_torch_where_it_has_read_enough_and_lm_head_has_room(
    schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a graph from position 0, else by single launches; with one token behind a few that are left to the kernel."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(reader.TorchPrompts, "_prepare", lambda self: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    found = reader.TorchPrompts(engine(schedule))
    found._preparing.join()
    asked: list[Any] = []

    def behind(tokens: list[int], *start: int) -> Any:
        asked.append((tokens, *start))
        return torch.tensor([1.0, 7.0, 7.0, 2.0])

    forward = SimpleNamespace(head=object(), behind=behind)
    for name, value in (("_stream", None), ("_forward", forward), ("_graphs", SimpleNamespace(behind=behind))):
        monkeypatch.setattr(found, name, value, raising=False)
    assert found.read_all(LONG, 0) is None and not asked
    for start, wanted in ((0, ([*LONG, 3],)), (5, ([*LONG, 3], 5))):
        answer = found.read_all([*LONG, 3], start)
        assert answer is not None and answer.largest == 1 and answer.logits().tolist() == [1.0, 7.0, 7.0, 2.0]
        assert asked.pop() == wanted
    forward.head = None
    assert found.read_all([*LONG, 3], 0) is None and not asked


def test_layers_stay_unpacked_in_half_of_the_free_memory() -> None:
    pytest.importorskip("torch")
    from amk.prefill.device_matrices import layers_that_stay

    assert [layers_that_stay(32, 100, free) for free in (0, 199, 200, 6399, 6400, 10**9)] == [0, 0, 1, 31, 32, 32]


def test_a_graph_is_little_longer_than_the_prompt() -> None:
    pytest.importorskip("torch")
    from amk.prefill.graphs import MOST, padded

    lengths = [padded(tokens) for tokens in range(1, MOST + 1)]
    assert all(n is not None and tokens <= n <= max(tokens + 16, 1.5 * tokens) for tokens, n in enumerate(lengths, 1))
    assert len(set(lengths)) == 20 and padded(MOST + 1) is None
    assert [padded(tokens) for tokens in (63, 511, 2047)] == [64, 512, 2048]


def test_a_schedule_with_other_buffers_is_refused_by_name(schedule: Schedule) -> None:
    pytest.importorskip("torch")
    assert why_not(schedule) is None
    fewer = tuple(buffer for buffer in schedule.buffers if buffer.name != "rope")
    assert "no buffer rope" in str(why_not(schedule.model_copy(update={"buffers": fewer})))
    wide = schedule.model.model_copy(update={"head_dim": 512})
    assert "at most 256" in str(why_not(schedule.model_copy(update={"model": wide})))
