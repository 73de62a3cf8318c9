"""What PTX leaves undefined, or the hardware does not have, is not SAFE, and no checker takes a certificate of it."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

import amk
from amk.report.diagnostic import AmkError
from amk.systems import LoopSystem, System
from amk.systems.document import parse_system, to_json
from amk.systems.flat_system import FlatSystem
from amk.systems.loop_document import parse_loops
from amk.systems.loop_numbers import evaluated
from amk.systems.loop_program import judged_program
from amk.systems.loop_proof.numbers import Refused as LoopRefused
from amk.systems.loop_proof.numbers import number
from amk.systems.loop_proof.periods import unrolled
from amk.systems.loop_proof.program import Program
from amk.systems.loop_writer import document_of
from amk.systems.proof import filled
from amk.systems.rule_reading import Refused
from tests.systems.forging import claims_of, complete

HALF = 1 << 19


def filled_by(boxes: list[tuple[int, int]], expects: list[int], size: int = 1 << 22) -> System:
    """One phase of bulk loads, and a reader of all."""
    sys = System()
    data, full = sys.buffer("data", size), sys.mbarrier("full", len(expects))
    with sys.agent("producer") as p, sys.agent("consumer") as c:
        for each in expects:
            p.expect(full, each)
        for lo, hi in boxes:
            p.load(None, (data, lo, hi), full, value="tile")
        c.wait_parity(full, 0)
        for lo, hi in boxes:
            c.read(data, lo, hi, value="tile")
    return sys


def met_by(barriers: int) -> System:
    sys = System()
    named = [sys.barrier(f"named {n}", 2) for n in range(barriers)]
    for warp in range(2):
        with sys.agent(f"warp {warp}") as agent:
            for barrier in named:
                agent.sync(barrier)
    return sys


RIGHT = {
    "a load of 16 bytes": lambda: filled_by([(16, 32)], [16]),
    "bytes that an mbarrier counts": lambda: filled_by([(0, HALF), (HALF, 2 * HALF - 16)], [HALF, HALF - 16]),
    "16 named barriers": lambda: met_by(16),
}
WRONG = {
    "bytes that an mbarrier counts": lambda: filled_by([(0, HALF), (HALF, 2 * HALF)], [HALF, HALF]),
    "16 named barriers": lambda: met_by(17),
}


@pytest.mark.parametrize("make", RIGHT.values(), ids=RIGHT)
def test_what_the_hardware_does_is_safe(make: Any) -> None:
    assert amk.verify(make()).safe


@pytest.mark.parametrize("name", WRONG)
def test_one_more_is_not_decided_and_has_no_certificate(name: str) -> None:
    flat: FlatSystem = WRONG[name]().flat()
    verdict = amk.verify(WRONG[name]())
    assert (verdict.verdict, verdict.diagnostics[0].code) == ("UNKNOWN", "AMK205")
    document = json.loads(json.dumps(to_json(flat)))
    block, orders = filled(document["systems"]["block"]), document["orders"]
    with pytest.raises(Refused, match="more"):
        claims_of(flat, next(complete(flat, Random(1))), block, orders)


def test_a_file_expects_no_more_bytes_than_an_mbarrier_counts() -> None:
    document = to_json(filled_by([(0, HALF)], [HALF]).flat())
    amounts = document["systems"]["block"]["signal_amount"]
    document["systems"]["block"]["signal_amount"] = [2 * n if n == HALF else n for n in amounts]
    with pytest.raises(AmkError, match="an mbarrier counts fewer"):
        parse_system(json.dumps(document).encode(), "made.json")


@pytest.mark.parametrize("box", [(0, 10), (8, 24), (16, 40)])
def test_bulk_copies_are_of_whole_sixteens(box: tuple[int, int]) -> None:
    with pytest.raises(AmkError, match="16 bytes or multiples"):
        filled_by([box], [box[1] - box[0]])
    with pytest.raises(AmkError, match="16 bytes or multiples"):
        sys = System()
        sys.agent("a").store((sys.buffer("out", 64), 0, 16), (sys.buffer("result", 64), *box))


def ring(step: int, size: int) -> LoopSystem:
    sys = LoopSystem("ring", count="tiles")
    slots, full, empty = sys.buffer("slots", 1 << 12), sys.mbarriers("full", 2), sys.mbarriers("empty", 2)
    with sys.agent("producer") as p, p.loop() as k:
        p.wait_parity(empty[k % 2], (k // 2 + 1) % 2)
        p.expect(full[k % 2], size)
        p.load(None, (slots, k % 2 * step, k % 2 * step + size), full[k % 2], value=("tile", k))
    with sys.agent("consumer") as c, c.loop() as k:
        c.wait_parity(full[k % 2], k // 2 % 2)
        c.read(slots, k % 2 * step, k % 2 * step + size, value=("tile", k))
        c.arrive(empty[k % 2])
    return sys


def test_nor_are_those_of_a_loop() -> None:
    assert amk.verify(ring(32, 16)).verdict == "SAFE"
    unrolled(Program(document_of(ring(32, 16)).model_dump(mode="json"), {}, "tiles"), 4)
    for wrong in (ring(24, 16), ring(32, 24)):
        with pytest.raises(AmkError, match="16 bytes or multiples"):
            amk.verify(wrong)
        with pytest.raises(LoopRefused, match="16 bytes"):
            unrolled(Program(document_of(wrong).model_dump(mode="json"), {}, "tiles"), 4)


def slots_at(number_of_slot: str, least: int = 0) -> bytes:
    """A buffer of four slots that is read where the text says."""
    box = {"buffer": "slots", "lo": f"({number_of_slot}) * 4", "hi": f"({number_of_slot}) * 4 + 4"}
    loop = {"do": "loop", "index": "k", "count": "tiles", "code": [{"do": "read", **box}]}
    behind = {"do": "read", "buffer": "slots", "lo": "(tiles + 3) % 4", "hi": "(tiles + 3) % 4 + 1"}
    return json.dumps(
        {
            "format": "amk.loops/1", "parameters": {"tiles": {"at_least": least}},
            "buffers": [{"name": "slots", "size": 16}], "agents": [{"name": "a", "code": [loop, behind]}],
        }
    ).encode()  # fmt: skip


def test_what_c_rounds_towards_zero_is_not_divided() -> None:
    """`(k - 1) % 4` at lap 0 is 3 in Python and -1 in C."""
    assert judged_program(parse_loops(slots_at("(k + 3) % 4"), "l.json")).verdict == "SAFE"
    for text in ("(k - 1) % 4", "(0 - k) % 4", "(1 - 2) // 4 + 1", "(k % 4 - 1) // 2 + 1"):
        with pytest.raises(AmkError, match="round differently"):
            judged_program(parse_loops(slots_at(text), "l.json"))
        with pytest.raises(LoopRefused, match="round in two ways"):
            value = number(text, {}, "k")
            assert value.shape and [value.at(k) for k in range(8)]
    behind = slots_at("k % 4", 1).replace(b"(tiles + 3) % 4", b"(tiles - 1) % 4")
    assert judged_program(parse_loops(behind, "l.json")).verdict == "SAFE"
    with pytest.raises(AmkError, match="round differently"):
        judged_program(parse_loops(behind.replace(b'"at_least": 1', b'"at_least": 0'), "l.json"))
    assert evaluated("(7 - k) % 4", {"k": 3}) == 0
