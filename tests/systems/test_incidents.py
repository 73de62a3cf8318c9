"""Published bugs: each is found, the finding names the cause, its witness replays, and the fix is SAFE."""

from __future__ import annotations

import json

import pytest

from amk.judges.replay import replay
from amk.systems import System
from amk.systems.document import written
from amk.systems.incidents import Incident, load
from amk.systems.run_witness import FORMAT, replay_run
from amk.systems.verdict import Verdict, judged
from tests.systems.rule_runs import Rules, TooMany

INCIDENTS = load()
TOO_LARGE = {"tilelang-phase-begins-anew-with-each-tile", "tlx-grouped-gemm-updates-a-descriptor-in-use",
             "gemm-sol-mailbox-without-acknowledgement"}  # fmt: skip
"""Fixed kernels with more states than are explored here."""


def wrong(verdict: Verdict, limit: int = 20_000) -> bool:
    return bool(Rules(json.loads(written(verdict.system)), limit).wrong(all_of_it=False))


@pytest.mark.parametrize("incident", INCIDENTS.values(), ids=lambda i: i.name)
def test_the_bug_is_found_and_its_fix_is_safe(incident: Incident) -> None:
    verdict = judged(incident.system(False).flat())
    assert verdict.verdict == "UNSAFE" and verdict.diagnostics[0].code.startswith(incident.code), verdict
    text = verdict.explain()
    assert all(words in text for words in incident.says) and "amk/systems/incidents/" in text, text
    found = verdict.witness_json()
    if incident.code != "AMK505":
        assert found is not None
        replayed = replay_run(found, "w") if found["format"] == FORMAT else replay(found["system"], found["witness"])
        assert replayed
    fixed = judged(incident.system(True).flat())
    assert fixed.safe, fixed
    if incident.name not in TOO_LARGE:
        assert not wrong(fixed)


def test_exploration_finds_every_bug_too() -> None:
    """All but those of scopes, which are a rule and no interleaving."""
    for incident in INCIDENTS.values():
        if incident.code == "AMK505":
            continue
        try:
            assert wrong(judged(incident.system(False).flat())), incident.name
        except TooMany:
            assert incident.name in TOO_LARGE


def test_there_are_enough_of_them_and_each_says_where_it_is_from() -> None:
    assert len(INCIDENTS) >= 12 and len({incident.report for incident in INCIDENTS.values()}) >= 12
    for incident in INCIDENTS.values():
        assert incident.report.startswith("https://github.com/") and "Fix" in incident.about


def test_a_sum_in_open_order_is_safe_and_not_deterministic() -> None:
    """Fleet's experts add to one accumulator in any order; with a slab for each, summed in turn, the order is one."""
    for slabs in (False, True):
        sys = System("experts")
        out, done = sys.buffer("workspace", 32), sys.counter("done")
        for n in range(2):
            with sys.agent(f"expert {n}", cta=n) as expert:
                lo = 16 * n if slabs else 0
                (expert.write if slabs else expert.add)(out, lo, lo + 16)
                expert.signal(done)
        with sys.agent("next layer", cta=2) as reader:
            reader.wait(done, 2)
            reader.read(out, 0, 32 if slabs else 16)
        verdict = judged(sys.flat())
        assert verdict.safe and verdict.deterministic == slabs
