"""The ruling on a flat system: every reachable cut where they are few, the definition per pair of events otherwise."""

from __future__ import annotations

from amk.judges.explore import (
    DONT_CARE,
    READ,
    WRITE,
    Programs,
    StateSpaceTooLarge,
    System,
    cut_without,
    explore,
    explore_memory,
    races_by_definition,
)
from amk.judges.oracle.judge import Ruling

FEW = 1500
"""Cuts up to which everything is visited."""

Content = tuple[int, int]


def rule_system(system: System, few: int = FEW) -> Ruling:
    """SAFE iff every interleaving finishes, nothing races, and every read finds what it expects."""
    try:
        seen = explore(system, few)
        deadlock, races = seen.deadlock, bool(seen.races)
    except StateSpaceTooLarge:
        code = Programs(system)
        deadlock, races = cut_without(code, frozenset())[0] != tuple(code.size), bool(races_by_definition(system))
    if deadlock:
        return Ruling("UNSAFE", "some interleaving gets stuck")
    if races:
        return Ruling("UNSAFE", "two conflicting events can be enabled together")
    try:
        faults = bool(explore_memory(system, few))
    except StateSpaceTooLarge:
        faults = misread(system)
    return Ruling("UNSAFE", "a read finds what it should not") if faults else Ruling("SAFE")


def misread(system: System) -> bool:
    """Does one run of a race-free system read, or end with, something else than intended? All runs agree then."""
    code = Programs(system)
    memory: dict[tuple[int, int], Content] = {}
    for buffer, lo, hi, value, delta in code.initial:
        memory |= {(buffer, byte): (value, delta) for byte in range(lo, hi)}
    taken: set[tuple[int, int]] = set()
    at, value_of = [0] * len(code.first), code.init.copy()
    bad, moved = False, True
    while moved:
        moved = False
        for agent, first in enumerate(code.first):
            while at[agent] < code.size[agent] and code.enabled(first + at[agent], value_of):
                bad |= _touch(code, first + at[agent], memory, taken)
                for counter, amount in code.signals[first + at[agent]]:
                    value_of[counter] += amount
                at[agent] += 1
                moved = True
    return bad or any(
        memory.get((buffer, byte)) != (value, delta)
        for buffer, lo, hi, value, delta in code.final
        for byte in range(lo, hi)
        if value != DONT_CARE
    )


def _touch(code: Programs, event: int, memory: dict[tuple[int, int], Content], complete: set[tuple[int, int]]) -> bool:
    """Apply one event; True if it meets other content than it expects. complete: sums that a reader took as such."""
    bad = False
    for kind, buffer, lo, hi, value, delta in sorted(code.accesses[event], key=lambda row: row[0]):
        for cell in ((buffer, byte) for byte in range(lo, hi)):
            found = memory.get(cell)
            if kind != WRITE and value != DONT_CARE:
                bad |= found != (value, delta) or (kind != READ and cell in complete)
            elif kind not in (WRITE, READ):
                bad |= found is not None and found[0] != DONT_CARE
            if kind == READ:
                if value != DONT_CARE and found == (value, delta):
                    complete.add(cell)
                continue
            complete.discard(cell)
            memory[cell] = (value, delta)
    return bad
