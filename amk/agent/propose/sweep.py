"""What is left near the best, the most promising first: every single change, then pairs by what their parts were worth.

It ends when the search is exhausted (`amk/agent/decide/neighbourhood.py` says what that is).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amk.agent.decide.keep import least_gain, percent
from amk.agent.journal.inbox import Suggestion
from amk.agent.propose.base import Context
from amk.planner.settings import Settings


@dataclass(frozen=True)
class Sweep:
    name: str = "sweep"

    def ask(self, context: Context) -> Sequence[Suggestion]:
        found = context.neighbourhood.following(context)
        if found is None:
            return []
        expected, settings = found
        return context.suggest(self.name, settings, why(context, settings, expected))

    def settles(self, context: Context) -> bool:
        """Whether what comes next is expected to lose as much as a keep gains: then it is measured so that the search
        can say that nothing is left."""
        found = context.neighbourhood.following(context)
        return found is not None and found[0] > least_gain(context.state.noise)


def why(context: Context, settings: Settings, expected: float) -> str:
    changes = ", ".join(
        f"{name}={value}" for name, value in context.space.changes(settings, context.incumbent()).items()
    )
    if len(context.space.changes(settings, context.incumbent())) == 1:
        return f"the best with {changes}"
    return f"the best with {changes}: its parts sum up to {percent(-expected)}"
