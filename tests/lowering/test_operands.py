"""Operands of the compiled kernel that differ from the schedule's are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import pytest

from amk.lowering.affine import Values, added, constant
from amk.lowering.compile import compile_ptx
from amk.lowering.emit import KERNEL, emit
from amk.lowering.kernel import read_back
from amk.lowering.operands import check_operands
from amk.lowering.ptx_code import read_kernel
from amk.lowering.readback import Instruction, Kind, read_ptx
from amk.lowering.skeleton import check_synchronisation
from amk.lowering.stamp import stamped
from amk.planner.decode import plan
from amk.report.diagnostic import AmkError
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from tests.handwritten import sync_agent
from tests.lowering.edits.judge import original, subject
from tests.tiny import RAGGED


def printed(schedule: Schedule) -> str:
    """The PTX, without machine code made of it."""
    return compile_ptx(stamped(emit(schedule), schedule), schedule.target.arch)


@cache
def text(name: str) -> str:
    found = original(name)
    assert found is not None
    return found


@cache
def instructions(name: str) -> list[Instruction]:
    return read_ptx(text(name))[KERNEL]


def refused(name: str, ptx: str, words: str) -> None:
    assert ptx != text(name), "the edit changed nothing"
    with pytest.raises(AmkError) as caught:
        read_back(subject(name), ptx)
    found = caught.value.diagnostics[0]
    assert found.code == "AMK609" and words in found.message, found.message


def edited(name: str, kind: Kind, number: int, change: Callable[[str], str]) -> str:
    """The PTX with the line of one instruction changed."""
    lines = text(name).splitlines()
    found = [one for one in instructions(name) if one.kind is kind]
    line = found[number].line - 1
    lines[line] = change(lines[line])
    return "\n".join(lines) + "\n"


def further(by: int) -> Callable[[str], str]:
    """The first address of the line, some bytes on."""
    return lambda line: re.sub(r"\[([%\w]+)(?:\+(\d+))?\]", lambda m: f"[{m[1]}+{int(m[2] or 0) + by}]", line, count=1)


def last(new: str) -> Callable[[str], str]:
    """Another last operand."""
    return lambda line: re.sub(r"[^,\s]+;", f"{new};", line)


CASES: dict[str, tuple[str, Kind, int, Callable[[str], str], str]] = {
    "another counter is polled": ("fenced", Kind.POLL_ACQUIRE, 1, further(128), "polls another counter"),
    "another counter is signalled": ("fenced", Kind.SIGNAL_RELEASE, 2, further(128), "signals another counter"),
    "another amount": ("fenced", Kind.SIGNAL_RELEASE, -1, last("2"), "adds another amount"),
    "a hint of another layer": ("tagged", Kind.POLL_RELAXED, 0, further(128), "polls another counter"),
    "two arrivals": ("tagged", Kind.MBARRIER_INIT, 1, last("2"), "another number of arrivals"),
    "an mbarrier twice": ("tagged", Kind.MBARRIER_INIT, 1, further(8), "does not initialise one mbarrier a slot"),
    "half the bytes": ("tagged", Kind.MBARRIER_EXPECT, 3, last("1024"), "expects another number of bytes"),
    "the next slot's mbarrier expects": ("tagged", Kind.MBARRIER_EXPECT, 2, further(8), "another mbarrier"),
    "the next slot is waited for": ("tagged", Kind.MBARRIER_WAIT, 0, further(8), "refills another slot"),
    "the next slot is filled": ("fenced", Kind.BULK_LOAD, 2, further(2048), "fills another slot"),
    "a tag in the lower half": (
        "tagged", Kind.TAGGED_STORE, 0, lambda line: re.sub(r", (%rd\d+);", ", 5;", line), "stores another tag",
    ),
    "pieces that overlap": ("copies", Kind.COPY, 1, further(16), "not side by side"),
}  # fmt: skip


@pytest.mark.turns(4)
@pytest.mark.parametrize("case", CASES)
def test_another_operand_is_refused(case: str) -> None:
    name, kind, number, change, words = CASES[case]
    refused(name, edited(name, kind, number, change), words)


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", ["fenced", "tagged", "copies"])
def test_what_the_compiler_made_is_taken(name: str) -> None:
    assert read_back(subject(name), text(name))


def line_of(name: str, kind: Kind, number: int) -> int:
    return [one for one in instructions(name) if one.kind is kind][number].line - 1


def without_line(name: str, line: int) -> str:
    lines = text(name).splitlines()
    return "\n".join([*lines[:line], "", *lines[line + 1 :]]) + "\n"


@pytest.mark.parametrize(("name", "kind"), [("fenced", Kind.POLL_ACQUIRE), ("tagged", Kind.MBARRIER_WAIT)])
def test_a_wait_that_looks_once_is_refused(name: str, kind: Kind) -> None:
    """Without the branch back, the poll is there, in its place, of the right counter and threshold."""
    lines = text(name).splitlines()
    start = line_of(name, kind, 0)
    label = next(line for line in reversed(lines[:start]) if line.startswith("$")).rstrip(":")
    back = next(n for n in range(start, len(lines)) if re.match(rf"\t@%p\d+ bra \t{re.escape(label)};", lines[n]))
    refused(name, without_line(name, back), "goes on although")


def test_a_comparison_the_wrong_way_is_refused() -> None:
    lines = text("fenced").splitlines()
    start = line_of("fenced", Kind.POLL_ACQUIRE, 0)
    at = next(n for n in range(start, start + 8) if "setp.gt.s32" in lines[n])
    lines[at] = lines[at].replace("setp.gt.s32", "setp.lt.s32")
    refused("fenced", "\n".join(lines) + "\n", "wait")


def test_a_signal_of_all_lanes_is_refused() -> None:
    lines = text("fenced").splitlines()
    start = line_of("fenced", Kind.SIGNAL_RELEASE, 0)
    guard = next(n for n in range(start, 0, -1) if re.match(r"\t@!?%p\d+ bra", lines[n]))
    refused("fenced", without_line("fenced", guard), "does not signal from lane 0 alone")


@cache
def switched() -> tuple[Schedule, str]:
    """A kernel that signals four counters from four lanes, in the order of a switch."""
    schedule = sync_agent.schedule("b200")
    return schedule, printed(schedule)


@pytest.mark.turns(4)
def test_signals_of_other_lanes_may_come_first() -> None:
    schedule, ptx = switched()
    check_operands(schedule, ptx, check_synchronisation(schedule, tuple(read_ptx(ptx)[KERNEL])))


def test_lanes_that_swap_their_counters_are_refused() -> None:
    """Amounts differ from counter to counter, so lane 1 must not signal the counter of lane 3."""
    schedule, ptx = switched()
    lines = ptx.splitlines()
    one, three = (
        next(n for n, line in enumerate(lines) if re.search(rf"add.s64 .*, {by};", line)) for by in (128, 384)
    )
    lines[one], lines[three] = lines[one].replace(" 128;", " 384;"), lines[three].replace(" 384;", " 128;")
    with pytest.raises(AmkError) as caught:
        read_back(schedule, "\n".join(lines) + "\n")
    assert "signals another counter" in caught.value.diagnostics[0].message


def test_half_the_lanes_are_refused() -> None:
    name = "tagged"
    changed = re.sub(r"(shfl\.sync\.bfly[^;]*), (?:-1|%r\d+);", r"\1, 65535;", text(name), count=1)
    refused(name, changed, "leaves out lanes")


def test_the_non_coherent_path_is_for_constants() -> None:
    """Of all plain loads that a hand-off orders, one takes the path that it does not order."""
    name = "fenced"
    changed = text(name).replace("ld.global.L1::no_allocate.v4", "ld.global.nc.L1::no_allocate.v4")
    refused(name, changed, "reads what the launch may write")


def test_a_plain_access_at_another_step_is_refused() -> None:
    """The first store of a result, moved behind the barrier that ends its step, up to the signal."""
    lines = text("fenced").splitlines()
    store = next(n for n, line in enumerate(lines) if line.startswith("\tst.global.f32"))
    signal = line_of("fenced", Kind.SIGNAL_RELEASE, 0)
    assert any(line.startswith("\tbar.sync 1") for line in lines[store:signal])
    moved = [*lines[:store], *lines[store + 1 : signal], lines[store], *lines[signal:]]
    refused("fenced", "\n".join(moved) + "\n", "which no step at its place names")


@pytest.mark.parametrize("layers", [2, 3])
def test_the_layer_is_counted_by_a_copy_too(layers: int) -> None:
    """The end of the loop over two layers, where a copy of the variable is compared with the number of layers."""
    (found,) = re.finditer(r"\tsetp\.lt\.u32 \t(%p\d+), (%r\d+), 2;\n", text("tagged"))
    copied = f"\tmov.u32 \t%r0, {found[2]};\n\tsetp.lt.u32 \t{found[1]}, %r0, {layers};\n"
    changed = text("tagged").replace(found[0], copied)
    if layers == 2:
        read_back(subject("tagged"), changed)
    else:
        refused("tagged", changed, "signals another counter")


@pytest.mark.parametrize("signal", [0, 1])
def test_a_block_is_judged_where_it_is_executed(signal: int) -> None:
    """The first store of a result, in a block at the end of the text that is entered from its own place or another."""
    lines = text("fenced").splitlines()
    store = next(n for n, line in enumerate(lines) if line.startswith("\tst.global.f32"))
    entered = store if signal == 0 else line_of("fenced", Kind.SIGNAL_RELEASE, signal)
    away = ["\tbra.uni $AWAY;", "$BACK:"]
    lines[entered:entered] = away
    moved = lines.pop(store + len(away) * (entered <= store))
    end = next(n for n in range(len(lines) - 1, 0, -1) if lines[n].strip() == "ret;")
    changed = "\n".join([*lines[: end + 1], "$AWAY:", moved, "\tbra.uni $BACK;", *lines[end + 1 :]]) + "\n"
    if signal == 0:
        read_back(subject("fenced"), changed)
    else:
        refused("fenced", changed, "which no step at its place names")


@cache
@cache
def strided() -> tuple[Schedule, str]:
    """A kernel whose mbarriers and slots at the ring's start are variables of a loop, counted on side by side."""
    schedule = plan(RAGGED, load_target("h200"), max_context=256, workers=8)
    return schedule, printed(schedule)


