"""What flag words order: whole steps from outside. Against the definition, the checker and the emulator."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from amk.adversary.edits import Edit, Json, Path, apply
from amk.adversary.neighbourhood.bases import base
from amk.checker.certificate import check_certificate
from amk.judges.emulated_run import EmulatedKernel
from amk.judges.judge import DEVICE_TOLERANCE, judged, requests
from amk.judges.oracle.judge import rule
from amk.judges.replay import replay
from amk.lowering.compile import compile_ptx
from amk.lowering.emit import emit
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.validator.evidence.flat_check import FlatCheck
from amk.validator.export.of_schedule import certify_schedule
from amk.validator.memory.composition import compose
from amk.validator.verify import verify


def barriers(document: Json) -> Iterator[Path]:
    def walk(body: list[Json], path: Path) -> Iterator[Path]:
        for i, node in enumerate(body):
            if "body" in node:
                yield from walk(node["body"], (*path, i, "body"))
            elif node["op"]["op"] == "barrier":
                yield (*path, i)

    return walk(document["programs"][0]["body"], ("programs", 0, "body"))


def without_barriers(name: str) -> Iterator[Schedule]:
    """Each barrier dropped, and moved by one step forward and back."""
    document = base(name)
    for path in barriers(document):
        *front, place = path
        for by in (None, 1, -1):
            edits = [Edit("remove", path)]
            if by is not None:
                around = document
                for part in front:
                    around = around[part]
                edits.append(Edit("insert", (*front, min(max(place + by, 0), len(around) - 1)), around[place]))
            yield Schedule.model_validate_json(json.dumps(apply(document, edits)[0]))


@pytest.mark.turns(16)
@pytest.mark.parametrize(
    "name",
    ["int4 with zeros", "int8, fp8 cache", "flags and fences, bias", "rows, parts of down, sums in global memory"],
)
def test_a_barrier_that_words_do_not_replace_is_missed(name: str) -> None:
    """By the validator as by the definition; of what is SAFE the checker accepts the certificate."""
    seen = Counter[str]()
    for schedule in without_barriers(name):
        verdict = verify(schedule)
        seen[verdict.status] += 1
        assert verdict.safe == (rule(schedule, 2).status == "SAFE")
        if verdict.safe:
            certificate = json.loads(json.dumps(certify_schedule(schedule, checked=False)))
            assert check_certificate(schedule, schedule_hash(schedule), certificate).accepted
        elif verdict.evidence is not None:
            found = verdict.evidence.to_json(schedule_hash(schedule))
            assert replay(found["system"], found["witness"])
    assert seen["SAFE"] > 3 and seen["UNSAFE"] > 10, seen


def over_partials(name: str, exchanged: bool) -> Schedule:
    """The barrier before `combine` is missing, or stands behind it."""
    document = base(name)
    body: Path = ("programs", 0, "body", 1, "body", 1, "body")
    steps = document["programs"][0]["body"][1]["body"][1]["body"]
    place = next(i for i, step in enumerate(steps) if step["op"]["op"] == "combine") - 1
    edits = [Edit("remove", (*body, place))] + [Edit("insert", (*body, place + 1), steps[place])] * exchanged
    return Schedule.model_validate_json(json.dumps(apply(document, edits)[0]))


@pytest.mark.turns(12)
@pytest.mark.parametrize(("name", "exchanged"), [("int4 with zeros", False), ("int8, fp8 cache", True)])
def test_words_say_nothing_of_the_lanes_whose_words_are_not_looked_for(name: str, exchanged: bool) -> None:
    """One warp reads all words that the others write, but no lane of it does; so the kernel has a race."""
    schedule = over_partials(name, exchanged)
    assert not compose(schedule).safe and not FlatCheck(schedule).at(0).safe
    machine = EmulatedKernel(lambda s: compile_ptx(emit(s), s.target.arch))
    request, order = next(iter(requests(schedule)))
    found = judged(schedule, request, order, machine, DEVICE_TOLERANCE)
    assert found.status == "refuted" and "race" in found.why + found.kind, found
