"""Suggestions that were made before, in their order: from another run, or from a list."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amk.agent.journal.inbox import Suggestion
from amk.agent.propose.base import Context


@dataclass(frozen=True)
class Replay:
    """The n-th ask of a run answers with the n-th recorded point, also after a resume."""

    points: tuple[dict[str, Any], ...]
    name: str = "replay"

    def ask(self, context: Context) -> Sequence[Suggestion]:
        done = len(context.trials_of(self.name))
        for number, point in enumerate(self.points[done : done + 1], done):
            settings = {name: value for name, value in point.items() if name != "edits"}
            edits = tuple(json.loads(text) for text in point.get("edits", ()))
            return [Suggestion(self.name, settings, f"recorded proposal {number}", edits=edits)]
        return []
