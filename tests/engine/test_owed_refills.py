"""What a warp owes its ring, in the interpreter with every copy an event and in the emulated kernel: it waits for ever
where the verdict is UNSAFE, and tokens are those of the plan where it is SAFE."""

import json

import pytest

from amk.adversary.cases import RECIPES, base_schedule, make_case
from amk.adversary.recipe import Recipe
from amk.emulator.decode import run
from amk.engine.backends.cpu_engine import CpuEngine
from amk.interpreter.fault import Deadlock
from amk.interpreter.order import named_order
from amk.lowering.compile import compile_ptx
from amk.lowering.emit import emit
from amk.lowering.stamp import stamped
from amk.schedule_ir.codec import parse_schedule
from amk.schedule_ir.schedule import Schedule
from amk.validator.verify import verify
from tests.cases import cases
from tests.engine.tiny import RandomTensors

OWED = [recipe for recipe in RECIPES if recipe.name.startswith("ring-owed") or recipe.name == "ring-refilled-later"]
PROMPT, TOKENS = [3, 17], 3


def schedule_of(document: object) -> Schedule:
    return parse_schedule(json.dumps(document).encode(), "a recipe")[0]


def tokens(schedule: Schedule, order: str) -> list[int]:
    engine = CpuEngine(schedule, RandomTensors(schedule.model), copies="events", order=lambda: named_order(order))
    engine.request(PROMPT)
    return engine.step(TOKENS).tolist()


@pytest.mark.turns(4)
@pytest.mark.parametrize("order", ["round-robin", "random:1"])
@pytest.mark.parametrize("recipe", OWED, ids=lambda recipe: recipe.name)
def test_a_verdict_is_what_happens(recipe: Recipe, order: str) -> None:
    schedule = schedule_of(make_case(recipe)["schedule"])
    assert verify(schedule).status == recipe.status
    if recipe.status == "SAFE":
        assert tokens(schedule, order) == tokens(schedule_of(base_schedule("held")), order)
    else:
        with pytest.raises(Deadlock, match="its next chunk, whose copy was not issued"):
            tokens(schedule, order)


@pytest.mark.turns(16)
@pytest.mark.parametrize("recipe", OWED[:: cases(2, 1)], ids=lambda recipe: recipe.name)
def test_the_kernel_ends_or_hangs_as_the_verdict_says(recipe: Recipe) -> None:
    schedule = schedule_of(make_case(recipe)["schedule"])
    ptx = compile_ptx(stamped(emit(schedule), schedule), schedule.target.arch)
    result = run(schedule, RandomTensors(schedule.model), ptx, prompts=[PROMPT], tokens=TOKENS, races=True)
    if recipe.status == "SAFE":
        assert result.ended and not result.faults
        assert result.tokens.tolist() == tokens(schedule, "round-robin")
    else:
        assert {fault.kind for fault in result.faults} == {"deadlock"}
