"""The position obligations against brute force over every position, and what happens when one is false."""

from dataclasses import replace

import numpy as np
import pytest

from amk.schedule_ir.expr import Env
from amk.schedule_ir.ops import Access
from amk.schedule_ir.ops.attention import active_splits, agent_positions, owns_position
from amk.validator.envelope import NO_DATA, Envelope
from amk.validator.footprint import Footprints
from amk.validator.position import position_obligations
from amk.validator.rings import ring_obligations
from amk.validator.smt import obligation, prove
from amk.validator.trace import unroll
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
    """Outside the cache: bytes at any position are bytes of the envelope's position, with the same content."""
    schedule = small_plan(SMALL["fast"])
    geo = schedule.geometry()
    caches = {"k_cache", "v_cache"}
    envelope = Envelope(schedule, Footprints(schedule))
    tables = envelope.footprints.tables
    constant = {b.name for b in schedule.buffers if b.role == "constant"}

    def cells(accesses: list[Access]) -> set[tuple[object, ...]]:
        kept = (a for a in accesses if a.buffer not in caches | constant)
        return {(a.buffer, a.kind, b, a.value, a.origin - a.lo) for a in kept for b in range(a.lo, a.hi, 4)}

    items = [i for i in unroll(schedule.programs[0], 0, 1) if not isinstance(i.step.op, NO_DATA)]
    positional = [i for i in items if i.step.op.op in ("rope_append", "attend", "merge", "combine")][:4]
    assert len(positional) == 4
    for item in positional:
        for worker in range(schedule.launch.workers):
            top = envelope.positions(item, range(worker, worker + 1))[0]
            for agent in range(schedule.launch.warps):
                env = Env(loops=item.loops, worker=worker, agent=agent, tables=tables)
                most = cells(item.step.op.accesses(replace(env, pos=top), geo))
                for pos in range(schedule.kv.context):
                    assert cells(item.step.op.accesses(replace(env, pos=pos), geo)) <= most
