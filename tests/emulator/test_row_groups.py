"""Chunks of two row groups: the sums of chunks of one where every warp has whole row groups, bit by bit, and no more
slots for sums than there are."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from amk.emulator.decode import Result, run
from amk.interpreter.packing import packed_array
from amk.lowering.compile import compile_ptx
from amk.lowering.emit import emit
from amk.planner.formats import formats
from amk.planner.settings import Settings, sum_slots
from amk.report.diagnostic import AmkError
from amk.schedule_ir.layout import matrix_places
from amk.schedule_ir.ops.base import partial_slots, split
from amk.schedule_ir.schedule import Schedule
from amk.validator.verify import check_needs, verify
from tests.engine.tiny import RandomTensors, tiny_model, tiny_plan

MODEL = tiny_model(layers=2, ffn=128, vocab=128, max_context=160)
ROWS: dict[str, Any] = {"rows": 24, "kv_block": 24, "kv_splits": 1, "handoff": "mixed", "warps": 2}
EACH = {1: {"chunk_bytes": 512}, 2: {"chunk_bytes": 1024, "row_groups": 2}}


def planned(row_groups: int, **changes: Any) -> Schedule:
    return tiny_plan(MODEL, workers=2, context=96, **ROWS | EACH[row_groups] | changes)


def emulated(schedule: Schedule) -> Result:
    prompt = [(7 * n + 3) % MODEL.vocab for n in range(2 * schedule.rows)]
    ptx = compile_ptx(emit(schedule), schedule.target.arch)
    found = run(schedule, RandomTensors(MODEL), ptx, prompts=[prompt], tokens=2)
    assert found.ended and not found.faults
    return found


@pytest.mark.turns(16)
@pytest.mark.parametrize("parts", [{}, {"x_parts": 2, "k_parts": 4}], ids=["whole", "in parts"])
def test_sums_are_those_of_chunks_of_one_row_group(parts: dict[str, int]) -> None:
    """Every warp has whole pairs here, so every sum is of all columns in their order."""
    one, two = planned(1, **parts), planned(2, **parts)
    assert two.streams[0].chunk_rows == 16 and one.streams[0].chunk_k == two.streams[0].chunk_k
    assert one.tables == two.tables
    assert all(count % 4 == 0 for name, counts in one.tables.items() if name.endswith(".count") for count in counts)
    alone, pairs = emulated(one), emulated(two)
    np.testing.assert_array_equal(pairs.logits, alone.logits)
    assert pairs.tokens.tolist() == alone.tokens.tolist()


def test_pairs_are_safe_and_their_workers_have_no_odd_row_group() -> None:
    schedule = planned(2)
    assert verify(schedule).safe
    for key in ("hidden", "gate_up", "qkv", "lm_head"):
        first, count = schedule.tables[f"{key}.first"], schedule.tables[f"{key}.count"]
        odd = {f"{key}.count": (count[0] - 1, count[1] + 1), f"{key}.first": (0, first[1] - 1)}
        moved = schedule.model_copy(update={"tables": schedule.tables | odd})
        assert not verify(moved).safe
        assert any("whole pairs" in found.message for found in check_needs(moved)), key
    assert not check_needs(schedule)


def test_the_packed_rows_are_the_same() -> None:
    """Every piece of 8 rows is where `matrix_places` says, whatever else is in its chunk."""
    source, found = RandomTensors(MODEL), []
    for schedule in (planned(1), planned(2)):
        (stream,) = schedule.streams
        packed = packed_array(schedule, source).reshape(-1, stream.piece_bytes // 2)
        found.append({key: packed[places] for key, places in matrix_places(schedule, stream).items()})
    assert found[0].keys() == found[1].keys()
    for key, rows in found[0].items():
        np.testing.assert_array_equal(found[1][key], rows, err_msg=str(key))


@pytest.mark.parametrize(
    "changes", [{"rows": 8, "kv_block": 8}, {"weights": {"int8"}}, {"vocab": 72}], ids=["narrow", "codes", "odd"]
)
def test_what_has_no_pairs_is_refused(changes: dict[str, Any]) -> None:
    model = tiny_model(layers=1, vocab=changes.pop("vocab", 128))
    wanted = formats("int8" if changes.pop("weights", None) else "bf16")
    with pytest.raises(AmkError, match="AMK016"):
        tiny_plan(model, workers=2, weights=wanted, **ROWS | EACH[2] | changes)


@pytest.mark.parametrize("each", [1, 2])
def test_every_sum_has_a_slot_of_its_own(each: int) -> None:
    """Of all small shares: no two warps leave sums in one slot, and the planner makes as many as the last one needs."""
    for groups, k_chunks, agents in product(range(each, 13, each), range(1, 9), range(1, 9)):
        chunks = groups // each * k_chunks
        owner: dict[int, tuple[int, int]] = {}
        for group in range(groups):
            slots = partial_slots(group, k_chunks, chunks, agents, each)
            touching = [a for a in range(agents) if _touches(split(chunks, agents, a), group // each, k_chunks)]
            assert len(slots) == len(touching)
            for slot, agent in zip(slots, touching, strict=True):
                assert slot not in owner
                owner[slot] = group, agent
        room = sum_slots(Settings(warps=agents, row_groups=each), groups)  # type: ignore[arg-type]
        assert max(owner) < room <= groups + max(agents, each * (agents - 1))


def _touches(share: tuple[int, int], row: int, k_chunks: int) -> bool:
    return max(share[0], row * k_chunks) < min(share[1], (row + 1) * k_chunks)


@pytest.mark.parametrize(("name", "less"), [("part", (-1, 0, 0)), ("ring", (0, 0, -8))])
def test_one_slot_less_or_smaller_ones_are_refused(name: str, less: tuple[int, ...]) -> None:
    """Where the share of a warp begins within a pair, sums take the last slot; chunks take all of a ring's."""
    schedule = planned(2, warps=4)
    found = []
    for buffer in schedule.buffers:
        shape = tuple(n + change for n, change in zip(buffer.shape, less, strict=True)) if buffer.name == name else None
        found.append(buffer.model_copy(update={"shape": shape}) if shape else buffer)
    assert verify(schedule).safe
    assert verify(schedule.model_copy(update={"buffers": tuple(found)})).status == "UNSAFE"
