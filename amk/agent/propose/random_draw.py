"""Uniform draws without repetition: the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amk.agent.journal.inbox import Suggestion
from amk.agent.propose.base import TRIES, Context


@dataclass(frozen=True)
class RandomDraw:
    name: str = "random"

    def ask(self, context: Context) -> Sequence[Suggestion]:
        rng = context.rng(self.name)
        for _ in range(TRIES):
            settings = context.space.random(rng)
            if context.is_new(settings):
                return context.suggest(self.name, settings, "uniform draw")
        return []
