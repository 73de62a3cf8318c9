"""Pairs that many accesses have in common are looked at as products, and say what the single pairs say; reads that
stand for others that are alike hide nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from amk.adversary.cases import repaired
from amk.schedule_ir.codec import parse_schedule
from amk.validator import brackets, in_order, unordered
from amk.validator import neighbours as neighbours_module
from amk.validator.brackets import Views, chained
from amk.validator.memo import Memo
from amk.validator.neighbours import MANY, Asked, Pairs, neighbours
from amk.validator.system import READ, WRITE, Bools
from amk.validator.unordered import Open, by_atoms, closed, open_products, unordered_places
from amk.validator.verify import verify

WORKERS = 40
NONE = np.zeros(0, np.int64)


def _columns(rng: np.random.Generator, rounds: int) -> np.ndarray:
    """In each round all workers read all words, then each of them writes its own."""
    rows = []
    for _ in range(rounds):
        rows += [(READ, 0, 8 * WORKERS, -1, 0) for _ in range(WORKERS)]
        rows += [(WRITE, 8 * w, 8 * w + 8, w + 1, 0) for w in rng.permutation(WORKERS).tolist()]
    return np.array(rows, np.int64)


def _views(rng: np.random.Generator, nodes: int, agents: int, chains: int) -> Views:
    """Of random nodes, some without a chain or a view."""
    shape = (nodes, chains)
    gone = rng.random(shape) < 0.1
    return Views(
        agent=rng.integers(0, agents, shape).astype(np.int32),
        hi=np.where(gone, np.iinfo(np.int32).max, rng.integers(7, 14, shape)).astype(np.int32),
        own=np.where(rng.random(shape) < 0.1, -1, rng.integers(0, agents, shape)).astype(np.int32),
        value=rng.integers(0, 12, shape).astype(np.int32),
        row=rng.integers(0, 30, shape),
        rows=rng.integers(0, 12, (30, agents)).astype(np.int32),
    )


def _of(rows: np.ndarray) -> Pairs:
    (pairs,) = neighbours(Memo(), [(rows,)])
    return pairs


def _told(pairs: Pairs, opens: list[Open]) -> list[tuple[int, int, int]]:
    """(first, second, atom) of what is open, as it is told."""
    columns = [np.stack(some) for some in by_atoms(pairs, opens)]
    return [tuple(one) for one in np.concatenate([np.zeros((3, 0), int), *columns], axis=1).T.tolist()]


def test_reads_that_are_alike_make_products_with_what_is_before_and_behind_them() -> None:
    rows = _columns(np.random.default_rng(1), 3)
    pairs = _of(rows)
    assert not len(pairs.first) and WORKERS >= MANY
    assert [one.reads for one in pairs.products] == [True, True, True, False, False]
    every = [(a, b, n, READ) for a, b, n in _told(pairs, [Open.all(pairs, "reads")])]
    every += [(a, b, n, WRITE) for a, b, n in _told(pairs, [Open.all(pairs, "writes")])]
    assert len(every) == 5 * WORKERS * WORKERS
    assert sorted((a, b, n, kind == READ) for a, b, n, kind in every) == sorted(_each_with_its_first_atom(rows))


def test_few_readers_make_no_product() -> None:
    rows = [(READ, 0, 8, -1, 0), (WRITE, 0, 8, 1, 0)] * 2000
    pairs = _of(np.array(rows, np.int64))
    assert len(pairs.reads) > 2000 and not pairs.products


def test_the_pairs_of_a_buffer_are_numbered_alike_whatever_is_looked_at_with_it() -> None:
    """Also where blocks would end inside it: single writes, wide ones over all of them, one more pair at the end."""

    def written(wide: int, size: int) -> np.ndarray:
        single = [(WRITE, n, n + 1, 7, 0) for n in range(size)]
        more = [(READ, size - 1, size, 7, 0), (WRITE, size - 1, size, 7, 0)]
        return np.array([*single, *[(WRITE, 0, size, 7, 0)] * wide, *more], np.int64)

    mine, others = written(20, 2000), [written(wide, 1900) for wide in (2, 40, 60)]
    alone = _of(mine)
    for other in others:
        first, second = neighbours(Memo(), [(other,), (mine,)])
        assert len(first.first) >= 1900
        assert all(np.array_equal(getattr(second, n), getattr(alone, n)) for n in ("first", "second", "atom", "bounds"))


def _there(rng: np.random.Generator, nodes: int, agents: int, chains: int) -> Views:
    """As `_views`, and nothing has happened before what has no view."""
    shown = _views(rng, nodes, agents, chains)
    shown.rows[0] = 0
    return replace(shown, row=np.where(shown.own < 0, 0, shown.row))


@pytest.mark.parametrize("at_once", [7, brackets.AT_ONCE])
def test_a_product_is_open_where_one_of_its_pairs_is(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(brackets, "AT_ONCE", at_once)
    closed_ones = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        shown = _there(rng, 50, 6, 1 + seed % 3)
        shown.hi[:] -= seed % 8
        sizes = rng.integers(1, 5, (9, 2)).tolist()
        nodes = [[rng.integers(0, 50, size).astype(np.int32) for size in pair] for pair in sizes]
        found = open_products(shown, [(first, second) for first, second in nodes])
        for (first, second), left in zip(nodes, found, strict=True):
            each = ~chained(shown, shown, np.tile(first, len(second)), np.repeat(second, len(first)))
            each = each.reshape(len(second), len(first))
            assert np.array_equal(left, each) if left is not None else not each.any()
            closed_ones += left is None
    assert 60 < closed_ones < 500


def _left(clocks: Any, asked: Asked, parts: list[tuple[Pairs, np.ndarray]]) -> list[list[tuple[int, int, int]]]:
    found = unordered_places(Memo(), asked, clocks, parts)
    return [_told(pairs, [one]) for (pairs, _), one in zip(parts, found, strict=True)]


def test_what_chains_leave_open_does_not_depend_on_products_nor_on_the_other_parts() -> None:
    rng = np.random.default_rng(7)
    agents, each = 5, 60
    events = agents * each
    system = SimpleNamespace(
        events=events, agent_of=np.repeat(np.arange(agents), each), index_of=np.tile(np.arange(each), agents)
    )
    rows = rng.integers(0, each, (9, agents)).astype(np.int32)
    rows[0] = 0
    clocks = SimpleNamespace(system=system, rows=rows, row_of=rng.integers(0, 9, events))
    short = SimpleNamespace(system=system, rows=rows.astype(np.int16), row_of=clocks.row_of)
    parts = []
    for rounds in (2, 3, 2):
        columns = _columns(rng, rounds)
        shape = (len(columns), 1)
        places = (
            rng.integers(-1, agents, shape),
            rng.integers(0, each // 2, shape),
            rng.integers(-1, 2 * events, shape),
        )
        parts.append((_of(columns), np.stack(places).astype(np.int32)))
    bare = [(_without_products(pairs), places) for pairs, places in parts]
    for asked in ("reads", "writes", "all"):
        found = _left(clocks, asked, parts)
        assert found == _left(clocks, asked, bare) == [_left(clocks, asked, [one])[0] for one in parts]
        assert found == _left(short, asked, parts)
        every = [_told(pairs, [Open.all(pairs, asked)]) for pairs, _ in parts]
        assert all(0 < len(left) < len(all_of_it) for left, all_of_it in zip(found, every, strict=True))


def _without_products(pairs: Pairs) -> Pairs:
    """All pairs as single ones."""
    first, second, atom = np.array(_told(pairs, [Open.all(pairs, "all")]), np.int32).T
    reads = {(a, b) for a, b, _ in _told(pairs, [Open.all(pairs, "reads")])}
    reading = np.array([(a, b) in reads for a, b in zip(first.tolist(), second.tolist(), strict=True)])
    return Pairs(first, second, atom, pairs.bounds, reading, [])


def test_what_an_order_is_asked_about_a_product_is_closed_and_nothing_else() -> None:
    rng = np.random.default_rng(3)
    pairs = _of(_columns(rng, 3))
    node = rng.integers(0, 30, 3 * 2 * WORKERS)
    opens = [Open.all(pairs, "all")]
    ordered = rng.random((30, 30)) < 0.5
    asked: set[tuple[int, int]] = set()

    def precedes(before: np.ndarray, after: np.ndarray) -> Bools:
        asked.update(zip(before.tolist(), after.tolist(), strict=True))
        found: Bools = ordered[before, after]
        return found

    def among(first: np.ndarray, second: np.ndarray) -> Bools:
        found: Bools = (first + second[:, None]) % 3 == 0
        return found

    every = _told(pairs, opens)
    for which, about in ((None, lambda a, b: True), (among, lambda a, b: (a + b) % 3 == 0)):
        asked.clear()
        (found,) = closed([(pairs, node)], opens, precedes, which)
        ends = [(one, int(node[one[0]]), int(node[one[1]])) for one in every]
        assert asked == {(a, b) for _, a, b in ends if about(a, b)}
        assert _told(pairs, [found]) == [one for one, a, b in ends if not (about(a, b) and (ordered[a, b] or a == b))]
    assert closed([(pairs, node)], opens, lambda before, after: np.ones(len(before), bool)) != opens
    assert not closed([(pairs, node)], opens, lambda before, after: np.ones(len(before), bool))[0]


def test_what_is_open_is_told_by_atoms_whatever_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    pairs = _of(_columns(rng, 2))
    opens = [Open(NONE, ((n, rng.random((len(p.second), len(p.first))) < 0.3),)) for n, p in enumerate(pairs.products)]
    told = _told(pairs, opens)
    assert told == sorted(told, key=lambda one: (one[2], one[1], one[0]))
    assert len(told) == len(set(told)) == sum(int(one.products[0][1].sum()) for one in opens)
    for some in (1, 100, 1 << 20):
        monkeypatch.setattr(unordered, "SOME", some)
        assert _told(pairs, opens) == told


def _rows(rng: np.random.Generator, count: int) -> np.ndarray:
    """Random accesses to four words, each of which holds its number; half of the time one of them is not as it should
    be.
    """
    word = rng.integers(0, 4, count)
    kind = np.where(rng.random(count) < 0.8, READ, rng.integers(0, 4, count))
    rows = np.stack((kind, 8 * word, 8 * word + 8, word, 0 * word), axis=1)
    if rng.random() < 0.5:
        rows[rng.integers(count), rng.integers(2, 5)] += 8
    return rows


def test_reads_that_stand_for_others_hide_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    correct = Counter[bool]()
    for seed in range(400):
        rng = np.random.default_rng(seed)
        rows = _rows(rng, int(rng.integers(1, 60)))
        initial = np.array([(8 * n, 8 * n + 8, n, 0) for n in range(5)], np.int64)
        monkeypatch.setattr(in_order, "FAULTY", int(rng.integers(1, 40)))
        monkeypatch.setattr(in_order, "LIMIT", int(rng.integers(1, 9)))
        found = []
        for wide in (0, 1 << 40):
            monkeypatch.setattr(in_order, "WIDE", wide)
            found.append(in_order.faults_in(rows, initial, initial[:2]))
        assert found[0].incidences == found[1].incidences and found[0].report == found[1].report
        correct[found[0].report.correct] += 1
    assert min(correct[True], correct[False]) > 20, correct


def _each_with_its_first_atom(rows: np.ndarray) -> list[tuple[int, int, int, bool]]:
    """(first, second, atom, does the first read?), byte by byte and access by access."""
    bounds = sorted({int(edge) for edge in rows[:, 1:3].reshape(-1)})
    found: dict[tuple[int, int], tuple[int, bool]] = {}
    for atom, byte in enumerate(bounds[:-1]):
        before, group = list[int](), list[int]()
        for one in np.flatnonzero((rows[:, 1] <= byte) & (byte < rows[:, 2])).tolist():
            if group and (rows[one, 0] == WRITE or rows[one, 0] != rows[group[-1], 0]):
                before, group = group, []
            group.append(one)
            for other in before:
                found.setdefault((other, one), (atom, bool(rows[other, 0] == READ)))
    return sorted(((*pair, *rest) for pair, rest in found.items()), key=lambda told: (told[2], told[1], told[0]))


@pytest.mark.parametrize("many", [2, MANY])
def test_each_pair_of_neighbours_is_there_with_the_first_of_its_atoms(
    many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours_module, "MANY", many)
    several = products = 0
    parts, expected = [], []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        rows = _rows(rng, int(rng.integers(1, 40)))
        rows[:, 2] += 8 * rng.integers(0, 3, len(rows))
        parts.append((rows,))
        expected.append(_each_with_its_first_atom(rows))
    for pairs, (rows,), every in zip(neighbours(Memo(), parts), parts, expected, strict=True):
        assert len(pairs.first) <= max(len(every), sum(_touched(rows)))
        found: dict[tuple[int, int], tuple[int, bool]] = {}
        for asked in ("reads", "writes"):
            for first, second, atom in _told(pairs, [Open.all(pairs, asked)]):
                found.setdefault((first, second), (atom, asked == "reads"))
        assert sorted((*pair, *rest) for pair, rest in found.items()) == sorted(every)
        several, products = several + len(every), products + len(pairs.products)
    assert several > 2000 and (products > 100) == (many == 2)


def _touched(rows: np.ndarray) -> list[int]:
    bounds = np.unique(rows[:, 1:3])
    return [int(((bounds >= lo) & (bounds < hi)).sum()) for lo, hi in rows[:, 1:3].tolist()]


def test_faults_of_several_buffers_are_those_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_order, "LIMIT", 3)
    parts, sorts = [], Counter[tuple[bool, bool]]()
    for seed in range(300):
        rng = np.random.default_rng(seed)
        initial = np.array([(8 * n, 8 * n + 8, n, 0) for n in range(int(rng.integers(0, 5)))], np.int64).reshape(-1, 4)
        rows = _rows(rng, 30)[: int(rng.integers(0, 30))]
        parts.append((rows, initial, initial[: seed % 3]))
    for part, found in zip(parts, in_order.faults_of(Memo(), parts), strict=True):
        alone = in_order.faults_in(*part)
        assert (found.incidences, found.report) == (alone.incidences, alone.report)
        sorts[found.report.correct, found.report.truncated] += 1
    assert len(sorts) == 3 and min(sorts.values()) > 10, sorts


@pytest.mark.parametrize(
    "name", ["missing-wait", "merge-before-attend", "attend-without-barrier", "relaxed-wait", "relaxed-signal"]
)
@pytest.mark.parametrize("twin", [False, True])
def test_a_verdict_does_not_depend_on_what_is_looked_at_as_one(
    name: str, twin: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = json.loads((Path(__file__).parents[2] / "adversarial" / f"{name}.json").read_text())
    document = repaired(case) if twin else case["schedule"]
    schedule = parse_schedule(json.dumps(document).encode(), "case")[0]
    found = []
    for many in (2, 1 << 20):
        monkeypatch.setattr(neighbours_module, "MANY", many)
        verdict = verify(schedule)
        assert verdict.safe == twin
        found.append(verdict.diagnostics)
    assert found[0] == found[1]
