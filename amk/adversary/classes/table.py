"""Every class by number: its title and its generator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from amk.adversary.classes import data, pipelines, rules, slots, sync
from amk.adversary.classes.sync import Mutant
from amk.validator.program.system import System

Generator = Callable[[Random], Mutant] | Callable[[Random], System] | Callable[[Random], Mutant | System]


@dataclass(frozen=True)
class Class:
    """open: some of its mutants are built to be UNKNOWN: policy, or outside what epochs are proved for. flat: why some
    or all of its mutants are flat systems, not edited plans. code: what the class's file has to show, if its mutants
    can go wrong in other ways too."""

    number: int
    title: str
    generate: Generator
    open: bool = False
    flat: str = ""
    code: str = ""


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
    Class(1, "cross-SM queue inversion", sync.queue_inversion),
    Class(2, "k-SM queue cycle", sync.queue_cycle),
    Class(3, "threshold one too low", sync.threshold_low),
    Class(4, "threshold too high in the ragged last wave", sync.threshold_high_ragged),
    Class(5, "partial threshold, needed producer not guaranteed", sync.partial_foreign),
    Class(6, "partial threshold, single-owner prefix", sync.partial_prefix),
    Class(7, "partial threshold by counting", sync.partial_count),
    Class(8, "task signals twice", sync.signals_twice),
    Class(9, "weight hides a pending producer", sync.weight_hides),
    Class(10, "producer moved to another counter", sync.other_counter),
    Class(11, "two events share a counter cell", sync.shared_cell, open=True),
    Class(12, "dropped wait, redundant by transitivity", sync.redundant_wait),
    Class(13, "dropped wait masked by same-SM order", sync.masked_by_order),
    Class(14, "wait moved away from its load", sync.wait_moved),
    Class(15, "wait for equality", sync.equality_wait, open=True, code="AMK208"),
    Class(16, "write after read on a reused activation", data.reused_activation),
    Class(17, "two split partials on one slot", data.split_partials),
    Class(18, "reader straddles producer tiles", data.straddling_tile),
    Class(19, "shares overlap by a row group", data.overlapping_rows, code="AMK102"),
    Class(20, "stale read without a race", data.stale_read),
    Class(21, "in-place residual", data.in_place_residual, code="AMK302"),
    Class(22, "aliased pages", data.aliased_pages, code="AMK302"),
    Class(
        23, "packed tiles share a byte", pipelines.packed_nibbles, flat="activations are shared out in whole row groups"
    ),
    Class(24, "accumulate mixed with store", slots.mixed_sum, code="AMK302"),
    Class(25, "missing zero of an accumulator", slots.missing_start, code="AMK105"),
    Class(26, "slot released before its last read", partly(slots.drained_late, pipelines.released_early), flat=LAPS),
    Class(27, "phase computed with another depth", partly(slots.deeper_ring, pipelines.wrong_depth), flat=LAPS),
    Class(28, "wrong initial parity", partly(slots.first_phase, pipelines.wrong_parity), flat=LAPS),
    Class(29, "wrong arrival count", slots.wrong_arrivals),
    Class(30, "expect_tx bytes differ from copied bytes", slots.ragged_chunk),
    Class(31, "expect_tx after the arrive", pipelines.late_expectation, flat="expecting bytes and arriving are one"),
    Class(
        32, "parity aliasing, two phases behind", partly(slots.repeated_tags, pipelines.two_phases_behind), flat=LAPS
    ),
    Class(33, "slot reused across tasks", partly(slots.undrained, pipelines.undrained), flat=LAPS),
    Class(
        34,
        "refill after the wrong wait_group",
        partly(slots.wrong_refill, pipelines.wrong_group),
        flat=STORES,
        code="AMK302",
    ),
    Class(35, "read wait before a global signal", pipelines.read_wait, flat=STORES),
    Class(36, "release before the barrier", rules.early_release, code="AMK501"),
    Class(37, "relaxed poll or signal", rules.relaxed_poll),
    Class(38, "scope too narrow", rules.narrow_scope),
    Class(39, "missing proxy fence", rules.proxy_fence, open=True, code="AMK507"),
    Class(40, "non-coherent load of written memory", rules.constant_written),
    Class(41, "no epoch separation", rules.early_epoch, open=True),
    Class(42, "reset races a late waiter", rules.reset_race, open=True, code="AMK210"),
    Class(43, "split count", rules.split_count),
    Class(44, "wrap and co-residency", rules.launch_limits),
)
BY_NUMBER = {c.number: c for c in CLASSES}
