"""Litmus tests of lanes of one warp: lockstep orders nothing, whatever value the interpreter happened to read."""

from __future__ import annotations

import pytest

from amk.emulator.machine.machine import Order
from tests.emulator.test_races import kinds, ran

NEIGHBOUR = """
mov.u32 %r20, s;
mul.lo.u32 %r21, %r2, 4;
add.u32 %r22, %r20, %r21;
xor.b32 %r23, %r22, 4;
"""
"""%r22: a word of each lane; %r23: that of the lane beside it."""
EVERYBODY = "bar.warp.sync -1;"
HALVES = """
setp.lt.u32 %p5, %r2, 16;
@%p5 bra LOW;
bar.warp.sync 4294901760;
bra ON;
LOW:
bar.warp.sync 65535;
ON:
"""


@pytest.mark.parametrize(
    ("between", "ordered"),
    [
        (EVERYBODY, True),
        ("bar.sync 0;", True),
        (HALVES, True),
        ("", False),
        ("shfl.sync.idx.b32 %r9|%p5, %r2, 0, 31, -1;", False),
        ("vote.sync.any.pred %p5, %p2, -1;", False),
        ("fence.acq_rel.gpu;", False),
        ("bar.arrive 1, 64;", False),
    ],
)
@pytest.mark.parametrize(("first", "then"), [("st", "ld"), ("ld", "st"), ("st", "st")])
def test_what_a_lane_wrote_is_read_behind_a_barrier_of_both(between: str, ordered: bool, first: str, then: str) -> None:
    access = {"st": "st.shared.u32 [{}], 7;\n", "ld": "ld.shared.u32 %r9, [{}];\n"}
    body = NEIGHBOUR + access[first].format("%r22") + between + "\n" + access[then].format("%r23")
    if "arrive" in between:
        body = "@%p1 bra OTHER;\n" + body + "bra END;\nOTHER:\nbar.sync 1, 64;\nEND:\n"
        assert kinds(body, 1, 2) == {"race"}
        return
    assert kinds(body, 1, 1) == (set() if ordered else {"race"})


def test_a_barrier_of_some_lanes_orders_nothing_for_others() -> None:
    body = NEIGHBOUR + "st.shared.u32 [%r22], 7;\n" + HALVES + "xor.b32 %r23, %r22, 64;\nld.shared.u32 %r9, [%r23];\n"
    assert kinds(body, 1, 1) == {"race"}
    assert kinds(body.replace("ld.shared", EVERYBODY + "\nld.shared"), 1, 1) == set()


def test_lanes_that_write_one_word_at_once_race_and_atomics_do_not() -> None:
    assert kinds("st.shared.u32 [s], 7;\n", 1, 1) == {"race"}
    assert kinds("@!%p2 st.shared.u32 [s], 7;\n", 1, 1) == set()
    atomic = "@!%p2 st.shared.u32 [s], 7;\nBAR\n@%p2 atom.shared.add.u32 %r9, [s], 1;\n"
    assert kinds(atomic.replace("BAR", EVERYBODY), 1, 1) == set()
    assert kinds(atomic.replace("BAR", ""), 1, 1) == {"race"}


def test_a_race_of_lanes_names_both_lanes() -> None:
    body = NEIGHBOUR + "@!%p2 st.shared.u32 [s+16], 7;\nsetp.eq.u32 %p6, %r2, 9;\n@%p6 ld.shared.u32 %r9, [s+16];\n"
    (fault,) = ran(body, 1, 1, Order()).faults
    assert fault.message.startswith("lane 9 reads shared memory (static) ")
    assert "which lane 0 of worker 0, warp 0 wrote at st.shared.u32" in fault.message


def test_a_write_follows_the_reads_of_all_lanes() -> None:
    body = "ld.shared.u32 %r9, [s];\nBAR\n@!%p2 st.shared.u32 [s], 7;\n"
    assert kinds(body.replace("BAR", EVERYBODY), 1, 1) == set()
    assert kinds(body.replace("BAR", ""), 1, 1) == {"race"}
    alone = "@!%p2 ld.shared.u32 %r9, [s];\n@!%p2 st.shared.u32 [s], 7;\n"
    assert kinds(alone, 1, 1) == set()


PASSED = """
mul.wide.u32 %rd5, %r2, 4;
add.u64 %rd6, %rd1, %rd5;
@%p1 bra READER;
st.global.u32 [%rd6], 7;
BEFORE
@!%p2 red.release.gpu.global.add.u32 [%rd1+256], 1;
bra END;
READER:
@%p2 bra MET;
LOOK: ld.acquire.gpu.global.u32 %r10, [%rd1+256];
setp.eq.u32 %p3, %r10, 0;
@%p3 bra LOOK;
MET:
BEHIND
ld.global.u32 %r11, [%rd6];
END:
"""


