"""Damaged schedules: any bytes get a diagnostic or a verdict, in time, and SAFE only if the oracle agrees.

Documents are small plans with a few values replaced, removed, repeated or moved, or with their text damaged.
"""

from __future__ import annotations

import json
import time
from random import Random
from typing import Any

from amk.adversary.edits import Json, at
from amk.adversary.subjects import SETTINGS, SHAPES, subject
from amk.judges.oracle.flatten import TooBig
from amk.judges.oracle.judge import rule
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import parse_schedule
from amk.schedule_ir.schedule import Schedule
from amk.validator.verify import verify

LIMIT = 20.0
"""Seconds that `verify` is given; it must answer soon after."""
STRANGE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 8, 31, 32, 255, 256, 1024, 2**31, 2**32, 2**40, 2**63, 10**30, -(2**31), 0.5,
    "", "t", "l", "worker", "w0", "all", "act", "h_mid", "x", [], {}, [0], [1, 1], {"t": 1}, {"l": 1, "1": 1},
)  # fmt: skip


ODD = (b"\xff\xfe", b"\x00", b"NaN", b"1e999", b"[" * 300, b'"a":1,"a":1', b"-", b"\\ud800", b"9" * 400)


def places(document: Json, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values inside."""
    found: list[tuple[Any, ...]] = []
    entries = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in entries:
        found.append((*path, key))
        if isinstance(value, dict | list):
            found += places(value, (*path, key))
    return found


def damaged(document: Json, rng: Random) -> Json:
    """A copy with one value changed, removed, repeated or exchanged with a neighbour."""
    copy = json.loads(json.dumps(document))
    everywhere = places(copy)
    numbers = [p for p in everywhere if type(at(copy, p)) is int]
    path = rng.choice(numbers if rng.random() < 0.6 else everywhere)
    parent = copy
    for part in path[:-1]:
        parent = parent[part]
    key, what = path[-1], rng.random()
    if what < 0.6 and type(parent[key]) is int:
        parent[key] += rng.choice((-1, 1, 1, 2, -2, 8))
    elif what < 0.7:
        parent[key] = rng.choice(STRANGE)
    elif what < 0.75:
        del parent[key]
    elif isinstance(parent, list):
        other = rng.randrange(len(parent))
        if what < 0.9:
            parent[key], parent[other] = parent[other], parent[key]
        else:
            parent.insert(other, parent[key])
    else:
        parent[rng.choice(sorted(parent))] = parent[key]
    return copy


def torn(text: bytes, rng: Random) -> bytes:
    """The text with bytes changed, a part cut out or repeated, or something strange put in."""
    here, length = rng.randrange(len(text)), rng.randrange(1, 64)
    part = rng.choice(ODD)
    return rng.choice(
        (
            text[:here] + text[here + length :],
            text[:here],
            text[:here] + text[here : here + length] * 2 + text[here:],
            text[:here] + part + text[here:],
            text[:here] + bytes([rng.randrange(256)]) + text[here + 1 :],
        )
    )


def fuzzed(rng: Random) -> bytes:
    base = subject(rng.choice(sorted(SETTINGS)), *rng.choice(SHAPES[:6])).document
    for _ in range(rng.choice((1, 1, 2, 3))):
        base = damaged(base, rng)
    text = json.dumps(base).encode()
    return torn(text, rng) if rng.random() < 0.25 else text


def outcome(text: bytes) -> str:
    """refused, SAFE, UNSAFE or UNKNOWN; or what is wrong with how it was handled, beginning with `!`."""
    began = time.monotonic()
    try:
        schedule = parse_schedule(text, "fuzz")[0]
        verdict = verify(schedule, timeout_s=LIMIT)
        if time.monotonic() - began > 2 * LIMIT:
            return "! too slow"
        return _confirmed(schedule) if verdict.safe else verdict.status
    except AmkError:
        return "refused"
    except Exception as error:  # noqa: BLE001  what must not happen, whatever it is
        return f"! {type(error).__name__}: {error}"


def _confirmed(schedule: Schedule) -> str:
    """What the oracle says about a SAFE."""
    try:
        ruling = rule(schedule, 2)
    except TooBig:
        return "SAFE, too big for the oracle"
    return "SAFE" if ruling.status == "SAFE" else f"! SAFE, the oracle says {ruling.status}: {ruling.why}"
