"""The numpy machine itself: what it must notice, and that every order it offers is a legal one."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from amk.adversary.edits import steps
from amk.interpreter.counters import Barrier, CounterFamily
from amk.interpreter.fault import Deadlock, Fault, OutOfBounds, PoisonRead, StaleRegisters, WrongChunk
from amk.interpreter.interpret import Copies, Machine
from amk.interpreter.order import named_order
from amk.interpreter.tagged import TaggedWords
from amk.interpreter.whole import LogicalWeights, gemv_share
from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Counter
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.sync import SignalOp
from amk.schedule_ir.schedule import Schedule, Signal, Step
from tests.damage import Rewrite, rewritten
from tests.engine.tiny import RandomTensors, tiny_model, tiny_plan


def machine(schedule: Schedule, copies: Copies = "events") -> Machine:
    interpreter = Machine(schedule, RandomTensors(schedule.model), copies=copies)
    interpreter.set("state", np.array([3, 0, 0, 0], np.int32))
    interpreter.set("request", np.array([0, -1, -1, -1, -1], np.int32))
    return interpreter


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    """Counters behind fences."""
    return tiny_plan(tiny_model(), handoff="fenced")


@pytest.fixture(scope="module")
def tagged() -> Schedule:
    return tiny_plan(tiny_model(), handoff="tagged")


def without_signal(counter: str) -> Rewrite:
    def change(step: Step) -> Step:
        kept = tuple(s for s in step.signals if s.counter != counter)
        return step.model_copy(update={"signals": kept})

    return change


def test_a_missing_signal_is_a_deadlock_that_names_the_counter(schedule: Schedule) -> None:
    with pytest.raises(Deadlock) as caught:
        machine(rewritten(schedule, without_signal("act"))).launch(1, named_order("random:1"))
    texts = [b.waits_for for b in caught.value.blocked]
    assert "act[0] >= 4, it is 0" in texts
    assert all(t.startswith(("act[0]", "barrier 1,")) for t in texts)
    assert {(b.worker, b.warp) for b in caught.value.blocked} == {(w, a) for w in range(4) for a in range(4)}
    assert "worker 0, warp 0 at decode.body[1].body[1].body" in str(caught.value)


def test_a_barrier_of_too_many_is_a_deadlock(schedule: Schedule) -> None:
    def change(step: Step) -> Step:
        grow = {"op": step.op.model_copy(update={"agents": 5})} if step.op.op == "barrier" else {}
        return step.model_copy(update=grow)

    with pytest.raises(Deadlock, match="barrier 1, 4 of 5 arrivals"):
        machine(rewritten(schedule, change)).launch(1)


def skipping_waits_on(counter: str) -> Rewrite:
    return lambda step: None if any(w.counter == counter for w in step.waits) else step


@pytest.mark.parametrize("counter", ["qkv", "attn", "h_mid", "act", "h_out", "best"])
def test_a_missing_wait_reads_poison_in_some_order(schedule: Schedule, counter: str) -> None:
    broken, caught = rewritten(schedule, skipping_waits_on(counter)), 0
    for order in ("delay:0", "delay:1", "delay:2", "delay:3"):
        try:
            machine(broken, "whole").launch(1, named_order(order))
        except PoisonRead as fault:
            caught += 1
            assert fault.place is not None and fault.worker >= 0
    assert caught


@pytest.mark.turns(4)
def test_tagged_words_need_no_hint(tagged: Schedule) -> None:
    """Hints only say when to look: without them every token is the same, in every order."""
    eager = rewritten(tagged, lambda step: None if step.waits else step)
    outputs = []
    for schedule in (tagged, eager):
        for order in ("random:1", "delay:0", "delay:3", "favour:2", "late-copies"):
            interpreter = machine(schedule)
            interpreter.launch(4, named_order(order))
            outputs.append(interpreter.get("output")[:4].tolist())
    assert all(output == outputs[0] for output in outputs)


def test_a_tagged_word_that_nobody_writes_is_a_deadlock(tagged: Schedule) -> None:
    def change(step: Step) -> Step:
        silent = {"op": SignalOp(role=step.op.role)} if step.op.op == "swiglu" else {}
        return step.model_copy(update=silent)

    broken = rewritten(tagged, change)
    with pytest.raises(Deadlock, match=r"word \d+ of act with tag 1, it has 0"):
        machine(broken).launch(1)


@pytest.mark.turns(12)
def test_an_old_tag_is_not_taken_for_a_new_one(tagged: Schedule) -> None:
    """With a tag that does not count tokens, the second token reads the first one's candidates in some order."""
    stuck = (b.model_copy(update={"tag": 1}) if b.name.startswith("best") else b for b in tagged.buffers)
    broken = tagged.model_copy(update={"buffers": tuple(stuck)})
    eager = rewritten(broken, lambda step: None if any(w.counter == "best" for w in step.waits) else step)
    texts = set()
    for order in ("round-robin", *(f"delay:{w}" for w in range(4))):
        interpreter = machine(eager)
        try:
            interpreter.launch(6, named_order(order))
            texts.add(tuple(interpreter.get("output")[:6].tolist()))
        except Fault as fault:
            texts.add((str(fault),))
    assert len(texts) > 1


