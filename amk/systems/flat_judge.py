"""What this package takes of the validator: the columns of a system, their judge, and witnesses.

Nothing else here imports the validator, but `proof`, which takes the checker.
"""

from amk.validator.evidence.witness import Slice, Witness, deadlock_witness, fault_witness, race_witness
from amk.validator.memory.flat import Judgement, judge
from amk.validator.memory.races import Fault, Race, blocks, find_races, touches_of
from amk.validator.order.clocks import Clocks, ClocksTooLarge, must_clocks
from amk.validator.order.greedy_run import BlockedHead, Deadlock, Run, diagnose, greedy
from amk.validator.program.system import (
    ACCUMULATE_FLOAT,
    ACCUMULATE_INT,
    BOXES,
    COLUMNS,
    CSR,
    DONT_CARE,
    FORMAT,
    I64,
    KIND_NAMES,
    MAX_AGENTS,
    MAX_AMOUNT,
    MAX_BYTES,
    MAX_EVENTS,
    MAX_NAME,
    MAX_THRESHOLD,
    NAME_LISTS,
    READ,
    WRITE,
    Bools,
    Counts,
    MalformedSystem,
    System,
    assemble,
)

__all__ = [
    "ACCUMULATE_FLOAT", "ACCUMULATE_INT", "BOXES", "COLUMNS", "CSR", "DONT_CARE", "FORMAT", "I64", "KIND_NAMES",
    "MAX_AGENTS", "MAX_AMOUNT", "MAX_BYTES", "MAX_EVENTS", "MAX_NAME", "MAX_THRESHOLD", "NAME_LISTS", "READ", "WRITE",
    "BlockedHead", "Bools", "Clocks", "ClocksTooLarge", "Counts", "Deadlock", "Fault", "Judgement", "MalformedSystem",
    "Race", "Run", "Slice", "System", "Witness", "assemble", "blocks", "deadlock_witness", "diagnose", "fault_witness",
    "find_races", "greedy", "judge", "must_clocks", "race_witness", "touches_of",
]  # fmt: skip
