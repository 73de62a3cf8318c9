"""What relaxed operations mean, by definition: every interleaving of a small system, with its happens-before.

Property: a race is two conflicting accesses of which, in some interleaving, neither happens before the other.
Happens-before: program order, and from every releasing signal that a counter has received to every acquiring wait that
finds it later. Shares nothing with `amk.systems` but the columns.
"""

from __future__ import annotations

from amk.judges.explore import Programs, StateSpaceTooLarge
from amk.systems.flat_system import FlatSystem

Clock = tuple[int, ...]


class Weak:
    def __init__(self, system: FlatSystem, limit: int) -> None:
        self.code, self.limit, self.seen = Programs(system.block), limit, set[object]()
        self.acquires = self._cut(system.block.wait_first.tolist(), system.acquires.tolist())
        self.releases = self._cut(system.block.signal_first.tolist(), system.releases.tolist())
        self.racy = False

    @staticmethod
    def _cut(first: list[int], rows: list[bool]) -> list[list[bool]]:
        return [rows[first[e] : first[e + 1]] for e in range(len(first) - 1)]

    def visit(self) -> bool:
        """Whether some interleaving has a race."""
        code = self.code
        agents, zero = len(code.first), (0,) * len(code.first)
        cut, clocks = zero, (zero,) * agents
        stack = [(cut, clocks, (zero,) * len(code.init), tuple(code.init), ())]
        while stack and not self.racy:
            state = stack.pop()
            if state in self.seen:
                continue
            self.seen.add(state)
            if len(self.seen) > self.limit:
                raise StateSpaceTooLarge("too many")
            for agent in range(agents):
                after = self._step(state, agent)
                if after is not None:
                    stack.append(after)
        return self.racy

    def _step(self, state, agent):  # type: ignore[no-untyped-def]
        cut, clocks, released, value, touched = state
        code = self.code
        event = code.first[agent] + cut[agent]
        if cut[agent] == code.size[agent] or not code.enabled(event, value):
            return None
        mine = list(clocks[agent])
        for (counter, _), acquires in zip(code.waits[event], self.acquires[event], strict=True):
            if acquires:
                mine = list(map(max, mine, released[counter]))
        mine[agent] = cut[agent] + 1
        for other, owner in touched:
            if code.conflict(other, event) and mine[owner] <= other - code.first[owner]:
                self.racy = True
        counter_clocks, value = list(released), list(value)
        for (counter, amount), releases in zip(code.signals[event], self.releases[event], strict=True):
            value[counter] += amount
            if releases:
                counter_clocks[counter] = tuple(map(max, counter_clocks[counter], mine))
        cut = (*cut[:agent], cut[agent] + 1, *cut[agent + 1 :])
        clocks = (*clocks[:agent], tuple(mine), *clocks[agent + 1 :])
        touched = (*touched, (event, agent)) if code.accesses[event] else touched
        return cut, clocks, tuple(counter_clocks), tuple(value), tuple(sorted(touched))