@pytest.mark.parametrize(
    ("before", "behind", "ordered"), [(EVERYBODY, EVERYBODY, True), ("", EVERYBODY, False), (EVERYBODY, "", False)]
)
def test_one_lane_signals_and_waits_for_all_only_where_they_meet(before: str, behind: str, ordered: bool) -> None:
    """Between workers: the lanes write before one of them releases, and read behind the acquire of one."""
    body = PASSED.replace("BEFORE", before).replace("BEHIND", behind)
    assert kinds(body) == (set() if ordered else {"race"})


def test_a_lane_passes_on_what_it_wrote_itself() -> None:
    body = PASSED.replace("BEFORE", "").replace("BEHIND", EVERYBODY).replace("st.global", "@!%p2 st.global")
    assert kinds(body.replace("ld.global.u32 %r11, [%rd6]", "ld.global.u32 %r11, [%rd1]")) == set()


SMALL = """
mov.u32 %r20, s;
mul.lo.u32 %r21, %r2, 4;
add.u32 %r20, %r20, %r21;
cp.async.ca.shared.global [%r20], [%rd1], 4;
cp.async.commit_group;
cp.async.wait_group 0;
BAR
xor.b32 %r20, %r20, 4;
ld.shared.u32 %r11, [%r20];
"""


def test_a_small_copy_is_there_for_its_lane_and_behind_a_barrier_for_others() -> None:
    assert kinds(SMALL.replace("BAR", EVERYBODY), 1, 1) == set()
    assert kinds(SMALL.replace("BAR", ""), 1, 1) == {"race"}
    assert kinds(SMALL.replace("BAR", "").replace("xor.b32 %r20, %r20, 4;", ""), 1, 1) == set()


BULK = """
mov.u32 %r20, s;
add.u32 %r21, %r20, 64;
setp.eq.u32 %p5, %r1, 0;
@%p5 mbarrier.init.shared::cta.b64 [s], 1;
bar.warp.sync -1;
mul.lo.u32 %r22, %r2, 4;
add.u32 %r22, %r22, %r21;
ld.shared.u32 %r11, [%r22];
BAR
@%p2 bra W1;
fence.proxy.async.shared::cta;
mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [s], 128;
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r21], [%rd1], 128, [%r20];
W1: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p3, [s], 0, 100;
@!%p3 bra W1;
ld.shared.u32 %r11, [%r22];
"""


def test_a_slot_is_refilled_by_one_lane_behind_the_reads_of_all() -> None:
    assert kinds(BULK.replace("BAR", EVERYBODY), 1, 1) == set()
    assert kinds(BULK.replace("BAR", ""), 1, 1) == {"proxy", "race"}
    looked_by_one = BULK.replace("BAR", EVERYBODY).replace("bra W1;\nfence", "bra MET;\nfence")
    behind = looked_by_one.replace("@!%p3 bra W1;", "@!%p3 bra W1;\nMET:\nBEHIND")
    assert kinds(behind.replace("BEHIND", EVERYBODY), 1, 1) == set()
    assert kinds(behind.replace("BEHIND", ""), 1, 1) == {"race"}


TAG_SEEN = """
mul.wide.u32 %rd5, %r2, 4;
add.u64 %rd6, %rd1, %rd5;
@%p1 bra WRITER;
READ
BEFORE
@!%p2 st.relaxed.gpu.global.b64 [%rd1+256], 4294967297;
bra END;
WRITER:
@%p2 bra MET;
LOOK: ld.relaxed.gpu.global.b64 %rd7, [%rd1+256];
setp.eq.u64 %p3, %rd7, 0;
@%p3 bra LOOK;
MET:
BEHIND
WRITE
END:
"""
READ_BY = {"one": "@!%p2 ld.global.u32 %r11, [%rd1];", "all": "ld.global.u32 %r11, [%rd6];"}
WRITE_BY = {
    "one": "@!%p2 st.global.u32 [%rd1], 9;",
    "all": "st.global.u32 [%rd6], 9;",
    "other": "setp.ne.u32 %p4, %r2, 1;\n@!%p4 st.global.u32 [%rd1], 9;",
}


