"""Kernels of a few instructions: lanes that part, barriers, late copies, and what is told of wrong ones."""

from __future__ import annotations

import numpy as np
import pytest

from amk.emulator.machine.machine import Limits, Machine, Order, Outcome
from amk.emulator.memory.global_memory import Allocation
from amk.emulator.ptx.parse import parse
from amk.emulator.ptx.program import assemble
from amk.report.diagnostic import AmkError

HEAD = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p)
{
.reg .pred %p<9>;
.reg .b32 %r<40>;
.reg .b64 %rd<20>;
.shared .align 16 .b8 s[256];
ld.param.u64 %rd1, [p];
mov.u32 %r1, %tid.x;
mov.u32 %r2, %laneid;
mul.wide.u32 %rd2, %r1, 4;
add.s64 %rd3, %rd1, %rd2;
"""


def ran(
    body: str, warps: int = 1, order: Order | None = None, limits: Limits | None = None
) -> tuple[list[int], Outcome]:
    """Words of `out` after the kernel, and how it ended. %rd3: the thread's own word of it, %rd1: its first."""
    data = np.arange(64, dtype=np.uint32)
    machine = Machine(
        assemble(parse(HEAD + body + "ret;\n}\n"), "k"), 1, warps, 0,
        [Allocation("out", 4 * 32 * warps, "state", np.zeros(32 * warps, np.uint32)),
         Allocation("given", 256, "constant", data)],
        limits, races=True,
    )  # fmt: skip
    outcome = machine.launch(machine.memory.addresses["out"].to_bytes(8, "little"), order)
    return machine.read("out", np.uint32, 32 * warps).tolist(), outcome


def clean(body: str, warps: int = 1, order: Order | None = None) -> list[int]:
    words, outcome = ran(body, warps, order)
    assert outcome.faults == [] and outcome.ended
    return words


def test_both_arms_of_a_branch_meet_before_a_shuffle() -> None:
    body = """
setp.lt.u32 %p1, %r2, 10;
@%p1 bra L1;
add.s32 %r3, %r2, 100;
bra L2;
L1: mul.lo.s32 %r3, %r2, 3;
L2: shfl.sync.bfly.b32 %r4|%p2, %r3, 1, 31, -1;
st.global.u32 [%rd3], %r4;
"""
    own = [3 * lane if lane < 10 else lane + 100 for lane in range(32)]
    assert clean(body) == [own[lane ^ 1] for lane in range(32)]


def test_lanes_leave_a_loop_one_by_one_and_meet_behind_it() -> None:
    body = """
mov.u32 %r3, 0;
L1: add.s32 %r3, %r3, 1;
setp.lt.u32 %p1, %r3, %r2;
@%p1 bra L1;
vote.sync.ballot.b32 %r4, %p1, -1;
activemask.b32 %r5;
setp.eq.u32 %p2, %r5, -1;
selp.b32 %r6, %r3, 999, %p2;
st.global.u32 [%rd3], %r6;
"""
    assert clean(body) == [max(1, lane) for lane in range(32)]


def test_lanes_that_jump_back_meet_those_that_wait_there() -> None:
    """A loop that half of the lanes enter in its middle, behind the shuffle."""
    body = """
mov.u32 %r3, %r2;
mov.u32 %r5, 0;
setp.lt.u32 %p1, %r2, 16;
@!%p1 bra L2;
L1: shfl.sync.bfly.b32 %r4|%p2, %r3, 31, 31, -1;
add.s32 %r5, %r5, 1;
add.s32 %r3, %r3, %r4;
setp.ge.u32 %p3, %r5, 3;
@%p3 bra L3;
L2: add.s32 %r3, %r3, 1;
bra L1;
L3: st.global.u32 [%rd3], %r3;
"""
    own = [lane if lane < 16 else lane + 1 for lane in range(32)]
    for turn in range(3):
        own = [word + own[lane ^ 31] + (turn < 2) for lane, word in enumerate(own)]
    assert clean(body) == own


def test_a_warp_barrier_joins_lanes_from_different_places() -> None:
    body = """
setp.eq.u32 %p1, %r2, 0;
@%p1 bra L1;
bar.warp.sync -1;
ld.shared.u32 %r3, [s];
bra L2;
L1: st.shared.u32 [s], 7;
bar.warp.sync -1;
mov.u32 %r3, 7;
L2: st.global.u32 [%rd3], %r3;
"""
    assert clean(body) == [7] * 32


def test_arriving_does_not_wait_and_syncing_does() -> None:
    body = """
setp.ge.u32 %p1, %r1, 32;
@%p1 bra L1;
setp.eq.u32 %p2, %r1, 0;
@%p2 st.shared.u32 [s], 5;
bar.arrive 3, 64;
mov.u32 %r3, 1;
bra L2;
L1: bar.sync 3, 64;
ld.shared.u32 %r3, [s];
L2: st.global.u32 [%rd3], %r3;
"""
    for order in (Order(), Order(seed=3, slice=2), Order(first=((0, 1),)), Order(last=frozenset({(0, 0)}))):
        assert clean(body, 2, order) == [1] * 32 + [5] * 32


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_warp_that_is_held_comes_last(seed: int | None) -> None:
    """Each warp takes a number; where both are held they take turns."""
    body = """
setp.ne.u32 %p1, %r2, 0;
@%p1 bra L1;
atom.relaxed.gpu.global.add.u32 %r3, [%rd1+252], 1;
st.global.u32 [%rd3], %r3;
L1: mov.u32 %r4, 0;
"""
    for held, numbers in (({0}, [1, 0]), ({1}, [0, 1]), ({0, 1}, [0, 1])):
        order = Order(seed=seed, slice=2, last=frozenset((0, warp) for warp in held))
        words = clean(body, 2, order)
        assert [words[0], words[32]] == numbers and words[63] == 2


BULK = """
setp.ne.u32 %p1, %r1, 0;
@%p1 bra L1;
mbarrier.init.shared::cta.b64 [s], 1;
fence.mbarrier_init.release.cluster;
L1: bar.sync 0;
@%p1 bra L2;
mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [s], BYTES;
mov.u32 %r10, s;
add.s32 %r11, %r10, 64;
add.s64 %rd5, %rd1, OFFSET;
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r11], [%rd5], 128, [%r10];
L2: WAIT
mul.lo.u32 %r12, %r2, 4;
mov.u32 %r13, s;
add.s32 %r14, %r12, %r13;
ld.shared.u32 %r3, [%r14+64];
st.global.u32 [%rd3], %r3;
"""
WAIT = "L3: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p3, [s], 0, 100;\n@!%p3 bra L3;"


def bulk(wait: str = WAIT, size: int = 128, offset: int = 512) -> str:
    """`given` is behind `out` and a gap: 512 bytes from it."""
    return BULK.replace("WAIT", wait).replace("BYTES", str(size)).replace("OFFSET", str(offset))


def test_bytes_of_a_bulk_copy_are_there_after_the_wait_and_undefined_before() -> None:
    for order in (Order(), Order(eager=True), Order(seed=5, slice=3)):
        assert clean(bulk(), order=order) == list(range(32))
    _, outcome = ran(bulk(wait=""))
    assert {fault.kind for fault in outcome.faults} == {"undefined", "race", "late copy"}


def test_a_copy_that_nobody_waits_for_lands_in_a_block_that_has_ended() -> None:
    unread = bulk().partition("L2:")[0] + "L2: st.global.u32 [%rd3], %r1;\n"
    for order in (Order(), Order(slice=1), Order(seed=6, slice=100)):
        _, outcome = ran(unread, order=order)
        assert [fault.kind for fault in outcome.faults] == ["late copy"] and not outcome.ended
        assert "128 bytes land in a block that has ended, at shared (static) 1088" in outcome.faults[0].message


def test_bytes_that_the_barrier_does_not_expect_are_told() -> None:
    _, outcome = ran(bulk(size=256))
    assert not outcome.ended
    assert [fault.kind for fault in outcome.faults] == ["deadlock"]
    assert "128 bytes are still to come" in outcome.faults[0].message


def test_a_copy_from_behind_a_buffer_is_out_of_bounds() -> None:
    _, outcome = ran(bulk(offset=512 + 160))
    assert [fault.kind for fault in outcome.faults] == ["out of bounds"]
    assert "given + 160" in outcome.faults[0].message


def test_a_deadlock_names_who_waits_for_what() -> None:
    body = """
setp.ge.u32 %p1, %r1, 32;
@%p1 bra L2;
L1: ld.acquire.gpu.global.u32 %r3, [%rd1+8];
setp.lt.u32 %p2, %r3, 4;
@%p2 bra L1;
bar.sync 1, 64;
bra L3;
L2: bar.sync 1, 64;
L3: st.global.u32 [%rd3], %r3;
"""
    _, outcome = ran(body, 2)
    assert not outcome.ended and [fault.kind for fault in outcome.faults] == ["deadlock", "deadlock"]
    assert "out + 8, which holds 0" in outcome.faults[0].message
    assert "barrier 1, 1 of 2 warps" in outcome.faults[1].message


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("ld.global.u32 %r3, [%rd1+128];\nst.global.u32 [%rd3], %r3;", "out of bounds"),
        ("prefetch.global.L2 [%rd1+128];", "out of bounds"),
        ("ld.global.u32 %r3, [%rd1+2];\nst.global.u32 [%rd3], %r3;", "misaligned"),
        ("ld.shared.u32 %r3, [s];\nst.global.u32 [%rd3], %r3;", "undefined"),
        ("ld.shared.u32 %r3, [s];\nsetp.eq.u32 %p1, %r3, 0;\n@%p1 bra L1;\nL1:", "undefined"),
        ("st.global.u32 [%rd1+512], %r1;", "write of a constant"),
        ("bar.sync 1, 48;", "barrier"),
        ("mbarrier.arrive.release.cta.shared::cta.b64 _, [s];", "mbarrier"),
        ("shfl.sync.bfly.b32 %r3|%p1, %r2, 1, 31, 1;", "member mask"),
    ],
)
def test_what_no_correct_kernel_does_is_told(body: str, kind: str) -> None:
    _, outcome = ran(body)
    assert {fault.kind for fault in outcome.faults} == {kind}
    assert outcome.faults[0].line > 0


