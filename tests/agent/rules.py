"""What stands for the validator where a search needs one that is quick."""

from amk.agent.gate.certify import Judgement
from amk.schedule_ir.schedule import Schedule


def fences_kept(schedule: Schedule) -> Judgement:
    """Refuses a ring that is refilled without its fence: the one rule that tests of the gate need."""
    stream = schedule.streams[0]
    if stream.engine == "bulk" and not stream.refill_fence:
        return Judgement("UNSAFE", ("AMK507",), "a slot is refilled without a proxy fence")
    return Judgement("SAFE", certificate="{}")
