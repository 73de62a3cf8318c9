"""What the checker alone accepts: of the kinds in `BEYOND`, and with the model's numbers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import pytest

from amk.adversary.edits import Json, apply, at
from amk.adversary.neighbourhood.account import BEYOND, FINISH
from amk.adversary.neighbourhood.bases import SMALL_BASES, base
from amk.adversary.neighbourhood.mutator import Change, Neighbourhood, schema_of_schedules
from amk.adversary.neighbourhood.survey import Care, Survey
from amk.prefill.reader import BUFFERS
from amk.schedule_ir.launch_needs import host_buffers
from amk.schedule_ir.schedule import Schedule
from amk.validator.verify import verify


def changes(name: str, *fields: str) -> Iterator[Change]:
    neighbours = Neighbourhood(base(name), schema_of_schedules()).changes()
    return (change for change in neighbours if change.field in fields)


def documents(name: str, change: Change) -> tuple[Json, Json]:
    return base(name), apply(base(name), list(change.edits))[0]


def same_bytes_or_longer_rows(name: str, change: Change) -> bool:
    before, after = (
        Schedule.model_validate_json(json.dumps(document)).buffers[change.edits[0].path[1]]
        for document in documents(name, change)
    )
    return change.field == "Buffer.shape[]" and before.bytes <= after.bytes


def a_step_again(name: str, change: Change) -> bool:
    """Or a use of the launch state, or more staged columns, in the two edits that are listed below."""
    (edit,) = change.edits
    return change.kind == "doubled" and at(base(name), edit.path) == edit.value


UNUSED = ("has no use for", "change from layers", "lm_head")
"""Scales and sums beside operands that need none, a change that is there twice, lm_head in later layers."""


def what_nothing_uses(name: str, change: Change) -> bool:
    found = verify(Schedule.model_validate_json(json.dumps(documents(name, change)[1]))).diagnostics
    return all(any(words in d.message for words in UNUSED) for d in found)


def rows_of_no_head(name: str, change: Change) -> bool:
    return base(name)["headless"] is True and all(edit.path[1].startswith("lm_head.") for edit in change.edits)


def a_finish_again(name: str, change: Change) -> bool:
    return FINISH in change.key


KINDS = {
    "AMK101": rows_of_no_head,
    "AMK102": rows_of_no_head,
    "AMK103": same_bytes_or_longer_rows,
    "AMK104": a_finish_again,
    "AMK106": a_step_again,
    "AMK405": what_nothing_uses,
}
PLACES: dict[str, tuple[tuple[str, ...], int]] = {
    "refills held back": (("Loop.body[]", "Program.body[]", "StageOp.scales"), 80),
    "rows": (("Buffer.shape[]",), 120),
    "LayerNorm, parallel": (("Buffer.shape[]", "LayerNormOp.scales"), 100),
    "int4 with zeros": (("Chunk.format", "StageNormOp.scales"), 80),
    "rows, columns divided": (("Schedule.tables{}[]",), 60),
    "layers of two kinds": (("Stream.later[]", "LayerChunks.chunks{}"), 80),
}
"""By base, fields with such edits, and how many are looked at."""


@pytest.mark.turns(32)
@pytest.mark.parametrize("name", PLACES)
def test_what_the_checker_alone_accepts_is_of_a_known_kind(name: str) -> None:
    (fields, most), survey, found = PLACES[name], Survey(base(name)), Counter[str]()
    every = list(changes(name, *fields))
    for change in every[:: max(1, len(every) // most)]:
        outcome = survey.outcome(change, Care(safe=0, other=0))
        if outcome.verdict in ("UNSAFE", "UNKNOWN") and outcome.certificate.startswith("accepted"):
            assert BEYOND.keys() >= set(outcome.codes), (change.key, outcome)
            assert all(KINDS[code](name, change) for code in outcome.codes), (change.key, outcome)
            ran = survey.outcome(change, Care(other=1))
            assert ran.judge == "not refuted" and not ran.hole, (change.key, ran)
            found.update(outcome.codes)
    assert sum(found.values()) > 0 and KINDS.keys() == BEYOND.keys()


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [("drawing, fenced", "ArgmaxRowsOp.best_index", "state"), ("rows, all in parts", "StageAttentionOp.k_parts", 1)],
)
def test_the_launch_state_may_be_scratch_and_more_may_be_staged(name: str, field: str, value: str | int) -> None:
    """`finish` writes the state whole at the end; a product reads of what is staged what is its own."""
    wanted = (c for c in changes(name, field) if c.edits[0].value == value)
    outcomes = [Survey(base(name)).outcome(change, Care(other=99)) for change in islice(wanted, 2)]
    beyond = [o for o in outcomes if o.certificate.startswith("accepted")]
    assert beyond and all(o.codes == ("AMK106",) and o.judge == "not refuted" for o in beyond)


def test_what_the_last_finish_stores_is_what_the_launch_leaves() -> None:
    """In place of a barrier that orders nothing; in place of others the checker refuses it."""
    name = "refills held back"
    every = Neighbourhood(base(name), schema_of_schedules()).further()
    again = [
        c
        for c in every
        if c.field == "Step.op" and c.edits[0].value == {"op": "finish", "role": "w0", "state": "state"}
    ]
    outcomes = [(change, Survey(base(name)).outcome(change, Care(other=0))) for change in again]
    accepted = [change for change, outcome in outcomes if outcome.certificate.startswith("accepted")]
    assert 0 < len(accepted) < len(again)
    said: list[str] = []
    for change in accepted:
        outcome = Survey(base(name)).outcome(change, Care(other=99))
        assert set(outcome.codes) <= {"AMK104", "AMK106"} and outcome.judge == "not refuted"
        found = verify(Schedule.model_validate_json(json.dumps(documents(name, change)[1]))).diagnostics
        said += [d.message for d in found if d.code == "AMK104"]
    assert said and all("in the token loop, before it has chosen a token" in message for message in said)


def test_zeros_behind_a_part_are_no_elements() -> None:
    """The first half of attention's outputs is staged, and the block that holds both is filled up."""
    (half,) = (c for c in changes("splits reduced", "StageAttentionOp.k_parts") if c.edits[0].value == 2)
    outcome = Survey(base("splits reduced")).outcome(half, Care(other=1))
    assert outcome.certificate == "refused" and outcome.judge == "refuted: tokens"


@pytest.mark.parametrize("name", SMALL_BASES)
def test_the_host_views_memory_as_the_model_has_it_however_it_is_declared(name: str) -> None:
    """Of a SAFE schedule that is the declared shape; of others it is one of as many elements."""
    schedule = Schedule.model_validate_json(json.dumps(base(name)))
    known, viewed = host_buffers(schedule), {*BUFFERS, "norm_shift", "q_norm", "k_norm"}
    for buffer in schedule.buffers:
        if buffer.name in viewed or buffer.name.endswith("_bias") or buffer.name.startswith("scales."):
            assert known[buffer.name][1] == buffer.shape
            flat = buffer.model_copy(update={"shape": (1, *(n for n in buffer.shape if n != 1))})
            edited = tuple(flat if b.name == buffer.name else b for b in schedule.buffers)
            assert host_buffers(schedule.model_copy(update={"buffers": edited})) == known
