"""What is left near the best: the search is exhausted when no plan one or two changes away is open.

Every plan that differs from the best in one knob is settled as one of:

* tried: it was proposed, and measured or refused by the gate;
* impossible: the planner makes no schedule of it;
* duplicate: it lowers to the start, or to a kernel that was proposed before;
* avoided: it has values that the gate refused several times and never let pass. Nobody proposes it.

When all of those are settled or on their way, every plan that differs in two knobs is looked at. It may also be settled
as

* bounded: the sum of its two single changes, and of the most that changes of these two knobs were measured to help each
  other, is less than the gain that is worth looking for (`decide.worth`). So the pair that looks best of every two
  knobs is measured first.

A value without a score of its own cannot be planned or compiled alone. It promises nothing and excludes nothing, so its
pairs are tried one by one. Pairs of a value that the gate alone refused come one at a time while anything else is open.
Then as many come at once as the gate needs to learn that the value is to be avoided. All come if it can no longer learn
that, because the value has passed in another plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations, product
from math import inf
from typing import Literal

from amk.agent.decide import keep as decide
from amk.agent.decide.effects import Effects, Item, Knobs, both
from amk.agent.decide.progress import Progress
from amk.agent.decide.rulings import promise
from amk.agent.journal.events import Surveyed
from amk.agent.journal.state import START
from amk.planner.settings import Settings
from amk.planner.space import Value, moved

Fate = Literal["tried", "impossible", "duplicate", "avoided", "bounded", "open", "pending", "later"]
"""`pending`: proposed, and not decided. `later`: another plan comes first, which may settle this one."""

LEAST_GAIN = 0.001
"""Log gain of a single change that is worth a try together with others."""

TOGETHER = 2
"""Pairs of a value refused alone and never let pass that are judged at once: so many refusals more, and the others of
its pairs are avoided."""

UNSETTLED: tuple[Fate, ...] = ("open", "pending", "later")


@dataclass(frozen=True)
class Single:
    """A plan one change away. worth: log time relative to the best, where it has a score. passed: the gate has let its
    value pass, here or in another plan."""

    change: Item
    fate: Fate
    worth: float | None
    passed: bool = True


@dataclass
class Pairs:
    """The plans that differ in these two knobs. interactions: those measured; coming: another will be told by what is
    under way. reach: the most that a bounded one could gain (log)."""

    knobs: Knobs
    interactions: list[float]
    coming: bool = False
    fates: Counter[Fate] = field(default_factory=Counter)
    reach: float = -inf

    @property
    def help(self) -> float | None:
        """The most that two changes were measured to help each other (log); None if no pair was measured."""
        return max(0.0, -min(self.interactions)) if self.interactions else None


Point = tuple[float | None, Item, Item]
"""Two changes, and what both come to if they add up (log time)."""


@dataclass
class Survey:
    """open: what may be proposed, the most promising first. `pairs` is empty while a single change is open. under_way:
    what the undecided proposals change of the best."""

    best: int
    least_gain: float
    singles: list[Single]
    pairs: list[Pairs] = field(default_factory=list)
    open: list[tuple[float, Settings]] = field(default_factory=list)
    under_way: list[dict[str, Value]] = field(default_factory=list)

    def waiting(self) -> set[Item]:
        """Single changes of which no pair is proposed now: their own score is on its way, or the gate refused them and
        has so many pairs of them as it needs to learn from. What they wait for is settled by itself, so nothing that
        others propose holds them up for good."""
        there = self._pairs_under_way()
        unscored = [single for single in self.singles if single.worth is None]
        learning = {s.change for s in unscored if s.fate == "tried" and not s.passed and there[s.change] >= TOGETHER}
        return learning | {s.change for s in unscored if s.fate == "pending"}

    def deferred(self) -> set[Item]:
        """Single changes without a score of which a pair is under way: the others come after all that is open."""
        there = self._pairs_under_way()
        return {single.change for single in self.singles if single.worth is None and there[single.change]}

    def telling(self) -> set[Knobs]:
        """Two knobs of which a pair is under way that will tell an interaction: both of its parts have a score."""
        scored = {single.change for single in self.singles if single.worth is not None}
        pairs = [changed for changed in self.under_way if len(changed) == 2 and changed.items() <= scored]
        return {(min(changed), max(changed)) for changed in pairs}

    def _pairs_under_way(self) -> Counter[Item]:
        """By change, how many."""
        return Counter(item for changed in self.under_way if len(changed) == 2 for item in changed.items())

    def event(self) -> Surveyed:
        singles = Counter(single.fate for single in self.singles)
        pairs: Counter[Fate] = Counter()
        for each in self.pairs:
            pairs += each.fates
        counts = singles + pairs
        return Surveyed(
            best=self.best, singles=len(self.singles), pairs=pairs.total(), tried=counts["tried"],
            impossible=counts["impossible"], duplicate=counts["duplicate"], avoided=counts["avoided"],
            bounded=counts["bounded"], open=sum(counts[fate] for fate in UNSETTLED), needed=self.least_gain,
            reach=max([0.0, *(each.reach for each in self.pairs)]),
            interactions=sum(len(each.interactions) for each in self.pairs),
        )  # fmt: skip


WAITING, PLANS_BESIDE = 4, 16
"""From so many open proposals on a look makes so few plans: a device or a client waits for what the search does next,
and the plans near a new best are a thousand, 20 ms each."""

LAST_PLANS = 300
"""Plans that are made for the look at the end of a session, which takes them some seconds: what was not planned counts
as open."""


@dataclass
class Neighbourhood:
    """Remembers how points were settled; the survey is a function of the trials so far."""

    best: int = START
    settled: dict[Settings, Fate] = field(default_factory=dict)
    effects: Effects = field(default_factory=Effects)

    _plans: float = inf
    """How many may still be made to see what becomes of a point."""

    def survey(self, progress: Progress, plans: float = inf) -> Survey:
        """Everything near the best. Costs a lowering for every point that is looked at for the first time; after so
        many the rest counts as open."""
        self._plans = plans
        try:
            return self._surveyed(progress)
        finally:
            self._plans = inf

    def _surveyed(self, progress: Progress) -> Survey:
        survey = self._singles(progress)
        if not survey.open:
            for pairs, points in self._by_knobs(progress, survey):
                self._settle(progress, survey, pairs, points)
                survey.pairs.append(pairs)
            survey.open.sort(key=lambda point: point[0])
        return survey

    def following(self, progress: Progress) -> tuple[float, Settings] | None:
        """The first of what is open. Where proposals wait for a device, it makes few plans at a time: None then says
        that nothing is known to be open yet, and the next call goes on."""
        with self._few_plans(progress):
            found = self._following(progress)
            return None if self._plans <= 0 and found and not progress.workshop.knows(found[1]) else found

    def _following(self, progress: Progress) -> tuple[float, Settings] | None:
        if (single := self._single_that_is(progress, "open")) is not None:
            return 0.0, single
        survey = self._singles(progress)
        waiting = survey.waiting()
        deferred = survey.deferred()
        every = ((point, pairs) for pairs, points in self._by_knobs(progress, survey) for point in points)
        for point, pairs in sorted(every, key=lambda each: (bool(deferred & {*each[0][1:]}), each[0][0] or 0.0)):
            if self._pair(progress, survey, pairs, point, bool(waiting & {*point[1:]})) == "open":
                return survey.open[0]
        return None

    def paid(self, progress: Progress) -> list[tuple[float, Item]]:
        """(log time, change): of each knob the best single change, if that gains more than LEAST_GAIN, the greatest
        first. Empty until every single change is settled."""
        with self._few_plans(progress):
            if self._single_that_is(progress, *UNSETTLED) is not None:
                return []
        self.effects.update(progress)
        base, best = progress.incumbent(), dict[str, tuple[float, Item]]()
        for change, worth in sorted(self.effects.averaged(base).items(), key=lambda item: item[1]):
            if worth < -LEAST_GAIN:
                best.setdefault(change[0], (worth, change))
        return list(best.values())

    def look(self, progress: Progress, last: bool) -> Surveyed | None:
        """What to write down; None if something is open and the search goes on."""
        if not last and self._is_open(progress):
            return None
        found = self.survey(progress, LAST_PLANS if last else inf).event()
        return None if found.open and not last else found

    def _is_open(self, progress: Progress) -> bool:
        """Whether something is open, or may be: `following` would need more plans to tell."""
        with self._few_plans(progress):
            return self._single_that_is(progress, *UNSETTLED) is not None or self._following(progress) is not None

    @contextmanager
    def _few_plans(self, progress: Progress) -> Iterator[None]:
        """Within, what has no plan yet counts as open after a few more plans, if proposals wait."""
        self._plans = PLANS_BESIDE if len(progress.state.open_trials) >= WAITING else inf
        try:
            yield
        finally:
            self._plans = inf

    def _single_that_is(self, progress: Progress, *fates: Fate) -> Settings | None:
        """The first plan one change away that is so."""
        near = progress.space.neighbours(progress.incumbent())
        return next((settings for settings in near if self._fate(progress, settings) in fates), None)

    def _singles(self, progress: Progress) -> Survey:
        """Plans one change away, with what they are worth if none is open."""
        base, fates, found = progress.incumbent(), {}, []
        for settings in progress.space.neighbours(base):
            (change,) = progress.space.changes(settings, base).items()
            fates[change] = self._fate(progress, settings)
            found += [(0.0, settings)] if fates[change] == "open" else []
        needed = decide.worth(progress.state.noise)
        self.effects.update(progress)
        if found:
            measured = {c for c in fates if moved(base, dict([c])) in self.effects.scores}
            known = {c: self.effects.worth(base, c) if c in measured else None for c in fates}
            return Survey(self.best, needed, [Single(c, fate, known[c]) for c, fate in fates.items()], open=found)
        worth = {change: self._worth(progress, base, change) for change in fates}
        passed = progress.history.passed
        undecided = [progress.history.settings[t.index] for t in progress.state.open_trials if not t.edited]
        singles = [Single(change, fate, worth[change], change in passed) for change, fate in fates.items()]
        return Survey(
            self.best, needed, singles, under_way=[progress.space.changes(settings, base) for settings in undecided]
        )  # fmt: skip

    def _worth(self, progress: Progress, base: Settings, change: Item) -> float | None:
        """Log time relative to the best; by the pilot alone where nothing was decided yet."""
        if (found := self.effects.worth(base, change)) is not None:
            return found
        name, value = change
        key = progress.workshop.key(moved(base, {name: value}))
        index = progress.state.by_key.get(key or "")
        if index is None or "pilot" not in progress.state.trials[index].measured:
            return None
        return promise(progress.state, progress.state.trials[index]) - self.effects.scores[base]

    def _by_knobs(self, progress: Progress, survey: Survey) -> list[tuple[Pairs, list[Point]]]:
        """The plans two changes away, the most promising of two knobs first."""
        by_knob: dict[str, list[Single]] = {}
        for single in survey.singles:
            by_knob.setdefault(single.change[0], []).append(single)
        measured, coming = self.effects.interactions(), survey.telling()
        found = []
        for one, other in combinations(sorted(by_knob), 2):
            points = [(sum_of(a, b), a.change, b.change) for a, b in product(by_knob[one], by_knob[other])]
            points.sort(key=lambda point: point[0] or 0.0)
            found.append((Pairs((one, other), measured.get((one, other), []), (one, other) in coming), points))
        return found

    def _settle(self, progress: Progress, survey: Survey, pairs: Pairs, points: list[Point]) -> None:
        waiting = survey.waiting()
        for point in points:
            pairs.fates[self._pair(progress, survey, pairs, point, bool(waiting & {*point[1:]}))] += 1

    def _pair(self, progress: Progress, survey: Survey, pairs: Pairs, point: Point, waits: bool) -> Fate:
        """How one pair is settled; an open one is put on the survey's list. Better ones of its knobs came before."""
        expected, *changes = point
        tried = both(*changes) in self.effects.bases[progress.incumbent()].pairs
        if not tried and expected is not None and pairs.help is not None and pairs.help - expected < survey.least_gain:
            pairs.reach = max(pairs.reach, pairs.help - expected)
            return "bounded"
        if not tried and expected is not None and pairs.help is None and (pairs.coming or pairs.fates["open"]):
            return "later"
        settings = moved(progress.incumbent(), dict(both(*changes)))
        if waits:
            return self.settled.get(settings, "later")
        fate = self._fate(progress, settings)
        if fate == "open":
            survey.open.append((expected or 0.0, settings))
        return fate

    def _fate(self, progress: Progress, settings: Settings) -> Fate:
        if progress.state.best_plan != self.best:
            self.best, self.settled = progress.state.best_plan, {}
        if (settled := self.settled.get(settings)) is not None:
            return settled
        known = progress.workshop.knows(settings)
        found = fate(progress, settings, self._plans > 0)
        self._plans -= progress.workshop.knows(settings) and not known
        if found not in (*UNSETTLED, "avoided"):
            self.settled[settings] = found
        return found


