"""Parts of a product as a loop: the same steps, the same bits, and a loop that runs as often as the schedule says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from amk.lowering import headers
from amk.lowering.emit import emit
from amk.lowering.kernel import read_back
from amk.lowering.printed import LEAST, PartLoop, Printed, PrintedLoop, printed, written_out
from amk.models.model import load_model
from amk.models.model_spec import ModelSpec
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST, Settings
from amk.report.diagnostic import AmkError
from amk.schedule_ir.schedule import Loop, Node, Schedule, Step
from amk.targets.target import load_target
from amk.weights.weight_format import FormatName
from tests.lowering.edits.emulated import REQUESTS, Shown, shown
from tests.lowering.edits.judge import built
from tests.tiny import tiny

NEXT = "c.p = amk::held(c.p) + 1"
LOOP = re.compile(rf"for \(c\.p = 0; c\.p < (\d+); {re.escape(NEXT)}\)")
BATCH = replace(FAST, batch=2, k_parts=6, kv_block=16, chunk_bytes=512)
ROWS = replace(FAST, rows=4, k_parts=6, x_parts=5, kv_block=16, chunk_bytes=512, handoff="mixed")
NARROW = tiny(ffn=384, layers=1)
CODES = tiny(ffn=768, layers=1)
WIDE = tiny(ffn=384, hidden=320, heads=5, kv_heads=1, head_dim=64, layers=2)
EACH = [5, 5, 5, 6, 5]
"""Passes for QKV, O, gate and up, `down`, lm_head; `down` in six parts has the same barrier behind its last one."""
KERNELS: dict[str, tuple[str, Settings, FormatName, ModelSpec, list[int]]] = {
    "batch": ("h200", BATCH, "bf16", NARROW, [6]),
    "words": ("h200", replace(BATCH, handoff="tagged"), "bf16", NARROW, [6]),
    "codes": ("h200", BATCH, "int8", CODES, [6]),
    "groups": ("h200", BATCH, "int4-g64", CODES, [6]),
    "copies": ("l4", BATCH, "bf16", NARROW, [6]),
    "one vector": ("h200", replace(BATCH, batch=1), "bf16", NARROW, [6]),
    "rows": ("h200", ROWS, "bf16", WIDE, EACH),
    "16 rows": ("h200", replace(ROWS, rows=16), "bf16", WIDE.model_copy(update={"layers": 1}), EACH),
}


@cache
def schedule(name: str) -> Schedule:
    gpu, settings, kept, model, _ = KERNELS[name]
    return plan(model, load_target(gpu), settings=settings, formats=formats(kept), max_context=128, workers=4)


@cache
def source(name: str) -> str:
    return emit(schedule(name))


def ptx(name: str, text: str) -> str:
    found = built(text, headers.closure(text), schedule(name).target.arch)
    assert found is not None
    return found


def many_rows() -> Schedule:
    return plan(load_model("llama3-8b"), load_target("h200"), settings=replace(FAST, rows=64), max_context=2560)


def steps(body: Sequence[Node]) -> Iterator[Step]:
    for node in body:
        yield from steps(node.body) if isinstance(node, Loop) else (node,)


def steps_of(nodes: Sequence[Printed]) -> Iterator[Step]:
    for node in written_out(nodes):
        yield from steps_of(node.body) if isinstance(node, PrintedLoop) else (node.step,)


def loops(nodes: Sequence[Printed]) -> Iterator[PartLoop]:
    for node in nodes:
        if isinstance(node, PrintedLoop):
            yield from loops(node.body)
        elif isinstance(node, PartLoop):
            yield node


@pytest.mark.parametrize("name", [*KERNELS, "64 rows"])
def test_written_out_the_steps_are_those_of_the_schedule(name: str) -> None:
    found = many_rows() if name == "64 rows" else schedule(name)
    programs = printed(found)
    assert [list(steps_of(nodes)) for nodes in programs] == [list(steps(program.body)) for program in found.programs]
    counts = [loop.count for nodes in programs for loop in loops(nodes)]
    assert counts == ([8, 2, 8, 7, 8] if name == "64 rows" else KERNELS[name][4])


def changed(body: Sequence[Node], number: int, field: str, value: object) -> tuple[Node, ...]:
    """The nodes with a field of the op of one `gemv` of `down` changed, by its part."""
    found: list[Node] = []
    for node in body:
        if isinstance(node, Loop):
            found.append(node.model_copy(update={"body": changed(node.body, number, field, value)}))
        elif getattr(node.op, "matrix", None) == "down" and getattr(node.op, "k_part", None) == number:
            op = node.op.model_copy(update={field: value})
            found.append(node.model_copy(update={"op": op}))
        else:
            found.append(node)
    return tuple(found)


@pytest.mark.parametrize("part", range(6))
@pytest.mark.parametrize(("field", "value"), [("deferred", 1), ("k_part", 4), ("k_part", 7), ("layer", 0), ("x", "q")])
def test_a_part_that_differs_is_in_no_loop(part: int, field: str, value: object) -> None:
    base = schedule("batch")
    (program,) = base.programs
    edited = base.model_copy(
        update={"programs": (program.model_copy(update={"body": changed(program.body, part, field, value)}),)}
    )
    nodes = printed(edited)
    assert list(steps_of(nodes[0])) == list(steps(edited.programs[0].body))
    found = [loop.count for loop in loops(nodes[0])]
    runs = [6] if edited == base else [count for count in (part, 5 - part) if count >= LEAST]
    assert found == runs


def test_a_product_of_one_part_is_no_loop() -> None:
    settings = replace(BATCH, k_parts=1, chunk_bytes=512)
    whole = plan(tiny(ffn=256, layers=1), load_target("h200"), settings=settings, max_context=128, workers=4)
    assert not LOOP.search(emit(whole)) and LOOP.search(source("batch"))


@cache
def apart(name: str) -> str:
    """The kernel's PTX where every part has code of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("amk.lowering.printed.LEAST", 99)
        text = emit(schedule(name))
    assert not LOOP.search(text)
    return ptx(name, text)


