"""What a schedule takes for granted: constants, owners of bytes, widths of words, and each wait in every token.

All edits of one kind are tried on a small plan, so that no list of mistakes decides what is found.
"""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amk.adversary.edits import Edit, Json, apply, at, named, steps, waiting
from amk.adversary.subjects import subject
from amk.cli import main
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import parse_schedule
from amk.schedule_ir.expr import Env
from amk.schedule_ir.ops import OPS
from amk.schedule_ir.ops.attend import AttendOp
from amk.schedule_ir.ops.rope_append import RopeAppendOp
from amk.schedule_ir.references import buffer_fields
from amk.schedule_ir.schedule import Schedule
from amk.validator.program.trace import all_sites
from amk.validator.static.owners import KEPT, check_owners
from amk.validator.static.resources import check_widths
from amk.validator.verify import check_needs, verify

FIELDS = {name: field for op in OPS.values() for name, field in buffer_fields(op).items()}
FILLED = frozenset({field.name for field in FIELDS.values() if field.name}) - KEPT - {"output", "logits"}


def parsed(document: Json) -> Schedule:
    return parse_schedule(json.dumps(document).encode(), "test")[0]


def status(document: Json) -> str:
    """The verdict; `refused` if the document is not well-formed."""
    try:
        return verify(parsed(document)).status
    except AmkError:
        return "refused"


def edited(document: Json, *edits: Edit) -> Json:
    return apply(document, list(edits))[0]


def small(kind: str) -> Json:
    return subject(kind, 2, 2, 1).document


@pytest.mark.parametrize("counter", ["best", "attn", "h_mid"])
def test_a_wait_is_compared_with_its_own_next_occurrence(counter: str) -> None:
    """The thresholds of two tokens are those of good waits, dealt to three waits in every order."""
    base = small("fenced")
    path = (*waiting(base, counter), "waits")
    wait = at(base, path)[0]
    gain = wait["at_least"]["t"]
    good = [{"t": gain, "1": gain}, {"t": gain}, {"t": gain, "1": 1}]
    assert status(edited(base, Edit("replace", path, [wait | {"at_least": one} for one in good]))) == "SAFE"
    first, second = [gain, 0, 1], [2 * gain, gain, gain + 1]
    for order in set(permutations(second)) - {tuple(second)}:
        crossed = [wait | {"at_least": {"t": b - a, "1": a}} for a, b in zip(first, order, strict=True)]
        assert status(edited(base, Edit("replace", path, crossed))) != "SAFE", order


def test_two_steps_that_exchange_their_thresholds_are_seen() -> None:
    base = small("fenced")
    path = waiting(base, "best")
    wait = at(base, path)["waits"][0]
    extra = at(base, path) | {"op": {"role": "all", "op": "wait"}, "signals": []}
    gain = wait["at_least"]["t"]
    for one, other, wanted in (
        ({"t": gain, "1": 0}, {"t": gain, "1": 1}, "SAFE"),
        ({"t": gain + 1, "1": 0}, {"t": gain - 1, "1": 1}, "UNSAFE"),
    ):
        both = [extra | {"waits": [wait | {"at_least": level}]} for level in (one, other)]
        assert status(edited(base, *(Edit("insert", path, step) for step in both))) == wanted


@pytest.mark.turns(4)
@pytest.mark.parametrize("kind", ["fenced", "tagged"])
def test_no_field_takes_memory_that_is_not_its_own(kind: str) -> None:
    """Every field of an op is given every constant, every part of a ring and everything that is kept, where it occurs
    first."""
    base = small(kind)
    foreign = FILLED | KEPT | {"weights", "ring", "full"}
    names = [b["name"] for b in base["buffers"] if b["name"] in foreign]
    tried = set[tuple[str, str]]()
    for path, step in steps(base):
        for field, value in step["op"].items():
            if field not in FIELDS or value is None or (field, value) in tried:
                continue
            tried.add((field, value))
            for name in names:
                if name != value:
                    found = status(edited(base, Edit("replace", (*path, "op", field), name)))
                    assert found != "SAFE", f"{step['op']['op']}.{field} := {name}"
    assert len(tried) > 20


