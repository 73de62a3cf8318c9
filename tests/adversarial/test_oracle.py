"""The oracle's shortcuts against its definitions: one run per withheld segment, every pair of accesses, every byte."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from random import Random

import numpy as np
import pytest

from amk.adversary.classes.table import CLASSES
from amk.adversary.confusion import mutation, tokens_for
from amk.adversary.edits import at, find, steps, waiting
from amk.adversary.neighbourhood.bases import SMALL_BASES, base
from amk.judges.oracle import order as ordering
from amk.judges.oracle.flatten import Edges, Segment, Spelled, spell
from amk.judges.oracle.judge import Judge, rule, telling_positions
from amk.judges.oracle.lags import HALF_WORD, _Runs, wrong_comparison
from amk.judges.oracle.memory import final_content, launch_content, launch_spans, misread, word_needs
from amk.judges.oracle.order import Needs, Order, System, execute, system_of
from amk.judges.oracle.races import Orders, race
from amk.judges.oracle.stretches import stretches
from amk.judges.oracle.touched import UNNAMED, Touched, Toucher
from amk.schedule_ir.schedule import Schedule
from tests.validator.plans import from_document
from tests.validator.two_level import random_two_level

EDGES: tuple[Edges, ...] = ("word", "fence", "block")
PLAIN, WORDS = (0, 1), 2
Row = tuple[int, int, int, int, int, int]
"""(segment, space, write, lo, hi, tag)"""


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", SMALL_BASES)
def test_plans_are_right_by_the_definitions(name: str) -> None:
    """What the oracle refuses without looking at the order would hide what it says of the order."""
    assert rule(from_document(base(name)), 2).status == "SAFE"


def weakened(rng: Random, share: float) -> Spelled:
    """A random system of workers and warps, in which some waits and signals order nothing."""
    spelled = spell(random_two_level(rng), 1)
    for segment in spelled.segments:
        segment.waits = [(cell, n, rng.random() >= share) for cell, n, _ in segment.waits]
        segment.signals = [(cell, n, rng.random() >= share) for cell, n, _ in segment.signals]
    return spelled


def some_needs(rng: Random, order: list[int], count: int) -> Needs:
    """Segments that read what a few earlier ones write."""
    pairs = [sorted(rng.sample(range(len(order)), 3)) for _ in range(count)]
    return {order[last]: (order[one], order[two]) for one, two, last in pairs}


def started(order: Order) -> set[tuple[int, int]]:
    found = set()
    for part, rows in order.started(np.array(sorted(order.order))):
        for segment, bits in rows:
            found |= {(a, segment) for i, a in enumerate(part) if bits >> i & 1}
    return found


def begun(system: System, withheld: int) -> set[int]:
    """What starts if one segment, which starts, never ends. Words that have been stored let who reads them end."""
    value, done, started = system.start.copy(), set[int](), set[int]()
    while True:
        for span in system.spelled.agents:
            following = next((segment for segment in span if segment not in done), None)
            if following is not None and all(value[cell] >= n for cell, n in system.waits[following]):
                started.add(following)
        ending = {s for s in started - done - {withheld} if started.issuperset(system.needs.get(s, ()))}
        if not ending:
            return started
        done |= ending
        for cell, amount in (entry for segment in ending for entry in system.signals[segment]):
            value[cell] += amount


@pytest.mark.turns(4)
@pytest.mark.parametrize("together", [3, 11, 4_096])
def test_columns_say_what_runs_without_each_segment(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Withheld alone, in few columns whose rows begin and end somewhere inside, and in all at once."""
    monkeypatch.setattr(ordering, "TOGETHER", together)
    rng, passes, seen = Random(together), Counter[int](), Counter[str]()
    repeat = ordering._Withholding._pass
    monkeypatch.setattr(ordering._Withholding, "_pass", lambda self: (passes.update([id(self)]), repeat(self))[1])
    for _ in range(120):
        spelled = weakened(rng, rng.choice((0.0, 0.3)))
        order = execute(system_of(spelled, "block", {}))
        if len(order) < len(spelled.segments) or len(order) < 4:
            continue
        needs = some_needs(rng, order, rng.choice((0, 2)))
        for edges in EDGES:
            system = system_of(spelled, edges, needs)
            place = {segment: i for i, segment in enumerate(order)}
            truth = {(a, b) for a in order for b in begun(system, a) if place[a] < place[b]}
            assert started(Order(system, order)) == truth
            seen.update({"runs without": len(truth), "needs": bool(needs)})
            seen[f"{len({s for _, s in truth})} of {len(order)}"] += 1
    assert seen["runs without"] > 10_000 and seen["needs"] > 20
    assert max(passes.values()) > 2, "no wait was ever met by producers that come later"


