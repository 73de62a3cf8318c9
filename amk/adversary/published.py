"""Mistakes of published megakernels, their schedules re-encoded: each must be found, its repair accepted.

Only who waits for whom and who touches what is taken from the sources, no code. What the schedule format can express is
an edit of a plan; the rest is a flat system of a few agents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from amk.adversary.cases import case_text, new_case
from amk.adversary.edits import Edit, Json, apply, named, waiting
from amk.adversary.mistakes import Mistake
from amk.adversary.recipe import Make, base_schedule, drop, field_of, op_field, put, signal_of, wait_of
from amk.adversary.subjects import subject
from amk.adversary.system_builder import SystemBuilder
from amk.validator.evidence.witness import deadlock_witness, fault_witness, race_witness
from amk.validator.memory.flat import judge
from amk.validator.program.system import ACCUMULATE_INT, System

HAZY = "HazyResearch Megakernels"
QWEN = "AlpinDale qwen_megakernel"
AUTO = "AutoMegaKernel"


@dataclass(frozen=True)
class InPlan:
    """A mistake that the schedule format expresses: edits of the plan `base`."""

    name: str
    source: str
    mistake: Mistake
    status: str
    expect: str
    because: str
    make: Make
    base: Callable[[], Json] = lambda: base_schedule("fenced")


@dataclass(frozen=True)
class InSystem:
    """A mistake as a flat system; `build(False)` is the repaired one."""

    name: str
    source: str
    mistake: Mistake
    because: str
    build: Callable[[bool], System]


def stage_index(wrong: bool) -> System:
    """A loader puts block b at stage b mod 3; the consumer of a split that starts at block 1 counts from zero."""
    build, stages, start, blocks = SystemBuilder(), 3, 1, 4
    loader, consumer = build.agent("loader"), build.agent("consumer")
    full = [build.counter(name=f"full {s}") for s in range(stages)]
    empty = [build.counter(name=f"empty {s}") for s in range(stages)]
    for i in range(blocks):
        stage, lap = (start + i) % stages, i // stages
        load = build.event(loader)
        build.wait(load, empty[stage], lap)
        build.write(load, 0, stage, stage + 1, value=start + i)
        build.signal(load, full[stage])
    for i in range(blocks):
        stage, lap = (i if wrong else start + i) % stages, i // stages
        use = build.event(consumer)
        build.wait(use, full[stage], lap + 1)
        build.read(use, 0, stage, stage + 1, value=start + i)
        build.signal(use, empty[stage])
    return build.build()


def barrier_reset(wrong: bool) -> System:
    """Blocks arrive at a barrier word by adding one; block 0 also zeroes it, at a time nobody waits for."""
    build, blocks = SystemBuilder(), 3
    build.initial(0, 0, 4, value=0)
    for block in range(blocks):
        agent = build.agent(f"block {block}")
        if wrong and block == 0:
            build.write(build.event(agent), 0, 0, 4, value=0)
        build.access(build.event(agent), ACCUMULATE_INT, 0, 0, 4, value=0)
    return build.build()


def argmax_tree(wrong: bool) -> System:
    """Six candidates, one per warp, reduced in a tree: halving six to three to one forgets the third."""
    build, warps = SystemBuilder(), 6
    agents = [build.agent(f"warp {w}") for w in range(warps)]
    met, rounds = build.counter(name="barrier"), 0
    held = [1 << w for w in range(warps)]
    for w in range(warps):
        event = build.event(agents[w])
        build.write(event, 0, w, w + 1, value=held[w])
        build.signal(event, met)
    count = warps
    while count > 1:
        half = count // 2 if wrong else -(-count // 2)
        rounds += 1
        merged = list(held)
        for w in range(warps):
            event = build.event(agents[w])
            build.wait(event, met, rounds * warps)
            if w + half < count and w < half:
                build.read(event, 0, w + half, w + half + 1, value=held[w + half])
                merged[w] = held[w] | held[w + half]
                build.write(event, 0, w, w + 1, value=merged[w])
            build.signal(event, met)
        held, count = merged, half
    build.final(0, 0, 1, value=(1 << warps) - 1)
    return build.build()


def four_tasks(wrong: bool) -> System:
    """Two SMs, two tasks each: the tasks' dependencies have no cycle, with the order of the queues they do."""
    build = SystemBuilder()
    queues = [["d", "a"], ["b", "c"]] if wrong else [["a", "d"], ["c", "b"]]
    after = {"b": "a", "d": "c"}
    done = {task: build.counter(name=f"{task} done") for task in "abcd"}
    for number, queue in enumerate(queues):
        agent = build.agent(f"SM {number}")
        for task in queue:
            event = build.event(agent)
            if task in after:
                build.wait(event, done[after[task]], 1)
            build.signal(event, done[task])
    return build.build()


def _many_tasks() -> Json:
    return subject("wide", 8, 8, 2).document


