"""Where nothing has to be synchronised: what else refuses a schedule that computes something else."""

from __future__ import annotations

import json
from copy import deepcopy
from random import Random

import pytest

from amk.adversary.cases import RECIPES, make_case
from amk.adversary.edits import steps
from amk.checker import facts
from tests.adversarial import random_frames
from tests.adversarial.layouts import token_loop
from tests.adversarial.random_frames import FRAME_BASES, base, drawn, looked_at, ops

SEEDS = range(16)
FREE = {"wait", "signal", "barrier", "prefetch_cache"}


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", FRAME_BASES)
def test_bases_are_accepted(name: str) -> None:
    assert looked_at(base(name)) == ("accepted", "")


def test_every_kind_of_op_is_drawn_but_those_of_other_layouts() -> None:
    assert len(ops()) > 30 and {"embed", "take_hidden", "layer_norm", "select_draw", "refill"} <= ops().keys()


@pytest.mark.turns(4)
def test_random_frames_have_no_hole() -> None:
    found = [looked_at(drawn(Random(seed))[1]) for seed in SEEDS]
    assert {verdict for verdict, _ in found} >= {"accepted", "refused"}
    assert not any(wrong for _, wrong in found), found


@pytest.mark.turns(12)
def test_no_step_with_data_may_leave_the_tokens() -> None:
    """Each before the first token and behind the last one; the launch state is loaded and stored where it is."""
    document = base("one layer")
    (program,) = document["programs"]
    tokens = program["body"].index(token_loop(program))
    data = [path for path, step in steps(document) if step["op"]["op"] not in FREE]
    assert len(data) > 15
    for path in data:
        for place in (1, tokens + 1):
            edited = json.loads(json.dumps(document))
            body = edited
            for part in path[:-1]:
                body = body[part]
            step = body.pop(path[-1])
            for name in ("layer", "index"):
                if isinstance(step["op"].get(name), dict):
                    step["op"][name] = step["op"][name].get("1", 0)
            whole = edited["programs"][0]["body"]
            whole.insert(min(place, len(whole)), step)
            if edited != document:
                assert looked_at(edited)[0] == "refused", (step["op"]["op"], place)


@pytest.mark.parametrize("name", ["finish-before-the-loop", "activation-of-another-family", "largest-logit-of-a-draw"])
def test_a_hole_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what refuses it. Nothing else does, so these are cases of that alone."""
    case = make_case(next(recipe for recipe in RECIPES if recipe.name == name))
    assert looked_at(deepcopy(case["schedule"])) == ("refused", "")
    unmet: list[str] = []
    monkeypatch.setattr(facts, "check_registers", lambda *_: None)
    monkeypatch.setattr("amk.checker.certificate.needs_unmet", lambda _: unmet)
    verdict, wrong = random_frames.looked_at(case["schedule"])
    assert verdict == "accepted" and wrong.startswith(("state ", "tokens ")), wrong
