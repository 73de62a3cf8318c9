"""Every primitive that is taken out of the device headers, or weakened, fails the build."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from amk.lowering import headers
from amk.lowering.compile import _call, _nvrtc, _text, cuda_include_directories
from amk.lowering.emit import KERNEL, emit
from amk.lowering.kernel import build
from amk.lowering.readback import Instruction, Kind, count_kinds, read_ptx
from amk.lowering.skeleton import check_synchronisation
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST, NAIVE, Settings
from amk.report.diagnostic import AmkError, Exit
from amk.schedule_ir.schedule import Schedule, steps_of
from amk.targets.target import load_target
from amk.weights.weight_format import FormatName
from tests.tiny import tiny

SYNC, RING, CELLS = "amk/sync.cuh", "amk/ring.cuh", "amk/cells.cuh"
SUBJECTS = {
    "tagged": ("h200", FAST),
    "fenced": ("h200", NAIVE),
    "copies": ("l4", NAIVE),
}


@cache
def subject(name: str) -> Schedule:
    gpu, settings = SUBJECTS[name]
    return plan(tiny(layers=1), load_target(gpu), settings=settings, max_context=128, workers=4)


def ptx_of(schedule: Schedule, edit: Callable[[str, str], str]) -> str:
    """PTX alone (no machine code, which would take most of the time), from headers passed through `edit`."""
    source, nvrtc = emit(schedule), _nvrtc()
    included = {name: edit(name, text).encode() for name, text in headers.closure(source).items()}
    names = [name.encode() for name in included]
    program = _call(nvrtc, "nvrtcCreateProgram", source.encode(), b"k.cu", len(names), list(included.values()), names)
    flags = [f"--gpu-architecture={schedule.target.arch.replace('sm', 'compute')}", "--std=c++17"]
    flags += [f"-I{path}" for path in cuda_include_directories()]
    status = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])[0]
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, _text(nvrtc, program, "nvrtcGetProgramLog")
    return _text(nvrtc, program, "nvrtcGetPTX")


def judge(schedule: Schedule, edit: Callable[[str, str], str] = lambda _, text: text) -> list[Instruction]:
    found = read_ptx(ptx_of(schedule, edit))[KERNEL]
    check_synchronisation(schedule, tuple(found))
    return found


def replaced(header: str, old: str, new: str) -> Callable[[str, str], str]:
    """One text for another in one header; the text must be there."""

    def edit(name: str, text: str) -> str:
        if name != header:
            return text
        assert old in text, f"{header} no longer contains {old!r}"
        return text.replace(old, new)

    return edit


def without_assembly(function: str) -> Callable[[str, str], str]:
    """Every overload of a primitive without its instruction."""

    def edit(name: str, text: str) -> str:
        if name != SYNC:
            return text
        pattern = re.compile(
            rf"(\bvoid {function}\([^)]*\) {{(?:(?!\n}}).)*?)asm volatile\((?:[^;\"]|\"[^\"]*\")*\);", re.S
        )
        changed, count = pattern.subn(r"\1", text)
        assert count, f"no primitive {function}"
        return changed

    return edit


@pytest.mark.turns(12)
@pytest.mark.parametrize("name", SUBJECTS)
def test_plans_keep_the_schedules_synchronisation(name: str) -> None:
    """Every wait, signal and barrier of the text is in the kernel once, in the strength that the hand-off needs; one
    more barrier is the kernel's own."""
    schedule = subject(name)
    counts = count_kinds(judge(schedule))
    steps = [step for program in schedule.programs for step in steps_of(program.body)]
    fenced = {c.name for c in schedule.counters if c.handoff == "fenced"}
    waits = Counter(w.counter in fenced for step in steps for w in step.waits)
    signals = Counter(s.counter in fenced for step in steps for s in step.signals)
    assert sum(waits.values()) == sum(signals.values()) == 6
    assert (counts.get(Kind.POLL_ACQUIRE, 0), counts.get(Kind.POLL_RELAXED, 0)) == (waits[True], waits[False])
    assert (counts.get(Kind.SIGNAL_RELEASE, 0), counts.get(Kind.SIGNAL_RELAXED, 0)) == (signals[True], signals[False])
    assert counts[Kind.CTA_BARRIER] == 1 + sum(step.op.op == "barrier" for step in steps)
    assert (Kind.TAGGED_LOAD in counts) == (Kind.TAGGED_STORE in counts) == any(b.tagged for b in schedule.buffers)


REMOVED = [
    ("fenced", "signal_release"),
    ("tagged", "signal_relaxed"),
    ("copies", "warp_barrier"),
    ("fenced", "cta_barrier"),
    ("fenced", "mbarrier_init"),
    ("fenced", "fence_mbarrier_init"),
    ("fenced", "bulk_load"),
    ("copies", "copy_16"),
    ("copies", "copy_commit"),
    ("copies", "copy_wait"),
]
"""The others are taken out below: the fence by `build`, or what calls them is, which leaves as little of them."""


@pytest.mark.turns(24)
@pytest.mark.parametrize(("name", "function"), REMOVED, ids=lambda value: value)
def test_a_primitive_that_does_nothing_fails(name: str, function: str) -> None:
    with pytest.raises(AmkError, match="AMK607") as caught:
        judge(subject(name), without_assembly(function))
    assert caught.value.exit_code in (Exit.UNSAFE, Exit.INTERNAL)


