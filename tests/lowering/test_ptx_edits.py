"""Edits of synchronising instructions of compiled kernels: refused, or without a difference in the emulator."""

from __future__ import annotations

from random import Random

import pytest

from amk.lowering.kernel import read_back
from amk.report.diagnostic import AmkError
from tests.cases import commits
from tests.lowering.edits.of_ptx import PtxEdit
from tests.lowering.edits.ptx_run import KERNELS, ordered, outcome, places, schedule

pytest.importorskip("numba")

DRAWN = 8
WEAKER = (
    "left out", "opcode .release .relaxed", "opcode .acquire .relaxed", "opcode .gpu .cta", "opcode .relaxed.gpu ",
    "opcode (?<=bar).sync .arrive", "opcode (?<=ld).global .global.nc",
)  # fmt: skip
BESIDE = ("branch", "comparison", "load", "store", "watchdog")
"""Kinds of places that do not synchronise themselves."""


def synchronises(edit: PtxEdit) -> bool:
    return edit.rule in WEAKER and not edit.kind.startswith(BESIDE)


@pytest.mark.turns(32)
@pytest.mark.parametrize("name", KERNELS)
def test_synchronisation_that_is_weaker_or_missing_is_refused_or_shows_nothing(name: str) -> None:
    """Others at every commit. Most are refused: a test of the read-back alone would not see one that should be."""
    edits = [edit for edit in ordered(name) if synchronises(edit)]
    found = {}
    for edit in Random(f"{commits()} {name}").sample(edits, DRAWN):
        found[edit.name(places(name).lines)] = outcome(name, edit)
    assert [f"{where}: {result}" for where, result in found.items() if result.startswith("refuted")] == []
    assert sum(result.startswith("refused") for result in found.values()) >= DRAWN // 2


def deciding(name: str) -> dict[str, list[int]]:
    """Guarded branches of a kernel, by what they decide: whether a slot is refilled, whether a stale word is read
    again, and whether a loop goes on over chunks or tokens."""
    kernel = places(name).kernel
    found: dict[str, list[int]] = {"refill": [], "stale": [], "chunks": [], "tokens": []}
    opcodes = [one.opcode for one in kernel.code]
    guarded = [one.at for one in kernel.code if one.opcode.startswith("bra") and one.guard]
    copies = ("cp.async.cg", "fence.proxy.async", "mbarrier.arrive")
    for at, opcode in enumerate(opcodes):
        behind = next((n for n in range(at + 1, len(opcodes)) if n in places(name).kinds), at)
        if opcode == "bar.warp.sync" and opcodes[behind].startswith(copies):
            tests = [n for n in guarded if at < n < behind and kernel.successors(n)[0] > behind]
            found["refill"] += [n for n in tests if not opcodes[n - 1].startswith(("elect", "selp"))]
        if opcode.startswith("ld.relaxed.gpu.global.") and "b64" in opcode:
            test = next(n for n in guarded if n > at)
            found["stale"] += [test] if opcodes[test - 1] in ("and.pred", "setp.eq.s32") and test < behind else []
    backward = [n for n in guarded if kernel.successors(n)[0] < n]
    waits = [n for n, opcode in enumerate(opcodes) if opcode.startswith(("mbarrier.try_wait", "cp.async.wait_group"))]
    for wait in waits:
        barrier = opcodes.index("bar.warp.sync", wait + (opcodes[wait].startswith("cp")))
        found["chunks"] += [next(n for n in backward if n > barrier and kernel.successors(n)[0] <= wait)]
    found["tokens"] = [backward[-1]]
    return found


@pytest.mark.turns(8)
def test_without_a_token_no_worker_enters_its_program() -> None:
    """The branches that skip most code are those around two programs: who runs one, and whether a token is left."""
    name, found = "two programs", list[str]()
    kernel, lines = places(name).kernel, places(name).lines
    read_back(schedule(name), "\n".join(lines))
    ahead = [(kernel.successors(one.at)[0] - one.at, one) for one in kernel.code if one.opcode == "bra" and one.guard]
    for _, branch in sorted(ahead, key=lambda each: each[0])[-4:]:
        line = branch.line - 1
        edit = PtxEdit("predicate negated", "tokens", line, 1, (lines[line].replace("@", "@!", 1),))
        with pytest.raises(AmkError, match="AMK609") as caught:
            read_back(schedule(name), edit.of(lines))
        found.append(caught.value.diagnostics[0].message)
    assert sum("without a token" in message for message in found) == 2, found


@pytest.mark.turns(8)
@pytest.mark.parametrize("name", ["fenced", "tagged", "sm_80"])
def test_a_negated_branch_around_what_synchronises_is_refused(name: str) -> None:
    """One of each kind, others at every commit."""
    lines, draw = places(name).lines, Random(f"{commits()} {name}")
    for kind, branches in deciding(name).items():
        assert branches or (kind == "stale" and name == "fenced"), kind
        for at in draw.sample(branches, min(1, len(branches))):
            line = places(name).kernel.code[at].line - 1
            text = lines[line].replace("@!", "@", 1) if "@!" in lines[line] else lines[line].replace("@", "@!", 1)
            with pytest.raises(AmkError, match="AMK609"):
                read_back(schedule(name), PtxEdit("predicate negated", kind, line, 1, (text,)).of(lines))
