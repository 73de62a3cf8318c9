"""Systems that share nothing, as one: it is SAFE if and only if each of them is, and so is what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from amk.systems import System
from amk.systems.flat_judge import I64, Bools
from amk.systems.flat_judge import System as Columns
from amk.systems.flat_system import FlatSystem
from amk.systems.rules import Rules
from tests.systems.random_rules import Made

PER_EVENT = {
    "wait": ("wait_counter", "wait_threshold"),
    "signal": ("signal_counter", "signal_amount"),
    "access": ("access_buffer", "access_lo", "access_hi", "access_kind", "access_value", "access_delta"),
}


@dataclass(frozen=True)
class Joined:
    """Of each system the first agent and counter are in `agents` and `counters` [systems + 1]."""

    system: FlatSystem
    agents: I64
    counters: I64

    def chosen(self, numbers: Sequence[int]) -> Joined:
        """These systems alone."""
        block, rules = self.system.block, self.system.rules
        assert rules is not None and not len(block.initial_lo) and not len(block.final_lo)
        agents, events = _rows(self.agents, numbers), _rows(block.agent_first[self.agents], numbers)
        counters = _rows(self.counters, numbers)
        renumbered = np.empty(block.counters, dtype=np.int64)
        renumbered[counters] = np.arange(len(counters))
        columns: dict[str, Any] = {}
        rows: dict[str, I64] = {}
        for table, names in PER_EVENT.items():
            first: I64 = getattr(block, f"{table}_first")
            rows[table] = _rows(first[block.agent_first[self.agents]], numbers)
            columns |= {name: getattr(block, name)[rows[table]] for name in names}
            columns[f"{table}_first"] = _before(np.diff(first)[events])
        for name in ("wait_counter", "signal_counter"):
            columns[name] = renumbered[columns[name]]
        subset = Columns(
            agent_first=_before(block.agent_size[agents]),
            event_tag=block.event_tag[events],
            counter_init=block.counter_init[counters],
            **columns,
        )
        system = FlatSystem(
            subset,
            self.system.acquires[rows["wait"]],
            self.system.releases[rows["signal"]],
            self.system.scope[counters],
            self.system.place[agents],
            np.full(len(events), -1, dtype=np.int64),
            rules=Rules(
                rules.wait[rows["wait"]], rules.signal[rows["signal"]], rules.phase[counters], rules.proxy[events]
            ),
        )
        sizes = (np.diff(column)[list(numbers)] for column in (self.agents, self.counters))
        return Joined(system, *map(_before, sizes))


def joined(drawn: Sequence[Made]) -> Joined:
    """All of them, each in a cluster of its own."""
    sys, agents, counters = System("many"), [0], [0]
    for number, protocol in enumerate(drawn):
        protocol.build(sys, f"{number} ", cluster=number)
        agents.append(len(sys._agents))
        counters.append(len(sys._counters))
    return Joined(sys.flat(), np.array(agents), np.array(counters))


def _rows(first: I64, numbers: Sequence[int]) -> I64:
    """The rows of these, of which each has those from its `first` on."""
    if len(numbers) == 1:
        return np.arange(first[numbers[0]], first[numbers[0] + 1])
    return np.concatenate([np.arange(first[k], first[k + 1]) for k in numbers])


def _before(sizes: I64 | Bools) -> I64:
    return np.concatenate(([0], np.cumsum(sizes)))
