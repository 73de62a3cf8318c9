"""An agent without a share of a step touches what its op declares for it, and nothing else: every op, byte for byte.

Plans deal rows evenly. Here one worker has none of a matrix, or a single row group for its warps, and another one the
rest.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest

from amk.adversary.edits import Json
from amk.adversary.neighbourhood.bases import DRAWN, NEOX, TAGGED, WHOLE, base
from amk.emulator.decode import EmulatedEngine
from amk.emulator.footprints import Mismatch, mismatches
from amk.emulator.steps import LINE_INFO, Steps
from amk.judges.emulated_run import EmulatedKernel
from amk.judges.request import hidden_state
from amk.lowering import headers
from amk.lowering.compile import DEFAULT_OPTIONS, compile_ptx
from amk.lowering.emit import emit
from amk.lowering.stamp import stamped
from amk.models.matrices import K_SPLIT
from amk.planner.settings import Settings
from amk.schedule_ir.expr import Env
from amk.schedule_ir.memory import Buffer
from amk.schedule_ir.ops import OPS, AnyOp
from amk.schedule_ir.schedule import Loop, Node, Schedule
from amk.validator.verify import verify
from amk.weights.weight_format import FormatName
from tests.adversarial.emulated import ruling
from tests.adversarial.layouts import FENCED, own_programs, planned, token_loop
from tests.checker.offer import reasons
from tests.engine.tiny import RandomTensors
from tests.lowering.edits.judge import built

SHARES = ("qkv", "hidden", "gate_up", "lm_head")
FURTHER: dict[str, Callable[[], Json]] = {
    "drawing, more warps than workers": lambda: planned(replace(DRAWN, warps=4), 1),
    "LayerNorm, one block": lambda: planned(TAGGED, 1, form="int8", **NEOX),
    "splits reduced, one block": lambda: planned(
        replace(TAGGED, reduce_from=2, kv_splits=2), 1, workers=4, form="int8"
    ),
    "sixteen rows": lambda: base("sixteen rows"),
}
WHOLE_STEPS = {
    **dict.fromkeys(("barrier", "signal", "wait", "prefetch_cache"), "no reads and no writes"),
    "refill": "rings alone",
    "begin": "every agent reads the state",
    **dict.fromkeys(("narrow", "peak"), "every agent does the same"),
    "report": "one agent does it",
    "stage_hidden": "the shares are equal",
}
"""Ops of which no agent declares less than another, and why."""
UNNAMED = {("none", "prompt"), ("none", "state")}
"""What `begin` reads of several rows or of more than eight has the line of no call."""


def with_room(document: Json) -> Json:
    """Sums and residuals of a worker with all rows fit."""
    end = document["launch"]["shared_bytes"]
    for buffer in document["buffers"]:
        if buffer["space"] == "shared" and buffer["name"] in ("part", "residual"):
            place, most = (0, 40) if buffer["name"] == "part" else (-1, 64)
            buffer["shape"][place], buffer["offset"] = most, -(-end // 128) * 128
            end = buffer["offset"] + Buffer.model_validate_json(json.dumps(buffer)).bytes
    document["launch"]["shared_bytes"] = -(-end // 128) * 128
    return document


def dealt(document: Json, least: int) -> Json:
    """Of qkv, of gate and up and of the first share of columns the first worker keeps `least` row groups, of the other
    matrices the last one; its neighbour has the others."""
    document = json.loads(json.dumps(document))
    tables = document["tables"]
    for number, share in enumerate(SHARES):
        first, second, *others = tables[f"{share}.count"][:: -1 if number % 2 else 1]
        few = min(least, first)
        counts = [few, first + second - few, *others][:: -1 if number % 2 else 1]
        tables[f"{share}.count"] = counts
        tables[f"{share}.first"] = [sum(counts[:worker]) for worker in range(len(counts))]
    if f"{K_SPLIT}.index" in tables:
        first, second = [worker for worker, index in enumerate(tables[f"{K_SPLIT}.index"]) if index == 0]
        moved = max(0, tables[f"{K_SPLIT}.count"][first] - least)
        for worker, by in ((first, -moved), (second, moved)):
            tables[f"{K_SPLIT}.count"][worker] += by
        tables[f"{K_SPLIT}.first"][second] -= moved
    return with_room(document)


def without_rows(name: str, least: int) -> Schedule:
    document = FURTHER[name]() if name in FURTHER else base(name)
    return Schedule.model_validate_json(json.dumps(dealt(document, least)))


def ops_with_loops(body: tuple[Node, ...], loops: Mapping[str, int]) -> Iterator[tuple[AnyOp, Mapping[str, int]]]:
    """Every step once, in the first turn of its loops."""
    for node in body:
        if isinstance(node, Loop):
            yield from ops_with_loops(node.body, loops | {node.var: 0})
        else:
            yield node.op, loops


def idle(schedule: Schedule) -> set[str]:
    """Ops of which an agent declares none of what another one declares in the same step, in some buffer."""
    geometry, tables = schedule.geometry(), {name: np.array(table) for name, table in schedule.tables.items()}
    agents, found = {role.name: range(role.count) for role in schedule.roles}, set()
    by_step: dict[int, set[frozenset[str]]] = defaultdict(set)
    for program in schedule.programs:
        for number, (op, loops) in enumerate(ops_with_loops(program.body, {"t": 0, "n": 0})):
            for worker in range(program.first, program.first + program.count):
                for agent in agents[op.role]:
                    env = Env(loops=loops, worker=worker, agent=agent, pos=0, tables=tables)
                    touched = (a for a in op.accesses(env, geometry) if a.lo < a.hi)
                    by_step[number].add(frozenset(a.buffer for a in touched))
            if any(one < frozenset().union(*by_step[number]) for one in by_step[number]):
                found.add(op.op)
    return found


def test_every_op_with_shares_has_an_agent_without_one() -> None:
    found = set[str]().union(*(idle(without_rows(name, 0)) for name in (*WHOLE, *FURTHER)))
    assert set(OPS) - found == set(WHOLE_STEPS)


def touched(schedule: Schedule) -> list[Mismatch]:
    """What a step touches and its op does not declare. Races and other faults are told at once."""
    text, sliced = stamped(emit(schedule), schedule), schedule.model.slice is not None
    ptx = compile_ptx(text, schedule.target.arch, options=(*DEFAULT_OPTIONS, LINE_INFO))
    engine = EmulatedEngine(schedule, RandomTensors(schedule.model), ptx, races=True, touches=True)
    if sliced:
        engine.write({"hidden_in": hidden_state(schedule.model.hidden, 0)})
        engine.write({"position": np.zeros(1, np.int32)} if schedule.model.layers else {})
    else:
        engine.request_batch([[3, 17] * schedule.rows] * schedule.batch)
    outcome = engine.launch(1 if sliced else 2)
    assert outcome.ended and [str(fault) for fault in outcome.faults] == []
    found = mismatches(Steps(schedule, text, engine.machine, tokens=1 if sliced else 2, position=0))
    return [m for m in found if m.kind != "unread" and (m.op, m.buffer) not in UNNAMED]


@pytest.mark.turns(48)
@pytest.mark.parametrize("least", [0, 1])
@pytest.mark.parametrize("name", [*WHOLE, *FURTHER])
def test_an_agent_without_a_share_touches_what_it_declares(name: str, least: int) -> None:
    schedule = without_rows(name, least)
    assert verify(schedule).safe
    assert [str(mismatch) for mismatch in touched(schedule)] == []


APART: dict[str, tuple[Settings, FormatName]] = {
    "bf16": (FENCED, "bf16"),
    "codes": (FENCED, "int8"),
    "batch": (replace(FENCED, batch=2), "bf16"),
    "batch of codes": (replace(FENCED, batch=2), "int4-g128"),
    "rows": (replace(FENCED, rows=2), "bf16"),
}


def unmet(settings: Settings, form: FormatName) -> Schedule:
    """The second worker has no rows but those of hidden states, and its warps do not meet around products that it has
    no rows of: one adds up nothing while another still stages the norm of the product, or already that of the next."""
    document = planned(settings, 1, form=form)
    tables, added = document["tables"], {"qkv": "store_rows", "gate_up": "swiglu", "lm_head": "argmax_rows"}
    for matrix in added:
        rows = sum(tables[f"{matrix}.count"])
        tables[f"{matrix}.count"], tables[f"{matrix}.first"] = [rows, 0], [0, rows]
    document = own_programs(with_room(document))
    whole = token_loop(document["programs"][1])["body"]
    for body in (whole, next(node["body"] for node in whole if "body" in node)):
        for matrix, op in added.items():
            ops = [(node["op"]["op"], node["op"].get("matrix")) if "op" in node else ("", None) for node in body]
            if (op, None) in ops:
                places = ops.index((op, None)) - 1, ops.index(("gemv", matrix)) - 1
                for place in places:
                    if place >= 0 and ops[place][0] == "barrier":
                        body.pop(place)
    return Schedule.model_validate_json(json.dumps(document))


@pytest.mark.turns(40)
@pytest.mark.parametrize("name", APART)
def test_warps_without_rows_need_not_meet(name: str) -> None:
    """SAFE, accepted, and the kernel races in no order: it reads sums of squares where it has rows."""
    schedule = unmet(*APART[name])
    assert verify(schedule).safe and reasons(schedule) == [""]
    assert [str(mismatch) for mismatch in touched(schedule)] == []
    source = emit(schedule)
    ptx = built(source, headers.closure(source), schedule.target.arch)
    assert ptx is not None
    found, ran = ruling(schedule, EmulatedKernel(lambda _: ptx), 2)
    assert (found.status, ran) == ("not refuted", 2), found.why


WIDENED = {1: 3, 3: 1, 7: 1}
"""Warps that stage a norm, and sequences, of which the sums of squares are no multiple of four."""


@pytest.mark.turns(24)
@pytest.mark.parametrize("warps", WIDENED)
def test_three_neighbours_are_not_read_as_four(warps: int) -> None:
    """The compiler knows where the sums of squares stand, and makes one load of neighbours."""
    model = {"hidden": 32 * warps, "heads": warps, "ffn": 128 * warps}
    settings = replace(FENCED, warps=warps, batch=WIDENED[warps])
    document = planned(settings, 1, workers=4 * settings.batch, **model)
    assert [str(mismatch) for mismatch in touched(Schedule.model_validate_json(json.dumps(document)))] == []
