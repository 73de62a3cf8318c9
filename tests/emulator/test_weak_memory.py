"""Stores stay with their warp until something orders them: what loads get, and copies without a proxy fence."""

from __future__ import annotations

import numpy as np
import pytest

from amk.emulator.machine.machine import Machine, Order, Outcome
from amk.emulator.memory.global_memory import Allocation
from amk.emulator.ptx.parse import parse
from amk.emulator.ptx.program import assemble
from tests.emulator.test_races import ACQUIRE, FENCE, HEAD, LOOK, RELAXED, RELEASE, passing
from tests.emulator.test_small_kernels import BULK, WAIT, bulk, ran
from tests.emulator.test_small_kernels import HEAD as SMALL_HEAD

LATE = Order()
EAGER = Order(eager=True)


def got(body: str, order: Order, blocks: int = 2) -> tuple[int, Outcome]:
    """What the reading warp loaded; the word was 3 before the launch, and 7 is written."""
    data = np.full(128, 3, np.uint32)
    data[64:] = 0
    machine = Machine(
        assemble(parse(HEAD + body + "ret;\n}\n"), "k"), blocks, 1, 0, [Allocation("data", 512, "state", data)],
        races=True,
    )  # fmt: skip
    outcome = machine.launch(machine.memory.addresses["data"].to_bytes(8, "little"), order)
    assert outcome.ended
    return int(machine.read("data", np.uint32, 128)[127]), outcome


STORED = "@%p2 bra OVER;\nst.global.u32 [%rd1+508], %r11;\nOVER:\n"


def message(signal: str, poll: str, between: str = "", before: str = "", load: str = "ld.global.u32") -> str:
    body = passing(signal, poll, between, before)
    read = "ld.global.u32 %r11, [%rd1];\n"
    assert body.count(read) == 1
    return body.replace(read, read.replace("ld.global.u32", load) + STORED)


@pytest.mark.parametrize(
    ("body", "late", "eager"),
    [
        (message(RELEASE, ACQUIRE), 7, 7),
        (message(RELAXED, LOOK, before=FENCE, between=FENCE), 7, 7),
        (message(RELAXED, ACQUIRE), 3, 3),
        (message(RELEASE, LOOK), 3, 3),
        (message(RELAXED, ACQUIRE, load="ld.relaxed.gpu.global.u32"), 3, 7),
        (message(RELEASE, ACQUIRE, load="ld.global.nc.u32"), 3, 3),
    ],
)
def test_a_load_gets_what_was_there_before_unless_the_store_is_ordered(body: str, late: int, eager: int) -> None:
    assert got(body, LATE)[0] == late
    assert got(body, EAGER)[0] == eager


def test_a_relaxed_flag_spreads_when_nobody_can_run_without_it() -> None:
    """A poll of a relaxed store ends, and the plain store before it is not seen."""
    body = message("st.relaxed.gpu.global.u32 [%rd1+256], 1;", LOOK)
    for order in (LATE, EAGER, Order(seed=4, slice=5)):
        value, outcome = got(body, order)
        assert value == 3
        assert {fault.kind for fault in outcome.faults} == {"race"}


def test_a_warp_sees_its_own_stores() -> None:
    body = "@%p1 bra END;\nst.global.u32 [%rd1], 7;\nld.global.u32 %r11, [%rd1];\n" + STORED + "END:\n"
    assert got(body, LATE)[0] == 7


def test_an_atomic_is_seen_by_a_strong_load_at_once() -> None:
    """The poll of a relaxed reduction needs no spreading: no other store is there."""
    body = message(RELAXED, LOOK, load="ld.relaxed.gpu.global.u32").replace("st.global.u32 [%rd1], 7;", "")
    value, outcome = got(body, LATE)
    assert value == 3 and outcome.faults == []


def refilled(fence: str, access: str = "ld.shared.u32 %r20, [s+64];") -> Outcome:
    """Thread 0 copies into a slot, waits, the warp reads it, and thread 0 copies there again."""
    first = BULK.replace("WAIT", WAIT).replace("BYTES", "128").replace("OFFSET", "512")
    again = f"""
{access}
bar.warp.sync -1;
@%p1 bra L5;
{fence}
mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [s], 128;
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r11], [%rd5], 128, [%r10];
L5: L6: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p3, [s], 1, 100;
@!%p3 bra L6;
"""
    machine = Machine(
        assemble(parse(SMALL_HEAD + first + again + "ret;\n}\n"), "k"), 1, 1, 0,
        [Allocation("out", 128, "state", np.zeros(32, np.uint32)),
         Allocation("given", 256, "constant", np.arange(64, dtype=np.uint32))],
        races=True,
    )  # fmt: skip
    return machine.launch(machine.memory.addresses["out"].to_bytes(8, "little"))


@pytest.mark.parametrize("access", ["ld.shared.u32 %r20, [s+64];", "@!%p1 st.shared.u32 [s+64], 5;"])
def test_a_refill_without_a_proxy_fence_is_told(access: str) -> None:
    assert refilled("fence.proxy.async.shared::cta;", access).faults == []
    faults = refilled("", access).faults
    assert {fault.kind for fault in faults} == {"proxy"}
    assert "no fence.proxy.async stands between" in faults[0].message


@pytest.mark.parametrize(("memory", "faults"), [("", set()), (".shared::cta", set()), (".global", {"proxy"})])
def test_a_refill_needs_a_proxy_fence_of_shared_memory(memory: str, faults: set[str]) -> None:
    assert {fault.kind for fault in refilled(f"fence.proxy.async{memory};").faults} == faults


@pytest.mark.parametrize(("memory", "faults"), [("", set()), (".global", set()), (".shared::cta", {"proxy"})])
def test_a_copy_of_what_was_written_needs_a_proxy_fence_of_global_memory(memory: str, faults: set[str]) -> None:
    written = f"st.global.u32 [%rd1], 5;\nfence.proxy.async{memory};\ncp.async.bulk"
    assert {fault.kind for fault in ran(bulk(offset=0).replace("cp.async.bulk", written))[1].faults} == faults


def test_a_proxy_fence_before_the_access_does_not_count() -> None:
    access = "fence.proxy.async.shared::cta;\nld.shared.u32 %r20, [s+64];"
    assert {fault.kind for fault in refilled("", access).faults} == {"proxy"}
