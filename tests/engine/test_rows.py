"""A step of several rows of a sequence is as many steps of one row: logits, tokens, keys and values, at every position.

The verdict, its certificate and the judges that run the schedule know of rows; what is damaged in a step of rows is
noticed by one of them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amk.checker.certificate import check_certificate
from amk.engine.backends.cpu_engine import CpuEngine
from amk.judges.emulated_run import EmulatedKernel
from amk.judges.judge import judge
from amk.judges.numpy_run import run
from amk.judges.oracle.judge import rule, start_positions
from amk.judges.request import Request
from amk.judges.weights import RandomWeights
from amk.lowering.kernel import build
from amk.models.model_spec import ModelSpec
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import Settings
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import canonical_json, schedule_hash
from amk.schedule_ir.ops import attend, rope_append, select
from amk.schedule_ir.ops.attention import agent_positions, attended, queries, sharing
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.validator.export.of_schedule import certify_schedule
from amk.validator.verify import verify
from tests.cases import cases, one_in_turn
from tests.engine.tiny import RandomTensors, tiny_model, tiny_plan
from tests.tiny import PLAIN, VARIANTS

CASES: dict[str, tuple[ModelSpec, int, dict[str, Any]]] = {
    "tagged words": (tiny_model(), 4, {"workers": 8, "kv_splits": 1}),
    "fenced counters, two splits": (tiny_model(), 2, {"workers": 8, "kv_splits": 2, "handoff": "fenced"}),
    "rows across blocks": (tiny_model(), 3, {"workers": 8, "kv_splits": 2, "warps": 4}),
    "bias, a group of three": (
        tiny_model(heads=3, kv_heads=1, hidden=96, qkv_bias=True), 3, {"workers": 7, "kv_splits": 2, "warps": 2},
    ),
    "head norms, warps left over": (
        tiny_model(heads=6, kv_heads=2, hidden=192, qk_norm=True), 8, {"workers": 4, "warps": 4, "kv_block": 8},
    ),
    "down in parts": (tiny_model(ffn=128), 2, {"workers": 5, "k_parts": 4}),
    "all in parts": (
        tiny_model(ffn=256), 8,
        {"workers": 4, "warps": 2, "kv_block": 8, "k_parts": 4, "x_parts": 2, "handoff": "mixed"},
    ),
    "fp8 cache": (tiny_model(), 2, {"workers": 4, "kv_dtype": "fp8"}),
    "sums of lm_head in global memory": (tiny_model(), 4, {"workers": 5, "head_sums": "global"}),
    "sixteen rows": (
        tiny_model(layers=1, max_context=112), 16, {"workers": 4, "kv_block": 16, "kv_splits": 2, "context": 112},
    ),
}  # fmt: skip


def planned(name: str, **changes: Any) -> Schedule:
    model, rows, settings = CASES[name]
    return tiny_plan(model, **({"kv_block": 4, "rows": rows} | settings | changes))


@pytest.mark.turns(48)
@pytest.mark.parametrize("name", CASES)
def test_a_step_of_rows_is_steps_of_one_row(name: str) -> None:
    model, rows, _ = CASES[name]
    schedule, source = planned(name), RandomTensors(model)
    context, steps = schedule.kv.context, 4
    prompt = [int(t) for t in np.random.default_rng(3).integers(0, model.vocab, 1 + steps * rows + rows)]
    for start in one_in_turn((schedule.kv.block - 1, 0), list(CASES).index(name)):
        one, many = CpuEngine(planned(name, rows=1, reduce_from=1, x_parts=1), source), CpuEngine(schedule, source)
        one.request(prompt)
        one.step(start) if start else None
        many.request(prompt, start=start)
        for cache in ("k_cache", "v_cache"):
            many._machine.set(cache, one._machine.get(cache))
        chosen = np.concatenate([many.step(1), many.step(steps - 1)])
        for n in range(steps * rows):
            assert one.step(1)[0] == chosen[n // rows, n % rows]
            if n >= (steps - 1) * rows:
                found = many.logits()[n - (steps - 1) * rows]
                np.testing.assert_allclose(found, one.logits(), rtol=0, atol=2e-5 + 2e-2 * ("fp8" in name))
        now = many.state()
        assert now == one.state() | {"epoch": steps}
        assert now["pos"] == start + steps * rows <= context


def test_a_schedule_of_one_row_says_nothing_of_rows() -> None:
    """The text, and so the name, of every schedule from before is what it was."""
    assert b'"rows"' not in canonical_json(tiny_plan(tiny_model()))
    document = json.loads(canonical_json(planned("tagged words")))
    assert document["rows"] == 4
    assert document["programs"][0]["body"][0]["op"]["prompt"] == "prompt"


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", CASES)
def test_rows_are_safe(name: str) -> None:
    schedule = planned(name)
    assert verify(schedule).safe
    if name in (
        "tagged words",
        "fenced counters, two splits",
        "bias, a group of three",
        "sixteen rows",
        "all in parts",
    ):
        assert (
            check_certificate(schedule, schedule_hash(schedule), certify_schedule(schedule, checked=False)).reason == ""
        )


@pytest.mark.turns(12)
@pytest.mark.parametrize("name", ["rows across blocks", "bias, a group of three", "all in parts"])
def test_no_run_refutes_rows(name: str) -> None:
    assert judge(planned(name, max_tokens=4), most=cases(2, 4)).status == "not refuted"


@pytest.mark.turns(4)
def test_the_oracle_rules_at_every_position() -> None:
    schedule = planned("rows across blocks", context=12)
    positions = start_positions(schedule, 2)
    assert len(positions) == 12 - 2 * schedule.rows + 1
    assert rule(schedule, 2, positions).status == "SAFE"


PLANS = [*((model, 3, "l4", 1024) for model in VARIANTS[:2]), *((model, 8, "h200", 64) for model in VARIANTS)]
PLANS = PLANS if cases(0, 1) else PLANS[1:3]


@pytest.mark.turns(16)
@pytest.mark.parametrize(("model", "rows", "gpu", "context"), PLANS, ids=lambda value: getattr(value, "name", value))
def test_plans_of_rows_are_safe(model: ModelSpec, rows: int, gpu: str, context: int) -> None:
    schedule = plan(model, load_target(gpu), settings=Settings(rows=rows), max_context=context)
    verdict = verify(schedule)
    assert verdict.safe, [diagnostic.message for diagnostic in verdict.diagnostics]
    assert check_certificate(schedule, schedule_hash(schedule), certify_schedule(schedule, checked=False)).reason == ""


@pytest.mark.parametrize("agents", range(1, 9))
def test_every_query_vector_meets_every_position_once(agents: int) -> None:
    """Whatever the rows, the group and the number of warps are."""
    for name in CASES:
        geo = planned(name).geometry()
        pairs: dict[tuple[int, int], int] = {}
        left: set[tuple[int, int]] = set()
        for agent in range(agents):
            share, mine = attended(agent, agents, geo)
            vectors = [q for lo, hi in mine for q in range(lo, hi)]
            left |= {(share, q) for q in vectors}
            for lo, hi in agent_positions(11, 0, share, sharing(geo, agents), geo) if mine else []:
                for pair in ((q, p) for q in vectors for p in range(lo, hi)):
                    pairs[pair] = pairs.get(pair, 0) + 1
        seen = {p for _, p in pairs}
        assert set(pairs.values()) == {1}
        assert pairs.keys() == {(q, p) for q in range(queries(geo)) for p in seen}
        assert left == {(share, q) for share in range(sharing(geo, agents)) for q in range(queries(geo))}


@pytest.mark.parametrize(
    ("settings", "format_name", "reason"),
    [
        ({"rows": 65}, "bf16", "1 to 64"),
        ({"rows": 2, "batch": 2}, "bf16", "of one sequence"),
        ({"rows": 2, "head_handoff": True}, "bf16", "rows of its head"),
    ],
)
def test_what_rows_cannot_do_is_refused(settings: dict[str, Any], format_name: Any, reason: str) -> None:
    with pytest.raises(AmkError) as caught:
        plan(PLAIN, load_target("h200"), settings=Settings(**settings), formats=formats(format_name), max_context=64)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "AMK016"
    assert reason in diagnostic.message


@pytest.mark.turns(4)
def test_damage_in_a_step_of_rows_is_noticed() -> None:
    """Rows without buffers for them, buffers without rows, rows of several sequences, blocks shorter than a step."""
    one, rows = (plan(PLAIN, load_target("h200"), settings=Settings(rows=n), max_context=64) for n in (1, 4))
    assert verify(rows).safe
    flat = tuple(b.model_copy(update={"shape": (b.elements,)}) if b.name == "act" else b for b in rows.buffers)
    damaged = {
        "AMK106": rows.model_copy(update={"batch": 2}),
        "AMK103": rows.model_copy(update={"buffers": flat}),
    }
    for code, schedule in damaged.items():
        assert code in {d.code for d in verify(schedule).diagnostics}
    certificate = certify_schedule(rows)
    assert check_certificate(rows, schedule_hash(rows), certificate).reason == ""
    for other in (
        one.model_copy(update={"rows": 4}),
        rows.model_copy(update={"rows": 3}),
        rows.model_copy(update={"kv": rows.kv.model_copy(update={"block": 2})}),
    ):
        assert not verify(other).safe
        digest = schedule_hash(other)
        assert check_certificate(other, digest, certificate | {"schedule": digest}).reason != ""


@pytest.mark.parametrize("damage", ["a later row is seen", "an append is short", "positions advance by one"])
def test_the_judge_refutes_wrong_rows(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the schedule cannot say wrong, an op could do wrong."""
    if damage == "a later row is seen":
        every = lambda self, vectors, geo, mem: np.ones((len(vectors), geo.rows_each), bool)  # noqa: E731
        monkeypatch.setattr(attend.AttendOp, "_seen_rows", every)
    elif damage == "an append is short":
        owns = rope_append.owns_position
        monkeypatch.setattr(rope_append, "owns_position", lambda pos, part, geo: pos % 4 != 3 and owns(pos, part, geo))
    else:
        behind = select.Selection._behind_rows

        def slow(self: Any, geo: Any, mem: Any, words: list[int]) -> list[int]:
            out = behind(self, geo, mem, words)
            mem.regs["pos"] -= geo.rows_each - 1
            return out

        monkeypatch.setattr(select.Selection, "_behind_rows", slow)
    assert judge(planned("fenced counters, two splits", rows=4), most=2).status == "refuted"


@pytest.mark.turns(12)
def test_behind_an_ended_text_its_last_token_is_repeated() -> None:
    """Also where lanes hold the tokens of rows: the kernel's tokens are the references'."""
    schedule = planned("sixteen rows")
    kernel, weights = EmulatedKernel(lambda schedule: build(schedule).compiled.ptx), RandomWeights(schedule.model)
    prompt, beyond = tuple(range(1, 17)), tuple(range(20, 40))
    free = Request((prompt,), (2,), guesses=beyond)
    token = int(run(schedule, weights, free, "depth-first").tokens[0][0, -1])
    ended = replace(free, ends=(token,))
    wanted = run(schedule, weights, ended, "depth-first").tokens[0]
    assert wanted[1, -1] == token
    assert (kernel(schedule, weights, ended, "depth-first", None).tokens[0] == wanted).all()
