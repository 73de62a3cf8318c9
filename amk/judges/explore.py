"""The second judge: decides by the definitions, for systems small enough.

Property: none of its own; it states what deadlock, race, must-happen-before and reads-from *mean* and evaluates that.

* `explore` visits every reachable cut (explicit state).
* `explore_memory` visits every reachable (cut, memory) and collects the reads that go wrong in some interleaving.
* `cut_without` is the maximal cut reachable without a given set of events; two events race iff both are enabled in the
  one without either. Polynomial per pair, for systems whose cuts are too many to visit.

Shares nothing with the clocks, the frontier or the greedy run of the validator.

Errors: `StateSpaceTooLarge` beyond the given number of states.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

READ: Final = 0
WRITE: Final = 1
ACCUMULATE_INT: Final = 2
ACCUMULATE_FLOAT: Final = 3
DONT_CARE: Final = -1
"""Kinds of accesses, and a content that may be any, as the columns of a system have them."""


class System(Protocol):
    """The columns of a flat system (see amk/validator/system-format.md) that say when an event may run."""

    @property
    def agent_first(self) -> NDArray[np.int64]: ...

    @property
    def counter_init(self) -> NDArray[np.int64]: ...

    @property
    def wait_first(self) -> NDArray[np.int64]: ...

    @property
    def wait_counter(self) -> NDArray[np.int64]: ...

    @property
    def wait_threshold(self) -> NDArray[np.int64]: ...

    @property
    def signal_first(self) -> NDArray[np.int64]: ...

    @property
    def signal_counter(self) -> NDArray[np.int64]: ...

    @property
    def signal_amount(self) -> NDArray[np.int64]: ...

    @property
    def access_first(self) -> NDArray[np.int64]: ...

    @property
    def access_kind(self) -> NDArray[np.int64]: ...

    @property
    def access_buffer(self) -> NDArray[np.int64]: ...

    @property
    def access_lo(self) -> NDArray[np.int64]: ...

    @property
    def access_hi(self) -> NDArray[np.int64]: ...

    @property
    def access_value(self) -> NDArray[np.int64]: ...

    @property
    def access_delta(self) -> NDArray[np.int64]: ...


Cut = tuple[int, ...]
Pair = tuple[int, int]
Fault = tuple[str, int, int, int]


class StateSpaceTooLarge(RuntimeError):
    """More states than the caller allowed."""


class Programs:
    """The system as nested Python lists: per event its waits, signals and accesses."""

    def __init__(self, system: System) -> None:
        first = system.agent_first.tolist()
        self.first = first[:-1]
        self.size = [stop - start for start, stop in pairwise(first)]
        self.init = system.counter_init.tolist()
        self.events = first[-1]
        self.waits = self._rows(system.wait_first, system.wait_counter, system.wait_threshold)
        self.signals = self._rows(system.signal_first, system.signal_counter, system.signal_amount)
        self.accesses = self._rows(
            system.access_first, system.access_kind, system.access_buffer, system.access_lo, system.access_hi,
            system.access_value, system.access_delta,
        )  # fmt: skip
        self.initial = self._box_rows(system, "initial")
        self.final = self._box_rows(system, "final")

    @staticmethod
    def _rows(first: object, *columns: object) -> list[list[tuple[int, ...]]]:
        rows = list(zip(*(column.tolist() for column in columns), strict=True))  # type: ignore[attr-defined]
        bounds = first.tolist()  # type: ignore[attr-defined]
        return [rows[start:stop] for start, stop in pairwise(bounds)]

    @staticmethod
    def _box_rows(system: System, table: str) -> list[tuple[int, ...]]:
        columns = [getattr(system, f"{table}_{name}").tolist() for name in ("buffer", "lo", "hi", "value", "delta")]
        return list(zip(*columns, strict=True))

    def agent(self, event: int) -> int:
        return max(w for w in range(len(self.first)) if self.first[w] <= event and self.size[w] > event - self.first[w])

    def enabled(self, event: int, value: list[int]) -> bool:
        return all(value[counter] >= threshold for counter, threshold in self.waits[event])

    def overlap_kinds(self, a: int, b: int) -> set[frozenset[int]]:
        """Kinds of access that meet on some byte, one from each event."""
        return {
            frozenset((x[0], y[0]))
            for x in self.accesses[a]
            for y in self.accesses[b]
            if x[1] == y[1] and x[2] < y[3] and y[2] < x[3]
        }

    def conflict(self, a: int, b: int) -> bool:
        harmless = ({READ}, {ACCUMULATE_INT}, {ACCUMULATE_FLOAT})
        return any(set(kinds) not in harmless for kinds in self.overlap_kinds(a, b))

    def unordered_sum(self, a: int, b: int) -> bool:
        return frozenset((ACCUMULATE_FLOAT,)) in self.overlap_kinds(a, b)

    def pairs(self) -> Iterable[Pair]:
        """Event pairs of different agents that touch memory."""
        touching = [(e, self.agent(e)) for e in range(self.events) if self.accesses[e]]
        return ((a, b) for i, (a, u) in enumerate(touching) for b, v in touching[i + 1 :] if u != v)


@dataclass(frozen=True)
class Exploration:
    """``maximal``: the stuck cuts (one, by theory; a set, by definition). ``earliest``: per event that can be enabled,
    the componentwise minimum of the cuts in which it is. ``together``: pairs enabled in one reachable cut."""

    states: int
    maximal: frozenset[Cut]
    earliest: dict[int, Cut]
    together: frozenset[Pair]
    races: frozenset[Pair]
    unordered_sums: frozenset[Pair]
    deadlock: bool


def explore(system: System, limit: int = 200_000) -> Exploration:
    """Visit every reachable cut."""
    code = Programs(system)
    agents = range(len(code.first))
    start: Cut = (0,) * len(code.first)
    seen = {start}
    stack = [(start, code.init)]
    masks: set[tuple[int, ...]] = set()
    maximal: set[Cut] = set()
    earliest: dict[int, Cut] = {}
    while stack:
        cut, value = stack.pop()
        ready = [w for w in agents if cut[w] < code.size[w] and code.enabled(code.first[w] + cut[w], value)]
        if not ready:
            maximal.add(cut)
            continue
        events = tuple([code.first[w] + cut[w] for w in ready])
        masks.add(events)
        for w, event in zip(ready, events, strict=True):
            known = earliest.get(event)
            earliest[event] = cut if known is None else tuple(map(min, known, cut))
            after = (*cut[:w], cut[w] + 1, *cut[w + 1 :])
            if after not in seen:
                seen.add(after)
                updated = value
                if code.signals[event]:
                    updated = value.copy()
                    for counter, amount in code.signals[event]:
                        updated[counter] += amount
                stack.append((after, updated))
        if len(seen) > limit:
            raise StateSpaceTooLarge(f"more than {limit} cuts")
    together = frozenset((a, b) for mask in masks for i, a in enumerate(mask) for b in mask[i + 1 :])
    races = frozenset(pair for pair in together if code.conflict(*pair))
    sums = frozenset(pair for pair in together if code.unordered_sum(*pair))
    deadlock = maximal != {tuple(code.size)}
    return Exploration(len(seen), frozenset(maximal), earliest, together, races, sums, deadlock)


def cut_without(code: Programs, stops: frozenset[int]) -> tuple[Cut, list[int]]:
    """The maximal cut (and its counter values) reachable without executing any held event."""
    cut, value = [0] * len(code.first), code.init.copy()
    moved = True
    while moved:
        moved = False
        for w, first in enumerate(code.first):
            while cut[w] < code.size[w] and first + cut[w] not in stops and code.enabled(first + cut[w], value):
                for counter, amount in code.signals[first + cut[w]]:
                    value[counter] += amount
                cut[w] += 1
                moved = True
    return tuple(cut), value


def enabled_without(code: Programs, event: int, stops: frozenset[int]) -> bool:
    """The event is enabled in the maximal cut that excludes `stops` and itself, so that it is still pending."""
    cut, value = cut_without(code, stops | {event})
    agent = code.agent(event)
    return code.first[agent] + cut[agent] == event and code.enabled(event, value)


def must_precede(code: Programs, before: int, after: int) -> bool:
    """Withholding ``before`` keeps ``after`` from ever starting."""
    return not enabled_without(code, after, frozenset((before,)))


def races_by_definition(system: System, keep_sums: bool = False) -> frozenset[Pair]:
    """Racing pairs (or, if asked, unordered float accumulations), one greedy run without its first event per pair."""
    code = Programs(system)
    relation = code.unordered_sum if keep_sums else code.conflict
    return frozenset(
        (a, b)
        for a, b in code.pairs()
        if relation(a, b) and enabled_without(code, a, frozenset((b,))) and enabled_without(code, b, frozenset((a,)))
    )


Cell = tuple[int, int]
Memory = dict[Cell, tuple[int, int, bool]]


def _compare(fault: Fault, actual: tuple[int, int, bool] | None, expected: tuple[int, int], faults: set[Fault]) -> None:
    if actual is None:
        faults.add(("uninitialised", *fault[1:]))
    elif actual[:2] != expected:
        faults.add(fault)


def _touch(code: Programs, event: int, memory: Memory, faults: set[Fault]) -> None:
    """Apply one event to memory byte by byte. A cell holds (value, delta, "a reader took it as complete")."""
    rows = sorted(code.accesses[event], key=lambda row: row[0])
    for kind, buffer, lo, hi, value, delta in rows:
        for cell in ((buffer, byte) for byte in range(lo, hi)):
            if kind != WRITE and value != DONT_CARE:
                _compare(("stale", event, *cell), memory.get(cell), (value, delta), faults)
            if kind == READ:
                if value != DONT_CARE and memory.get(cell, ())[:2] == (value, delta):
                    memory[cell] = (*memory[cell][:2], True)
                continue
            if kind != WRITE and value == DONT_CARE and memory.get(cell, (DONT_CARE,))[0] != DONT_CARE:
                faults.add(("stale", event, *cell))
            if kind != WRITE and value != DONT_CARE and memory.get(cell) == (value, delta, True):
                faults.add(("partial", event, *cell))
            memory[cell] = (value, delta, False)


def explore_memory(system: System, limit: int = 200_000) -> frozenset[Fault]:
    """Every (kind, event or -1 for the final content, buffer, byte) that goes wrong in some interleaving.

    Kinds: "uninitialised", "stale" (the wrong value or displacement), and "partial" (the event adds to a value that a
    reader already took as complete).
    """
    code = Programs(system)
    faults: set[Fault] = set()
    blank: Memory = {
        (buffer, byte): (value, delta, False) for buffer, lo, hi, value, delta in code.initial for byte in range(lo, hi)
    }
    start = ((0,) * len(code.first), tuple(sorted(blank.items())))
    seen = {start}
    stack = [(start, code.init)]
    while stack:
        (cut, stored), value = stack.pop()
        for w, first in enumerate(code.first):
            event = first + cut[w]
            if cut[w] == code.size[w] or not code.enabled(event, value):
                continue
            memory = dict(stored)
            _touch(code, event, memory, faults)
            state = ((*cut[:w], cut[w] + 1, *cut[w + 1 :]), tuple(sorted(memory.items())))
            if state not in seen:
                seen.add(state)
                updated = value.copy()
                for counter, amount in code.signals[event]:
                    updated[counter] += amount
                stack.append((state, updated))
        if cut == tuple(code.size):
            _check_final(code, dict(stored), faults)
        if len(seen) > limit:
            raise StateSpaceTooLarge(f"more than {limit} states")
    return frozenset(faults)


def _check_final(code: Programs, memory: Memory, faults: set[Fault]) -> None:
    for buffer, lo, hi, value, delta in code.final:
        for byte in range(lo, hi) if value != DONT_CARE else ():
            _compare(("stale", -1, buffer, byte), memory.get((buffer, byte)), (value, delta), faults)