def sum_of(one: Single, other: Single) -> float | None:
    """What both changes come to if they add up (log time)."""
    return None if one.worth is None or other.worth is None else one.worth + other.worth


def fate(progress: Progress, settings: Settings, plans: bool = True) -> Fate:
    """How a point was settled. Without `plans` one of which no plan was made yet is open."""
    if (index := progress.history.first_trials.get(settings)) is not None:
        return "tried" if progress.state.trials[index].closed else "pending"
    if settings == progress.space.start:
        return "duplicate"
    if progress.history.hopeless(settings):
        return "avoided"
    if not plans and not progress.workshop.knows(settings):
        return "open"
    if (key := progress.workshop.key(settings)) is None:
        return "impossible"
    if key == progress.start_key():
        return "duplicate"
    if (known := progress.state.by_key.get(key)) is not None:
        return "duplicate" if progress.state.trials[known].closed else "pending"
    return "open"


def sentence(event: Surveyed) -> str:
    """In words."""
    best = "the start" if event.best == START else f"proposal {event.best}"
    if event.open and not event.pairs:
        return f"of {event.singles} plans that differ from {best} in one knob, {event.open} were not tried"
    settled = (
        f"of {event.singles} plans that differ in one knob and {event.pairs} in two, {event.tried} were tried, "
        f"{event.impossible} cannot be planned, {event.duplicate} are kernels known before, {event.avoided} have "
        f"values that the gate refused several times, and {event.bounded} that differ in two cannot gain the "
        f"{decide.percent(event.needed)} worth looking for: {decide.percent(event.reach)} at most, by the sum of their "
        f"single changes and {event.interactions} interactions measured between pairs of knobs"
    )
    return f"{event.open} are open around {best}: {settled}" if event.open else f"exhausted around {best}: {settled}"


def ended(reason: str, survey: Surveyed | None) -> str:
    """Why a search ended, and whether anything is left near its best."""
    return f"{reason}; {sentence(survey)}" if survey is not None else reason