def test_a_prefetch_changes_nothing_and_may_ask_for_undefined_bytes() -> None:
    assert clean("prefetch.global.L2 [%rd1+64];\nmov.u32 %r3, 0;\nst.global.u32 [%rd3], %r3;") == [0] * 32


def test_an_undefined_value_that_decides_nothing_is_not_told() -> None:
    body = "ld.shared.u32 %r3, [s];\nsetp.eq.u32 %p1, %r1, %r1;\nselp.b32 %r4, 5, %r3, %p1;\nst.global.u32 [%rd3], %r4;"
    assert clean(body) == [5] * 32


def test_an_endless_loop_ends_at_the_limit() -> None:
    _, outcome = ran("L1: add.s32 %r3, %r1, 1;\nbra L1;", limits=Limits(instructions=100_000))
    assert not outcome.ended
    assert [fault.kind for fault in outcome.faults] == ["limit"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("no PTX", "AMK801"),
        (HEAD + "ret;", "AMK801"),
        (HEAD + "bra NOWHERE;\nret;\n}\n", "AMK801"),
        (HEAD + "wgmma.fence.sync.aligned;\nret;\n}\n", "AMK802"),
        (HEAD + "mov.u32 %r1, %clusterid.x;\nret;\n}\n", "AMK802"),
        (HEAD + "ld.global.mmio.u32 %r1, [%rd1];\nret;\n}\n", "AMK802"),
        (HEAD + ".reg .b64 %many<900000000>;\nret;\n}\n", "AMK801"),
        (HEAD + ".reg .b64 %many<-1>;\nret;\n}\n", "AMK801"),
        (HEAD + "{" * 100_000 + "ret;\n" + "}" * 100_001, "AMK801"),
        (HEAD + "ld.global.u32 %r1, [%rd1+08];\nret;\n}\n", "AMK801"),
        (HEAD + "mov.u32 %r1, 08;\nret;\n}\n", "AMK801"),
        (HEAD.replace(".visible", ".const .b8 large[99999999999];\n.visible") + "ret;\n}\n", "AMK801"),
        (HEAD.replace(".visible", ".const .align 0 .b8 small[4];\n.visible") + "ret;\n}\n", "AMK801"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_runs(text: str, code: str) -> None:
    with pytest.raises(AmkError) as refused:
        assemble(parse(text), "k")
    assert refused.value.diagnostics[0].code == code


def test_a_huge_grid_is_refused() -> None:
    with pytest.raises(AmkError) as refused:
        Machine(assemble(parse(HEAD + "ret;\n}\n"), "k"), 1_000_000, 32, 0, [])
    assert refused.value.diagnostics[0].code == "AMK803"


@pytest.mark.parametrize(
    ("place", "inside"), [(0, True), (24, True), (32, False), (60, False), (64, True), (96, False)]
)
def test_bytes_between_arrays_are_nobodys(place: int, inside: bool) -> None:
    """Arrays of 32 bytes lie at 0 and 64 of 128 bytes of dynamic shared memory."""
    text = HEAD.replace(".visible .entry", ".extern .shared .align 16 .b8 dynamic[];\n.visible .entry")
    body = f"setp.ne.u32 %p1, %r1, 0;\nmov.u32 %r3, dynamic;\n@!%p1 st.shared.u32 [%r3+{place}], 5;\n"
    for arrays in ([(64, 96), (0, 32)], None):
        machine = Machine(
            assemble(parse(text + body + "ret;\n}\n"), "k"), 2, 1, 128,
            [Allocation("out", 128, "state", np.zeros(32, np.uint32))], races=True, arrays=arrays,
        )  # fmt: skip
        for _ in range(2):
            outcome = machine.launch(machine.memory.addresses["out"].to_bytes(8, "little"), None)
            kinds = [fault.kind for fault in outcome.faults]
            assert set(kinds) == (set() if inside or arrays is None else {"out of bounds"})