@pytest.mark.parametrize("field", ["x", "part", "ssq", "q", "partial", "residual", "mix"])
@pytest.mark.parametrize("buffer", ["ring", "full"])
def test_no_op_has_its_shared_memory_in_a_ring(field: str, buffer: str) -> None:
    base = small("fenced")
    users = [(path, step["op"][field]) for path, step in steps(base) if step["op"].get(field)]
    dtype = at(base, named(base, "buffers", users[0][1]))["dtype"]
    edits = [Edit("replace", (*path, "op", field), buffer) for path, _ in users]
    found = edited(base, Edit("replace", (*named(base, "buffers", buffer), "dtype"), dtype), *edits)
    assert {d.code for d in check_owners(parsed(found))} == {"AMK301"} and status(found) == "UNSAFE"


def test_rings_and_their_mbarriers_have_bytes_of_their_own() -> None:
    base = small("fenced")
    stream = base["streams"][0]
    for field in ("ring", "full"):
        for buffer in (b["name"] for b in base["buffers"] if b["space"] == "shared" and b["name"] != stream[field]):
            found = parsed(edited(base, Edit("replace", ("streams", 0, field), buffer)))
            assert not verify(found).safe, f"{field} := {buffer}"
    twice = edited(base, Edit("insert", ("streams", 1), stream | {"name": "other"}))
    assert {d.code for d in check_owners(parsed(twice))} == {"AMK301", "AMK106"}


def test_what_the_host_fills_or_keeps_says_so() -> None:
    base = small("fenced")
    for number, buffer in enumerate(base["buffers"]):
        for role in ("constant", "state", "scratch"):
            if buffer["name"] in FILLED | KEPT and role != buffer["role"]:
                assert status(edited(base, Edit("replace", ("buffers", number, "role"), role))) == "UNSAFE"


WORD = 2**32


@pytest.mark.parametrize(
    "tag", [{"t": WORD, "1": 1}, {"t": 2, "1": WORD}, {"t": 2, "1": WORD - 2}, {"t": 2**22, "1": 1}]
)
def test_tags_are_words(tag: Json) -> None:
    base = small("tagged")
    path = named(base, "buffers", "h_mid")
    assert status(edited(base, Edit("replace", (*path, "tag"), tag))) == "UNSAFE"
    assert status(edited(base, Edit("replace", (*path, "tag"), {"t": 2**21, "1": 7}))) == "SAFE"


@pytest.mark.parametrize(
    ("factor", "entry", "wide"), [(2**31, 1, True), (2**30, 1, False), (2**20, 2**11, True), (-(2**31), 1, True)]
)
def test_terms_of_a_threshold_fit_a_word(factor: int, entry: int, wide: bool) -> None:
    """The two terms cancel: as integers it is the threshold that was there."""
    base = small("fenced")
    path = (*waiting(base, "best"), "waits", 0, "at_least")
    level = at(base, path) | {"one": factor, "two": -factor}
    tables = {name: [entry] * base["launch"]["workers"] for name in ("one", "two")}
    found = edited(base, Edit("replace", path, level), Edit("replace", ("tables",), base["tables"] | tables))
    assert [d.code for d in check_widths(parsed(found))] == ["AMK204"] * (wide or factor == 2**30)


@pytest.mark.parametrize(("step", "codes"), [(2**31 - 1, []), (2**31, ["AMK204"])])
def test_a_threshold_grows_by_less_than_half_of_the_words_per_token(step: int, codes: list[str]) -> None:
    base = small("fenced")
    path = (*waiting(base, "best"), "waits", 0, "at_least")
    found = edited(base, Edit("replace", path, at(base, path) | {"t": step}))
    assert [d.code for d in check_widths(parsed(found))] == codes


