"""Where a search stands: its space, its trials, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass

from amk.agent.decide.history import History
from amk.agent.decide.rulings import promised
from amk.agent.gate.candidate import Workshop
from amk.agent.gate.design import Design
from amk.agent.journal.state import START, State
from amk.planner.settings import Settings
from amk.planner.space import Space


@dataclass(frozen=True)
class Progress:
    """The trials so far, what they say about settings, and the workshop that plans more."""

    space: Space
    state: State
    history: History
    workshop: Workshop

    def incumbent(self) -> Settings:
        """Settings of the best plan without edits, which is what settings are changed of."""
        best = self.state.best_plan
        return self.space.start if best == START else self.history.settings[best]

    def scored(self) -> list[tuple[Settings, float]]:
        """Settings of plans without edits with their log time relative to the start, in order of trial, the start
        first; what passed its pilot and waits for its paired test has the score that the pilot promises."""
        found = [(self.space.start, 0.0)]
        for trial in self.state.trials:
            if trial.edited:
                continue
            if (score := trial.score if trial.closed else promised(self.state, trial)) is not None:
                found.append((self.history.settings[trial.index], score))
        return found

    def pending(self) -> list[Settings]:
        """Open proposals of which nothing was measured yet."""
        open_trials = (t for t in self.state.open_trials if not t.edited)
        return [self.history.settings[t.index] for t in open_trials if promised(self.state, t) is None]

    def leader(self) -> Settings:
        """What was measured fastest, kept or not: small steps are made from it before their sum is worth a keep."""
        return min(self.scored(), key=lambda pair: pair[1])[0]

    def design(self, index: int) -> Design:
        return Design(self.space.start) if index == START else self.history.designs[index]

    def is_new(self, settings: Settings) -> bool:
        """Whether `settings` plan a kernel that was not proposed before. Costs one lowering."""
        if settings in self.history.first_trials or settings == self.space.start or self.history.unpromising(settings):
            return False
        key = self.workshop.key(settings)
        return key is not None and key not in self.state.by_key and key != self.start_key()

    def start_key(self) -> str:
        """Of the start's kernel; "" if it can no longer be planned."""
        return self.workshop.key(self.space.start) or ""
