"""A prompt that a schedule of several rows read is continued by one of one row as if that had read it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest

from amk.engine.backends.cpu_engine import CpuEngine
from amk.engine.backends.schedule_backend import ScheduleBackend
from amk.engine.backends.step_prompts import ROWS, StepPrompts, in_steps
from amk.models.model import load_model
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.report.diagnostic import AmkError
from amk.schedule_ir.sampling import GREEDY
from amk.targets.target import load_target
from amk.validator.together import one_packing
from amk.validator.verify import verify
from tests.engine.tiny import RandomTensors, tiny_model, tiny_plan

MODEL, CONTEXT, ROWS_HERE = tiny_model(layers=1), 24, 5
SETTINGS = {"workers": 4, "context": CONTEXT, "warps": 2, "kv_block": 5, "kv_splits": 1, "max_tokens": 2}


@cache
def source() -> RandomTensors:
    return RandomTensors(MODEL)


def engine(rows: int) -> CpuEngine:
    return CpuEngine(tiny_plan(MODEL, rows=rows, **SETTINGS), source(), copies="whole")  # type: ignore[arg-type]


class Handed(StepPrompts):
    """The caches of the interpreter are each engine's own: they are handed over, there and back."""

    def __init__(self, one: CpuEngine) -> None:
        super().__init__(engine(ROWS_HERE))
        self.one, self.read_by_steps = one, 0

    def read(self, tokens: Sequence[int], start: int, sequence: int = 0) -> bool:
        many = self.engine
        assert isinstance(many, CpuEngine)
        self._copy(self.one, many)
        if not super().read(tokens, start, sequence):
            return False
        self._copy(many, self.one)
        self.read_by_steps += len(tokens)
        return True

    def _copy(self, source: CpuEngine, to: CpuEngine) -> None:
        for name in ("k_cache", "v_cache"):
            to._machine.set(name, source._machine.get(name))


def backends() -> tuple[ScheduleBackend, ScheduleBackend, Handed]:
    one = engine(1)
    reader = Handed(one)
    return ScheduleBackend(one, prompts=reader), ScheduleBackend(engine(1)), reader


@pytest.mark.turns(2)
def test_texts_are_those_of_a_schedule_that_reads_token_by_token() -> None:
    """Whole steps, a step that is not full, turns that go on, and prompts up to the end of the context."""
    several, alone, reader = backends()
    for length in (2, 11, 16, 23):
        prompt = [(5 * n + length) % MODEL.vocab for n in range(length)]
        most = min(3, CONTEXT - length + 1)
        for _ in range(2):
            expected = alone.extend(prompt, most, GREEDY, ())
            assert several.extend(prompt, most, GREEDY, ()) == expected
            prompt = [*prompt, *expected, 7]
            most = min(2, CONTEXT - len(prompt) + 1)
            if most < 1 or len(prompt) > CONTEXT:
                break
    assert reader.read_by_steps > 30


def test_few_tokens_and_the_end_of_the_context_are_left_to_the_kernel() -> None:
    _, _, reader = backends()
    assert not reader.read([3], 0)
    assert not reader.read([3, 4], CONTEXT - 3)
    assert reader.read(list(range(CONTEXT - ROWS_HERE)), 0)
    assert reader.read([3, 4], CONTEXT - ROWS_HERE)


@pytest.mark.parametrize(("name", "rows"), [("llama3-8b", 64), ("llama3.2-1b", 32)])
def test_steps_have_as_many_rows_as_shared_memory_holds(name: str, rows: int) -> None:
    schedule = plan(load_model(name), load_target("h200"), max_context=2048)
    found = in_steps(schedule)
    assert (found.rows, found.kv.context) == (rows, 2048)
    assert rows in ROWS


def test_where_weights_have_room_once_steps_have_rows_that_share_them() -> None:
    """llama3.2-1b: 32 rows pack `down` in other parts, 8 rows the same bytes in smaller copies."""
    schedule = plan(load_model("llama3.2-1b"), load_target("h200"), max_context=2048)
    buffers = {b.name: b.bytes for b in schedule.buffers if b.space == "global"}
    rooms = {32: 2 * sum(buffers.values()), 8: sum(buffers.values()) + buffers["weights"] // 2}
    for rows, room in rooms.items():
        small = schedule.model_copy(update={"target": schedule.target.model_copy(update={"hbm_bytes": room})})
        found = in_steps(small)
        assert found.rows == rows and one_packing(found, small) == (rows == 8)


@pytest.mark.turns(2)
def test_what_has_no_steps_is_refused() -> None:
    schedule = tiny_plan(MODEL, workers=4)
    assert verify(in_steps(schedule)).safe
    coded = in_steps(tiny_plan(MODEL, workers=4, chunk_bytes=1024, wanted=formats("int8", "int4-g128")))
    assert verify(coded).safe and {c.format for c in coded.streams[0].chunks.values()} == {"int8", "int4-g128"}
    with pytest.raises(AmkError, match="a step reads 2 tokens"):
        in_steps(tiny_plan(MODEL, workers=4, rows=2))