def test_what_is_relied_on_is_told_as_what_must_hold() -> None:
    base = small("fenced")
    model = base["model"]
    scratch = edited(base, Edit("replace", (*named(base, "buffers", "embedding"), "role"), "scratch"))
    shape = [model["vocab"], model["hidden"]]
    filled = edited(base, Edit("replace", ("streams", 0, "source"), "embedding"))
    messages = [{d.message for d in check_needs(parsed(document))} for document in (scratch, filled)]
    assert f"a launch requires that 'embedding' is a constant buffer of shape {shape} for the host" in messages[0]
    assert "a launch requires that 'embedding' is filled with packed weights" in messages[1]
    assert "a launch requires that the host knows the constant buffer 'weights' by its name" in messages[1]


def test_what_does_not_fit_is_refused_before_anything_else_is_looked_at() -> None:
    base = parsed(small("fenced"))
    buffers = tuple(b.model_copy(update={"shape": (2**31,)}) if b.name == "act" else b for b in base.buffers)
    assert {d.code for d in check_needs(base.model_copy(update={"buffers": buffers}))} == {"AMK407"}
    kv = base.kv.model_copy(update={"block": 2**20, "splits": 2**11})
    assert [d.code for d in check_widths(base.model_copy(update={"kv": kv}))] == ["AMK103"]


def test_all_warps_of_a_split_that_has_begun_read_the_queries() -> None:
    """`attend.cuh` multiplies the queries of a block whichever of its rows are the warp's."""
    schedule = parsed(small("fenced"))
    geo, tables = schedule.geometry(), {n: np.array(c) for n, c in schedule.tables.items()}
    op = next(s.step.op for s in all_sites(schedule) if isinstance(s.step.op, AttendOp))
    agents = geo.role_size[op.role]
    for pos in range(schedule.kv.context):
        for worker in range(schedule.launch.workers):
            head, part = (schedule.tables[f"attn.{name}"][worker] for name in ("head", "split"))
            for agent in range(agents):
                env = Env(loops={"t": 0, "n": 0, "l": 0}, worker=worker, agent=agent, pos=pos, tables=tables)
                reads = {a.buffer for a in op.accesses(env, geo) if a.kind == "read"}
                assert (op.q in reads) == (head >= 0 and pos >= part * schedule.kv.block)


def test_every_unit_reads_its_row_of_the_rotary_table() -> None:
    schedule = parsed(small("fenced"))
    geo, tables = schedule.geometry(), {n: np.array(c) for n, c in schedule.tables.items()}
    op = next(s.step.op for s in all_sites(schedule) if isinstance(s.step.op, RopeAppendOp))
    env = Env(loops={"t": 0, "n": 0, "l": 0}, worker=0, agent=geo.role_size[op.role] - 1, pos=0, tables=tables)
    found = [a.buffer for a in op.accesses(env, geo) if a.kind == "read"]
    assert found.count(op.rope) == found.count(op.qkv) > 0


EXPRESSIONS: list[Any] = [0, -3, {}, {"t": 0}, {"1": 0}, {"t": 4}, {"worker": 1}, {"agent": 0, "1": 2}]


@pytest.mark.turns(12)
@pytest.mark.parametrize("place", ["at_least", "add", "index"])
def test_whatever_an_expression_looks_like_there_is_a_verdict(place: str, tmp_path: Path) -> None:
    base = small("fenced")
    counter = next(path for path, step in steps(base) if step["signals" if place == "add" else "waits"])
    path = (*counter, "signals" if place == "add" else "waits", 0, place)
    for number, value in enumerate(EXPRESSIONS):
        document = edited(base, Edit("replace", path, [value] if place == "index" else value))
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(document))
        assert main(["verify", str(file)]) in (0, 1, 2, 3), value
