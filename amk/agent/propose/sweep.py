"""What is left near the best, the most promising first: every single change, then pairs by what their parts were worth.

It ends when the search is exhausted (`amk/agent/decide/neighbourhood.py` says what that is).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amk.agent.decide.keep import percent
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


def why(context: Context, settings: Settings, expected: float) -> str:
    changes = ", ".join(
        f"{name}={value}" for name, value in context.space.changes(settings, context.incumbent()).items()
    )
    if len(context.space.changes(settings, context.incumbent())) == 1:
        return f"the best with {changes}"
    return f"the best with {changes}: its parts sum up to {percent(-expected)}"
