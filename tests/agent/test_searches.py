"""The summary of a search says what its journal says."""

from math import exp

import pytest

from amk.agent.journal.store import read_state
from amk.agent.run.session import offline
from amk.planner.settings import FAST
from tests.agent.conftest import MakeLoop
from tests.agent.searches import summed_up


@pytest.mark.turns(4)
def test_a_search_is_summed_up_from_its_journal(make_loop: MakeLoop) -> None:
    loop = make_loop(offline("local"), evals=8)
    loop.reference = FAST
    loop.run()
    state = read_state(loop.journal.folder)
    found = summed_up(state)
    assert found["evaluations"] == 8 and found["finished"] == state.finished and found["sessions"] == 1
    assert len(found["commands"]) == 1 and found["compared_before"] == [] and found["faults"] == {}
    assert found["times_faster_than_start"] == round(exp(-state.best_score), 4)
    assert sum(found["device_seconds"].values()) == pytest.approx(state.gpu_seconds, abs=0.3)
    faster = sum(found["best_found_ms"]) < sum(found["hand_tuned_ms"])
    tried = found["edits"]
    assert tried["of_the_best"] == [] and tried["measured"] == 0 and set(tried["single_changes"]) == {"open"}
    assert sum(tried["single_changes"].values()) > 100
    assert found["reached_hand_tuned"] == faster == (found["best_found_faster_by"] > 0)
    bounds = found["best_found_faster_by_at_least_99"], found["hand_tuned_faster_by_at_least_99"]
    assert bounds[0] <= found["best_found_faster_by"]
    assert (1 + bounds[0]) * (1 + bounds[1]) <= 1 + 1e-4  # both are rounded
    assert all(value["best"] != value["fast"] for value in found["unlike_fast"].values()) and found["unlike_fast"]


def test_a_run_without_a_comparison_claims_nothing_about_one(make_loop: MakeLoop) -> None:
    loop = make_loop(evals=2)
    loop.run()
    found = summed_up(loop.state)
    assert "reached_hand_tuned" not in found and not any("--compare" in c for c in found["commands"])
