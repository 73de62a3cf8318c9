"""Structural search: children of the population by typed edits of the schedule.

A child has a parent of the archive, half of the time the best. It is made in one of four ways:

* a drawn edit, of a kind that paid and at a place where the simulator sees time go;
* edits that were measured to pay elsewhere, merged;
* a knob turned under the edits, or knobs of another good plan;
* an edit left out, so that lists keep what matters.

Edits that the gate refused are not proposed again. Where the run lets the simulator advise, the child that it thinks
fastest of some is proposed, with further changes on top where it thinks that they add to it. The run stops asking the
simulator once it has ranked badly what a device measured.

Where the simulator measures, its word on a child has no noise, so a child is climbed to. Single edits of a good plan
gain less than a keep needs, and several at once are refused if one of them is. So changes that the simulator calls
faster and the verdict SAFE are made on top of each other until they come to a keep. No child is looked at twice. A
climb that does not come to a keep costs no evaluation.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import exp, log, sqrt

import numpy as np

from amk.agent.decide.keep import MAX_LOSS, least_gain
from amk.agent.decide.ranking import misleads
from amk.agent.gate.candidate import Candidate
from amk.agent.gate.design import MAX_EDITS, Design, in_words, text_of
from amk.agent.journal.inbox import Suggestion
from amk.agent.propose.archive import WITHIN, Archive, Elite, family, fresh, merged, position_of, replaced, scores
from amk.agent.propose.base import Context
from amk.agent.propose.edit_history import WITH, beside_the_best, had, paying, refused
from amk.planner.settings import Settings
from amk.report.diagnostic import AmkError
from amk.schedule_ir.edits.apply import apply
from amk.schedule_ir.edits.directed import KINDS, Hot, directed

TRIES = 40
LOOKS = {True: 12, False: 3}
"""Children that the simulator is asked about for one proposal, where it measures and where a device does: that would
wait for them, as it takes a second for a candidate."""
CLEAR = 0.02
"""Simulated log gain over the parent at which no further child is looked at."""
MOST_ON_TOP = {True: 4, False: 2}
"""Changes that are tried on top of a child until one adds nothing, where the simulator measures and where a device
does. Each may add less than a keep needs, and all together more. Where one is refused all are."""
KNOBS = 1 / 3
"""Share of the children whose change is a knob where the simulator is sure: there are about as many of those as of all
kinds of edits. Where a device measures a knob is a way like others: of 109 under the edits 3 came a pilot ahead of
the best on an H200, and knobs have their own arm."""
ADDS = 0.0005
"""Simulated log gain of such a change at which it stays."""
LEAST_CLIMB = 0.0001
"""The same of a climb, where what the simulator says of a child is exact: many small changes come to a keep."""
CLIMBS = 24
"""Children that the simulator calls no faster, one after the other, at which a climb lets others propose."""
DRAWS = 4
"""Times as many that are drawn: the climb knows many of them already."""
ENOUGH = 1.25
"""Times the gain that a keep needs, at which a climb is proposed: less is not kept, and costs its evaluation."""
FURTHER_DRAWS = 6
"""Further draws where a device measures, until an edit comes that no proposal had: what it was worth elsewhere is
known, and merged from there."""
HOPELESS = -0.01
"""Simulated log gain below which a child is not proposed."""
EXPLORE = 0.3
REWARD = 30.0
"""Of a log gain; 3% earns nearly all."""
MERGE, KNOB, DROP = "merge", "knob", "drop"


@dataclass(frozen=True)
class Child:
    design: Design
    parent: int
    operator: str
    why: str
    other: int | None = None


Look = tuple[float, Child]
"""Simulated log gain over the parent, or over the best where only that counts, and the child."""


@dataclass
class Climb:
    """Where a climb from the design that leads is. It is not written down: a resumed run climbs again."""

    leader: Design
    best: Look | None = None
    visited: set[Design] = field(default_factory=set)


@dataclass
class Structure:
    """alone: no other proposer is asked when this one is silent. Beside others it proposes, where the simulator
    measures, only what the simulator calls faster than the best. Elsewhere a child that gains over a slower parent is
    worth its measurement, because its edits may help the best."""

    name: str = "structure"
    alone: bool = True
    archive: Archive = field(default_factory=Archive)
    _ms: dict[tuple[str, int], float] = field(default_factory=dict)
    _climb: Climb | None = None

    def ask(self, context: Context) -> Sequence[Suggestion]:
        rng = context.rng(self.name)
        elites = self.archive.elites(context)
        run = context.state.run
        if self._sure(context):
            climbed = self._climbed(context, elites, rng)
            return [] if climbed is None else [self._suggestion(context, climbed[1])]
        looks, stacked = (
            (LOOKS[run.simulated], MOST_ON_TOP[run.simulated]) if run is not None and advised(context) else (1, 0)
        )
        if (best := self._best(context, elites, rng, looks)) is None:
            return []
        for _ in range(stacked):
            more = self._stacked(context, best, rng, looks // 3)
            if more is best:
                break
            best = more
        return [self._suggestion(context, best[1])]

    def _sure(self, context: Context) -> bool:
        """Whether the simulator, asked before, says what it will measure."""
        run = context.state.run
        return not self.alone and run is not None and run.simulated and run.prior

    def _climbed(self, context: Context, elites: Sequence[Elite], rng: np.random.Generator) -> Look | None:
        """Changes on top of each other, each faster than all before it, and what leads. None while they do not come to
        a keep: others are asked, and the climb goes on where it was when it is asked again, unless another leads."""
        leader = self._leader(context)
        lead = context.design(leader)
        climb = self._climb if self._climb is not None and self._climb.leader == lead else Climb(lead)
        self._climb = climb
        parents = [Elite(leader, lead, 0.0, ("", ""))]
        parents += [each for each in elites if (self._ahead(context, each.design, lead) or 0.0) > 0.0]
        looks = draws = 0
        while looks < CLIMBS and draws < DRAWS * CLIMBS:
            draws += 1
            on = parents if climb.best is None else [_so_far(climb.best[1])]
            child = self._child(context, on, rng)
            if child is None or child.design in climb.visited:
                continue
            climb.visited.add(child.design)
            gain = self._ahead(context, child.design, lead)
            if gain is None:
                continue
            looks += 1
            before = climb.best[0] if climb.best else self._ahead(context, context.design(child.parent), lead) or 0.0
            if gain >= before + LEAST_CLIMB and self._is_safe(context, child.design):
                climb.best = gain, child if climb.best is None else _on_top(child, climb.best[1])
                looks = draws = 0
        if climb.best is None or climb.best[0] < ENOUGH * least_gain(context.state.noise):
            return None
        self._climb = None
        return climb.best

    def _leader(self, context: Context) -> int:
        """The best, or what is on its way and will replace it, by the simulator."""
        leader, most = context.state.best, least_gain(context.state.noise)
        for trial in context.state.open_trials:
            gain = self._ahead(context, context.design(trial.index), context.design(context.state.best))
            if gain is not None and gain > most:
                leader, most = trial.index, gain
        return leader

    def _ahead(self, context: Context, design: Design, other: Design) -> float | None:
        """Simulated log gain over the other, the mean over the run's positions; at one of them where that is a loss, or
        one that no keep may have. None if the design is no schedule."""
        candidate, known = (context.workshop.make(each) for each in (design, other))
        run = context.state.run
        assert run is not None
        if not isinstance(candidate, Candidate) or not isinstance(known, Candidate) or len(design.edits) > MAX_EDITS:
            return None
        gains: list[float] = []
        try:
            for pos in sorted(run.positions, key=lambda pos: pos != position_of(context)):
                gains.append(log(self._time(context, known, pos) / self._time(context, candidate, pos)))
                if gains[-1] < (0.0 if len(gains) == 1 else -MAX_LOSS):
                    return gains[-1]
        except AmkError:
            return None
        return sum(gains) / len(gains)

    def _is_safe(self, context: Context, design: Design) -> bool:
        """Whether the gate was not asked about it, and will let it pass."""
        candidate = context.workshop.make(design)
        return (
            isinstance(candidate, Candidate) and candidate.key not in context.state.by_key
            and candidate.key != context.start_key() and context.is_safe(candidate)
        )  # fmt: skip

    def _stacked(self, context: Context, look: Look, rng: np.random.Generator, looks: int) -> Look:
        """With a further change that adds to it, if there is one."""
        gain, child = look
        further = self._best(context, [Elite(child.parent, child.design, -gain, ("", ""))], rng, looks)
        if further is None or further[0] < gain + ADDS:
            return look
        return further[0], _on_top(further[1], child)

    def _best(self, context: Context, parents: Sequence[Elite], rng: np.random.Generator, looks: int) -> Look | None:
        """The best of so many; None if none is worth a proposal."""
        found: list[Look] = []
        for _ in range(TRIES):
            child = self._child(context, parents, rng)
            gain = None if child is None else self._gain(context, child)
            if child is None or gain is None:
                continue
            looks -= 1
            found += [(gain, child)] if gain >= HOPELESS else []
            if gain >= CLEAR or not looks:
                break
        return max(found, key=lambda each: each[0], default=None)

    def _suggestion(self, context: Context, child: Child) -> Suggestion:
        settings = dict(context.space.point(child.design.settings))
        edits = tuple(map(json.loads, child.design.edits))
        return Suggestion(
            self.name, settings, child.why, parent=child.parent, edits=edits, other=child.other, operator=child.operator
        )

    def _child(self, context: Context, elites: Sequence[Elite], rng: np.random.Generator) -> Child | None:
        """None if this draw came to nothing."""
        parent = elites[0] if rng.random() < 0.5 else self._another(context, elites, rng)
        knob = [KNOB] if self._sure(context) and rng.random() < KNOBS else []
        for operator in (*knob, *self._order(context, rng)):
            if (child := self._offspring(context, parent, operator, rng)) is not None:
                return child
        return None

    def _another(self, context: Context, elites: Sequence[Elite], rng: np.random.Generator) -> Elite:
        """Any of them where the simulator is sure. Where a device measures, the further behind the best the less often.
        On an H200 children of what was more than 0.5% behind came ahead of the best in 2 of 168 cases, children of the
        best and of near misses in 15 of 147."""
        if self._sure(context):
            return elites[int(rng.integers(len(elites)))]
        state = context.state
        weights = [exp(-max(0.0, elite.score - state.best_score) / least_gain(state.noise)) for elite in elites]
        return elites[int(rng.choice(len(elites), p=np.array(weights) / sum(weights)))]

    def _offspring(self, context: Context, parent: Elite, operator: str, rng: np.random.Generator) -> Child | None:
        match operator:
            case "merge":
                return _merge(context, parent, rng)
            case "knob":
                settings = self._turned(context, parent, rng)
                if context.history.unpromising(settings):
                    return None
                return Child(Design(settings, parent.design.edits), parent.index, KNOB, "knobs under the edits")
            case "drop":
                return _drop(parent, rng)
        return self._mutant(context, parent, operator, rng)

    def _turned(self, context: Context, parent: Elite, rng: np.random.Generator) -> Settings:
        """One knob moved. Where the simulator is sure, half of the time the knobs of another good plan instead, some of
        them: plans that are equally fast for different reasons have what the other lacks."""
        within = context.state.best_score + WITHIN
        near = [index for index, score in scores(context) if score < within] if self._sure(context) else []
        if not near or rng.random() < 0.5:
            return context.space.mutate(parent.design.settings, rng)
        other = near[int(rng.integers(len(near)))]
        return context.space.cross(parent.design.settings, context.design(other).settings, rng)

    def _mutant(self, context: Context, parent: Elite, kind: str, rng: np.random.Generator) -> Child | None:
        base = context.workshop.make(parent.design.settings)
        if not isinstance(base, Candidate):
            return None
        try:
            result = apply(base.schedule, parent.design.parsed)
            times = self.archive.times(context, parent.index)
            hot = Hot(result.schedule, rng, times.us, result.roots)
            new = [text_of(edit) for edit in fresh(directed(hot, kind), parent.design.edits)]
            for _ in range(0 if self._sure(context) else FURTHER_DRAWS):
                if not had(context).issuperset(new):
                    break
                new = [text_of(edit) for edit in fresh(directed(hot, kind), parent.design.edits)]
        except (LookupError, AmkError):
            return None
        if any(text in refused(context) for text in new):
            return None
        where = f"; most time is lost in {times.bottleneck}" if times.bottleneck else ""
        design = Design(parent.design.settings, (*replaced(parent.design.edits, new), *new))
        return Child(design, parent.index, kind, f"{kind}: {'; '.join(in_words(new))[:300]}{where}")

    def _gain(self, context: Context, child: Child) -> float | None:
        """Simulated log gain over the parent, 0 where the simulator is not to be asked; None if the child is not new,
        or no schedule."""
        if len(child.design.edits) > MAX_EDITS:
            return None
        candidate = context.workshop.make(child.design)
        if (
            not isinstance(candidate, Candidate)
            or candidate.key in context.state.by_key
            or candidate.key == context.start_key()
        ):
            return None
        if not advised(context):
            return 0.0
        parent = context.workshop.make(context.design(child.parent))
        if not isinstance(parent, Candidate):
            return None
        pos = position_of(context)
        try:
            return log(self._time(context, parent, pos) / self._time(context, candidate, pos))
        except AmkError:
            return None

    def _time(self, context: Context, candidate: Candidate, pos: int) -> float:
        if (candidate.key, pos) not in self._ms:
            self._ms[candidate.key, pos] = context.workshop.simulator.step_ms(candidate.schedule, pos)
        return self._ms[candidate.key, pos]

    def _order(self, context: Context, rng: np.random.Generator) -> list[str]:
        """Ways to make a child, by an upper confidence bound on what they earned; refused ones earned nothing, and what
        gained over a parent that is behind the best earned what is left beside that. In any
        order where many are looked at before one is proposed: the way that earned most has few places."""
        if self._sure(context):
            return [(*KINDS, MERGE, KNOB, DROP)[i] for i in rng.permutation(len(KINDS) + 3)]
        earned: dict[str, list[float]] = defaultdict(list)
        for trial in context.trials_of(self.name):
            gain = beside_the_best(context.state, trial)
            for way in trial.proposed.operator.split(WITH) if trial.closed else ():
                earned[way].append(0.0 if gain is None else min(1.0, max(0.0, REWARD * gain)))
        total = 1 + sum(map(len, earned.values()))

        def bound(way: str) -> float:
            seen = earned[way]
            spread = EXPLORE * sqrt(log(total + 1) / (len(seen) + 1))
            return (sum(seen) + 0.2) / (len(seen) + 1) + spread + 0.2 * float(rng.random())

        return sorted((*KINDS, MERGE, KNOB, DROP), key=bound, reverse=True)


def _so_far(child: Child) -> Elite:
    return Elite(child.parent, child.design, 0.0, ("", ""))


def _on_top(last: Child, before: Child) -> Child:
    """A child that has both changes; where the last was made to the design of the other."""
    operator, why = f"{before.operator}{WITH}{last.operator}", f"{before.why}; {last.why}"
    return replace(last, other=last.other or before.other, operator=operator, why=why)


def advised(context: Context) -> bool:
    """Whether the simulator is asked about children."""
    run = context.state.run
    return run is not None and run.prior and (run.simulated or not misleads(context.state))


def _merge(context: Context, parent: Elite, rng: np.random.Generator) -> Child | None:
    """The parent with edits that paid elsewhere: all of them, or some."""
    edits, other, count = parent.design.edits, None, 0
    keep = 1.0 if rng.random() < 0.5 else 0.5
    for _, index, came in paying(context):
        if rng.random() < keep and (new := merged(edits, came)) != edits:
            edits, count = new, count + 1
            other = index if other is None else other
    if not count:
        return None
    return Child(
        Design(parent.design.settings, edits), parent.index, MERGE, f"{count} edits that paid elsewhere", other
    )


def _drop(parent: Elite, rng: np.random.Generator) -> Child | None:
    """The parent without one edit, or without those of one family: whether they matter."""
    edits = parent.design.edits
    if len(edits) < 2:
        return None
    gone = edits[int(rng.integers(len(edits)))]
    rest = tuple(text for text in edits if text != gone)
    if rng.random() < 0.3:
        rest = tuple(text for text in edits if family(text) != family(gone))
    return Child(Design(parent.design.settings, rest), parent.index, DROP, "whether what is left out matters")
