"""What relaxed signals and tags count for, where no whole schedule shows it because another check comes first."""

from __future__ import annotations

import json

import numpy as np
import pytest

from amk.adversary.edits import Edit, apply
from amk.adversary.subjects import subject, users
from amk.validator.memory.composition import groups_of
from amk.validator.order.two_levels import InterCtaSystem
from amk.validator.program.handoffs import Instances, words
from amk.validator.verify import verify
from tests.validator.plans import MODELS, SMALL, from_document, small_plan


def test_a_relaxed_signal_is_no_node_of_an_order() -> None:
    """It counts, but as an agent without a past; a place of its own in its warp's order would be for nothing."""
    document = subject("fenced", 2, 1, 1).document
    relaxed = [Edit("replace", (*path, "order"), "relaxed") for path in users(document, "act")[1]]
    schedule = from_document(apply(document, relaxed)[0])
    instances = Instances(schedule.counters)
    groups = groups_of(schedule, 2, instances)
    weak = sum(int(g.signals[:, 4].sum()) for g in groups)
    nothing = words(schedule, [g.order.trace.items for g in groups], np.zeros((0, 7), np.int64))
    every, fenced = (InterCtaSystem(groups, instances, nothing, edges) for edges in ("block", "fence"))
    assert weak == 4  # two workers, two tokens
    assert int(fenced.lengths[-1]) == weak and int(fenced.lengths[:-1].sum()) == int(every.lengths[:-1].sum()) - weak


@pytest.mark.parametrize(("slope", "code"), [(5, None), (4, "AMK513")])
def test_tags_of_all_layers_stay_within_their_token(slope: int, code: str | None) -> None:
    """Five layers take five tags a token. Only two layers are looked at step by step, where three would do."""
    document = json.loads(small_plan(SMALL["fast"], MODELS["deep"]).model_dump_json())
    layered = [i for i, b in enumerate(document["buffers"]) if b.get("tag") and b["tag"].get("l")]
    edits = [Edit("replace", ("buffers", i, "tag"), {"t": slope, "l": 1, "1": 1}) for i in layered]
    assert layered
    found = verify(from_document(apply(document, edits)[0]))
    assert [d.code for d in found.diagnostics][:1] == ([code] if code else [])
