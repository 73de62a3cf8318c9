"""Steps of shrunk default plans in the emulator: races, undefined reads, bounds, hangs, values, footprints."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from pydantic import ValidationError

from amk.emulator.decode import EmulatedEngine
from amk.emulator.footprints import mismatches
from amk.emulator.machine.machine import Limits, Order
from amk.emulator.steps import LINE_INFO, Steps
from amk.emulator.synchronisation import differences
from amk.engine.backends.cpu_engine import CpuEngine
from amk.lowering.compile import DEFAULT_OPTIONS, compile_ptx
from amk.lowering.emit import emit
from amk.lowering.stamp import stamped
from amk.models.model_spec import ModelSpec
from amk.report.diagnostic import AmkError
from amk.schedule_ir.sampling import GREEDY
from amk.schedule_ir.schedule import Schedule, mode_of
from amk.validator.verify import verify
from tests.emulator.default_plans import MOST_CHOSEN, Default, defaults, shrunk, traits, whole
from tests.emulator.test_step_footprints import BY_DATA, OF_ROWS
from tests.engine.tiny import RandomTensors
from tests.lowering.edits.emulated import DRAWN, _resume

LIMITS = Limits(instructions=100_000_000, seconds=400.0, megabytes=24_000)
ROUNDING = 2.0**-7
"""Of logits beside the interpreter's, relative to the largest."""
QUICK = 3_000_000
"""Warp instructions of a step up to which it is run in all ways."""
THOROUGH = ("turns", "late and drawn")
UNREAD = BY_DATA | {("begin", "prompt"), ("begin", "state"), ("embed_hidden", "embedding")}
"""Declared reads that a run may leave out."""


@dataclass(frozen=True)
class Way:
    """One step: in which order, at a late position or the first, and what is looked at."""

    name: str
    order: Order
    late: bool = False
    races: bool = True


WAYS = (
    Way("turns", Order()),
    Way("late and drawn", Order(seed=1, slice=150), late=True),
    Way("early copies, late", Order(eager=True), late=True),
    Way("footprints", Order(), races=False),
)


@lru_cache(maxsize=2)
def _weights(model: ModelSpec) -> RandomTensors:
    return RandomTensors(model)


@lru_cache(maxsize=4)
def _compiled(text: str, arch: str) -> str:
    return compile_ptx(text, arch, options=(*DEFAULT_OPTIONS, LINE_INFO))


def faults_of(schedule: Schedule, way: Way, limits: Limits = LIMITS) -> tuple[list[str], dict[str, int]]:
    """What is wrong with a step of the kernel, and what it took; empty if nothing is."""
    verdict = verify(schedule)
    if verdict.status != "SAFE":
        return [f"the schedule is {verdict.status}"], {}
    text = stamped(emit(schedule), schedule)
    ptx = _compiled(text, schedule.target.arch)
    source = _weights(schedule.model)
    engine = EmulatedEngine(schedule, source, ptx, limits=limits, races=way.races, touches=not way.races)
    rows, model = schedule.rows, schedule.model
    start = schedule.kv.context - rows if way.late else 0
    length = start + (1 if schedule.accepts or schedule.tree else rows)
    prompts = [[(3 + 7 * n + 5 * s) % model.vocab for n in range(start + rows)] for s in range(schedule.batch)]
    drawn = GREEDY if mode_of(schedule) == "greedy" else DRAWN
    engine.request_batch(prompts, (), drawn, length)
    if way.late:
        _resume(engine, schedule, start - (schedule.batch - 1 if schedule.live else 0))
    outcome = engine.launch(1, way.order)
    counts = {"instructions": outcome.instructions, "ms": round(outcome.seconds * 1000)}
    found = [str(fault) for fault in outcome.faults] + ([] if outcome.ended else ["the launch did not end"])
    counts["races given up"] = int(way.races and outcome.ended and not outcome.races_checked)
    if found:
        return found, counts
    if not way.races:
        steps = Steps(schedule, text, engine.machine, 1, start)
        seen = (m for m in mismatches(steps) if (m.op, m.buffer) not in OF_ROWS)
        found += [str(m) for m in seen if m.kind != "unread" or (m.op, m.buffer) not in UNREAD]
        found += [str(difference) for difference in differences(steps, True)]
    elif not way.late:
        found += _wrong_values(schedule, source, engine, prompts, length)
    return found, counts


