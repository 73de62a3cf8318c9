"""Litmus tests: what orders two accesses, and what does not, whatever the order in which the warps happened to run."""

from __future__ import annotations

import numpy as np
import pytest

from amk.emulator.machine.machine import Machine, Order, Outcome
from amk.emulator.memory.global_memory import Allocation
from amk.emulator.ptx.parse import parse
from amk.emulator.ptx.program import assemble

HEAD = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p)
{
.reg .pred %p<9>;
.reg .b32 %r<40>;
.reg .b64 %rd<20>;
.shared .align 16 .b8 s[512];
ld.param.u64 %rd1, [p];
mov.u32 %r1, %tid.x;
mov.u32 %r2, %laneid;
mov.u32 %r3, %ctaid.x;
mov.u32 %r4, %warpid;
add.u32 %r5, %r3, %r4;
setp.ne.u32 %p1, %r5, 0;
setp.ne.u32 %p2, %r2, 0;
"""
ORDERS = (Order(), Order(seed=1, slice=3), Order(seed=2, slice=40), Order(first=((0, 0),)))


def ran(body: str, blocks: int, warps: int, order: Order, launches: int = 1) -> Outcome:
    """`data` holds 64 words, then comes a word as a flag; thread 0 of the grid is the one with %p1 and %p2 false."""
    machine = Machine(
        assemble(parse(HEAD + body + "ret;\n}\n"), "k"), blocks, warps, 0,
        [Allocation("data", 512, "state", np.zeros(128, np.uint32))], races=True,
    )  # fmt: skip
    for _ in range(launches):
        outcome = machine.launch(machine.memory.addresses["data"].to_bytes(8, "little"), order)
        assert outcome.ended and outcome.races_checked
    return outcome


def kinds(body: str, blocks: int = 2, warps: int = 1, launches: int = 1) -> set[str]:
    """Kinds of faults, which have to be the same in every order."""
    found = [{fault.kind for fault in ran(body, blocks, warps, order, launches).faults} for order in ORDERS]
    assert all(each == found[0] for each in found)
    return found[0]


def passing(signal: str, poll: str, between: str = "", before: str = "") -> str:
    """Warp 0 of worker 0 writes a word and raises the flag; the other warp waits for the flag and reads the word."""
    return f"""
@%p1 bra READER;
@%p2 bra END;
st.global.u32 [%rd1], 7;
{before}
{signal}
bra END;
READER:
{poll}
setp.eq.u32 %p3, %r10, 0;
@%p3 bra READER;
{between}
ld.global.u32 %r11, [%rd1];
END:
"""


RELEASE, RELAXED = (f"red.{sem}.gpu.global.add.u32 [%rd1+256], 1;" for sem in ("release", "relaxed"))
ACQUIRE, LOOK = (f"ld.{sem}.gpu.global.u32 %r10, [%rd1+256];" for sem in ("acquire", "relaxed"))
FENCE, NARROW_FENCE = "fence.acq_rel.gpu;", "fence.acq_rel.cta;"


@pytest.mark.parametrize(
    ("body", "ordered"),
    [
        (passing(RELEASE, ACQUIRE), True),
        (passing("st.release.gpu.global.u32 [%rd1+256], 1;", ACQUIRE), True),
        (passing(RELAXED, ACQUIRE, before=FENCE), True),
        (passing(RELEASE, LOOK, between=FENCE), True),
        (passing(RELAXED, LOOK, before=FENCE, between=FENCE), True),
        (passing("atom.release.gpu.global.add.u32 %r9, [%rd1+256], 1;", ACQUIRE), True),
        (passing(RELEASE + RELAXED, ACQUIRE), True),
        (passing(RELAXED, ACQUIRE), False),
        (passing(RELEASE, LOOK), False),
        (passing(RELAXED, LOOK, before=FENCE), False),
        (passing(RELAXED, LOOK, between=FENCE), False),
        (passing(RELAXED + FENCE, ACQUIRE), False),
        (passing(RELAXED, ACQUIRE, before=NARROW_FENCE), False),
        (passing("red.release.cta.global.add.u32 [%rd1+256], 1;", ACQUIRE), False),
        (passing(RELEASE, "ld.relaxed.gpu.global.u32 %r10, [%rd1+256];\nred.release.gpu.global.add.u32 [%rd1+260], 1;"),
         False),
    ],
)  # fmt: skip
def test_a_message_is_passed_by_a_release_and_an_acquire_and_by_nothing_less(body: str, ordered: bool) -> None:
    assert kinds(body) == (set() if ordered else {"race"})


def test_a_race_names_both_instructions_both_warps_and_the_byte() -> None:
    fault = ran(passing(RELAXED, ACQUIRE), 2, 1, Order()).faults[0]
    text = (HEAD + passing(RELAXED, ACQUIRE)).splitlines()
    written = 1 + text.index("st.global.u32 [%rd1], 7;")
    assert fault.warp == (1, 0) and text[fault.line - 1] == "ld.global.u32 %r11, [%rd1];"
    assert f"worker 0, warp 0 wrote at st.global.u32, line {written} of the PTX" in fault.message
    assert "data + 0" in fault.message


def test_the_write_behind_a_read_has_to_wait_for_it() -> None:
    """The reader's signal, the writer's wait: without the release the write is a race with the read."""
    body = """
@%p1 bra WRITER;
ld.global.u32 %r11, [%rd1];
bar.warp.sync -1;
@%p2 bra END;
SIGNAL
bra END;
WRITER:
ld.acquire.gpu.global.u32 %r10, [%rd1+256];
setp.eq.u32 %p3, %r10, 0;
@%p3 bra WRITER;
@!%p2 st.global.u32 [%rd1], 9;
END:
"""
    assert kinds(body.replace("SIGNAL", RELEASE)) == set()
    assert kinds(body.replace("SIGNAL", RELAXED)) == {"race"}


def test_a_write_may_follow_the_reads_before_a_tagged_word_but_not_those_behind_it() -> None:
    body = """
@%p1 bra WRITER;
@%p2 bra END;
BEFORE
st.relaxed.gpu.global.b64 [%rd1+256], 4294967297;
BEHIND
bra END;
WRITER:
ld.relaxed.gpu.global.b64 %rd5, [%rd1+256];
setp.eq.u64 %p3, %rd5, 0;
@%p3 bra WRITER;
@!%p2 st.global.u32 [%rd1], 9;
END:
"""
    look = "ld.global.u32 %r11, [%rd1];"
    assert kinds(body.replace("BEFORE", look).replace("BEHIND", "")) == set()
    assert kinds(body.replace("BEFORE", "").replace("BEHIND", look)) == {"race"}
    assert kinds(body.replace("BEFORE", "st.global.u32 [%rd1], 7;").replace("BEHIND", "")) == {"race"}
    narrow = (
        body.replace("BEFORE", look).replace("BEHIND", "").replace("b64 [%rd1+256], 4294967297", "u32 [%rd1+256], 1")
    )
    assert kinds(narrow.replace("b64 %rd5", "u32 %r12").replace("u64 %p3, %rd5", "u32 %p3, %r12")) == {"race"}


@pytest.mark.parametrize(("signals", "faults"), [(3, set()), (2, {"race"})])
def test_every_reader_has_to_be_waited_for(signals: int, faults: set[str]) -> None:
    """Three warps read one word at a time; the writer waits for two of them, or for all."""
    body = f"""
@!%p1 bra WRITER;
ld.global.u32 %r11, [%rd1];
bar.warp.sync -1;
@%p2 bra END;
setp.gt.u32 %p4, %r5, {signals};
@%p4 red.relaxed.gpu.global.add.u32 [%rd1+256], 1;
@!%p4 red.release.gpu.global.add.u32 [%rd1+256], 1;
bra END;
WRITER:
ld.acquire.gpu.global.u32 %r10, [%rd1+256];
setp.lt.u32 %p3, %r10, 3;
@%p3 bra WRITER;
@!%p2 st.global.u32 [%rd1], 9;
END:
"""
    assert kinds(body, blocks=4) == faults


def test_a_tagged_word_orders_itself_and_nothing_else() -> None:
    body = """
@%p1 bra READER;
@%p2 bra END;
st.global.u32 [%rd1], 7;
st.relaxed.gpu.global.b64 [%rd1+256], 4294967297;
bra END;
READER:
ld.relaxed.gpu.global.b64 %rd5, [%rd1+256];
setp.eq.u64 %p3, %rd5, 0;
@%p3 bra READER;
LOOK
END:
"""
    assert kinds(body.replace("LOOK", "")) == set()
    assert kinds(body.replace("LOOK", "ld.global.u32 %r11, [%rd1];")) == {"race"}
    assert kinds(body.replace("LOOK", "").replace("st.relaxed.gpu.global.b64", "st.global.b64")) == {"race"}
    assert kinds(body.replace("LOOK", "ld.relaxed.gpu.global.u32 %r11, [%rd1+256];")) == {"race"}


@pytest.mark.parametrize(
    ("barrier", "other", "ordered"),
    [("bar.sync 1, 64;", "bar.sync 1, 64;", True), ("bar.arrive 1, 64;", "bar.sync 1, 64;", True),
     ("", "", False), ("bar.sync 1, 32;", "bar.sync 2, 32;", False)],
)  # fmt: skip
def test_a_named_barrier_orders_those_who_meet_there(barrier: str, other: str, ordered: bool) -> None:
    body = f"""
@%p1 bra OTHER;
@!%p2 st.shared.u32 [s], 7;
{barrier}
bra END;
OTHER:
{other}
@!%p2 st.shared.u32 [s], 8;
END:
"""
    assert kinds(body, 1, 2) == (set() if ordered else {"race"})


def test_arriving_at_a_barrier_orders_nothing_that_follows() -> None:
    body = """
@%p1 bra OTHER;
bar.arrive 1, 64;
@!%p2 st.shared.u32 [s], 7;
bra END;
OTHER:
bar.sync 1, 64;
@!%p2 st.shared.u32 [s], 8;
END:
"""
    assert kinds(body, 1, 2) == {"race"}


def test_bytes_of_one_word_are_different_bytes() -> None:
    body = "mov.u32 %r10, s;\nadd.u32 %r11, %r10, %r4;\n@!%p2 st.shared.u8 [%r11], 7;\n"
    assert kinds(body, 1, 2) == set()
    assert kinds(body.replace("u8", "u16").replace("%r11, %r10, %r4", "%r11, %r10, 0"), 1, 2) == {"race"}


def test_launches_follow_each_other() -> None:
    """What another warp wrote in an earlier launch is there; only within one launch does it take an order."""
    body = "ld.global.u32 %r11, [%rd1+128];\nsetp.eq.u32 %p3, %r5, %r11;\n@%p3 add.u32 %r11, %r11, 1;\n"
    body += "@%p3 st.global.u32 [%rd1+128], %r11;\n@!%p2 st.global.u32 [%rd1], 1;\n"
    assert kinds(body, 1, 1, launches=2) == set()
    alone = "@%p1 bra END;\n@!%p2 st.global.u32 [%rd1], 1;\nEND:\n"
    assert kinds(alone, 2, 1, launches=3) == set()


def test_a_non_coherent_load_of_what_the_launch_writes_is_told() -> None:
    body = "@%p2 bra END;\n@%p1 bra END;\nst.global.u32 [%rd1], 7;\nld.global.nc.u32 %r11, [%rd1];\nEND:\n"
    assert kinds(body, 1, 1) == {"non-coherent read"}
    assert kinds(body.replace("st.global.u32 [%rd1]", "st.global.u32 [%rd1+4]"), 1, 1) == set()


REFILL = """
mov.u32 %r20, s;
add.u32 %r21, %r20, 64;
setp.eq.u32 %p5, %r1, 0;
@%p5 mbarrier.init.shared::cta.b64 [s], 1;
@%p5 mbarrier.init.shared::cta.b64 [s+8], 32;
bar.sync 0;
@%p1 bra READER;
@%p2 bra END;
mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [s], 64;
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r21], [%rd1], 64, [%r20];
W1: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p3, [s+8], 0, 100;
@!%p3 bra W1;
FENCE
mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [s], 64;
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r21], [%rd1+64], 64, [%r20];
W3: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p3, [s], 1, 100;
@!%p3 bra W3;
bra END;
READER:
W2: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p3, [s], 0, 100;
@!%p3 bra W2;
ld.shared.u32 %r11, [s+64];
mbarrier.arrive.release.cta.shared::cta.b64 _, [s+8];
LATE
END:
"""


def test_a_slot_is_refilled_after_its_readers_have_arrived() -> None:
    fenced = REFILL.replace("FENCE", "fence.proxy.async.shared::cta;")
    assert kinds(fenced.replace("LATE", ""), 1, 2) == set()
    assert "race" in kinds(fenced.replace("LATE", "ld.shared.u32 %r11, [s+64];"), 1, 2)
    assert kinds(REFILL.replace("FENCE", "").replace("LATE", ""), 1, 2) == {"proxy"}


UNDER_COPY = """
mov.u32 %r20, s;
add.u32 %r21, %r20, 64;
setp.eq.u32 %p5, %r1, 0;
@%p5 mbarrier.init.shared::cta.b64 [s], 1;
bar.sync 0;
@%p1 bra OTHER;
@%p2 bra TOGETHER;
mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [s], 64;
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r21], [%rd1], 64, [%r20];
COPIER
TOGETHER:
bar.warp.sync -1;
LANE
bar.sync 1, 64;
bra END;
OTHER:
bar.sync 1, 64;
WARP
END:
W1: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p3, [s], 0, 100;
@!%p3 bra W1;
BEHIND
"""
STORE = "st.shared.u32 [s+64], 5;"
THIRD = f"and.b32 %r22, %r1, 31;\nsetp.eq.u32 %p6, %r22, 3;\n@%p6 {STORE}"
BESIDE = "and.b32 %r22, %r1, 31;\nsetp.eq.u32 %p6, %r22, 3;\n@%p6 st.shared.u32 [s+128], 5;"


@pytest.mark.parametrize(
    ("place", "store", "is_race"),
    [("COPIER", STORE, True), ("LANE", THIRD, True), ("WARP", THIRD, True), ("BEHIND", "", False),
     ("WARP", BESIDE, False), ("BEHIND", f"@%p5 {STORE}", False)],
)  # fmt: skip
def test_a_store_may_not_meet_the_bytes_of_a_copy_before_it_was_waited_for(
    place: str, store: str, is_race: bool
) -> None:
    body = UNDER_COPY.replace(place, store)
    for name in ("COPIER", "LANE", "WARP", "BEHIND"):
        body = body.replace(name, "")
    assert kinds(body, 1, 2) == ({"race"} if is_race else set())


SMALL = """
mov.u32 %r20, s;
mul.lo.u32 %r21, %r1, 4;
add.u32 %r20, %r20, %r21;
cp.async.ca.shared.global [%r20], [%rd1], 4;
cp.async.commit_group;
WAIT
ld.shared.u32 %r11, [%r20];
"""


def test_a_small_copy_is_over_when_its_group_was_waited_for() -> None:
    assert kinds(SMALL.replace("WAIT", "cp.async.wait_group 0;"), 1, 1) == set()
    assert kinds(SMALL.replace("WAIT", "cp.async.wait_all;"), 1, 1) == set()
    assert "race" in kinds(SMALL.replace("WAIT", "cp.async.wait_group 1;"), 1, 1)
    other = SMALL.replace("WAIT", "cp.async.wait_group 0;\nBAR\nxor.b32 %r20, %r20, 128;")
    assert kinds(other.replace("BAR", "bar.sync 0;"), 1, 2) == set()
    assert "race" in kinds(other.replace("BAR", ""), 1, 2)
