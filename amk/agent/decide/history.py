"""What the trials of a run say about settings: which were proposed, which values the gate refuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from amk.agent.decide.couples import REFUSALS, Couples, Item
from amk.agent.gate.design import Design
from amk.agent.journal.state import State, Trial
from amk.planner.settings import Settings
from amk.planner.space import OutsideSpaceError, Space


@dataclass(frozen=True)
class Refusal:
    """`count` proposals were refused for the same codes; `common` are the knob values that all of them had and that no
    proposal that passed has."""

    common: frozenset[Item]
    count: int


@dataclass
class History:
    """Trials of the run, kept up to date with the state: their designs, and of these the settings.

    What is learned of settings (`refusals`, `couples`, and `first_trials` by settings) follows from plans without
    edits alone.
    """

    space: Space
    settings: list[Settings] = field(default_factory=list)
    designs: list[Design] = field(default_factory=list)
    first_trials: dict[Settings, int] = field(default_factory=dict)
    refusals: dict[tuple[str, ...], list[Refusal]] = field(default_factory=dict)
    passed: set[Item] = field(default_factory=set)
    couples: Couples = field(default_factory=Couples)
    _judged: int = 0
    _blocked: frozenset[frozenset[Item]] | None = None
    _coupled: frozenset[frozenset[Item]] = frozenset()

    def __post_init__(self) -> None:
        self._passes(frozenset(self.space.point(self.space.start).items()))

    def _passes(self, values: frozenset[Item]) -> None:
        self.passed |= values
        self.couples.passed.append(values)

    def update(self, state: State) -> None:
        for trial in state.trials[len(self.settings) :]:
            try:
                parsed = self.space.parse(trial.proposed.settings)
            except OutsideSpaceError:
                parsed = self.space.start
            self.settings.append(parsed)
            self.designs.append(Design(parsed, trial.proposed.edits))
            if not trial.edited:
                self.first_trials.setdefault(parsed, len(self.settings) - 1)
        while self._judged < len(state.trials) and state.trials[self._judged].gated is not None:
            self._learn(state.trials[self._judged])
            self._judged += 1

    def _learn(self, trial: Trial) -> None:
        """What refused proposals have in common and no passing one has is what the gate refuses."""
        values = frozenset(self.space.point(self.settings[trial.index]).items())
        gated = trial.gated
        if trial.edited:
            return
        if gated is None or gated.verdict == "passed":
            self._passes(values)
        elif gated.verdict in ("unsafe", "unknown", "uncompilable"):
            self.refusals[gated.codes] = list(self._grouped(self.refusals.get(gated.codes, []), values))
            self.couples.refused.setdefault(gated.codes, []).append(values)
        self._blocked = None

    def _grouped(self, groups: Sequence[Refusal], values: frozenset[Item]) -> Iterator[Refusal]:
        """`groups` with one more refusal: two values that are refused for one reason are two groups."""
        placed = False
        for group in groups:
            if not (common := group.common - self.passed):
                continue
            if not placed and common & values:
                placed = True
                yield Refusal(common & values, group.count + 1)
            else:
                yield Refusal(common, group.count)
        if not placed and (own := values - self.passed):
            yield Refusal(own, 1)

    @property
    def blocked(self) -> frozenset[frozenset[Item]]:
        """Sets of knob values that together were refused REFUSALS times for one reason and never passed."""
        if self._blocked is None:
            groups = (r for known in self.refusals.values() for r in known if r.count >= REFUSALS)
            self._blocked = frozenset(values for r in groups if (values := r.common - self.passed))
            self._coupled = frozenset(self.couples.blocked(self._blocked))
        return self._blocked

    def hopeless(self, settings: Settings) -> bool:
        values = self.space.point(settings).items()
        return any(blocked <= values for blocked in self.blocked)

    def unpromising(self, settings: Settings) -> bool:
        """Whether it is hopeless, or has a pair of values that explains refusals: that may be wrong, so it says nothing
        of what is left near the best."""
        values = self.space.point(settings).items()
        return self.hopeless(settings) or any(pair <= values for pair in self._coupled)