def equal(one: Shown, other: Shown) -> bool:
    """Without a fault, and the same bits of logits, tokens and memory."""
    if one.fault or (one.fault, one.tokens, one.left) != (other.fault, other.tokens, other.left):
        return False
    pairs = zip(one.logits, other.logits, strict=True)
    return all(np.array_equal(a.view(np.uint32), b.view(np.uint32)) for a, b in pairs)


@pytest.mark.turns(32)
@pytest.mark.parametrize("request_at", range(len(REQUESTS)))
@pytest.mark.parametrize("name", KERNELS)
def test_bits_are_those_of_parts_with_code_of_their_own(name: str, request_at: int) -> None:
    request = REQUESTS[request_at]
    assert [int(count) for count in LOOP.findall(source(name))] == KERNELS[name][4]
    ones = shown(schedule(name), apart(name), request)
    assert equal(shown(schedule(name), ptx(name, source(name)), request), ones), ones.fault


@pytest.mark.turns(16)
@pytest.mark.parametrize("name", KERNELS)
def test_loops_are_read_back(name: str) -> None:
    assert read_back(schedule(name), ptx(name, source(name)))


def numbered(text: str, number: int, change: str) -> str:
    """The text with its number-th loop over parts changed: what stands for its head."""
    match = list(LOOP.finditer(text))[number]
    head = change.format(count=int(match[1]), less=int(match[1]) - 1, more=int(match[1]) + 1)
    return text[: match.start()] + head + text[match.end() :]


CHANGES = (
    f"for (c.p = 0; c.p < {{less}}; {NEXT})", f"for (c.p = 0; c.p < {{more}}; {NEXT})",
    f"for (c.p = 1; c.p < {{count}}; {NEXT})", f"for (c.p = 0; c.p < {{count}}; {NEXT} + 1)", "c.p = 0;",
    "for (c.p = {count}; c.p > 1; --c.p)", f"for (c.p = 0; c.p < static_cast<int>(globals.tokens); {NEXT})",
)  # fmt: skip


@pytest.mark.turns(32)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("name", "number"), [("batch", 0), ("copies", 0), *(("rows", n) for n in range(5))])
def test_another_number_of_passes_is_refused(name: str, number: int, change: str) -> None:
    with pytest.raises(AmkError) as caught:
        read_back(schedule(name), ptx(name, numbered(source(name), number, change)))
    assert caught.value.diagnostics[0].code in ("AMK607", "AMK609")


@pytest.mark.turns(16)
@pytest.mark.parametrize("name", ["batch", "rows"])
def test_another_part_is_seen_by_the_emulator(name: str) -> None:
    """Which part a pass stages decides addresses within a buffer alone, which are not read back."""
    places = [match.end() for match in re.finditer(r"return kKPart \+ c\.p(?=;)", source(name))]
    assert len(places) == len(KERNELS[name][4])
    ones, seen = shown(schedule(name), ptx(name, source(name)), REQUESTS[0]), set[bool]()
    for at in places:
        text = f"{source(name)[:at]} + 1{source(name)[at:]}"
        seen.add(equal(shown(schedule(name), ptx(name, text), REQUESTS[0]), ones))
    assert seen == {False}


PRODUCTS, NORMS = "using Matrix", " norm("
"""What the struct of a step has that adds up sums of products, or of squares."""


@pytest.mark.turns(12)
@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("batch", PRODUCTS),
        ("codes", PRODUCTS),
        *((name, of) for name in ("rows", "16 rows") for of in (PRODUCTS, NORMS)),
    ],
)
@pytest.mark.parametrize("adds", ["true", "false", "c.p > 1"])
def test_parts_that_add_where_they_must_not_are_seen_by_the_emulator(name: str, of: str, adds: str) -> None:
    structs = re.split(r"(?=^struct )", source(name), flags=re.MULTILINE)
    edited = [re.sub(r"return c\.p > 0;", f"return {adds};", text) if of in text else text for text in structs]
    assert edited != structs
    ones = shown(schedule(name), ptx(name, source(name)), REQUESTS[0])
    assert not equal(shown(schedule(name), ptx(name, "".join(edited)), REQUESTS[0]), ones)