def test_ends_without_a_segment_are_what_starts_without_it() -> None:
    """What starts is what has all before it in its agent ended, and its waits met."""
    rng, seen = Random(5), Counter[str]()
    for _ in range(150):
        spelled = weakened(rng, 0.0)
        order = execute(system_of(spelled, "block", {}))
        if 4 <= len(order) == len(spelled.segments):
            system = system_of(spelled, "block", some_needs(rng, order, 2))
            for withheld in order:
                ended, started = _Runs(system).ended(withheld, starts=True), begun(system, withheld)
                assert ended == {s for s in started - {withheld} if started.issuperset(system.needs.get(s, ()))}
                waiting = _Runs(system).ended(withheld, starts=False)
                assert waiting <= ended
                seen.update({"apart": waiting < ended, "alike": waiting == ended})
    assert min(seen["apart"], seen["alike"]) > 50


@pytest.mark.parametrize(("far", "right"), [(HALF_WORD - 1, True), (HALF_WORD, False)])
@pytest.mark.parametrize("late", [True, False])
def test_words_of_a_step_that_has_only_started_let_a_counter_run_ahead(far: int, right: bool, late: bool) -> None:
    """The first agent waits for one increment. The reader of another step's words adds many; that step has started but
    waits for words that the first agent stores later, or the reader needs those itself (not late) and adds nothing."""
    cell = ("ahead", ())
    waiting, stores, between, reader, one = (Segment(0, warp) for warp in (0, 0, 1, 2, 3))
    waiting.waits, reader.signals, one.signals = [(cell, 1, True)], [(cell, far, True)], [(cell, 1, True)]
    agents = [range(2), range(2, 3), range(3, 4), range(4, 5)]
    spelled = Spelled(random_two_level(Random(1)), 1, [waiting, stores, between, reader, one], agents, {cell: 0}, [])
    system = system_of(spelled, "block", {2: (1,), 3: (2,) if late else (1,)})
    assert len(execute(system)) == len(spelled.segments)
    assert (wrong_comparison(system) is None) == (right or not late)


def test_words_of_a_giver_do_not_say_that_it_has_given() -> None:
    """Who has read a step's words looks at its counter; the step's own signal comes behind them."""
    cell = ("behind", ())
    gives, reads, looks = Segment(0, 0), Segment(0, 1), Segment(0, 1)
    gives.signals, looks.waits = [(cell, HALF_WORD + 1, True)], [(cell, HALF_WORD + 1, True)]
    agents = [range(1), range(1, 3)]
    spelled = Spelled(random_two_level(Random(1)), 1, [gives, reads, looks], agents, {cell: 0}, [])
    assert wrong_comparison(system_of(spelled, "block", {1: (0,)})) is not None
    gives.signals, reads.waits = [(cell, HALF_WORD + 1, True), (("first", ()), 1, True)], [(("first", ()), 1, True)]
    spelled = Spelled(spelled.schedule, 1, spelled.segments, agents, {cell: 0, ("first", ()): 0}, [])
    assert wrong_comparison(system_of(spelled, "block", {})) is None


@dataclass(frozen=True)
class Drawn:
    spelled: Spelled
    touched: Touched
    order: list[int]
    systems: dict[Edges, System]


