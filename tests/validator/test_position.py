"""The position obligations against brute force over every position, and what happens when one is false."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import amk.validator.verify as verify_module
from amk.adversary.cases import RECIPES, make_case
from amk.adversary.edits import Edit, apply, steps
from amk.cli import main
from amk.report.diagnostic import AmkError, Exit
from amk.schedule_ir.codec import save_schedule, schedule_hash
from amk.schedule_ir.expr import Env
from amk.schedule_ir.ops import Access
from amk.schedule_ir.ops.attention import active_splits, agent_positions, owns_position
from amk.schedule_ir.schedule import Schedule
from amk.validator.memory.composition import compose
from amk.validator.memory.position_abstraction import NO_DATA, PositionAbstraction
from amk.validator.program.footprint import Footprints
from amk.validator.program.trace import unroll
from amk.validator.static import obligations
from amk.validator.static.obligations import obligation, position_obligations, prove, ring_obligations
from tests.validator.plans import SMALL, small_plan


def test_all_obligations_are_proved() -> None:
    proofs = prove([*position_obligations(small_plan()), *ring_obligations()])
    assert [p.outcome for p in proofs] == ["proved"] * len(proofs) and len(proofs) >= 9


def test_a_false_claim_is_refuted_with_a_model_and_a_hard_one_stays_unknown() -> None:
    wrong = obligation("wrong", "AMK101", {"p": "(<= 0 p)"}, [], "(< (mod p 8) 7)")
    hard = obligation(
        "hard", "AMK101", {v: f"(< 1 {v})" for v in "abcd"}, [], "(not (= (+ (* a a a) (* b b b)) (* c c c)))"
    )
    refuted, unknown = prove([wrong, hard], timeout_ms=50)
    assert refuted.outcome == "refuted" and "p" in refuted.model
    assert unknown.outcome == "unknown"


@pytest.mark.parametrize("settings", ["fast", "two-warps"])
def test_attention_ops_follow_the_arithmetic_at_every_position(settings: str) -> None:
    schedule = small_plan(SMALL[settings])
    geo, kv = schedule.geometry(), schedule.kv
    warps = schedule.launch.warps
    for pos in range(kv.context):
        reads = np.zeros(kv.context, int)
        for s in range(kv.splits):
            mine = np.zeros(kv.context, int)
            for a in range(warps):
                for lo, hi in agent_positions(pos, s, a, warps, geo):
                    mine[lo:hi] += 1
            owned = [p for p in range(pos + 1) if (p // kv.block) % kv.splits == s]
            assert np.flatnonzero(mine).tolist() == owned
            assert bool(owned) == (s < active_splits(pos, geo))
            assert owns_position(pos, s, geo) == (pos in owned)
            reads += mine
        assert reads[: pos + 1].tolist() == [1] * (pos + 1) and not reads[pos + 1 :].any()


def test_the_envelope_contains_what_is_touched_at_every_position() -> None:
    """Outside the cache: bytes at any position are bytes of the abstraction's, with the same content."""
    schedule = small_plan(SMALL["fast"])
    geo = schedule.geometry()
    caches = {"k_cache", "v_cache"}
    abstraction = PositionAbstraction(schedule, Footprints(schedule))
    tables = abstraction.footprints.tables
    constant = {b.name for b in schedule.buffers if b.role == "constant"}

    def cells(accesses: list[Access]) -> set[tuple[object, ...]]:
        kept = (a for a in accesses if a.buffer not in caches | constant)
        return {(a.buffer, a.kind, b, a.value, a.origin - a.lo) for a in kept for b in range(a.lo, a.hi, 4)}

    items = [i for i in unroll(schedule.programs[0], 0, 1) if not isinstance(i.step.op, NO_DATA)]
    positional = [i for i in items if i.step.op.op in ("rope_append", "attend", "merge", "combine")][:4]
    assert len(positional) == 4
    for item in positional:
        for worker in range(schedule.launch.workers):
            top = int(abstraction.positions(item, np.array([worker]))[0])
            for agent in range(schedule.launch.warps):
                env = Env(loops=item.loops, worker=worker, agent=agent, tables=tables)
                most = cells(item.step.op.accesses(replace(env, pos=top), geo))
                for pos in range(schedule.kv.context):
                    assert cells(item.step.op.accesses(replace(env, pos=pos), geo)) <= most


