"""A prompt that a schedule of several rows read is continued by one of one row as if that had read it."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from amk.adversary.neighbourhood.bases import TAGGED
from amk.api.emulated import EmulatorEngine
from amk.engine.admission import admission
from amk.engine.backends import cuda_engine
from amk.engine.backends.cpu_engine import CpuEngine
from amk.engine.backends.cuda_engine import CudaEngine
from amk.engine.backends.schedule_backend import ScheduleBackend
from amk.engine.backends.step_prompts import ROWS, Behind, StepPrompts, in_steps, last_step, step_prompts
from amk.engine.load import gpu_engine
from amk.models.model import load_model
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.report.diagnostic import AmkError
from amk.schedule_ir.sampling import GREEDY, Sampling
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.validator.together import OWN, apart, crowded, one_packing
from amk.validator.verify import verify
from amk.weights.quantised import nearest
from tests.emulator.host_driver import HostDriver, HostModules, host_device
from tests.engine.guesses import SMALLEST, small_plan
from tests.engine.tiny import RandomTensors, tiny_model, tiny_plan

SMALLEST_LAYER = SMALLEST.model_copy(update={"layers": 1})
MODEL, CONTEXT, ROWS_HERE = tiny_model(layers=1), 24, 5
SETTINGS: dict[str, Any] = {
    "workers": 4, "context": CONTEXT, "warps": 2, "kv_block": 5, "kv_splits": 1, "max_tokens": 2,
}  # fmt: skip


@cache
def source() -> RandomTensors:
    return RandomTensors(MODEL)


def engine(rows: int, caches: CpuEngine | None = None, **settings: Any) -> CpuEngine:
    """caches: of another engine, that this one uses too."""
    instance = CpuEngine(tiny_plan(MODEL, rows=rows, **SETTINGS, **settings), source(), copies="whole")
    for name in ("k_cache", "v_cache") if caches is not None else ():
        instance._machine._storage.globals[name] = caches._machine._storage.globals[name]
    return instance


class Counted(StepPrompts):
    """Counts the tokens that it reads by steps, and the texts that it reads to their end."""

    read_by_steps = ends = 0

    def read(self, tokens: Sequence[int], start: int, sequence: int = 0) -> bool:
        found = super().read(tokens, start, sequence)
        self.read_by_steps += len(tokens) * found
        return found

    def read_all(self, tokens: Sequence[int], start: int) -> Behind | None:
        found = super().read_all(tokens, start)
        self.read_by_steps += len(tokens) * (found is not None)
        self.ends += found is not None
        return found


def answered(backend: ScheduleBackend, prompt: Sequence[int], most: int) -> list[int]:
    """What is there is given, and the text goes on."""
    found = list[int]()
    while len(found) < most:
        found += backend.extend([*prompt, *found], most - len(found), GREEDY, ())
    return found


def backends(headed: bool, **settings: Any) -> tuple[ScheduleBackend, ScheduleBackend, Counted]:
    """One that reads prompts by steps, to their end where a step has an output head, and one that does not."""
    one = engine(1, **settings)
    reader = Counted(engine(ROWS_HERE, one, headless=True), engine(ROWS_HERE, one) if headed else None)
    return ScheduleBackend(one, prompts=reader), ScheduleBackend(engine(1, **settings)), reader


@pytest.mark.turns(16)
@pytest.mark.parametrize("headed", [False, True])
def test_texts_are_those_of_a_schedule_that_reads_token_by_token(headed: bool) -> None:
    """Whole steps, a step that is not full, turns that go on, and prompts up to the end of the context."""
    several, alone, reader = backends(headed)
    for length in (2, 11, 15, 16, 23, 24):
        prompt = [(5 * n + length) % MODEL.vocab for n in range(length)]
        most = min(3, CONTEXT - length + 1)
        for _ in range(2):
            expected = answered(alone, prompt, most)
            assert answered(several, prompt, most) == expected and len(expected) == most
            assert several.cached == alone.cached
            prompt = [*prompt, *expected, 7, 9]
            most = min(2, CONTEXT - len(prompt) + 1)
            if most < 1 or len(prompt) > CONTEXT:
                break
    assert reader.read_by_steps > 30 and (reader.ends > 5) == headed


@pytest.mark.turns(4)
@pytest.mark.parametrize("length", [2, 4, 5, 6, 7, 10, 13, 24])
def test_logits_and_draws_behind_a_prompt_are_those_of_a_schedule_that_reads_token_by_token(length: int) -> None:
    """So a mask, a bias and logprobs are of the same logits. A first token that ends the text ends it."""
    several, alone, reader = backends(True, sampling="temperature")
    prompt, drawn = [(3 * n + length) % MODEL.vocab for n in range(length)], Sampling(temperature=0.7, seed=length)
    np.testing.assert_allclose(several.logits(prompt), alone.logits(prompt), atol=1e-5)
    for backend in (several, alone):
        backend.forget()
    first = alone.extend(prompt, 1, drawn, ())
    assert several.extend(prompt, 3, drawn, (first[0],)) == first
    assert reader.ends == (length != 6)  # all but one token fill a step; who draws reads the last token by itself
    follows = alone.extend([*prompt, *first], 1, drawn, ()) if length < CONTEXT else []
    assert not follows or several.extend([*prompt, *first], 1, drawn, ()) == follows


@pytest.mark.turns(24)
def test_the_kernels_of_all_three_take_turns() -> None:
    """Compiled, in the emulator: a prompt of several steps, and a turn behind it."""
    pytest.importorskip("numba")
    caches: dict[str, np.ndarray[Any, Any]] = {}

    class InTurn(EmulatorEngine):
        """The caches are handed over, as every emulated kernel has memory of its own."""

        def _run(self, tokens: int) -> None:
            machine, count = self._engine.machine, self._engine.buffers["k_cache"].elements
            self._engine.write(caches)
            super()._run(tokens)
            caches.update((name, machine.read(name, np.uint16, count)) for name in ("k_cache", "v_cache"))

    kinds: tuple[dict[str, Any], ...] = ({"rows": 1}, {"rows": 4, "headless": True}, {"rows": 4})
    one, steps, last = (InTurn(small_plan(TAGGED, **kind), RandomTensors(SMALLEST_LAYER)) for kind in kinds)
    alone = EmulatorEngine(one.schedule, RandomTensors(SMALLEST_LAYER))
    several, reader = ScheduleBackend(one, prompts=StepPrompts(steps, last)), ScheduleBackend(alone)
    for length in (7, 10):
        text = [(3 * n + 1) % SMALLEST_LAYER.vocab for n in range(length)]
        expected = reader.logits(text)
        found = several.logits(text)
        assert np.abs(found - expected).max() <= 2.0**-7 * np.abs(expected).max()
        several.forget()
        assert several.extend(text, 2, GREEDY, ()) == [int(found.argmax())]


def test_a_last_token_alone_is_left_to_the_schedule_of_one_row() -> None:
    reader = backends(True)[2]
    assert reader.read_all(list(range(2 * ROWS_HERE + 1)), 0) is None
    behind = reader.read_all(list(range(2 * ROWS_HERE)), 0)
    assert behind is not None and behind.row == ROWS_HERE - 1
    assert behind.largest == int(behind.logits().argmax())


def test_few_tokens_and_the_end_of_the_context_are_left_to_the_kernel() -> None:
    _, _, reader = backends(False)
    assert not reader.read([3], 0)
    assert not reader.read([3, 4], CONTEXT - 3)
    assert reader.read(list(range(CONTEXT - ROWS_HERE)), 0)
    assert reader.read([3, 4], CONTEXT - ROWS_HERE)


@pytest.mark.parametrize(("name", "rows"), [("llama3-8b", 64), ("llama3.2-1b", 64)])
def test_steps_have_as_many_rows_as_shared_memory_holds(name: str, rows: int) -> None:
    schedule = plan(load_model(name), load_target("h200"), max_context=2048)
    found = in_steps(schedule)
    assert (found.rows, found.kv.context) == (rows, 2048)
    assert rows in ROWS


def test_where_weights_have_room_once_steps_have_rows_that_share_them() -> None:
    """llama3.2-1b: 64 rows pack `down` in other parts, 8 rows the same bytes in smaller copies."""
    schedule = plan(load_model("llama3.2-1b"), load_target("h200"), max_context=2048)
    buffers = {b.name: b.bytes for b in schedule.buffers if b.space == "global"}
    rooms = {64: 2 * sum(buffers.values()), 8: sum(buffers.values()) + buffers["weights"] // 2}
    for rows, room in rooms.items():
        small = schedule.model_copy(update={"target": schedule.target.model_copy(update={"hbm_bytes": room})})
        found = in_steps(small)
        assert found.rows == rows and one_packing(found, small) == (rows == 8)


@pytest.mark.parametrize(("name", "rows"), [("llama3-8b", 64), ("llama3.2-1b", 64)])
def test_the_step_with_output_head_takes_turns_with_both_and_shares_what_the_other_packs(name: str, rows: int) -> None:
    schedule = plan(load_model(name), load_target("h200"), max_context=2048)
    steps = in_steps(schedule)
    found = last_step(schedule, steps)
    assert found is not None and found.rows == rows and not found.headless
    assert apart(found, schedule) == apart(found, steps) == [] and one_packing(found, steps)
    rooms = range(steps.target.hbm_bytes)
    least = bisect(rooms, False, key=lambda room: not crowded([on(each, room) for each in (schedule, steps)]))
    more = sum(b.bytes for b in found.buffers if b.space == "global" and (b.role == "scratch" or b.name in OWN))
    for room, fits in ((least, False), (least + more - 1, False), (least + more, True)):
        assert (last_step(on(schedule, room), on(steps, room)) is not None) == fits


def on(schedule: Schedule, room: int) -> Schedule:
    """On a GPU with so many bytes of memory."""
    return schedule.model_copy(update={"target": schedule.target.model_copy(update={"hbm_bytes": room})})


@pytest.mark.turns(4)
@pytest.mark.parametrize("form", ["bf16", "int8", "fp8"])
def test_engines_beside_each_other_have_the_bytes_that_each_has_alone(
    form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's memory is the host's, and nothing runs. Caches are one memory, weights are packed where their bytes
    are others, and each has its own request, state and outputs."""
    driver = HostDriver()
    monkeypatch.setattr(admission, "started", lambda schedule: SimpleNamespace(schedule=schedule, loadable=bytes))
    monkeypatch.setattr(cuda_engine, "Module", HostModules())
    monkeypatch.setattr(cuda_engine, "CooperativeLaunch", lambda *_: None)
    monkeypatch.setattr(cuda_engine, "check_loaded", lambda *_: None)
    monkeypatch.setattr("amk.lowering.launch.Device.open", lambda: host_device(driver))

    def alone(schedule: Schedule) -> CudaEngine:
        return gpu_engine(schedule, RandomTensors(MODEL), nearest)

    chunk = {} if form == "bf16" else {"chunk_bytes": 1024}
    one = alone(tiny_plan(MODEL, workers=4, weights=formats(form), **chunk))
    reader = step_prompts(one, RandomTensors(MODEL), nearest)
    engines = [one, reader.engine, reader.last]
    assert all(isinstance(engine, CudaEngine) for engine in engines)
    for engine in engines[1:]:
        assert isinstance(engine, CudaEngine)
        own = alone(engine.schedule)
        for buffer in engine.schedule.buffers:
            if buffer.space == "global" and buffer.role == "constant" and buffer.name not in ("request", "prompt"):
                here, wanted = (driver.content(each.buffers[buffer.name])[0] for each in (engine, own))
                np.testing.assert_array_equal(here[: buffer.bytes], wanted[: buffer.bytes], err_msg=buffer.name)
    places = {name: {id(e.buffers[name]) for e in engines if name in e.buffers} for e in engines for name in e.buffers}
    shared = {name for name, found in places.items() if len(found) == 1}
    assert {"k_cache", "v_cache", "embedding", "norm", "rope"} <= shared
    assert all(len(places[name]) == 3 for name in ("request", "prompt", "state", "output"))
    packings = len(places["weights"])
    assert packings == 3 - one_packing(reader.engine.schedule, one.schedule) - any(
        one_packing(reader.last.schedule, each.schedule) for each in (one, reader.engine)
    )


@pytest.mark.turns(4)
def test_what_has_no_steps_is_refused() -> None:
    schedule = tiny_plan(MODEL, workers=4)
    assert verify(in_steps(schedule)).safe
    coded = in_steps(tiny_plan(MODEL, workers=4, chunk_bytes=1024, weights=formats("int8", "int4-g128")))
    assert verify(coded).safe and {c.format for c in coded.streams[0].chunks.values()} == {"int8", "int4-g128"}
    with pytest.raises(AmkError, match="a step reads 2 tokens"):
        in_steps(tiny_plan(MODEL, workers=4, rows=2))
