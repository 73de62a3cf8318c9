"""Every access of a schedule with the words that they read and write, whatever waits, signals and barriers there are.

Property: a function of ops, buffers, tables and shapes; of the waits and signals only which steps have any. Steps and
nodes are numbered as in programs without barriers (`still`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from amk.schedule_ir.schedule import Schedule
from amk.validator.aliases import Clash
from amk.validator.brackets import divided
from amk.validator.crews import Joined
from amk.validator.envelope import Envelope, Team
from amk.validator.evaluator import Evaluations
from amk.validator.footprint import Footprints
from amk.validator.memo import Keyed, Memo, given
from amk.validator.system import I64, READ, Bools
from amk.validator.trace import Trace
from amk.validator.words import Counted, counted, ranked, steps_of

if TYPE_CHECKING:
    from amk.validator.in_order import Part


@dataclass(frozen=True, eq=False)
class TaggedRows:
    """Rows on tagged words as `counted` wants them, with all reads, and with those that happen at every position."""

    most: I64
    always: I64

    @cached_property
    def steps(self) -> I64:
        """Of all rows: see `steps_of`."""
        return steps_of(self.most, self.always)


@dataclass(frozen=True, eq=False)
class Common:
    """What is in global memory. rows: see `envelope`; tagged: those on tagged words, with their digest; places: the
    steps of their ranks. abreast: these rows as `memory_check.ordered_abreast` found them."""

    rows: I64
    tagged: Keyed[TaggedRows]
    places: I64
    abreast: list[Part] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Touched:
    """private: rows of private memory."""

    private: I64
    common: Common

    @cached_property
    def rows(self) -> I64:
        return np.concatenate((self.private, self.common.rows))

    @property
    def tagged(self) -> Keyed[TaggedRows]:
        return self.common.tagged

    @property
    def places(self) -> I64:
        return self.common.places


@dataclass(frozen=True, eq=False)
class TaggedWords:
    """Words with all reads, and with those that happen at every position (not looked for if the former cannot be)."""

    most: Counted
    always: Counted

    @property
    def doubled(self) -> bool:
        """Two warps of a step write one tagged word."""
        return self.most.doubled


@dataclass(frozen=True, eq=False)
class Gathered:
    """An envelope to which every team has been added."""

    teams: list[Team]
    envelope: Envelope

    @property
    def outside(self) -> dict[tuple[str | int, ...], str]:
        """What lies outside its buffer, by step."""
        return self.envelope.footprints.outside

    @property
    def clashes(self) -> dict[tuple[str | int, ...], Clash]:
        """Steps that use bytes by way of two buffers, one of them written."""
        return self.envelope.footprints.clashes

    @property
    def constants(self) -> frozenset[str]:
        """Constants that are written."""
        return frozenset(self.envelope.footprints.written_constants)


def gathered(still: Schedule, evaluations: Evaluations, *traces: Trace) -> Gathered:
    """Footprints of a schedule of still programs, which have these traces."""
    nodes, teams = 0, []
    for number, (program, trace) in enumerate(zip(still.programs, traces, strict=True)):
        teams.append(Team(number, program.first, program.count, trace, nodes))
        nodes += program.count * teams[-1].nodes
    envelope = Envelope(still, Footprints(still, evaluations))
    for team in teams:
        envelope.add(team)
    return Gathered(teams, envelope)


def touched(gathered: Gathered, synced: tuple[tuple[int, int], ...]) -> Touched:
    """In the numbers of still programs. synced: (program, number) of the steps that wait or signal."""
    envelope = gathered.envelope
    joined, made_of = envelope.joined(synced)
    common = envelope.footprints.alike(made_of, lambda: _common(gathered.teams, envelope, joined))
    return Touched(np.concatenate(envelope.private), common)


def _common(teams: list[Team], envelope: Envelope, joined: list[list[Joined]]) -> Common:
    """A function of `made_of`."""
    rows, always = envelope.common(joined)
    most = _word_rows(teams, rows, envelope.tagged)
    kept = _always(teams, most, envelope)
    least = np.ascontiguousarray(_word_rows(teams, always, envelope.tagged))
    places = ranked(most, least)
    # those that always happen are most without some, and others
    key = given((most, np.packbits(kept), least)).key
    return Common(rows, Keyed(TaggedRows(most, np.concatenate((most[kept], least))), key), places)


def tagged_words(memo: Memo, tags: I64, tagged: TaggedRows) -> TaggedWords:
    """tags: see `tags_of`."""
    found = counted(memo, tags, tagged.most)
    return TaggedWords(found, found if found.troubles else counted(memo, tags, tagged.always))


def sure_words(memo: Memo, tags: I64, perhaps: Bools, tagged: TaggedRows) -> Counted:
    """Words with all reads but those that depend on more than the position. perhaps: by rank, is it such a step?"""
    rows = tagged.most
    return counted(memo, tags, rows[(rows[:, 4] != READ) | ~perhaps[rows[:, 2]]])


def _always(teams: list[Team], found: I64, envelope: Envelope) -> Bools:
    """found: `_word_rows` of everything. Which of these happen at every position?"""
    moving = {(number, node) for number, node in envelope.moving}
    items = {(g, node - team.trace.events) for g, team in enumerate(teams) for n, node in moving if n == g}
    keys = np.array([g << 32 | i for g, i in sorted(items)], np.int64)
    always: Bools = (found[:, 4] != READ) | ~np.isin(found[:, 0] << 32 | found[:, 2], keys)
    return always


def _word_rows(teams: list[Team], rows: I64, tagged: list[int]) -> I64:
    """(group, worker, item, buffer, kind, lo, hi) of the rows on tagged buffers."""
    wanted = np.zeros(1 + max(int(rows[:, 1].max(initial=-1)), *tagged, -1), bool)
    wanted[tagged] = True
    there = rows.take(np.flatnonzero(wanted[rows[:, 1]]), axis=0)
    found = []
    for g, team in enumerate(teams):
        own, end, trace = there, team.node_base + team.count * team.nodes, team.trace
        if len(teams) > 1:
            own = there[(there[:, 0] >= team.node_base) & (there[:, 0] < end)]
        worker, node = divided(own[:, 0] - team.node_base, team.nodes)
        mine = np.empty((len(own), 7), np.int64)
        mine[:, 0], mine[:, 1] = g, worker + team.first
        mine[:, 2] = np.append(trace.item, np.arange(len(trace.items))).take(node)
        mine[:, 3:] = own[:, 1:5]
        found.append(mine)
    return np.concatenate(found) if len(found) > 1 else found[0]
