"""Programs without the steps that touch no memory, and what their nodes are called in the programs themselves.

What is touched, and in which order by all workers abreast, follows from the other steps alone: leaving steps out keeps
the order of the rest (`places_abreast` sorts by step). So it is looked at without these, in their own numbers, and an
edit of a barrier leaves all of it as it is but for the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from amk.schedule_ir.schedule import Node, Program, Schedule, Step
from amk.validator.brackets import divided
from amk.validator.envelope import NO_DATA, Team
from amk.validator.memo import given
from amk.validator.parts import without_rings, without_sync
from amk.validator.quotient import Group
from amk.validator.system import I64
from amk.validator.trace import Path, Site, sites


def still(schedule: Schedule) -> Schedule:
    """The schedule without waits, signals, counters, room for copies, and steps that touch no memory."""
    bare = without_rings(without_sync(schedule))
    programs = tuple(p.model_copy(update={"body": tuple(_still(p.body))}) for p in bare.programs)
    return bare.model_copy(update={"programs": programs})


def _still(body: tuple[Node, ...]) -> Iterator[Node]:
    for node in body:
        if not isinstance(node, Step):
            yield node.model_copy(update={"body": tuple(_still(node.body))})
        elif not isinstance(node.op, NO_DATA):
            yield node


def _touching(program: Program, number: int) -> list[Site]:
    return [site for site in sites(program, number) if not isinstance(site.step.op, NO_DATA)]


def synced(schedule: Schedule) -> tuple[tuple[int, int], ...]:
    """(program, number of the step in the still program) of every step that touches memory, and waits or signals."""
    return tuple(
        (number, at)
        for number, program in enumerate(schedule.programs)
        for at, site in enumerate(_touching(program, number))
        if site.step.waits or site.step.signals
    )


def paths(still: Schedule, schedule: Schedule) -> dict[Path, Path]:
    """Where the steps of still programs are in the schedule."""
    both = zip(still.programs, schedule.programs, strict=True)
    return {
        there.path: here.path
        for number, (one, other) in enumerate(both)
        for there, here in zip(sites(one, number), _touching(other, number), strict=True)
    }


@dataclass(frozen=True, eq=False)
class Names:
    """bases: (node base, nodes of a worker) of each still program and of the program. nodes, items: by program, of each
    of the still one. key: digest of all this.
    """

    key: bytes
    bases: tuple[tuple[int, int, int, int], ...]
    nodes: tuple[I64, ...]
    items: tuple[I64, ...]

    def of(self, numbers: I64) -> I64:
        """Numbers of nodes of all workers of the programs, from those of the still ones."""
        if len(self.bases) == 1:
            return self._of(0, numbers)
        program = np.searchsorted([base for base, *_ in self.bases], numbers, side="right") - 1
        found = np.empty_like(numbers)
        for number in range(len(self.bases)):
            at = np.flatnonzero(program == number)
            found[at] = self._of(number, numbers[at])
        return found

    def _of(self, program: int, numbers: I64) -> I64:
        base, size, other, length = self.bases[program]
        worker, node = divided(numbers - base, size)
        found: I64 = self.nodes[program].take(node) + (worker * length + other)
        return found

    def rows(self, rows: I64) -> I64:
        """Rows that begin with a node."""
        found = rows.copy()
        found[:, 0] = self.of(rows[:, 0])
        return found

    def places(self, places: I64) -> I64:
        """Of (program, item) rows."""
        found = places.copy()
        for program, items in enumerate(self.items):
            at = np.flatnonzero(places[:, 0] == program)
            found[at, 1] = items[places[at, 1]]
        return found


def names(teams: list[Team], groups: list[Group]) -> Names:
    """teams: of the still programs, groups: of the programs."""
    found = [_names(team, group) for team, group in zip(teams, groups, strict=True)]
    bases = tuple((t.node_base, t.nodes, g.node_base, g.nodes) for t, g in zip(teams, groups, strict=True))
    nodes, items = (tuple(each) for each in zip(*found, strict=True))
    return Names(given((bases, nodes)).key, bases, nodes, items)


def _names(team: Team, group: Group) -> tuple[I64, I64]:
    """(nodes, items) of the program, by those of the still one."""
    alone, trace = team.trace, group.order.trace
    touching = {s.number for s in _touching(trace.program, int(group.number))}
    items = np.array([i for i, item in enumerate(trace.items) if item.site.number in touching], np.int64)
    nodes = np.concatenate((np.empty(alone.events, np.int64), trace.events + items))
    item, warp = np.nonzero(alone.event_of >= 0)
    nodes[alone.event_of[item, warp]] = trace.event_of[items[item], warp]
    return nodes, items