@pytest.mark.parametrize(
    ("read", "before", "behind", "write", "ordered"),
    [
        ("one", "", "", "one", True),
        ("one", "", "", "other", False),
        ("one", "", EVERYBODY, "other", True),
        ("all", "", EVERYBODY, "all", False),
        ("all", EVERYBODY, "", "all", False),
        ("all", EVERYBODY, EVERYBODY, "all", True),
        ("one", "", "shfl.sync.idx.b32 %r9|%p5, %r2, 0, 31, -1;", "other", False),
    ],
)
def test_a_tagged_word_speaks_of_its_lanes_reads_to_the_lane_that_sees_it(
    read: str, before: str, behind: str, write: str, ordered: bool
) -> None:
    body = TAG_SEEN.replace("READ\n", READ_BY[read] + "\n").replace("BEFORE", before)
    body = body.replace("BEHIND", behind).replace("WRITE\n", WRITE_BY[write] + "\n")
    assert kinds(body) == (set() if ordered else {"race"})


@pytest.mark.parametrize(("meets", "ordered"), [(EVERYBODY, True), ("", False)])
def test_tagged_words_of_all_lanes_speak_of_the_reads_of_all(meets: str, ordered: bool) -> None:
    """Each lane reads a word and tells it by a tagged one; each of the other warp sees one and writes another word."""
    body = f"""
mul.wide.u32 %rd5, %r2, 4;
add.u64 %rd6, %rd1, %rd5;
mul.wide.u32 %rd7, %r2, 8;
add.u64 %rd8, %rd1, %rd7;
xor.b32 %r20, %r2, 7;
mul.wide.u32 %rd9, %r20, 4;
add.u64 %rd10, %rd1, %rd9;
@%p1 bra WRITER;
ld.global.u32 %r11, [%rd6];
st.relaxed.gpu.global.b64 [%rd8+128], 4294967297;
bra END;
WRITER:
ld.relaxed.gpu.global.b64 %rd11, [%rd8+128];
setp.eq.u64 %p3, %rd11, 0;
@%p3 bra WRITER;
{meets}
st.global.u32 [%rd10], 9;
END:
"""
    assert kinds(body) == (set() if ordered else {"race"})


APART = """
@%p1 bra READER;
@!%p2 st.global.u32 [%rd1], 7;
BEFORE
setp.ne.u32 %p4, %r2, SIGNALS;
@!%p4 red.relaxed.gpu.global.add.u32 [%rd1+256], 1;
bra END;
READER:
@%p2 bra MET;
LOOK: ld.relaxed.gpu.global.u32 %r10, [%rd1+256];
setp.eq.u32 %p3, %r10, 0;
@%p3 bra LOOK;
MET:
BEHIND
setp.ne.u32 %p4, %r2, READS;
@!%p4 ld.global.u32 %r11, [%rd1];
END:
"""
FENCE, FENCE_OF_ONE, FENCE_OF_OTHER = (f"{lane} fence.acq_rel.gpu;" for lane in ("", "@!%p2", "@%p2"))


@pytest.mark.parametrize(
    ("before", "signals", "behind", "reads", "ordered"),
    [
        (FENCE_OF_ONE, 0, FENCE_OF_ONE, 0, True),
        (FENCE_OF_OTHER, 0, FENCE_OF_ONE, 0, False),
        (FENCE, 1, FENCE, 0, False),
        (EVERYBODY + FENCE, 1, FENCE, 0, True),
        (FENCE_OF_ONE, 0, FENCE_OF_OTHER, 0, False),
        (FENCE_OF_ONE, 0, FENCE, 1, False),
        (FENCE_OF_ONE, 0, FENCE + EVERYBODY, 1, True),
        (FENCE_OF_ONE, 0, EVERYBODY + FENCE, 1, False),
    ],
)
def test_a_fence_turns_what_its_own_lane_did_into_a_release_or_an_acquire(
    before: str, signals: int, behind: str, reads: int, ordered: bool
) -> None:
    body = APART.replace("BEFORE", before).replace("BEHIND", behind)
    body = body.replace("SIGNALS", str(signals)).replace("READS", str(reads))
    assert kinds(body) == (set() if ordered else {"race"})


@pytest.mark.parametrize(("fences", "ordered"), [("@!%p2", True), ("@%p2", False), ("", True)])
def test_a_proxy_fence_is_of_the_lane_that_copies_or_of_one_that_it_met(fences: str, ordered: bool) -> None:
    body = BULK.replace("BAR", EVERYBODY + "\nFENCE\nMEET")
    body = body.replace("fence.proxy.async.shared::cta;", "").replace(
        "FENCE", f"{fences} fence.proxy.async.shared::cta;"
    )
    assert kinds(body.replace("MEET", ""), 1, 1) == (set() if ordered else {"proxy"})
    assert kinds(body.replace("MEET", EVERYBODY), 1, 1) == set()
