"""Pairs that many accesses have in common are looked at as products, and say what the single pairs say; reads that
stand for others that are alike hide nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from amk.validator import brackets, in_order
from amk.validator.brackets import Views, chained, chained_each
from amk.validator.in_order import MANY, Asked, Pairs, neighbours, unordered_places
from amk.validator.memo import Memo
from amk.validator.system import READ, WRITE

WORKERS = 40


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


def test_products_are_all_pairs_whose_first_access_reads() -> None:
    pairs = neighbours(_columns(np.random.default_rng(1), 3))
    assert len(pairs.products) == 3
    told = [
        (first, second, number + n)
        for one in pairs.products
        for second, number in zip(one.second.tolist(), one.number.tolist(), strict=True)
        for n, first in enumerate(one.first.tolist())
    ]
    at = np.flatnonzero(pairs.reads)
    assert len(told) == len(at) == 3 * WORKERS * WORKERS > MANY * MANY
    assert sorted(told) == sorted(zip(pairs.first[at].tolist(), pairs.second[at].tolist(), at.tolist(), strict=True))


def test_few_readers_make_no_product() -> None:
    rows = [(READ, 0, 8, -1, 0), (WRITE, 0, 8, 1, 0)] * 2000
    pairs = neighbours(np.array(rows, np.int64))
    assert len(pairs.reads) > 2000 and not pairs.products


@pytest.mark.parametrize("at_once", [7, brackets.AT_ONCE])
def test_every_pair_of_a_product_is_as_ordered_as_by_itself(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(brackets, "AT_ONCE", at_once)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        shown = _views(rng, 50, 6, 1 + seed % 3)
        i, j = rng.integers(0, 50, 30), rng.integers(0, 50, 20)
        each = chained_each(shown, shown, i, j)
        assert 0 < each.sum() < each.size
        assert np.array_equal(each.reshape(-1), chained(shown, shown, np.tile(i, 20), np.repeat(j, 30)))


def _left(clocks: Any, asked: Asked, parts: list[tuple[Pairs, np.ndarray]]) -> list[list[int]]:
    return [found.tolist() for found in unordered_places(Memo(), asked, clocks, parts)]


def test_what_chains_leave_open_does_not_depend_on_products_nor_on_the_other_parts() -> None:
    rng = np.random.default_rng(7)
    agents, each = 5, 60
    events = agents * each
    system = SimpleNamespace(
        events=events, agent_of=np.repeat(np.arange(agents), each), index_of=np.tile(np.arange(each), agents)
    )
    rows = rng.integers(0, each, (9, agents)).astype(np.int32)
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
        parts.append((neighbours(columns), np.stack(places).astype(np.int32)))
    bare = [(replace(pairs, products=[]), places) for pairs, places in parts]
    for asked in ("reads", "writes", "all"):
        found = _left(clocks, asked, parts)
        assert found == _left(clocks, asked, bare) == [_left(clocks, asked, [one])[0] for one in parts]
        assert found == _left(short, asked, parts)
        assert all(0 < len(left) < len(pairs.reads) for left, (pairs, _) in zip(found, parts, strict=True))


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


def test_each_pair_of_neighbours_is_there_once_with_the_first_of_its_atoms() -> None:
    several = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        rows = _rows(rng, int(rng.integers(1, 40)))
        rows[:, 2] += 8 * rng.integers(0, 3, len(rows))
        pairs = neighbours(rows)
        told = zip(pairs.first.tolist(), pairs.second.tolist(), pairs.atom.tolist(), pairs.reads.tolist(), strict=True)
        assert list(told) == _each_with_its_first_atom(rows) and not pairs.products
        several += len(pairs.first)
    assert several > 2000
