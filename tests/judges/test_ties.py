"""Of equal logits the lowest row is the token, whichever worker has it; a schedule that takes another one is UNSAFE."""

from __future__ import annotations

import json
from itertools import accumulate

import numpy as np
import pytest

from amk.adversary.neighbourhood.bases import SMALL_BASES, base
from amk.judges.emulated_run import EmulatedKernel
from amk.judges.judge import Machine
from amk.judges.numpy_run import run
from amk.judges.request import Request
from amk.judges.weights import RandomWeights
from amk.lowering.compile import compile_ptx
from amk.lowering.emit import emit
from amk.schedule_ir.schedule import Schedule
from amk.validator.verify import verify

CHOOSING = [name for name in SMALL_BASES if "select" in json.dumps(base(name)) and not base(name).get("accepts")]
TOKENS = 3


def tied(schedule: Schedule) -> RandomWeights:
    """Every row of the output head twice: in the lower half of the vocabulary and in the upper."""
    weights, half = RandomWeights(schedule.model), schedule.model.vocab // 2
    head = weights.arrays["lm_head"].copy()
    head[half : 2 * half] = head[:half]
    weights.arrays["lm_head"] = head
    return weights


def chosen(schedule: Schedule, machine: Machine) -> np.ndarray:
    """Tokens behind a prompt of one, or of as many as a step reads."""
    rows, count = schedule.rows, TOKENS if schedule.rows == 1 else 1
    request = Request(
        tuple((7,) * rows for _ in range(schedule.batch)), (count,), starts=(0,) * schedule.batch * schedule.live
    )
    shown = machine(schedule, tied(schedule), request, "round-robin", None)
    return np.concatenate([np.asarray(tokens).reshape(-1) for tokens in shown.tokens])


def reversed_shares(name: str) -> Schedule:
    """The last rows first: each worker has as many as before."""
    document = json.loads(json.dumps(base(name)))
    counts = document["tables"]["lm_head.count"]
    document["tables"]["lm_head.first"] = [sum(counts) - end for end in accumulate(counts)]
    return Schedule.model_validate_json(json.dumps(document))


@pytest.mark.parametrize("name", CHOOSING)
def test_the_lowest_of_equal_rows_is_chosen(name: str) -> None:
    schedule = Schedule.model_validate_json(json.dumps(base(name)))
    assert (chosen(schedule, run) < schedule.model.vocab // 2).all()


@pytest.mark.parametrize("name", ["fenced", "tagged"])
def test_shares_in_another_order_choose_another_row_and_are_unsafe(name: str) -> None:
    schedule = reversed_shares(name)
    kernel = EmulatedKernel(lambda of: compile_ptx(emit(of), of.target.arch))
    for machine in (run, kernel):
        assert (chosen(schedule, machine) >= schedule.model.vocab // 2).any()
    assert "select.order" in str(verify(schedule).diagnostics)