def accesses(rng: Random, order: list[int]) -> list[Row]:
    """Of plain bytes, and of words whose tags grow along the execution, mostly."""
    rows: list[Row] = []
    tags = [0] * 4
    for segment in order:
        for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
            lo = rng.randrange(8)
            rows.append((segment, rng.choice(PLAIN), rng.random() < 0.3, lo, rng.randint(lo + 1, 8), 0))
        word = rng.randrange(4)
        if rng.random() < 0.2:
            tags[word] = max(1, tags[word] + rng.choice((1, 1, 1, 1, 1, 0)))
            rows.append((segment, WORDS, 1, word, word + 1, tags[word]))
        elif tags[word] and rng.random() < 0.3:
            rows.append((segment, WORDS, 0, word, word + 1, tags[word]))
    return rows


def touching(rows: list[Row]) -> Touched:
    table = np.array(sorted(rows, key=lambda row: row[0]), np.int64).reshape(-1, 6)
    zero = np.zeros(len(table), np.int64)
    segment, space, write, lo, hi, tag = table.T
    return Touched(segment, space, write == 1, lo, hi, zero, zero, tag, (), ())


def drawn(rng: Random) -> Drawn | None:
    """None if it does not run to its end."""
    spelled = weakened(rng, rng.choice((0.0, 0.0, 0.2)))
    order = execute(system_of(spelled, "block", {}))
    if len(order) < len(spelled.segments):
        return None
    users = set(rng.sample(order, min(rng.randint(3, 9), len(order))))
    rows = [row for row in accesses(rng, order) if row[0] in users]
    touched = touching(rows)
    needs, sure, never = word_needs(touched, {WORDS}, set())
    order = execute(system_of(spelled, "block", needs))
    if never or len(order) < len(spelled.segments):
        return None
    return Drawn(spelled, touched, order, {edges: system_of(spelled, edges, sure) for edges in EDGES})


def races_by_definition(case: Drawn) -> bool:
    """Is there a pair that is neither ordered nor in need of it?"""
    runs = {edges: cache(lambda a, s=system: begun(s, a)) for edges, system in case.systems.items()}
    place = {segment: i for i, segment in enumerate(case.order)}
    t = case.touched
    columns = (t.segment, t.space, t.write, t.lo, t.hi, t.tag)
    rows = sorted(zip(*(c.tolist() for c in columns), strict=True), key=lambda row: place[row[0]])
    agent_of = case.spelled.agent_of
    for x, y in combinations(rows, 2):
        apart = x[1] != y[1] or x[3] >= y[4] or y[3] >= x[4]
        if apart or agent_of[x[0]] == agent_of[y[0]] or not (x[2] or y[2]):
            continue
        edges: Edges | None = "fence" if x[2] else "word"
        if x[1] == WORDS:
            if x[2] and x[5] > y[5] - y[2]:
                return True
            edges = "fence" if x[2] and y[2] else "block" if y[2] and y[5] > x[5] else None
        if edges is not None and y[0] in runs[edges](x[0]):
            return True
    return False


@pytest.mark.turns(24)
@pytest.mark.parametrize("together", [5, 4_096])
def test_races_are_those_of_the_definition(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "TOGETHER", together)
    rng, seen = Random(f"{together} races"), Counter[tuple[bool, bool]]()
    for _ in range(1600):
        case = drawn(rng)
        if case is None:
            continue
        found = {edges: Order(system, case.order) for edges, system in case.systems.items()}
        orders = Orders(found["block"], found["word"], found["fence"])
        if (case.touched.space != WORDS).all():
            orders = Orders(found["word"], found["word"], found["word"])
            case.systems["fence"] = case.systems["word"]
        truth = races_by_definition(case)
        answer = race(case.spelled, case.touched, stretches(case.touched), {WORDS}, orders)
        assert (answer is not None) == truth
        seen[truth, orders.word is orders.fence] += 1
    assert len(seen) == 4 and min(seen.values()) > 20, seen


