"""Barriers of the warp: what proves one redundant, and what the emulator sees without one that is needed."""

from __future__ import annotations

from collections import Counter

import pytest

from amk.lowering.abi import abi
from amk.lowering.ptx_code import read_kernel
from amk.lowering.roots import Roots
from tests.lowering.edits.emulated import REQUESTS
from tests.lowering.edits.judge import subject
from tests.lowering.edits.lane_barriers import SLICES, all_cases, cases, decided, kernel_of, redundant

BEFORE = "st.shared.u32 [%r1], 1;"
BEHIND = "ld.shared.u32 %r2, [%r1];"
BARRIER = "bar.warp.sync -1;"
MEETS = {
    "nothing else": (BEFORE, BEHIND, ""),
    "another behind": (BEFORE, f"bar.sync 1, 64;\n{BEHIND}", "next"),
    "another before": (f"{BEFORE}\nbar.sync 1, 64;", BEHIND, "previous"),
    "half a warp behind": (BEFORE, f"bar.warp.sync 65535;\n{BEHIND}", ""),
    "one behind on one way": (BEFORE, f"@%p1 bra ON;\nbar.sync 1, 64;\nON:\n{BEHIND}", ""),
    "one behind on both ways": (BEFORE, f"@%p1 bra ON;\nbar.sync 1, 64;\nON:\nbar.sync 1, 64;\n{BEHIND}", "next"),
    "one that some lanes skip": (BEFORE, f"@%p1 bar.sync 1, 64;\n{BEHIND}", ""),
    "a release before another": (BEFORE, "red.release.gpu.global.add.u32 [%rd1], 1;\nbar.sync 1, 64;", ""),
    "a relaxed signal before another": (BEFORE, "red.relaxed.gpu.global.add.u32 [%rd1], 1;\nbar.sync 1, 64;", "next"),
    "an acquire behind another": ("bar.sync 1, 64;\nld.acquire.gpu.global.u32 %r2, [%rd1];", BEHIND, ""),
    "a hint behind another": ("bar.sync 1, 64;\nld.relaxed.gpu.global.u32 %r2, [%rd1];", BEHIND, "previous"),
    "a relaxed signal with a fence": (
        BEFORE, "fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u32 [%rd1], 1;\nbar.sync 1, 64;", "",
    ),
    "the end of the kernel": (BEFORE, "mov.u32 %r2, 0;", "next"),
}  # fmt: skip


@pytest.mark.parametrize("name", MEETS)
def test_a_barrier_is_redundant_beside_another_alone(name: str) -> None:
    before, behind, proof = MEETS[name]
    kernel = read_kernel(
        f".entry amk_decode(.param .u64 p)\n{{\n{before}\n{BARRIER}\n{behind}\nret;\n}}\n", "amk_decode"
    )
    at = next(one.at for one in kernel.code if one.opcode == "bar.warp.sync")
    assert redundant(kernel, Roots(kernel, abi(subject("fenced"))), at) == proof


@pytest.mark.turns(4)
def test_barriers_of_waits_and_signals_are_redundant_beside_those_of_the_block() -> None:
    """In these kernels: a step is printed without a look at its neighbours."""
    found: dict[str, Counter[str]] = {}
    for name in ("fenced", "tagged"):
        _, kernel, roots = kernel_of(name)
        for case in cases(name):
            proof = redundant(kernel, roots, kernel.by_line[case.line])
            found.setdefault(case.what, Counter())[proof] += 1
    assert found == {
        "at the ring's start": {"": 1, "mbarriers": 1},
        **{f"in gemv of {name}": {"": 2} for name in ("qkv", "o", "gate_up", "down", "lm_head")},
        **{f"in combine, {n}": {"": 2} for n in (1, 2, 3)},
        "after a wait that is an acquire": {"next": 6},
        "before release signals": {"previous": 6},
        "after a wait that is a hint": {"next": 6},
        "before relaxed signals": {"next": 6},
        "between flag words and other memory": {"": 2},
    }


@pytest.mark.turns(16)
def test_a_barrier_without_a_proof_is_needed() -> None:
    """Between peak and census: the emitter's own, which the op no longer has. Of those for flag words the emulator sees
    nothing, here in the two shortest runs; the recorded run asks for all."""
    case = next(case for case in cases("drawing") if case.what == "between two steps")
    assert decided(case) == "needed: race"
    words = [case for case in cases("drawing") if case.what == "between flag words and other memory"]
    shortest = tuple(request for request in REQUESTS if request.name in ("late position", "early copies"))
    assert len(words) == len(shortest) == 2
    assert {decided(case, shortest) for case in words} == {"needed: words"}


@pytest.mark.turns(4)
def test_every_barrier_has_a_slice_of_the_long_run() -> None:
    assert 0.8 * SLICES < len(all_cases()) <= SLICES
