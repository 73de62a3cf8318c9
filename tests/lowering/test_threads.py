"""Which threads of a worker come to what synchronises, and in which order, as the read-back sees it."""

from __future__ import annotations

import re
from random import Random

import pytest

from amk.lowering.emit import KERNEL
from amk.lowering.kernel import read_back
from amk.lowering.ptx_code import read_kernel
from amk.lowering.readback import Kind, read_ptx
from amk.lowering.thread_values import ThreadValues
from amk.report.diagnostic import AmkError
from tests.cases import cases, commits
from tests.lowering.edits.ptx_run import original, schedule

APART = "warps apart, fenced"
_COMPARED = re.compile(r"\s*setp\.ne\.s32\s+(%p\d+), (%r\d+), \d+;")
OTHERWISE = "is executed by other threads, or in another order, than the schedule's"


def refusal(name: str, line: int, *new: str) -> str:
    """What refuses the kernel with other lines instead of one; "" if nothing does."""
    text = original(name).splitlines()
    assert (text[line],) != new
    try:
        read_back(schedule(name), "\n".join([*text[:line], *new, *text[line + 1 :]]) + "\n")
    except AmkError as error:
        return error.diagnostics[0].message
    return ""


def branches_to_barriers() -> list[tuple[int, int]]:
    """(comparison, branch) before each barrier of some warps, as indices of lines."""
    text, found = original(APART).splitlines(), []
    for one in read_ptx(original(APART))[KERNEL]:
        if one.kind is Kind.CTA_BARRIER and one.operands != ("0", "128"):
            branch = next(n for n in range(one.line - 1, 0, -1) if re.match(r"\s*@%p\d+ bra", text[n]))
            found.append((branch - 1, branch))
    return found


def passed(relation: str, number: int, less_one: bool) -> list[int]:
    """The warps of four that skip a barrier, by unsigned 32-bit numbers."""
    values = [(warp - less_one) % 2**32 for warp in range(4)]
    return [value for value in values if {"gt": value > number, "ne": value != number, "lt": value < number}[relation]]


@pytest.mark.turns(4)
def test_a_barrier_of_some_warps_is_met_by_these_alone() -> None:
    found, text = branches_to_barriers(), original(APART).splitlines()
    assert len(found) >= 10
    for comparison, branch in Random(f"{commits()}").sample(found, min(len(found), cases(1, 100))):
        number = re.fullmatch(r"(\s*setp\.(\w+)\.[us]32\s+%p\d+, %r\d+, )(\d+);", text[comparison])
        assert number is not None, text[comparison]
        least = text[comparison - 1].endswith(", -1;")  # the register has the warp less one
        for other in (int(number[3]) - 1, int(number[3]) + 1):
            found = refusal(APART, comparison, f"{number[1]}{other};")
            same = passed(number[2], other, least) == passed(number[2], int(number[3]), least)
            assert found == "" if same else OTHERWISE in found, (comparison, other)
        assert OTHERWISE in refusal(APART, branch), branch
        assert OTHERWISE in refusal(APART, branch, text[branch].replace("@", "@!")), branch


@pytest.mark.turns(4)
def test_a_worker_runs_its_program_alone() -> None:
    """Each of two workers has one of its own."""
    name = "two programs"
    read_back(schedule(name), original(name))
    text = original(name).splitlines()
    number = {found[1] for line in text if (found := re.match(r"\s*mov\.u32\s+(%r\d+), %ctaid\.x;", line))}
    compared = [n for n, line in enumerate(text) if (found := _COMPARED.match(line)) and found[2] in number]
    assert len(compared) >= 2
    for place in compared:
        line = text[place]
        for other in (line.replace(".ne.", ".eq."), re.sub(r"(\d+);$", lambda m: f"{int(m[1]) + 1};", line)):
            assert OTHERWISE in refusal(name, place, other), other


def test_the_first_thread_alone_sets_up_the_watchdog() -> None:
    text = original(APART).splitlines()
    branch = next(n for n, line in enumerate(text) if re.match(r"\s*@%p\d+ bra", line))
    assert "the first of a worker" in refusal(APART, branch, text[branch].replace("@", "@!"))


def test_what_synchronises_is_executed_on_some_way() -> None:
    """A wait that never asks the watchdog."""
    text = original(APART).splitlines()
    place = next(n for n, line in enumerate(text) if "atom.relaxed.cta" in line)
    before = [n for n in range(place) if re.match(r"\s*@%p\d+ bra", text[n])][-2:]
    reasons = [refusal(APART, n, text[n].split(maxsplit=1)[1]) for n in before]
    assert any("does not come to it on any way" in each for each in reasons), reasons


def test_a_comparison_that_a_guard_may_skip_is_refused() -> None:
    text = original(APART).splitlines()
    copy = next(n for n, line in enumerate(text) if "mbarrier.arrive" in line)
    comparison = next(n for n in range(copy, 0, -1) if "setp.lt.s32" in text[n])
    assert "before it is written" in refusal(APART, comparison, f"@%p15 {text[comparison].strip()}")


BODY = """.visible .entry amk_decode() {{
mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; mov.u32 %r3, %ctaid.x;
setp.ne.s32 %p1, %r2, 1;
@%p1 bra $other;
mov.u32 %r4, 1;
bra.uni $met;
$other:
mov.u32 %r4, %r2;
$met:
{test}
@%p2 bra $end;
bar.sync 0, 64;
$end:
ret;
}}
"""


@pytest.mark.parametrize(
    ("test", "passing"),
    [
        ("setp.ne.s32 %p2, %r4, 1;", [False, False, True, True] * 2),  # of both definitions: the warp
        ("add.s32 %r4, %r4, 1; setp.ne.s32 %p2, %r4, 1;", [True, True, False, False] * 2),
        ("setp.eq.s32 %p2, %r3, 7;", [True] * 4 + [False] * 4),  # the worker
        ("elect.sync _|%p3, 0xffffffff; not.pred %p2, %p3;", [False, True] * 4),
        ("ld.global.u32 %r5, [%rd1]; setp.ne.s32 %p2, %r5, 0;", [True] * 8),  # nothing is known of memory
        ("ld.global.u32 %r5, [%rd1]; setp.ne.s32 %p3, %r5, 0; or.pred %p2, %p3, %p1;", [False, False, True, True] * 2),
        ("@%p1 setp.ne.s32 %p2, %r4, 9;", [False, False, True, True] * 2),  # true, or left as it was
        ("setp.lt.s32 %p2, %r1, -1; @%p1 bra $end;", [False, False, True, True] * 2),
        ("shl.b32 %r5, %r4, 31; setp.lt.s32 %p2, %r5, 0;", [True, True, False, False] * 2),  # a sign
        ("shl.b32 %r5, %r4, 31; setp.lt.u32 %p2, %r5, 1;", [False, False, True, True] * 2),
        ("cvt.s64.s32 %rd2, %r4; add.s64 %rd2, %rd2, 4; cvt.u32.u64 %r6, %rd2; setp.eq.s32 %p2, %r6, 4;",
         [False, False, True, True] * 2),
    ],
)  # fmt: skip
def test_branches_are_decided_by_worker_and_thread(test: str, passing: list[bool]) -> None:
    kernel = read_kernel(BODY.format(test=test), KERNEL)
    agents = [(worker, thread, elected) for worker in (4, 7) for thread in (0, 32) for elected in (False, True)]
    barrier = next(one.at for one in kernel.code if one.opcode == "bar.sync")
    reached = ThreadValues(kernel, agents).reached.get(kernel.block(barrier), 0)
    assert [bool(reached >> n & 1) for n in range(len(agents))] == passing