WEAKENED = {
    "acquire to relaxed": ("fenced", SYNC, "ld.acquire.gpu.global.u32", "ld.relaxed.gpu.global.u32"),
    "release to relaxed": ("fenced", SYNC, "red.release.gpu", "red.relaxed.gpu"),
    "weak words stored": ("tagged", SYNC, "st.relaxed.gpu.global.b64", "st.global.b64"),
    "weak words read": ("tagged", SYNC, "ld.relaxed.gpu.global", "ld.global"),
    "fewer threads": ("fenced", SYNC, '"n"(kId), "n"(kThreads)', '"n"(kId), "n"(kThreads - 32)'),
    "one barrier for all": ("fenced", SYNC, '"n"(kId), "n"(kThreads)', '"n"(0), "n"(kThreads)'),
    "one group too many": ("copies", SYNC, 'wait_group %0;" ::"n"(kPending)', 'wait_group %0;" ::"n"(kPending + 1)'),
    "refill before the last read": (
        "fenced", RING, "sync::warp_barrier();\n    if (remaining < kDeferred", "if (remaining < kDeferred",
    ),
    "refill without its fence": ("fenced", RING, "if (kFence && read) sync::fence_proxy_async_shared();", ""),
    "copy before its bytes are expected": (
        "fenced", RING, "      sync::mbarrier_arrive_expect_tx(full + s * 8, kBytes);\n", "",
    ),
    "words kept in plain memory": (
        "tagged", CELLS, "sync::store_tagged(words + i, bits_of(static_cast<T>(v)), tag);",
        "words[i] = sync::tagged(bits_of(static_cast<T>(v)), tag);",
    ),
}  # fmt: skip
"""Of another scope or order than any that is used: `test_readback.py` refuses the form."""


@pytest.mark.turns(24)
@pytest.mark.parametrize("case", WEAKENED)
def test_a_weakened_primitive_fails(case: str) -> None:
    name, header, old, new = WEAKENED[case]
    with pytest.raises(AmkError, match="AMK607"):
        judge(subject(name), replaced(header, old, new))


OWN = [
    ("tagged", "combine", 0), ("tagged", "combine", 2), ("drawing", "narrow", 0),
    ("sums", "staged", 0),
]  # fmt: skip
OTHERS: dict[str, tuple[Settings, FormatName]] = {
    "drawing": (replace(FAST, sampling="top-k-top-p"), "bf16"),
    "sums": (FAST, "int4-g128-zp"),
}


@pytest.mark.turns(16)
@pytest.mark.parametrize(("name", "header", "place"), OWN)
def test_a_warp_barrier_inside_an_op_that_is_taken_out_fails(name: str, header: str, place: int) -> None:
    settings, kept = OTHERS.get(name, (FAST, "bf16"))
    wanted, target = formats(kept), load_target("h200")
    schedule = plan(tiny(layers=1), target, settings=settings, formats=wanted, max_context=128, workers=4)
    text = headers.read_header(found := f"amk/{'' if header == 'staged' else 'ops/'}{header}.cuh")
    pieces = text.split("sync::warp_barrier();")
    without = "sync::warp_barrier();".join(pieces[: place + 1]) + "sync::warp_barrier();".join(pieces[place + 1 :])
    assert len(text) - len(without) == len("sync::warp_barrier();")
    with pytest.raises(AmkError, match="AMK607"):
        judge(schedule, lambda name, old: without if name == found else old)


@pytest.mark.turns(4)
def test_a_build_says_which_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through `build`, from a copied header set."""
    read = headers.read_header
    edit = without_assembly("fence_proxy_async_shared")
    monkeypatch.setattr(headers, "read_header", lambda name: edit(name, read(name)))
    with pytest.raises(AmkError, match="AMK607") as caught:
        build(subject("fenced"), use_cache=False)
    assert "(gemv)" in caught.value.diagnostics[0].message
    assert "mbarrier.arrive.expect_tx" in caught.value.diagnostics[0].facts[0].text


@pytest.mark.turns(4)
def test_another_schedules_code_fails() -> None:
    """The expectation comes from the schedule: a wait more, a signal of another order, a barrier of another id."""
    text = tuple(read_ptx(ptx_of(subject("fenced"), lambda _, t: t))[KERNEL])
    schedule = subject("fenced")
    document = schedule.model_dump_json()
    for old, new in (
        ('"order":"release"', '"order":"relaxed"'),
        ('"order":"acquire"', '"order":"relaxed"'),
        ('"id":1', '"id":2'),
        ('"refill_fence":true', '"refill_fence":false'),
    ):
        assert old in document
        with pytest.raises(AmkError, match="AMK607"):
            check_synchronisation(Schedule.model_validate_json(document.replace(old, new)), text)


@pytest.mark.turns(4)
def test_the_last_workers_alone_may_read_tagged_words() -> None:
    """With `attends` "light" and two heads workers 104 and 105 of 120 attend: 416 warps before read no tagged word."""
    settings = replace(NAIVE, attends="light", handoff="tagged", workers=None, kv_splits=1)
    schedule = plan(tiny(layers=1), load_target("h200"), settings=settings, max_context=128, workers=120)
    attends = [w for w, head in enumerate(schedule.tables["attn.head"]) if head >= 0]
    assert attends[0] * schedule.launch.warps > 256
    judge(schedule)