def misread_by_bytes(toucher: Toucher, touched: Touched, order: list[int], pos: int) -> bool:
    """Every byte by itself."""
    memory = {
        (space, byte): (code, 0) for space, lo, hi, code in launch_content(toucher, pos) for byte in range(lo, hi)
    }
    columns = (touched.segment, touched.space, touched.write, touched.lo, touched.hi, touched.content, touched.shift)
    rows: dict[int, list[tuple[int, ...]]] = {}
    for segment, *row in zip(*(c.tolist() for c in columns), strict=True):
        rows.setdefault(segment, []).append(tuple(row))
    for segment in order:
        for space, write, lo, hi, *held in rows.get(segment, ()):
            for byte in range(lo, hi):
                if write:
                    memory[space, byte] = held[0], held[1]
                elif held[0] != UNNAMED and memory.get((space, byte)) != tuple(held):
                    return True
    final = list(final_content(toucher, pos))
    return any(memory.get((s, b)) != (code, 0) for s, lo, hi, code in final for b in range(lo, hi))


@pytest.mark.turns(4)
def test_what_is_read_is_what_each_byte_holds() -> None:
    rng, seen = Random(9), Counter[bool]()
    for kind in CLASSES:
        subject = mutation(kind.number, "bytes").subject
        if not isinstance(subject, Schedule):
            continue
        spelled = spell(subject, tokens_for(subject))
        order = execute(system_of(spelled, "block", {}))
        toucher = Toucher(spelled)
        pos = rng.choice(telling_positions(subject, spelled.tokens))
        touched = toucher.at(pos)
        if len(order) == len(spelled.segments) and not touched.outside:
            answer = misread(toucher, touched, stretches(touched, launch_spans(toucher, pos)), order, pos)
            assert (answer is not None) == misread_by_bytes(toucher, touched, order, pos), kind.number
            seen[answer is not None] += 1
    assert min(seen[True], seen[False]) > 3, seen


@pytest.mark.turns(16)
def test_a_position_is_decided_alike_whatever_was_decided_before() -> None:
    seen, differ = Counter[bool](), 0
    for kind in CLASSES:
        subject = mutation(kind.number, "places").subject
        if not isinstance(subject, Schedule):
            continue
        tokens = tokens_for(subject)
        judge = Judge(subject, tokens)
        answers = {pos: judge.at(pos) for pos in telling_positions(subject, tokens)}
        assert answers == {pos: Judge(subject, tokens).at(pos) for pos in answers}, kind.number
        seen.update(why is None for why in answers.values())
        differ += len({why is None for why in answers.values()}) > 1
    assert min(seen[True], seen[False]) > 10 and differ > 0, (seen, differ)


@pytest.mark.parametrize("name", ["drawing, fenced", "rows that accept, drawn, fenced"])
def test_drawings_are_decided(name: str) -> None:
    """A plan that draws, one whose choice is not awaited, and one that draws twice in a token."""
    document = deepcopy(base(name))
    assert rule(from_document(document), 1).status == rule(from_document(document), 3).status == "SAFE"
    path = find(document, "draw")
    at(document, path[:-1]).insert(int(path[-1]), deepcopy(at(document, path)))
    assert "draw round" in rule(from_document(document), 2).why
    document = deepcopy(base(name))
    at(document, waiting(document, "draw"))["waits"] = []
    ruling = rule(from_document(document), 2)
    assert ruling.status == "UNSAFE" and "unordered" in ruling.why
    assert any(step["op"]["op"] == "select_draw" for _, step in steps(document))


def test_what_a_slice_leaves_is_asked_for() -> None:
    """A hidden state, or logits, that nobody stores."""
    for name, wanted in (("slice of layers", "give_hidden"), ("output head", "give_logits")):
        document = deepcopy(base(name))
        assert rule(from_document(document), 2).status == "SAFE"
        path = find(document, wanted)
        at(document, path[:-1]).pop(int(path[-1]))
        assert rule(from_document(document), 2).status == "UNSAFE"
