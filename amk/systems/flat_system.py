"""A flat system with what its edges order: scopes of counters, places of agents, orders of waits and signals, sources.

Property: `block` has every wait and signal and decides who can block; `word` has only those that order memory and
decides races and what is read; `fence`, where given, decides what plain memory must be ordered by (`system-format.md`).

A relaxed wait orders nothing: `word` does without it. What a relaxed signal adds says nothing about what its agent did
before; `word` counts it as if it were there from the start. Both have the events of `block`, in the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np

from amk.systems.flat_judge import I64, MAX_AMOUNT, Bools, MalformedSystem, System
from amk.systems.rules import Rules

SCOPES: Final = ("cta", "cluster", "gpu", "sys")
SYS: Final = SCOPES.index("sys")
NOWHERE: Final = -1


def _none() -> I64:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class EdgeSystems:
    """Systems that a file gives beside `block`, and the buffers that `fence` says nothing about."""

    word: System
    fence: System
    unfenced: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class FlatSystem:
    """acquires [waits], releases [signals], scope [counters], place [agents, 3] = (gpu, cluster, cta) of each agent,
    source [events]: which of `sources` each event comes from, -1 for none. `name` is what messages call the system."""

    block: System
    acquires: Bools
    releases: Bools
    scope: I64
    place: I64
    source: I64
    sources: tuple[str, ...] = ()
    name: str = "system"
    edge_systems: EdgeSystems | None = field(default=None)
    rules: Rules | None = None
    """None: nothing but counters."""

    @classmethod
    def plain(cls, block: System, name: str = "system", edge_systems: EdgeSystems | None = None) -> FlatSystem:
        """Everything acquires and releases at system scope; no sources."""
        return cls(
            block,
            np.ones(len(block.wait_counter), dtype=bool),
            np.ones(len(block.signal_counter), dtype=bool),
            np.full(block.counters, SYS, dtype=np.int64),
            np.zeros((block.agents, 3), dtype=np.int64),
            np.full(block.events, NOWHERE, dtype=np.int64),
            name=name,
            edge_systems=edge_systems,
        )

    @cached_property
    def word(self) -> System:
        """What orders memory; `block` itself if everything does."""
        if self.edge_systems is not None:
            return self.edge_systems.word
        if self.acquires.all() and self.releases.all():
            return self.block
        return ordering(self.block, self.acquires, self.releases)

    def source_of(self, event: int) -> str | None:
        number = int(self.source[event]) if event < len(self.source) else NOWHERE
        return None if number == NOWHERE else self.sources[number]


def ordering(block: System, acquires: Bools, releases: Bools) -> System:
    """The system without relaxed waits, in which relaxed signals have added from the start what they add."""
    init = block.counter_init.copy()
    np.add.at(init, block.signal_counter[~releases], block.signal_amount[~releases])
    if len(init) and int(init.max()) >= MAX_AMOUNT:
        raise MalformedSystem(f"signal_amount: relaxed signals add {MAX_AMOUNT} or more to one counter")
    return replace(
        block,
        counter_init=init,
        wait_first=_offsets(block.wait_first, acquires),
        wait_counter=block.wait_counter[acquires],
        wait_threshold=block.wait_threshold[acquires],
        signal_first=_offsets(block.signal_first, releases),
        signal_counter=block.signal_counter[releases],
        signal_amount=block.signal_amount[releases],
    )


def _offsets(first: I64, mask: Bools) -> I64:
    """Offsets of the rows that are kept."""
    upto: I64 = np.concatenate(([0], np.cumsum(mask)))[first]
    return upto


@dataclass(frozen=True)
class TooNarrow:
    """A counter of which two agents, with their first events on it, are not within its scope."""

    counter: int
    events: tuple[int, int]


def too_narrow(system: FlatSystem) -> list[TooNarrow]:
    """Counters that are used across more than their scope reaches (PTX ISA, scopes: what is outside sees nothing)."""
    block = system.block
    if not (system.place != system.place[:1]).any():
        return []
    counter = np.concatenate((block.wait_counter, block.signal_counter))
    event = np.concatenate((block.wait_event, block.signal_event))
    order = np.lexsort((event, counter))
    counter, event = counter[order], event[order]
    first = np.searchsorted(counter, counter)
    apart = system.place[block.agent_of[event]] != system.place[block.agent_of[event[first]]]
    # of (gpu, cluster, cta) a scope wants the first: gpu one, cluster two, cta all three
    wanted = np.arange(3) < SYS - system.scope[counter][:, None]
    bad = np.flatnonzero((apart & wanted).any(axis=1))
    _, once = np.unique(counter[bad], return_index=True)
    return [TooNarrow(int(counter[k]), (int(event[first[k]]), int(event[k]))) for k in bad[once].tolist()]