PLANS = (
    InPlan(
        "hazy-release-fence-commented-out", HAZY, Mistake.RELAXED_ORDER, "UNSAFE", "AMK502",
        "the fence before the signal is commented out, so the signal may overtake the rows that it announces",
        put(signal_of("attn", "order"), "relaxed"),
    ),
    InPlan(
        "hazy-volatile-poll", HAZY, Mistake.RELAXED_ORDER, "UNSAFE", "AMK503",
        "the poll is volatile: it waits, but acquires nothing, so what follows may read what was there before",
        put(wait_of("h_mid", "order"), "relaxed"),
    ),
    InPlan(
        "hazy-no-proxy-fence", HAZY, Mistake.MISSING_PROXY_FENCE, "UNKNOWN", "AMK507",
        "slots that were read by ordinary loads are refilled by bulk copies without a proxy fence: a policy, no proof",
        put(field_of("streams", "weights", "refill_fence"), False),
    ),
    InPlan(
        "qwen-no-residency-guarantee", QWEN, Mistake.LAUNCH_LIMITS, "UNSAFE", "AMK402",
        "a grid barrier in an ordinary launch: nothing promises that all blocks run at once",
        put(lambda s: ("launch", "cooperative"), False),
    ),
    InPlan(
        "qwen-read-only-loads-of-activations", QWEN, Mistake.NON_COHERENT_LOAD, "UNSAFE", "AMK509",
        "activations that the same launch writes are read through the read-only path",
        lambda s: [
            Edit("replace", op_field("store_rows", "out")(s), "norm"),
            Edit("replace", op_field("rope_append", "qkv")(s), "norm"),
        ],
    ),
    InPlan(
        "auto-too-many-threads-to-be-resident", AUTO, Mistake.LAUNCH_LIMITS, "UNSAFE", "AMK402",
        "the launch has more blocks of this size than fit at the kernel's registers; the rest never start",
        lambda s: [Edit("replace", ("launch", "ctas_per_sm"), 3), Edit("replace", ("launch", "registers"), 192)],
    ),
    InPlan(
        "auto-write-to-a-read-only-buffer", AUTO, Mistake.NON_COHERENT_LOAD, "UNSAFE", "AMK509",
        "a task writes a buffer of a kind that is taken to be read-only, so no order is asked for",
        put(lambda s: (*named(s, "buffers", "act"), "role"), "constant"),
    ),
    InPlan(
        "auto-counter-starts-above-zero", AUTO, Mistake.NONZERO_INITIAL_COUNT, "UNSAFE", "AMK302",
        "the counter starts at one, so one producer is not waited for",
        put(field_of("counters", "h_mid", "init"), 1),
    ),
    InPlan(
        "auto-race-among-many-tasks", AUTO, Mistake.MASKED_WAIT, "UNSAFE", "AMK302",
        "one wait is missing among more than 8,000 tasks, where races were no longer looked for",
        drop(lambda s: waiting(s, "act")), _many_tasks,
    ),
    InPlan(
        "auto-tile-out-of-bounds", AUTO, Mistake.OVERLAPPING_SHARES, "UNSAFE", "AMK103",
        "the last tile reaches behind its buffer",
        put(field_of("buffers", "act", "shape"), [88]),
    ),
)  # fmt: skip
SYSTEMS = (
    InSystem(
        "hazy-stage-by-absolute-block", HAZY, Mistake.WRONG_DEPTH,
        "the loader indexes stages by absolute block, the consumer by relative block; a split starts at block 1",
        stage_index,
    ),
    InSystem(
        "qwen-barrier-zeroed-while-others-arrive", QWEN, Mistake.COUNTER_RESET,
        "block 0 zeroes the barrier word while other blocks may already have arrived", barrier_reset,
    ),
    InSystem(
        "qwen-argmax-tree-not-a-power-of-two", QWEN, Mistake.STALE_READ,
        "halving six candidates to three to one drops the third: the result is not that of all of them", argmax_tree,
    ),
    InSystem(
        "auto-queue-inversion", AUTO, Mistake.QUEUE_INVERSION,
        "four tasks whose dependencies have no cycle; with the order in each queue they have one", four_tasks,
    ),
)  # fmt: skip


def plan_case(mistake: InPlan) -> Json:
    """The case as it stands in its file."""
    base = mistake.base()
    document, repair = apply(base, mistake.make(base))
    case = new_case(mistake.name, mistake.mistake, mistake.status, mistake.expect, mistake.because, document, repair)
    return {"published": mistake.source} | case


def system_case(mistake: InSystem) -> Json:
    """The case with its witness, which `replay` confirms on the stored system."""
    bad, good = mistake.build(True), mistake.build(False)
    case = new_case(mistake.name, mistake.mistake, "UNSAFE", "UNSAFE", mistake.because, None, [])
    head = {k: v for k, v in case.items() if k not in ("repair", "schedule")}
    return {"published": mistake.source} | head | {
        "witness": witness_of(bad), "system": bad.to_json(), "twin": good.to_json()
    }  # fmt: skip


def witness_of(system: System) -> Json:
    """The witness of the first thing that is wrong; ValueError if nothing is."""
    found = judge(system)
    if found.deadlock is not None:
        return deadlock_witness(found.run, found.deadlock).to_json()
    if found.races.races:
        return race_witness(system, found.races.races[0]).to_json()
    if found.dataflow.faults:
        return fault_witness(found.run, found.dataflow.faults[0]).to_json()
    raise ValueError("the system is safe")


def write_published(folder: Path) -> int:
    """One file per mistake; returns how many."""
    folder.mkdir(parents=True, exist_ok=True)
    cases = [plan_case(p) for p in PLANS] + [system_case(s) for s in SYSTEMS]
    for case in cases:
        (folder / f"{case['name']}.json").write_text(case_text(case), encoding="ascii")
    return len(cases)
