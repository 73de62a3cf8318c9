"""What the validator takes for read at every position is, and what the checker takes for read wherever a row of a step
belongs to a split: at all positions, by blocks and rows that do not fit each other."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from amk.adversary.neighbourhood.bases import SMALLEST, TAGGED
from amk.checker.certificate import Proof
from amk.checker.footprints import Footprints as CheckerFootprints
from amk.checker.words import FlagWords, Readings, passes
from amk.planner.decode import plan
from amk.schedule_ir.ops.attention import owns_position
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.validator.memory.position_abstraction import PositionAbstraction
from amk.validator.program.footprint import Footprints
from amk.validator.program.system import I64, READ
from amk.validator.program.trace import Item, Site, all_sites

BLOCK = 4
SHAPES = [
    (rows, splits, context)
    for rows, splits, context in product((1, 2, 3, 4), (1, 2, 3), (4, 5, 6, 10, 13))
    if context >= rows
]


@cache
def _base(rows: int, splits: int) -> Any:
    chosen = replace(TAGGED, rows=rows, kv_block=BLOCK, kv_splits=splits, reduce_from=2, max_ring_bytes=16384)
    model = SMALLEST.model_copy(update={"layers": 1, "max_context": 16, "heads": 3, "hidden": 96})
    schedule = plan(model, load_target("h200"), settings=chosen, workers=3, max_context=16)
    assert schedule.kv.splits == splits
    return json.loads(schedule.model_dump_json())


def scheduled(rows: int, splits: int, context: int) -> Schedule:
    document = deepcopy(_base(rows, splits))
    document["kv"]["context"] = context
    for buffer in document["buffers"]:
        if buffer["name"] in ("k_cache", "v_cache", "rope", "prompt"):
            buffer["shape"] = [context if size == 16 else size for size in buffer["shape"]]
    return Schedule.model_validate_json(json.dumps(document))


def _words(footprints: Footprints, site: Site, pos: I64) -> set[tuple[int, ...]]:
    """(worker, agent, buffer, 8 bytes) of the flag words that a step reads with workers at these positions."""
    loops = {"t": 0, "n": 0} | ({"l": 0} if site.layers is not None else {})
    found = footprints.of([Item(site, 0, loops)], np.arange(len(pos)), pos[None])
    tagged = {n for n, b in enumerate(footprints.schedule.buffers) if b.tagged}
    return {
        (worker, agent, row[0], word)
        for worker, agent, row in zip(found.worker.tolist(), found.agent.tolist(), found.rows.tolist(), strict=True)
        if row[0] in tagged and row[1] == READ
        for word in range(row[2] // 8, row[3] // 8)
    }


@pytest.mark.turns(4)
@pytest.mark.parametrize(("rows", "splits", "context"), SHAPES)
def test_words_are_read_at_every_position_and_at_some(rows: int, splits: int, context: int) -> None:
    schedule = scheduled(rows, splits, context)
    footprints = Footprints(schedule)
    abstraction = PositionAbstraction(schedule, footprints)
    workers, moved = np.arange(schedule.launch.workers), set[str]()
    for site in (s for s in all_sites(schedule) if "pos" in s.step.op.registers and not s.step.op.perhaps):
        item = Item(site, 0, {"t": 0, "n": 0, "l": 0})
        least = _words(footprints, site, abstraction.least_positions(item, workers))
        most = _words(footprints, site, abstraction.positions(item, workers))
        each = [_words(footprints, site, np.full(len(workers), pos)) for pos in range(context - rows + 1)]
        assert least == set.intersection(*each)
        assert most == set.union(*each)
        moved |= {site.step.op.op} if least != most else set()
    if splits > 1 and context >= 2 * BLOCK:
        assert "rope_append" in moved and moved & {"combine", "reduce_splits"}


def _pairs(readings: Readings) -> set[tuple[int, ...]]:
    """(item, warp, reader, owner of words that it reads)."""
    return {
        (*at, reader, owner)
        for at, found in readings.items()
        for reading in found
        for reader, owner in np.argwhere(reading.always).tolist()
    }


@pytest.mark.turns(4)
@pytest.mark.parametrize(("rows", "splits", "context"), SHAPES)
def test_words_are_read_wherever_a_row_is_of_a_split(rows: int, splits: int, context: int) -> None:
    schedule = scheduled(rows, splits, context)
    proof, geometry = Proof(schedule), schedule.geometry()

    def read_at(pos: int) -> set[tuple[int, ...]]:
        there = CheckerFootprints(proof.schedule, proof.programs, [pos] * 4).rows()
        return _pairs(FlagWords(proof.schedule, passes(schedule), there).readings)

    each = {pos: read_at(pos) for pos in range(context - rows + 1)}
    for split, case in enumerate(proof.words.cases):
        belong = [pos for pos in each if any(owns_position(pos + r, split, geometry) for r in range(rows))]
        assert belong
        for pos in belong:
            assert _pairs(case) <= each[pos], (split, pos)
        assert _pairs(proof.words.readings) <= _pairs(case)
