"""Mutants of 132 workers judged with all layers and with two, as the long run does it, of a tiny model of 3 layers."""

from __future__ import annotations

import pytest

from amk.adversary.confusion import schedule_of
from amk.adversary.recipe import TINY, base_schedule
from amk.judges.oracle.judge import last_start, rule
from amk.judges.replay import replay
from amk.models.model import load_model
from amk.validator.verify import verify
from tests.adversarial.full_size import PLANS, TOKENS, decide, drawn, telling
from tests.cases import cases

LAYERED = TINY.model_copy(update={"layers": 3})
"""More layers than the oracle judges, and a context shorter than one block of keys."""
SHARED_CELL, SPLIT_COUNT = 11, 43


@pytest.mark.turns(16)
@pytest.mark.parametrize("number", list(PLANS)[:: cases(2, 1)])
def test_judges_of_all_layers_and_of_two_agree(number: int) -> None:
    outcome, _ = decide(number, "layers/3", 0, LAYERED)
    assert not outcome.false_accept and not outcome.false_reject and outcome.uncertified == ""


@pytest.mark.turns(4)
@pytest.mark.parametrize(("seed", "status"), [("0", "UNSAFE"), ("2", "SAFE"), ("5", "SAFE"), ("8", "SAFE")])
def test_layers_share_or_exchange_cells_however_many_there_are(seed: str, status: str) -> None:
    """Cells that exist for two layers only, or thresholds that count two layers a token, once made these differ."""
    outcome, _ = decide(SHARED_CELL, f"layers/{seed}", 0, LAYERED)
    assert outcome.verdict == outcome.ruling.status == status
    assert "AMK103" not in outcome.codes


def test_launches_that_the_long_run_looks_at_fit_the_context() -> None:
    shortest = 0
    for seed in range(40):
        for schedule in drawn(SPLIT_COUNT, f"layers/{seed}", LAYERED):
            shortest += schedule.kv.context < schedule.kv.block + TOKENS
            assert all(0 <= telling(schedule, turn) <= last_start(schedule, TOKENS) for turn in (0, 1))
    assert shortest > 10


def test_the_oracle_refuses_a_launch_beyond_the_context() -> None:
    """What it would touch there says nothing about the schedule."""
    schedule = schedule_of(base_schedule("fenced"))
    last = last_start(schedule, TOKENS)
    assert rule(schedule, TOKENS, [last]).status == "SAFE"
    for position in (-1, last + 1):
        with pytest.raises(ValueError, match="do not fit the context"):
            rule(schedule, TOKENS, [position])


@pytest.mark.turns(12)
@pytest.mark.parametrize(
    ("number", "seed", "codes", "kind"),
    [
        (2, "full/57", ["AMK201"], "deadlock"),  # 32 layers of 3,254,196 events, each with counters in common
        (13, "full/206", ["AMK504", "AMK302"], "race"),  # what the first worker wrote, only the warp reads that waited
    ],
)
def test_witnesses_of_full_size_replay(number: int, seed: str, codes: list[str], kind: str) -> None:
    verdict = verify(drawn(number, seed, load_model("llama3-8b"))[0])
    assert (verdict.status, [d.code for d in verdict.diagnostics]) == ("UNSAFE", codes)
    assert verdict.evidence is not None and verdict.evidence.kind == kind
    assert replay(verdict.evidence.system.to_json(), verdict.evidence.witness.to_json())
