"""Every contestant of the race of refills is a schedule other than the default, before a GPU is asked for."""

import pytest

from amk.bench.tools.contestants import parse, schedule_of
from amk.schedule_ir.codec import schedule_hash
from tests.gpu.race_refills import RACES, command


@pytest.mark.parametrize("race", RACES, ids=lambda race: f"{race[0]}-{race[1]}")
def test_contestants_are_plans_that_differ_from_the_default(race: tuple[str, str, str | None]) -> None:
    arguments = parse(command(race, "h100"))
    found = {changes: schedule_hash(schedule_of(arguments, changes)) for changes in ("", *arguments.changes)}
    assert tuple(arguments.changes) == RACES[race]
    same = {changes for changes, digest in found.items() if changes and digest == found[""]}
    assert same <= {"paced=True"}, "short products drain too little to be paced"
