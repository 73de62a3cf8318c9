"""The composed check: every worker of a full-size schedule in well under a second.

Property: liveness, race freedom and reads-from of the schedule for any number of tokens, all positions included.

Assumptions: structure, positions and streams are checked elsewhere (barriers are joined by exactly their role, cache
rows never cross workers, weight rings are private). Tokens beyond the second follow from `epochs`; layers beyond the
third from `reduce`.

Algorithm (section 11 of the theory): one clock pass over one worker per program (`local_order`), one over the interface
agents of all workers (`quotient`), brackets for everything between; then the race and reads-from passes of the flat
check on the rows of the `envelope`. If some operations order no memory but their own word, a second race pass without
their edges covers all other buffers.

Cost: llama3-8b on 132 workers has about 10^6 incidences and 10^4 quotient events.

Witness: `Candidate` names two events (or one) by worker and local event; `confirm` replays them on the flat system.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

import numpy as np

from amk.schedule_ir.schedule import Schedule
from amk.validator.atoms import OUTSIDE, Touches, blocks
from amk.validator.counter_events import CounterEvents, Instances
from amk.validator.dataflow import DataflowReport, find_faults
from amk.validator.envelope import Envelope
from amk.validator.footprint import Footprints
from amk.validator.local_order import local_order
from amk.validator.order import Clocks
from amk.validator.quotient import BracketOrder, Group, Quotient
from amk.validator.races import RaceReport, find_races
from amk.validator.system import I64, MAX_BYTES, READ, WRITE
from amk.validator.trace import trace

TOKENS: Final = 2
LIMIT: Final = 64


@dataclass(frozen=True, eq=False)
class Composition:
    """Result of the composed check of `schedule` (already reduced) for `tokens` tokens.

    local: programs whose worker alone does not finish (barriers). races, dataflow: over composite events; None if the
    schedule does not run to completion. weak_races: races that only weak edges seem to prevent.
    """

    schedule: Schedule
    tokens: int
    groups: list[Group]
    instances: Instances
    footprints: Footprints
    stuck: tuple[str, ...]
    quotient: Quotient | None = None
    order: BracketOrder | None = None
    races: RaceReport | None = None
    weak_races: RaceReport | None = None
    dataflow: DataflowReport | None = None
    classes: int = 0
    incidences: int = 0

    @property
    def live(self) -> bool:
        return not self.stuck and self.quotient is not None and self.quotient.run.complete

    @property
    def safe(self) -> bool:
        clean = self.races is not None and not self.races.racy and self.dataflow is not None and self.dataflow.correct
        return self.live and clean and (self.weak_races is None or not self.weak_races.racy)


def groups_of(schedule: Schedule, tokens: int, instances: Instances) -> list[Group]:
    """One group per program; raises `TooLarge`."""
    found: list[Group] = []
    nodes = chains = 0
    for number, program in enumerate(schedule.programs):
        counters = CounterEvents(schedule, trace(schedule, number, tokens), instances)
        order = local_order(counters)
        group = Group(
            number, program.first, program.count, order, counters.waits, counters.signals, nodes, chains
        )  # fmt: skip
        found.append(group)
        nodes += program.count * group.nodes
        chains += program.count * group.chains
    return found


def compose(schedule: Schedule, tokens: int = TOKENS) -> Composition:
    """Check the schedule; raises `TooLarge` or `ClocksTooLarge`."""
    instances = Instances(schedule.counters)
    groups = groups_of(schedule, tokens, instances)
    footprints = Footprints(schedule)
    stuck = tuple(schedule.programs[g.number].name for g in groups if not g.order.complete)
    if stuck:
        return Composition(schedule, tokens, groups, instances, footprints, stuck)
    quotient = Quotient(groups, instances, weak=True)
    if not quotient.run.complete:
        return Composition(schedule, tokens, groups, instances, footprints, (), quotient)
    envelope = Envelope(schedule, footprints)
    for group in groups:
        envelope.add(group)
    order = BracketOrder(quotient)
    rows = envelope.columns()
    boundary = boundary_content(schedule, footprints, tokens)
    touches = touches_in_order(rows, order, *boundary)
    kept = list(blocks(touches))
    ordering = cast(Clocks, order)
    races = find_races(kept, ordering, LIMIT)
    dataflow = find_faults(kept, LIMIT)
    return Composition(
        schedule, tokens, groups, instances, footprints, (), quotient, order, races,
        _weak_races(schedule, groups, instances, rows), dataflow, envelope.classes, touches.incidences,
    )  # fmt: skip


def _weak_races(schedule: Schedule, groups: list[Group], instances: Instances, rows: I64) -> RaceReport | None:
    """Races on ordinary buffers when weak operations order nothing; None if there are no weak operations."""
    if not any(bool(g.waits[:, 4].any() or g.signals[:, 4].any()) for g in groups):
        return None
    order = BracketOrder(Quotient(groups, instances, weak=False))
    tagged = [i for i, b in enumerate(schedule.buffers) if b.tagged]
    rows = rows[~np.isin(rows[:, 1], tagged)]
    nothing = np.zeros((0, 5), np.int64)
    return find_races(blocks(touches_in_order(rows, order, nothing, nothing)), cast(Clocks, order), LIMIT)


def boundary_content(schedule: Schedule, footprints: Footprints, tokens: int) -> tuple[I64, I64]:
    """(initial, final) rows (buffer, lo, hi, value, delta): the launch state; outputs, state and last logits."""
    number = footprints.number
    size = {b.name: b.bytes for b in schedule.buffers}
    initial = [(number["state"], 0, size["state"], footprints.code("state", 0), 0)]
    final = [(number["state"], 0, size["state"], footprints.code("state", 1), 0)]
    final += [(number["output"], 4 * n, 4 * n + 4, footprints.code("output", 0) + n + 1, 0) for n in range(tokens)]
    logits = footprints.code("logits", 0) + tokens
    final.append((number["logits"], 0, schedule.model.vocab * 4, logits, 0))
    return np.array(initial, np.int64).reshape(-1, 5), np.array(final, np.int64).reshape(-1, 5)


def touches_in_order(rows: I64, order: BracketOrder, initial: I64, final: I64) -> Touches:
    """The rows as touches in the order of a run; rows are (event, buffer, kind, lo, hi, value, delta)."""
    rows = rows[np.lexsort((rows[:, 2], order.position[rows[:, 0]]))]
    outside = np.full((len(initial), 1), OUTSIDE), np.full((len(final), 1), OUTSIDE)
    before = np.insert(np.concatenate((outside[0], initial), axis=1), 2, WRITE, axis=1)
    after = np.insert(np.concatenate((outside[1], final), axis=1), 2, READ, axis=1)
    rows = np.concatenate((before, rows, after))
    base = rows[:, 1] * (2 * MAX_BYTES)
    low, high = base + rows[:, 3], base + rows[:, 4]
    key = np.unique(np.concatenate((low, high)))
    return Touches(
        event=rows[:, 0], kind=rows[:, 2], value=rows[:, 5], delta=rows[:, 6],
        first=np.searchsorted(key, low), last=np.searchsorted(key, high), atom_key=key,
    )  # fmt: skip
