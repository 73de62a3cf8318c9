"""Long columns are read as JSON says, whatever is in them; a large system is decided in the time that is promised."""

from __future__ import annotations

import json
from random import Random
from time import process_time

import pytest

from amk.report.diagnostic import AmkError
from amk.systems import System
from amk.systems.columns import integers, lifted
from amk.systems.document import parse_system, to_json, written
from amk.systems.verdict import judged

NUMBERS = (
    "0", "-0", "7", "-12", "9" * 18, "07", "00", "-", "--1", "1-2", "", " 3", "4 ", "5 6", "1e3", "1.5", "9" * 19,
)  # fmt: skip


def meant(text: str) -> list[int] | None:
    """What the standard library reads; None if that is no list of integers within 18 digits."""
    try:
        found = json.loads(f"[{text}]")
    except json.JSONDecodeError:
        return None
    return found if found and all(type(n) is int and abs(n) < 10**18 for n in found) else None


def test_integers_are_those_of_the_standard_library() -> None:
    rng, count = Random(3), 0
    for separator in (",", ", ", ",\n", " ,"):
        for _ in range(600):
            text = separator.join(
                rng.choice(NUMBERS[: rng.choice((4, len(NUMBERS)))]) for _ in range(rng.randint(1, 4))
            )
            found = integers(text.encode())
            assert (None if found is None else found.tolist()) == meant(text), text
            count += found is not None
    assert count > 300


def test_a_text_with_lifted_columns_has_the_same_value() -> None:
    long = list(range(3000))
    value = {"a": long, "b": {"c": [str(long), -5], "d": [[1], long[::-1]]}, "e": [7 * 10**24]}
    text, columns = lifted(json.dumps(value).encode())
    assert len(text) < 20_000 and len(columns) == 3  # the list inside of the string too: stand_ins tells
    short = json.loads(text)
    assert columns[short["a"][0]].tolist() == long and columns[short["b"]["d"][1][0]].tolist() == long[::-1]
    assert short["e"] == value["e"] and short["e"][0] not in columns


def rings(count: int, laps: int, slots: int = 8) -> System:
    sys = System("rings")
    for r in range(count):
        buffer = sys.buffer(f"slots {r}", slots * 16)
        full, empty = sys.counter(f"full {r}", scope="cta"), sys.counter(f"empty {r}", scope="cta", init=slots)
        with sys.agent(f"producer {r}", cta=r) as p, sys.agent(f"consumer {r}", cta=r) as c:
            for k in range(laps):
                lo = k % slots * 16
                p.wait(empty, k + 1)
                p.write(buffer, lo, lo + 16, value=(r, k))
                p.signal(full)
                c.wait(full, k + 1)
                c.read(buffer, lo, lo + 16, value=(r, k))
                c.signal(empty)
    return sys


@pytest.fixture(scope="module")
def large() -> bytes:
    return written(rings(4, 2500).flat()).encode()


def test_a_large_system_is_decided_at_the_promised_rate(large: bytes) -> None:
    """60,000 events. A million within 5 s is 0.3 s; the limit is five times that, so it tells a change of the growth,
    not of a few percent: a slow host alone takes 1.1 s."""
    start = process_time()
    verdict = judged(parse_system(large, "rings.json"))
    assert verdict.safe and verdict.system.block.events == 60_000
    assert process_time() - start < 1.5


def test_what_is_wrong_in_a_long_column_is_told_at_its_place() -> None:
    document = to_json(rings(1, 1000).flat())
    column = document["systems"]["block"]["wait_counter"]
    for wrong in (-1, 10**30, True):
        column[432] = wrong
        with pytest.raises(AmkError) as error:
            parse_system(json.dumps(document).encode(), "rings.json")
        (found, *_) = error.value.diagnostics
        assert found.where is not None and found.where.path == "/systems/block/wait_counter/432"
        assert found.where.column is not None


def test_reading_inverts_writing_for_long_columns(large: bytes) -> None:
    assert to_json(parse_system(large, "rings.json")) == json.loads(large)
