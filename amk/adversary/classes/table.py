"""The numbered mistakes of the table, each with the generator of its mutants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from amk.adversary.classes import data, pipelines, rules, slots, sync
from amk.adversary.classes.sync import Mutant
from amk.adversary.mistakes import Mistake
from amk.validator.program.system import System

Generator = Callable[[Random], Mutant] | Callable[[Random], System] | Callable[[Random], Mutant | System]


@dataclass(frozen=True)
class Class:
    """open: some of its mutants are built to be UNKNOWN: policy, or outside what epochs are proved for. flat: why some
    or all of its mutants are flat systems, not edited plans. code: what the class's file has to show, if its mutants
    can go wrong in other ways too."""

    mistake: Mistake
    generate: Generator
    open: bool = False
    flat: str = ""
    code: str = ""

    @property
    def number(self) -> int:
        return self.mistake.number

    @property
    def title(self) -> str:
        return self.mistake.title


PLANS = 3 / 4
"""Share of edited plans in classes that are flat systems too."""
LAPS = "a ring's laps and phases follow from its depth and are proved once; one in four is a ring as a flat system"
STORES = "there are no bulk stores"


def partly(plan: Callable[[Random], Mutant], flat: Callable[[Random], System]) -> Generator:
    """Edited plans, and flat systems for what plans cannot say of the same mistake."""

    def generate(rng: Random) -> Mutant | System:
        return plan(rng) if rng.random() < PLANS else flat(rng)

    generate.__doc__ = plan.__doc__
    return generate


CLASSES: tuple[Class, ...] = (
    Class(Mistake.QUEUE_INVERSION, sync.queue_inversion),
    Class(Mistake.QUEUE_CYCLE, sync.queue_cycle),
    Class(Mistake.LOW_THRESHOLD, sync.threshold_low),
    Class(Mistake.HIGH_THRESHOLD, sync.threshold_high_ragged),
    Class(Mistake.PARTIAL_OF_OTHERS, sync.partial_foreign),
    Class(Mistake.PARTIAL_OF_ONE_OWNER, sync.partial_prefix),
    Class(Mistake.PARTIAL_BY_COUNT, sync.partial_count),
    Class(Mistake.DOUBLE_SIGNAL, sync.signals_twice),
    Class(Mistake.HEAVY_SIGNAL, sync.weight_hides),
    Class(Mistake.OTHER_COUNTER, sync.other_counter),
    Class(Mistake.SHARED_CELL, sync.shared_cell, open=True),
    Class(Mistake.REDUNDANT_WAIT, sync.redundant_wait),
    Class(Mistake.MASKED_WAIT, sync.masked_by_order),
    Class(Mistake.MOVED_WAIT, sync.wait_moved),
    Class(Mistake.EQUALITY_WAIT, sync.equality_wait, open=True, code="AMK208"),
    Class(Mistake.REUSED_ACTIVATION, data.reused_activation),
    Class(Mistake.SPLIT_PARTIALS, data.split_partials),
    Class(Mistake.STRADDLING_READER, data.straddling_tile),
    Class(Mistake.OVERLAPPING_SHARES, data.overlapping_rows, code="AMK102"),
    Class(Mistake.STALE_READ, data.stale_read),
    Class(Mistake.IN_PLACE_RESIDUAL, data.in_place_residual, code="AMK302"),
    Class(Mistake.ALIASED_PAGES, data.aliased_pages, code="AMK302"),
    Class(Mistake.SHARED_BYTE, pipelines.packed_nibbles, flat="activations are shared out in whole row groups"),
    Class(Mistake.MIXED_ACCUMULATION, slots.mixed_sum, code="AMK302"),
    Class(Mistake.MISSING_ZERO, slots.missing_start, code="AMK105"),
    Class(Mistake.EARLY_RELEASE_OF_A_SLOT, partly(slots.drained_late, pipelines.released_early), flat=LAPS),
    Class(Mistake.WRONG_DEPTH, partly(slots.deeper_ring, pipelines.wrong_depth), flat=LAPS),
    Class(Mistake.WRONG_PARITY, partly(slots.first_phase, pipelines.wrong_parity), flat=LAPS),
    Class(Mistake.WRONG_ARRIVALS, slots.wrong_arrivals),
    Class(Mistake.WRONG_BYTES, slots.ragged_chunk),
    Class(Mistake.LATE_EXPECTATION, pipelines.late_expectation, flat="expecting bytes and arriving are one"),
    Class(Mistake.PARITY_ALIASING, partly(slots.repeated_tags, pipelines.two_phases_behind), flat=LAPS),
    Class(Mistake.SLOT_ACROSS_TASKS, partly(slots.undrained, pipelines.undrained), flat=LAPS),
    Class(
        Mistake.WRONG_WAIT_GROUP,
        partly(slots.wrong_refill, pipelines.wrong_group),
        flat=STORES,
        code="AMK302",
    ),
    Class(Mistake.READ_WAIT, pipelines.read_wait, flat=STORES),
    Class(Mistake.EARLY_RELEASE, rules.early_release, code="AMK501"),
    Class(Mistake.RELAXED_ORDER, rules.relaxed_poll),
    Class(Mistake.NARROW_SCOPE, rules.narrow_scope),
    Class(Mistake.MISSING_PROXY_FENCE, rules.proxy_fence, open=True, code="AMK507"),
    Class(Mistake.NON_COHERENT_LOAD, rules.constant_written),
    Class(Mistake.NO_EPOCHS, rules.early_epoch, open=True),
    Class(Mistake.COUNTER_RESET, rules.reset_race, open=True, code="AMK210"),
    Class(Mistake.SPLIT_COUNT, rules.split_count),
    Class(Mistake.LAUNCH_LIMITS, rules.launch_limits),
)
BY_NUMBER = {c.number: c for c in CLASSES}
