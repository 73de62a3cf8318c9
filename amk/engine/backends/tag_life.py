"""How many tokens the tags of a schedule tell apart.

A flag word is fresh if its tag is that of its step. Tags are 32-bit words that grow with the epoch, the tokens since
the engine's memory was reset; a word that nobody has overwritten since then may hold any earlier tag, or the poison.
"""

from __future__ import annotations

from typing import Final

from amk.schedule_ir.expr import CONST, coefficient
from amk.schedule_ir.schedule import Schedule

POISON: Final = 2**32 - 1
"""What the tag of a word is that nobody has written since the reset."""
MOST_EPOCHS: Final = 2**31 - 1
"""The epoch is a signed word on the device."""


def tokens_told_apart(schedule: Schedule) -> int:
    """Tokens from epoch 0 on in which no tag is that of an earlier step, or the poison, at least."""
    lasts = [MOST_EPOCHS]
    for buffer in schedule.buffers:
        if buffer.tag is not None and (slope := coefficient(buffer.tag, "t")) > 0:
            # a loop may have fewer layers than the model, so that a tag which falls from layer to layer is at its most
            layers = max(0, coefficient(buffer.tag, "l")) * (schedule.model.layers - 1)
            within = layers + coefficient(buffer.tag, CONST)
            lasts.append((POISON - 1 - within) // slope + 1)
    return min(lasts)