@pytest.mark.turns(12)
def test_variables_that_are_counted_on_side_by_side_are_taken() -> None:
    schedule, ptx = strided()
    kernel = read_kernel(ptx, KERNEL)
    values = Values(kernel)
    copy = next(one for one in kernel.code if one.opcode.startswith("cp.async.bulk"))
    slot, barrier = values.address(copy, 0), values.address(copy, 3)
    assert slot.keys() <= values.joined.keys() and barrier.keys() <= values.joined.keys()
    assert not values.counted(added(slot, barrier, -64)).keys() & values.joined.keys()
    check_operands(schedule, ptx, check_synchronisation(schedule, tuple(read_ptx(ptx)[KERNEL])))


@pytest.mark.turns(4)
@pytest.mark.parametrize("by", [64, 512, 2048])
def test_a_slot_that_is_counted_on_by_another_stride_is_refused(by: int) -> None:
    schedule, ptx = strided()
    kernel = read_kernel(ptx, KERNEL)
    copy = next(one for one in kernel.code if one.opcode.startswith("cp.async.bulk"))
    register = copy.address[0]
    lines = ptx.splitlines()
    step = next(
        one.line - 1 for one in kernel.code if one.opcode == "add.s32" and one.operands[:2] == (register, register)
    )
    changed = re.sub(r"\d+;", f"{by};", lines[step])
    assert changed != lines[step]
    lines[step] = changed
    with pytest.raises(AmkError) as caught:
        read_back(schedule, "\n".join(lines) + "\n")
    assert "fills another slot" in caught.value.diagnostics[0].message


