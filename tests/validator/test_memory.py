"""Races and reads-from on hand-made systems: one case per way to go wrong, with its repaired twin."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amk.adversary.system_builder import SystemBuilder
from amk.validator.memory.flat import Judgement, judge
from amk.validator.memory.races import blocks, find_faults, find_races, touches_of
from amk.validator.program.system import ACCUMULATE_FLOAT, ACCUMULATE_INT, READ, WRITE


def two_agents(kinds: tuple[int, int], ordered: bool, spans: tuple[int, int, int, int] = (0, 4, 0, 4)) -> Judgement:
    build = SystemBuilder()
    events = [build.event(build.agent()) for _ in range(2)]
    build.access(events[0], kinds[0], 0, spans[0], spans[1])
    build.access(events[1], kinds[1], 0, spans[2], spans[3])
    if ordered:
        build.edge(*events)
    return judge(build.build())


@pytest.mark.parametrize("first", [READ, WRITE, ACCUMULATE_INT, ACCUMULATE_FLOAT])
@pytest.mark.parametrize("second", [READ, WRITE, ACCUMULATE_INT, ACCUMULATE_FLOAT])
def test_which_kinds_conflict(first: int, second: int) -> None:
    commute = first == second and first != WRITE
    assert two_agents((first, second), ordered=False).races.racy == (not commute)
    assert not two_agents((first, second), ordered=True).races.racy
    floats = first == second == ACCUMULATE_FLOAT
    assert two_agents((first, second), ordered=False).races.deterministic == (not floats)
    assert two_agents((first, second), ordered=True).races.deterministic


def test_races_name_the_overlap_exactly() -> None:
    (race,) = two_agents((WRITE, READ), ordered=False, spans=(0, 10, 9, 20)).races.races
    assert (race.first, race.second, race.lo, race.hi, race.first_kind, race.second_kind) == (0, 1, 9, 10, WRITE, READ)
    assert not two_agents((WRITE, READ), ordered=False, spans=(0, 9, 9, 20)).races.racy


def test_transitive_order_through_a_third_agent_is_enough() -> None:
    for cut in (False, True):
        build = SystemBuilder()
        a, b, c = (build.event(build.agent()) for _ in range(3))
        build.write(a, 0, 0, 1)
        build.write(c, 0, 0, 1)
        build.edge(a, b)
        if not cut:
            build.edge(b, c)
        assert judge(build.build()).races.racy == cut


def test_write_after_read_is_found_behind_ordered_readers() -> None:
    """Two readers, the later writer waits for one of them only."""
    build = SystemBuilder()
    first, left, right, last = (build.event(build.agent()) for _ in range(4))
    build.write(first, 0, 0, 4)
    build.write(last, 0, 0, 4)
    for reader in (left, right):
        build.edge(first, reader)
        build.read(reader, 0, 0, 4)
    build.edge(left, last)
    (race,) = judge(build.build()).races.races
    assert (race.first, race.second) == (right, last)


def test_reports_are_limited_but_the_verdict_is_not() -> None:
    build = SystemBuilder()
    for _ in range(20):
        build.write(build.event(build.agent()), 0, 0, 1)
        build.access(build.event(build.agent()), ACCUMULATE_FLOAT, 1, 0, 1)
    system = build.build()
    assert len(judge(system, limit=None).races.races) == 190
    few = judge(system, limit=5).races
    assert few.racy and not few.deterministic and len(few.races) == 5 and few.truncated
    assert len(few.unordered_sums) == 5


def test_no_blocks_no_races() -> None:
    build = SystemBuilder()
    build.agent()
    judgement = judge(build.build())
    report = find_races([], judgement.clocks)
    assert not report.racy and report.deterministic and judgement.safe


Case = Callable[[SystemBuilder, bool], None]


def stale(build: SystemBuilder, broken: bool) -> None:
    """The reader waits for the wrong layer: no race, the old value."""
    agent = build.agent()
    first, second, reader = (build.event(agent) for _ in range(3))
    build.write(first, 0, 0, 8, 1)
    build.write(second, 0, 0, 8, 2)
    build.read(reader, 0, 0, 8, 3 if broken else 2)


def uninitialised(build: SystemBuilder, broken: bool) -> None:
    reader = build.event(build.agent())
    build.initial(0, 0, 4 if broken else 8, 1)
    build.read(reader, 0, 0, 8, 1)


def displaced(build: SystemBuilder, broken: bool) -> None:
    """Right tensor, wrong row: the value agrees, the displacement does not."""
    agent = build.agent()
    build.write(build.event(agent), 0, 0, 8, 1, 16)
    build.read(build.event(agent), 0, 0, 8, 1, 24 if broken else 16)


def straddling(build: SystemBuilder, broken: bool) -> None:
    """A tile of two producers, one of which wrote another value."""
    agent = build.agent()
    for tile in range(2):
        build.write(build.event(agent), 0, 4 * tile, 4 * tile + 4, 1 if tile == 0 or not broken else 9)
    build.read(build.event(agent), 0, 2, 6, 1)


def missing_zero(build: SystemBuilder, broken: bool) -> None:
    agent = build.agent()
    if not broken:
        build.write(build.event(agent), 0, 0, 4, 1)
    build.access(build.event(agent), ACCUMULATE_FLOAT, 0, 0, 4, 1)
    build.read(build.event(agent), 0, 0, 4, 1)


def early_read(build: SystemBuilder, broken: bool) -> None:
    """The reader takes the sum before the last addition."""
    agent = build.agent()
    build.write(build.event(agent), 0, 0, 4, 1)
    build.access(build.event(agent), ACCUMULATE_FLOAT, 0, 0, 4, 1)
    if broken:
        build.read(build.event(agent), 0, 0, 4, 1)
    build.access(build.event(agent), ACCUMULATE_FLOAT, 0, 0, 4, 1)
    build.read(build.event(agent), 0, 0, 4, 1)


def leftover_sum(build: SystemBuilder, broken: bool) -> None:
    """The accumulator of the next token is not zeroed."""
    agent = build.agent()
    build.write(build.event(agent), 0, 0, 4, 1)
    build.access(build.event(agent), ACCUMULATE_INT, 0, 0, 4, 1)
    if not broken:
        build.write(build.event(agent), 0, 0, 4, 2)
    build.access(build.event(agent), ACCUMULATE_INT, 0, 0, 4, 2)


def missing_output(build: SystemBuilder, broken: bool) -> None:
    build.write(build.event(build.agent()), 0, 0, 7 if broken else 8, 1)
    build.final(0, 0, 8, 1)


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        (stale, "stale"),
        (uninitialised, "uninitialised"),
        (displaced, "stale"),
        (straddling, "stale"),
        (missing_zero, "uninitialised"),
        (early_read, "partial"),
        (leftover_sum, "stale"),
        (missing_output, "uninitialised"),
    ],
    ids=lambda entry: getattr(entry, "__name__", str(entry)),
)
def test_reads_from(case: Case, kind: str) -> None:
    verdicts = []
    for broken in (False, True):
        build = SystemBuilder()
        case(build, broken)
        verdicts.append(judge(build.build()))
    assert verdicts[0].safe
    assert not verdicts[1].races.racy and not verdicts[1].safe
    assert verdicts[1].dataflow.faults[0].kind == kind


def test_an_event_reads_memory_as_it_was_before_its_own_writes() -> None:
    build = SystemBuilder()
    event = build.event(build.agent())
    build.initial(0, 0, 4, 1)
    build.write(event, 0, 0, 4, 2)
    build.read(event, 0, 0, 4, 1)
    build.final(0, 0, 4, 2)
    assert judge(build.build()).safe


def test_faults_of_all_blocks_are_listed() -> None:
    build = SystemBuilder()
    event = build.event(build.agent())
    for buffer in range(3):
        build.read(event, buffer, 0, 4, value=1)
    touches = touches_of(judge(build.build()).run)
    found = find_faults(blocks(touches, 1))
    assert [fault.buffer for fault in found.faults] == [0, 1, 2] and not found.truncated