def test_a_write_that_splits_a_tagged_word_is_a_fault(tagged: Schedule) -> None:
    (buffer,) = (b for b in tagged.buffers if b.name == "h_mid")
    words: TaggedWords[str] = TaggedWords(buffer)
    words.block(2, 7, "reader")
    assert words.missing(8, 24, 7) == 1
    assert not words.write(2, 4, 7) and words.missing(8, 16, 7) is None
    assert list(words.write(4, 6, 6)) == [] and list(words.write(4, 6, 7)) == ["reader"]
    assert words.holds(2, 6, 7) and not words.holds(2, 7, 7)
    with pytest.raises(Fault, match="splits a tagged word"):
        words.write(3, 6, 7)


def test_overlapping_shared_buffers_lose_their_content(schedule: Schedule) -> None:
    """The ring on top of x: the bytes of a staged vector land on chunks, or the reverse."""

    def moved(name: str, onto: str) -> Schedule:
        offset = next(b.offset for b in schedule.buffers if b.name == onto)
        buffers = (b.model_copy(update={"offset": offset}) if b.name == name else b for b in schedule.buffers)
        return schedule.model_copy(update={"buffers": tuple(buffers)})

    with pytest.raises((WrongChunk, PoisonRead)):
        machine(moved("x", "ring")).launch(1)
    with pytest.raises(WrongChunk, match="holds bytes of something else"):
        machine(moved("x", "ring")).launch(1, named_order("early-copies"))
    right, wrong = machine(schedule), machine(moved("ssq", "residual"), "whole")
    for one in (right, wrong):
        one.launch(1)
    assert not np.allclose(right.get("logits"), wrong.get("logits"), rtol=0.1)


def test_two_names_of_the_same_elements_are_one_array(schedule: Schedule) -> None:
    """A product reads by another name what was staged; of another dtype the bytes hold nothing that it could read."""

    def read_as(dtype: str, at: int) -> Schedule:
        document = schedule.model_dump(mode="json")
        (x,) = (b for b in document["buffers"] if b["name"] == "x")
        document["buffers"].append(x | {"name": "x.twin", "dtype": dtype, "offset": x["offset"] + at})
        next(step for _, step in steps(document) if step["op"]["op"] == "gemv")["op"]["x"] = "x.twin"
        return Schedule.model_validate_json(json.dumps(document))

    alone, twice = machine(schedule), machine(read_as("bf16", 0))
    for one in (alone, twice):
        one.launch(2)
    assert np.array_equal(alone.get("logits"), twice.get("logits"))
    for wrong in (read_as("halves", 0), read_as("bf16", 1)):
        with pytest.raises(PoisonRead, match=r"x\.twin"):
            machine(wrong).launch(1)


def test_rings_notice_a_layout_that_disagrees(schedule: Schedule) -> None:
    """Draining up before qkv: the producer's order is that of the program, so a swapped lookup must not go unseen."""
    interpreter = machine(schedule)
    ring = interpreter._rings["weights"].rings[0][0]
    (first,) = (key for key in ring._starts if key[:2] == ("gate_up", 0))
    ring._starts[first] += 1
    with pytest.raises(WrongChunk, match="holds chunk"):
        interpreter.launch(1)


@pytest.mark.parametrize("tokens", [1, 3])
def test_every_chunk_is_copied_and_drained_once(schedule: Schedule, tokens: int) -> None:
    interpreter = machine(schedule)
    interpreter.launch(tokens, named_order("random:5"))
    for worker in interpreter._rings["weights"].rings:
        for ring in worker:
            assert ring.issued == ring.drained == ring.limit


def test_reading_past_the_context_is_a_fault(schedule: Schedule) -> None:
    interpreter = machine(schedule, "whole")
    interpreter.set("state", np.array([3, schedule.kv.context, 0, 0], np.int32))
    with pytest.raises((OutOfBounds, PoisonRead)) as caught:
        interpreter.launch(1)
    assert caught.value.place is not None


def test_unset_state_is_poison(schedule: Schedule) -> None:
    with pytest.raises(PoisonRead, match="state"):
        Machine(schedule, RandomTensors(schedule.model)).launch(1)


