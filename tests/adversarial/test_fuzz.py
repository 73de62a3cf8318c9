"""Some seconds of damaged schedules (hours by hand: `tests.validator.long_checks fuzz`, recorded)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from random import Random
from typing import Any

import pytest

from amk.adversary.edits import Edit, Json, Path, apply, named, steps
from amk.adversary.neighbourhood.bases import base
from amk.adversary.subjects import subject
from amk.judges.oracle.flatten import TooBig
from amk.judges.oracle.judge import rule
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import parse_schedule
from amk.schedule_ir.ops import OPS
from amk.schedule_ir.references import buffer_fields
from amk.schedule_ir.schedule import Schedule
from amk.validator.verify import verify
from tests.adversarial.fuzz import fuzzed, outcome


@pytest.mark.turns(12)
def test_damaged_schedules_are_refused_or_judged() -> None:
    rng, seen = Random(1), Counter[str]()
    for _ in range(150):
        found = outcome(fuzzed(rng))
        assert not found.startswith("!"), found
        seen[found] += 1
    assert seen["refused"] > 20 and seen["UNSAFE"] > 5 and seen["SAFE"] > 5


def small() -> Json:
    return deepcopy(subject("fenced", 2, 2, 1).document)


def parsed(document: Json) -> Schedule:
    return parse_schedule(json.dumps(document).encode(), "test")[0]


def codes(document: Json) -> list[str]:
    """Of the refusal or the verdict."""
    try:
        return [d.code for d in verify(parsed(document)).diagnostics]
    except AmkError as error:
        return [d.code for d in error.diagnostics]


def lists(value: Json, path: Path = ()) -> Iterator[Path]:
    """Places of all arrays."""
    if isinstance(value, list):
        yield path
    entries = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for key, entry in entries:
        yield from lists(entry, (*path, key))


@pytest.mark.turns(16)
@pytest.mark.parametrize("name", ["fenced", "rows"])
def test_every_array_may_be_empty_without_an_internal_error(name: str) -> None:
    document, seen = base(name), Counter[str]()
    for path in lists(document):
        found = codes(apply(document, [Edit("replace", path, [])])[0])
        seen["/".join(part for part in path if isinstance(part, str))] += bool(found)
    assert seen["buffers/shape"] == len(document["buffers"])
    assert all(seen[of] for of in ("roles", "buffers", "streams", "programs", "counters/shape")), seen


def test_every_name_in_an_op_is_a_reference_that_is_looked_up() -> None:
    rest = {"role", "stream"}
    for op in OPS.values():
        for field, info in op.model_fields.items():
            plain = str in (info.annotation, *getattr(info.annotation, "__args__", ()))
            assert not plain or field in rest or field in buffer_fields(op), f"{op.__name__}.{field} is never looked up"


@pytest.mark.parametrize("damage", ["l", "worker", "combine", "no_such_buffer"])
def test_an_op_that_names_a_buffer_that_is_not_there_is_refused(damage: str) -> None:
    for field in ("mix", "split_partial"):
        document = small()
        ops = [step["op"] for _, step in steps(document) if field in step["op"]]
        assert ops
        ops[0][field] = damage
        assert codes(document) == ["AMK009"]


@pytest.mark.parametrize(("number", "code"), [(2**63, "AMK005"), (10**30, "AMK005"), (-1, "AMK005")])
def test_numbers_of_ops_are_small(number: int, code: str) -> None:
    document = small()
    next(step["op"] for _, step in steps(document) if "heads" in step["op"])["heads"] = number
    assert codes(document) == [code]


@pytest.mark.parametrize(
    ("amount", "code"), [(2**31, "AMK204"), (2**32, "AMK204"), (2**40, "AMK005"), ({"worker": 2**32}, "AMK204")]
)
def test_a_signal_that_passes_half_the_range_of_its_counter(amount: Any, code: str) -> None:
    document = small()
    step = next(s for _, s in steps(document) if s.get("signals"))
    step["signals"][0]["add"] = amount
    assert codes(document)[0] == code
    if code == "AMK204":
        assert rule(parsed(document), 2).status == "UNSAFE"


def test_products_of_tables_and_coefficients_stay_inside_64_bits() -> None:
    document = small()
    document["tables"]["attn.gate"][0] = 2**24 + 1
    assert codes(document) == ["AMK005"]


def test_counters_together_are_bounded() -> None:
    document = small()
    first = document["counters"][0]
    document["counters"] += [first | {"name": f"more{i}", "shape": [2**21]} for i in range(2)]
    assert codes(document) == ["AMK005"]


def add_scratch(document: Json, size: int) -> None:
    template = dict(named_buffer(document, "h_mid"))
    document["buffers"].append(template | {"name": "spare", "shape": [size], "tagged": False, "tag": None})


def named_buffer(document: Json, name: str) -> Json:
    path = named(document, "buffers", name)
    found: Json = document[path[0]][path[1]]
    return found


def test_a_buffer_that_the_device_cannot_hold_is_unsafe_and_a_large_one_that_nobody_touches_is_not() -> None:
    fits, fails = small(), small()
    add_scratch(fits, 2**32)
    add_scratch(fails, 2**39)
    assert outcome(json.dumps(fits).encode()) == "SAFE"
    assert codes(fails) == ["AMK011"] and rule(parsed(fails), 2).status == "UNSAFE"


def test_a_tag_that_never_changes_is_no_matter_on_a_buffer_that_nobody_uses() -> None:
    document = small()
    template = dict(named_buffer(document, "h_mid"))
    document["buffers"].append(template | {"name": "spare", "shape": [8], "tagged": True, "tag": {"1": 3}})
    assert outcome(json.dumps(document).encode()) == "SAFE"


def test_more_segments_than_the_oracle_spells_out_are_left_to_the_validator(monkeypatch: pytest.MonkeyPatch) -> None:
    few = partial(rule, most=10)
    with pytest.raises(TooBig):
        few(parsed(small()), 2)
    monkeypatch.setattr("tests.adversarial.fuzz.rule", few)
    assert outcome(json.dumps(small()).encode()) == "SAFE, too big for the oracle"