def _wrong_values(
    schedule: Schedule, source: RandomTensors, engine: EmulatedEngine, prompts: list[list[int]], length: int
) -> list[str]:
    """Logits, or keys and values where there are none, beside the interpreter's."""
    interpreter = CpuEngine(schedule, source, numerics="device")
    drawn = GREEDY if mode_of(schedule) == "greedy" else DRAWN
    interpreter.request_batch(prompts, (), drawn, 0, length)
    interpreter.step(1)
    if schedule.headless:
        ours = engine.caches().reshape(2, -1)
        theirs = np.stack([interpreter.memory(name).reshape(-1) for name in ("k_cache", "v_cache")])
        at = np.isfinite(ours) & np.isfinite(theirs) & (theirs != 0)
        ours, theirs = ours[at], theirs[at]
    else:
        ours, theirs = engine.logits(), interpreter.logits()
    apart = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    return [] if apart <= ROUNDING else [f"values are {apart:.3g} of the largest apart"]


@cache
def every() -> tuple[Default, ...]:
    return tuple(dict.fromkeys(defaults()))


@cache
def traits_of(default: Default) -> frozenset[str]:
    """Of the default plan; none where there is no such plan."""
    try:
        return traits(whole(default))
    except (AmkError, ValidationError):
        return frozenset()


@lru_cache(maxsize=8)
def _chosen(number: int) -> tuple[list[Schedule], frozenset[str]]:
    default = every()[number]
    known = frozenset().union(*(traits_of(one) for one in every()[:number]))
    return shrunk(default, known) if traits_of(default) - known else ([], frozenset())


@cache
def slices() -> list[tuple[int, int]]:
    """(which of its shrunk plans, number of a default plan): the first of each, then the others."""
    return [(index, n) for index in range(MOST_CHOSEN) for n in range(len(every()))]


SLICES = MOST_CHOSEN * len(every())


def defaults_slice(number: int) -> dict[str, Any]:
    """One shrunk plan in all ways, the costly ones only where they are quick."""
    index, plan = slices()[number]
    default, (schedules, missed) = every()[plan], _chosen(plan)
    found: dict[str, Any] = {"plans": 0, "differences": []}
    if index == 0:
        found |= {"default plans": 1, "without a plan": int(not traits_of(default)), "traits missed": len(missed)}
        found["missed"] = {trait: 1 for trait in missed}
    if index >= len(schedules):
        return found
    schedule, first = schedules[index], 0
    words = f"{default.name}, shrunk {index}"
    found |= {"plans": 1, "traits": len(traits(schedule) & traits_of(default)), "ways": {}}
    for way in WAYS:
        if first > QUICK and way.name not in THOROUGH:
            continue
        try:
            faults, counts = faults_of(schedule, way)
        except AmkError as error:  # an instruction that the emulator does not know, or a log that is full
            refused = f"{words}, {way.name}: {error.diagnostics[0].message}"[:300]
            found["refused"] = found.get("refused", {}) | {refused: 1}
            continue
        first = first or counts.get("instructions", 0)
        found["differences"] += [f"{words}, {way.name}: {fault}"[:600] for fault in faults[:3]]
        found["ways"][way.name] = 1
        found["races given up"] = found.get("races given up", 0) + counts.get("races given up", 0)
        found["instructions"] = found.get("instructions", 0) + counts.get("instructions", 0)
    model, kv = schedule.model, schedule.kv
    found["shapes"] = {
        words: f"hidden {model.hidden}, ffn {model.ffn}, heads {model.heads}/{model.kv_heads} of {model.head_dim}, "
        f"workers {schedule.launch.workers}, splits {kv.splits}, block {kv.block}, turns {kv.turns}"
    }
    return found