BODY = """
.version 9.0
.target sm_90a
.visible .entry amk_decode(
	.param .u64 p
)
{
	.reg .b32 %r<13>;
	.reg .pred %p<3>;
	mov.u32 %r1, %tid.x;
	shl.b32 %r2, %r1, 3;
	or.b32 %r3, %r2, 5;
	mov.u32 %r4, 0;
$L1:
	mad.lo.s32 %r5, %r4, 6, %r3;
	add.s32 %r4, %r4, 1;
	setp.lt.s32 %p1, %r4, 10;
	@%p1 bra $L1;
	{ .reg .b32 %r1; mov.u32 %r1, 7; add.s32 %r6, %r1, %r4; }
	and.b32 %r7, %r1, 31;
	or.b32 %r8, %r7, 32;
	shl.b32 %r9, %r7, 4;
	mul.lo.s32 %r10, %r6, 1536;
	or.b32 %r11, %r9, %r10;
	or.b32 %r12, %r10, %r8;
	ret;
}
"""


@pytest.mark.parametrize(
    ("shift", "mask", "factor"),
    [(0, -32, None), (0, 0x7FFFFFE0, 32), (1, 0x7FFFFFF0, 16), (1, 0x70, 16), (3, 0x7FFFFFFC, 4), (4, 30, 2),
     (1, 0x7FFFFFE0, None), (1, 0x7FFFFFF8, None), (3, 8, None), (0, 32, None), (6, 1, None)],
)  # fmt: skip
def test_threads_without_the_bits_of_their_lane_are_multiples_of_the_warp(
    shift: int, mask: int, factor: int | None
) -> None:
    """Shifted or not. Of a block of 256 threads a mask that leaves out a bit of the warp, or has one of the lane, is no
    such multiple."""
    lines = f"shr.u32 %r8, %r1, 5; shr.u32 %r9, %r1, {shift}; and.b32 %r10, {'%r9' if shift else '%r1'}, {mask};"
    text = BODY.replace("mov.u32 %r4, 0;", f"{lines} mov.u32 %r4, 0;").replace("\n)", "\n)\n.maxntid 256\n", 1)
    kernel = read_kernel(text, KERNEL)
    values = Values(kernel)
    masked = next(one for one in kernel.code if one.opcode == "and.b32")
    warp = values.result(next(one.at for one in kernel.code if one.opcode == "shr.u32"), "%r8")
    found = values.result(masked.at, masked.results[0])
    if factor is None:
        assert not found.keys() <= warp.keys()
        return
    assert found == {leaf: factor for leaf in warp}
    cleared = [(thread >> shift) & mask for thread in range(256)]
    assert cleared == [factor * (thread // 32) for thread in range(256)]


def test_registers_hold_what_reaches_them() -> None:
    """A variable of a loop means another value after it was counted on; names in braces are their own.

    Numbers whose bits cannot meet are added by "or": 16 times the lane and a multiple of 1,536, not of 8.
    """
    kernel = read_kernel(BODY, KERNEL)
    values = Values(kernel)
    at = {one.results[0]: one.at for one in kernel.code if one.results}
    tid = {"%tid.x": 1}
    assert values.result(at["%r3"], "%r3") == {"%tid.x": 8, "": 5}
    variable = values.of("%r4", at["%r5"])
    (leaf,) = variable
    assert values.result(at["%r5"], "%r5") == added({"%tid.x": 8, "": 5}, variable, 6)
    assert values.of("%r4", at["%p1"]) == {leaf: 1, "": 1}
    assert sorted(map(str, values.alternatives(leaf))) == sorted(map(str, [{}, {leaf: 1, "": 1}]))
    assert values.result(at["%r6"], "%r6") == {leaf: 1, "": 8}
    assert values.of("%r1", at["%r7"]) == tid
    assert constant(added(values.result(at["%r8"], "%r8"), values.result(at["%r7"], "%r7"), -1)) == 32
    lane, slot = (values.result(at[name], name) for name in ("%r7", "%r10"))
    assert values.result(at["%r11"], "%r11") == added(slot, lane, 16)
    assert values.result(at["%r12"], "%r12") == added(added(slot, {"": 32}), lane)
    values = Values(read_kernel(BODY.replace("1536", "1544"), KERNEL))
    lane, slot, either = (values.result(at[name], name) for name in ("%r7", "%r10", "%r11"))
    assert sorted(slot.values()) == [1544, 8 * 1544] and either != added(slot, lane, 16) and len(either) == 1
