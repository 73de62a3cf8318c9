"""What this package takes of the validator: the columns of a system, their judge, and witnesses.

Nothing else here imports the validator, but `proof`, which takes the checker.
"""

from amk.validator.atoms import blocks, touches_of
from amk.validator.builder import assemble
from amk.validator.dataflow import Fault
from amk.validator.flat import Judgement, judge
from amk.validator.liveness import BlockedHead, Deadlock, Run, diagnose, greedy, replayed
from amk.validator.order import Clocks, ClocksTooLarge, must_clocks
from amk.validator.races import Race, find_races
from amk.validator.system import (
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
)
from amk.validator.witness import Slice, Witness, deadlock_witness, fault_witness, race_witness

__all__ = [
    "ACCUMULATE_FLOAT", "ACCUMULATE_INT", "BOXES", "COLUMNS", "CSR", "DONT_CARE", "FORMAT", "I64", "KIND_NAMES",
    "MAX_AGENTS", "MAX_AMOUNT", "MAX_BYTES", "MAX_EVENTS", "MAX_NAME", "MAX_THRESHOLD", "NAME_LISTS", "READ", "WRITE",
    "BlockedHead", "Bools", "Clocks", "ClocksTooLarge", "Counts", "Deadlock", "Fault", "Judgement", "MalformedSystem",
    "Race", "Run", "Slice", "System", "Witness", "assemble", "blocks", "deadlock_witness", "diagnose", "fault_witness",
    "find_races", "greedy", "judge", "must_clocks", "race_witness", "replayed", "touches_of",
]  # fmt: skip
