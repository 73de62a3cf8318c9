"""What counters alone block for good never runs in the flat system either, and costs none until somebody asks."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from amk.adversary.edits import Edit, apply, steps
from amk.adversary.subjects import move, subject, waits
from amk.judges.replay import replay
from amk.report.diagnostic import AmkError
from amk.schedule_ir.references import check_references
from amk.schedule_ir.schedule import Schedule
from amk.validator.evidence import explanation as evidence
from amk.validator.evidence.flat_system import Flat, expand
from amk.validator.evidence.wait_cycles import Blocked, wait_cycle
from amk.validator.memory.composition import Composition, compose
from amk.validator.order.between_ctas import InterCtaSystem
from amk.validator.order.greedy_run import greedy
from amk.validator.order.within_cta import NotComposable
from amk.validator.program.system import I64
from amk.validator.program.trace import BARRIERS
from amk.validator.verify import verify
from tests.validator.one_edits import KINDS
from tests.validator.plans import MODELS, SMALL, from_document, small_plan
from tests.validator.two_level import given, random_two_level

EDITS = 30


def stuck(name: str, rng: Random) -> Composition | None:
    """A small plan that gets stuck after one edit of its synchronisation."""
    document = json.loads(small_plan(SMALL[name], MODELS["qk-norm"]).model_dump_json())
    try:
        edit = KINDS[rng.choice(("threshold", "no signal", "moved step"))](document, rng)
        schedule = Schedule.model_validate_json(json.dumps(apply(document, edit)[0]))
        if check_references(schedule):
            return None
        result = compose(schedule)
    except (AmkError, IndexError, NotComposable, ValueError):
        return None
    return None if result.never or not isinstance(result.block, InterCtaSystem) or result.live else result


def brought_without(flat: Flat, total: int, events: list[int]) -> I64:
    """[counters] what the steps bring that each worker comes to by itself, nobody else awaited, before these events."""
    system, workers = flat.system, flat.schedule.launch.workers
    own = (system.wait_counter >= total) & (system.wait_counter < total + BARRIERS * workers)
    return greedy(replace(system, wait_threshold=np.where(own, system.wait_threshold, 0)), events).values


def check_knot(result: Composition, flat: Flat, found: list[Blocked]) -> None:
    """Nothing of the knot runs, and its counters get exactly what is said."""
    run, firsts = greedy(flat.system), [result.groups[one.group].first for one in found]
    events = [int(flat.event_id[k.group][k.worker - first, k.event]) for k, first in zip(found, firsts, strict=True)]
    brought = brought_without(flat, result.instances.total, sorted(set(events)))
    for one, event in zip(found, events, strict=True):
        assert run.cut[flat.system.agent_of[event]] <= flat.system.index_of[event], one
        assert int(run.values[one.counter]) <= one.reached < one.threshold
        assert one.reached == brought[one.counter], one


@pytest.mark.parametrize("name", ["fast", "two-warps", "naive"])
def test_what_a_knot_blocks_never_runs_at_any_position(name: str) -> None:
    rng, tied, open_ = Random(f"knots {name}"), 0, 0
    for _ in range(EDITS):
        result = stuck(name, rng)
        if result is None:
            continue
        found = wait_cycle(result)
        tied, open_ = tied + bool(found), open_ + (not found)
        check_knot(result, expand(result.schedule, rng.randrange(result.schedule.kv.context - 2), 2), found)
    assert tied > 3, (tied, open_)


def stuck_workers(rng: Random) -> Composition | None:
    """Random workers of three warps and barriers, one wait too high; the steps that wait signal too."""
    document = json.loads(random_two_level(rng).model_dump_json())
    if not (found := waits(document)):
        return None
    path, wait = rng.choice(found)
    edits = [Edit("replace", (*path, "at_least"), wait["at_least"] + rng.randint(1, 4))]
    for other in dict.fromkeys(p[:-2] for p, _ in found):
        edits.append(Edit("replace", (*other, "signals"), [given(f"g{rng.randrange(4)}", 1)]))
    try:
        result = compose(from_document(apply(document, edits)[0]), 1)
    except ValueError:
        return None  # it runs to the end, and nothing touches memory
    return None if result.stuck or result.live else result


def test_knots_of_workers_whose_warps_meet_at_barriers() -> None:
    """Signals of other warps come after a wait by way of barriers, and a step that waits may signal."""
    rng, several = Random(7), 0
    for _ in range(150):
        result = stuck_workers(rng)
        if result is not None:
            found = wait_cycle(result)
            check_knot(result, expand(result.schedule, 0, 1), found)
            several += len(found) > 1
    assert several > 10


def held_up_by_words(at_least: int) -> Composition:
    """Worker 2 looks for words of all workers before it writes its own. All others wait for its count of `h_out`,
    worker 3 for `at_least` of it in its first token; of what both tokens bring, 8, five do not come after these waits.
    """
    document = json.loads(json.dumps(subject("tagged", 4, 2, 1).document))
    body = document["programs"][0]
    shares = {"decode": (0, 2), "words": (2, 1), "cycle": (3, 1)}
    document["programs"] = [body | {"name": n, "first": first, "count": count} for n, (first, count) in shares.items()]
    (early,) = (
        p for p, s in steps(document) if p[1] == 1 and s["op"]["op"] == "stage_norm" and s["op"]["h"] == "h_out"
    )
    document = apply(document, move(document, early, -6))[0]
    (wait,) = (p for p, s in steps(document) if p[1] == 2 and "h_out" in [w["counter"] for w in s["waits"]])
    changed = Edit("replace", (*wait, "waits", 0, "at_least"), {"t": 4, "1": at_least})
    result = compose(from_document(apply(document, [changed])[0]))
    assert not result.live and not result.never and isinstance(result.block, InterCtaSystem)
    return result


def test_waits_that_words_hold_up_are_no_part_of_a_knot(monkeypatch: pytest.MonkeyPatch) -> None:
    """What signals outside the knot reach is freed by them, whatever else is a knot."""
    monkeypatch.setattr(evidence, "SMALL", 0)
    result = held_up_by_words(8)
    assert [(one.worker, one.threshold, one.reached) for one in wait_cycle(result)] == [(3, 8, 7)]
    finding = evidence.explain(result)
    assert finding is not None and finding.diagnostic.code == "AMK201"
    (fact,) = finding.diagnostic.facts
    assert "worker 3" in fact.text and "waits for h_out[0] >= 8; " in fact.text and fact.text.endswith("bring it to 7")
    assert not wait_cycle(held_up_by_words(4))


def test_a_cycle_of_a_large_system_costs_no_flat_system_until_its_witness_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evidence, "SMALL", 0)
    made: list[int] = []

    def counted(*args: object, **named: object) -> object:
        made.append(1)
        return expand(*args, **named)  # type: ignore[arg-type]

    rng = Random(3)
    while True:
        result = stuck("naive", rng)
        if result is not None and evidence._starved(result) is None and wait_cycle(result):
            break
    monkeypatch.setattr(evidence, "expand", counted)
    verdict = verify(result.schedule)
    assert [d.code for d in verdict.diagnostics] == ["AMK201"] and not made
    assert "waits for" in verdict.diagnostics[0].facts[0].text
    assert verdict.evidence is not None
    assert replay(verdict.evidence.system.to_json(), verdict.evidence.witness.to_json()) and made