@pytest.mark.turns(4)
def test_a_timeout_is_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An obligation that no solver decides in time leaves the verdict open: exit 3.

    The clock of `verify` stands still, so that the solver has all of the time, however loaded the host is.
    """
    hard = obligation("x^3 + y^3 + z^3 = 42", "AMK104", {"x": "", "y": "", "z": ""}, [], CUBES)
    monkeypatch.setattr(verify_module, "position_obligations", lambda schedule: [hard])
    monkeypatch.setattr(verify_module, "time", SimpleNamespace(monotonic=lambda: 0.0))
    schedule = small_plan()
    verdict = verify_module.verify(schedule, timeout_s=0.5)
    assert verdict.status == "UNKNOWN" and [d.code for d in verdict.diagnostics] == ["AMK104"]
    file = tmp_path / "s.json"
    save_schedule(schedule, file)
    assert main(["verify", str(file), "--timeout", "0.5", "--certificate", str(tmp_path / "c.json")]) == Exit.UNKNOWN
    assert "UNKNOWN" in capsys.readouterr().out and not (tmp_path / "c.json").exists()


CUBES = "(not (= (+ (* x x x) (* y y y) (* z z z)) 42))"


def test_every_obligation_is_written_and_a_second_solver_agrees(tmp_path: Path) -> None:
    cvc5 = pytest.importorskip("cvc5")
    schedule = small_plan()
    file, folder = tmp_path / "s.json", tmp_path / "smt"
    save_schedule(schedule, file)
    assert main(["verify", str(file), "--emit-smt", str(folder), "--solver", "both"]) == Exit.SAFE
    scripts = sorted(folder.glob("*.smt2"))
    assert len(scripts) == len(verify_module.obligations_of(schedule))
    for script in scripts:
        text = script.read_text()
        assert text.startswith(f"; schedule {schedule_hash(schedule)}\n; expected: unsat")
        solver = cvc5.Solver(cvc5.TermManager())
        parser = cvc5.InputParser(solver)
        parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, text, script.name)
        said = ""
        while not (command := parser.nextCommand()).isNull():
            said += command.invoke(solver, parser.getSymbolManager())
        assert said.strip() == "unsat", script.name


def test_solvers_that_contradict_each_other_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cvc5")
    items = [
        obligation("true", "AMK103", {"x": ""}, [], "(= x x)"),
        obligation("false", "AMK103", {"x": ""}, [], "(= x 0)"),
    ]
    assert [p.outcome for p in prove(items, solver="both")] == ["proved", "refuted"]
    monkeypatch.setattr(obligations, "_cvc5", lambda script, timeout_ms: ("refuted", ""))
    with pytest.raises(AmkError, match="AMK901"):
        prove(items, solver="both")


def test_a_solver_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obligations, "find_spec", lambda name: None)
    with pytest.raises(AmkError, match="AMK207"):
        prove([], solver="cvc5")


def test_all_workers_are_looked_at_only_where_the_first_of_a_class_has_no_race() -> None:
    """Where counters order private memory: a race of one is a race, but one without any does not speak for others."""
    racy = json.loads(small_plan(SMALL["fast"]).model_dump_json())
    barrier = next(path for path, step in steps(racy) if step["op"]["op"] == "barrier")
    first = compose(Schedule.model_validate_json(json.dumps(apply(racy, [Edit("remove", barrier)])[0])))
    assert first.by_counters and not first.safe and first.classes < first.schedule.launch.workers
    recipe = next(recipe for recipe in RECIPES if recipe.name == "ordered-for-some-workers")
    ordered = compose(Schedule.model_validate_json(json.dumps(make_case(recipe)["schedule"])))
    assert not ordered.safe and ordered.classes == ordered.schedule.launch.workers