def test_scratch_does_not_survive_a_launch_and_counters_do(schedule: Schedule) -> None:
    interpreter = machine(schedule)
    interpreter.launch(2)
    assert interpreter.counter("best") == [8]
    h = interpreter.get("h_out")
    interpreter.launch(1)
    assert interpreter.counter("best") == [12] and interpreter.get("state").tolist()[1:3] == [3, 3]
    interpreter._storage.forget_scratch()
    assert np.isfinite(h).all() and np.isnan(interpreter.get("h_out")).all()
    assert np.isfinite(interpreter.get("logits")).all()


@pytest.mark.parametrize("op", ["begin", "select"])
def test_registers_belong_to_one_warp(schedule: Schedule, op: str) -> None:
    """A warp that does not load them, or stays at the first token, is noticed as soon as it uses them."""

    def change(step: Step) -> Step:
        alone = {"op": step.op.model_copy(update={"role": "w0"})} if step.op.op == op else {}
        return step.model_copy(update=alone)

    with pytest.raises(StaleRegisters) as caught:
        machine(rewritten(schedule, change), "whole").launch(2)
    assert caught.value.warp > 0


def test_a_decrement_is_a_fault(schedule: Schedule) -> None:
    def change(step: Step) -> Step:
        signals = tuple(Signal(counter=s.counter, index=s.index, add=-1) for s in step.signals)
        return step.model_copy(update={"signals": signals})

    with pytest.raises(Fault, match="decremented"):
        machine(rewritten(schedule, change), "whole").launch(1)


def test_constants_are_not_written(schedule: Schedule) -> None:
    def change(step: Step) -> Step:
        wrong = {"op": step.op.model_copy(update={"act": "norm"})} if step.op.op == "swiglu" else {}
        return step.model_copy(update=wrong)

    with pytest.raises(Fault, match="writes norm, a launch constant"):
        machine(rewritten(schedule, change), "whole").launch(1)


@pytest.mark.parametrize("chunk_k", [32, 64])
def test_a_whole_share_is_what_the_reference_computes(chunk_k: int) -> None:
    model = tiny_model(hidden=96, heads=3, kv_heads=1, ffn=160)
    plain = tiny_plan(model, workers=2, warps=8)
    stream = plain.streams[0].model_copy(update={"chunk_k": chunk_k})
    schedule = plain.model_copy(update={"streams": (stream,)})
    geo, weights = schedule.geometry(), LogicalWeights(model, RandomTensors(model))
    tables = {n: np.array(t) for n, t in schedule.tables.items()}

    class Plain:
        def __init__(self) -> None:
            draw = np.random.default_rng(0)
            self.regs: dict[str, int] = {}
            self.arrays = {
                b.name: draw.standard_normal(b.elements) for b in schedule.buffers if b.name in ("x", "part")
            }

        def read(self, buffer: str, lo: int, hi: int) -> Any:
            return self.arrays[buffer][lo:hi].astype(np.float32)

        def write(self, buffer: str, lo: int, data: Any, run: int = 1) -> None:
            self.arrays[buffer][lo : lo + len(data)] = data

        def tile(self, stream: str, name: Any, layer: int, group: int, k_chunk: int) -> Any:
            return weights.tile(name, layer, group, k_chunk, chunk_k)

    for name in ("qkv", "o", "gate_up", "down", "lm_head"):
        op = GemvOp(role="all", matrix=name, layer=0, stream="weights", x="x", part="part")
        for worker, agent in np.ndindex(2, 5):
            env, slow, fast = Env({"t": 0, "n": 0}, worker, agent, 0, tables), Plain(), Plain()
            op.reference(env, geo, slow)  # type: ignore[arg-type]
            gemv_share(op, env, geo, fast, weights)  # type: ignore[arg-type]
            np.testing.assert_allclose(fast.arrays["part"], slow.arrays["part"], rtol=1e-5, atol=1e-4)


def test_barriers_count_rounds() -> None:
    barrier: Barrier[str] = Barrier()
    assert barrier.arrive() == []
    barrier.block(2, "a")
    assert barrier.arrive() == ["a"]
    barrier.block(4, "b")
    assert barrier.arrive() == [] and barrier.arrive() == ["b"]


def test_counters_wake_exactly_who_is_due() -> None:
    family: CounterFamily[str] = CounterFamily(Counter(name="c", shape=(2, 3), init=1))
    flat = family.place((1, 2))
    assert flat == 5
    family.block(flat, 2, "soon")
    family.block(flat, 5, "later")
    assert family.add(flat, 1) == ["soon"] and family.add(flat, 2) == [] and family.add(flat, 1) == ["later"]
    with pytest.raises(OutOfBounds, match=r"c\[2, 0\]"):
        family.place((2, 0))


@pytest.mark.parametrize("name", ["", "random", "random:x", "favour:-1", "round-robin:1", "fair"])
def test_unknown_orders_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="names no interleaving"):
        named_order(name)
