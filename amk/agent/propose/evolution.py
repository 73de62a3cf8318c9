"""Regularised evolution (Real et al., 2019, "Regularized Evolution for Image Classifier Architecture Search").

The population is the most recent trials: age, not fitness, removes a member. A parent wins a tournament; a child is its
mutation, sometimes crossed with a second parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from amk.agent.journal.inbox import Suggestion
from amk.agent.propose.base import TRIES, Context
from amk.planner.settings import Settings

POPULATION = 24
TOURNAMENT = 6
CROSS = 0.3


@dataclass(frozen=True)
class Evolution:
    name: str = "evolution"

    def ask(self, context: Context) -> Sequence[Suggestion]:
        rng = context.rng(self.name)
        population = context.scored()[-POPULATION:]
        for _ in range(TRIES):
            parent = tournament(population, rng)
            child = context.space.mutate(parent, rng, 1 + int(rng.random() < 0.3))
            if len(population) > 2 and rng.random() < CROSS:
                child = context.space.cross(child, tournament(population, rng), rng)
            if context.is_new(child):
                return context.suggest(self.name, child, "child of a tournament's winner")
        return []


def tournament(population: Sequence[tuple[Settings, float]], rng: np.random.Generator) -> Settings:
    picks = rng.integers(len(population), size=min(TOURNAMENT, len(population)))
    return min((population[int(i)] for i in picks), key=lambda pair: pair[1])[0]
