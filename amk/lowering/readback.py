"""What a compiled kernel really does to synchronise, read back from its PTX.

Property: every instruction of the PTX is in one of three sets. It synchronises in a form of `FORMS`, and then no
    predicate guards it; it is a plain access of a known form; or it computes in registers, or branches to a label.
    Others (calls, computed branches, surfaces, discards, changes of the register count) are refused, as are forms
    outside the table in a synchronising family (red, atom, fence, bar, mbarrier, cp.async, strong ld and st).
Assumptions: ptxas implements the PTX it is given; the PTX and the cubin come from the same compilation.
Algorithm: comments are dropped, a body is split at semicolons, an opcode is looked up in the table or matched with
    `_PLAIN`.
Cost: linear in the text.
Witness: the first instruction that is in no set, with its line.

The instructions come in textual order. Loops appear once and branches are not followed, so the list says which
hand-offs exist and in which order the generator wrote them, not how often each is executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from amk.lowering import refusal
from amk.report.diagnostic import AmkError, shown


class Kind(StrEnum):
    """What a synchronising instruction is for, named like the primitive of sync.cuh that contains it."""

    SIGNAL_RELEASE = "signal_release"
    SIGNAL_RELAXED = "signal_relaxed"
    POLL_ACQUIRE = "poll_acquire"
    POLL_RELAXED = "poll_relaxed"
    FENCE_GPU = "fence_acquire_release_gpu"
    TAGGED_STORE = "store_tagged"
    TAGGED_LOAD = "load_tagged"
    CTA_BARRIER = "cta_barrier"
    WARP_BARRIER = "warp_barrier"
    MBARRIER_INIT = "mbarrier_init"
    MBARRIER_INIT_FENCE = "fence_mbarrier_init"
    MBARRIER_EXPECT = "mbarrier_arrive_expect_tx"
    MBARRIER_WAIT = "mbarrier_try_wait"
    PROXY_FENCE_SHARED = "fence_proxy_async_shared"
    PROXY_FENCE_GLOBAL = "fence_proxy_async_global"
    BULK_LOAD = "bulk_load"
    COPY = "copy_16"
    COPY_COMMIT = "copy_commit"
    COPY_WAIT = "copy_wait"
    LOAD_CONSTANT = "load_constant"
    WATCHDOG = "watchdog"


# Opcode -> kind. The watchdog's accesses are relaxed, so none of them can complete a release or an acquire pattern.
FORMS: dict[str, Kind] = {
    "red.release.gpu.global.add.u32": Kind.SIGNAL_RELEASE,
    "red.relaxed.gpu.global.add.u32": Kind.SIGNAL_RELAXED,
    "ld.acquire.gpu.global.u32": Kind.POLL_ACQUIRE,
    "ld.relaxed.gpu.global.u32": Kind.POLL_RELAXED,
    "fence.acq_rel.gpu": Kind.FENCE_GPU,
    "st.relaxed.gpu.global.b64": Kind.TAGGED_STORE,
    "st.relaxed.gpu.global.v2.b64": Kind.TAGGED_STORE,
    "ld.relaxed.gpu.global.b64": Kind.TAGGED_LOAD,
    "ld.relaxed.gpu.global.v2.b64": Kind.TAGGED_LOAD,
    "bar.sync": Kind.CTA_BARRIER,
    "bar.warp.sync": Kind.WARP_BARRIER,
    "mbarrier.init.shared::cta.b64": Kind.MBARRIER_INIT,
    "fence.mbarrier_init.release.cluster": Kind.MBARRIER_INIT_FENCE,
    "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64": Kind.MBARRIER_EXPECT,
    "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64": Kind.MBARRIER_WAIT,
    "fence.proxy.async.shared::cta": Kind.PROXY_FENCE_SHARED,
    "fence.proxy.async.global": Kind.PROXY_FENCE_GLOBAL,
    "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes": Kind.BULK_LOAD,
    "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint": Kind.BULK_LOAD,
    "cp.async.cg.shared.global.L2::128B": Kind.COPY,
    "cp.async.cg.shared.global.L2::cache_hint": Kind.COPY,
    "cp.async.commit_group": Kind.COPY_COMMIT,
    "cp.async.wait_group": Kind.COPY_WAIT,
    "atom.relaxed.gpu.global.add.u32": Kind.WATCHDOG,
    "atom.relaxed.cta.shared::cta.or.b32": Kind.WATCHDOG,
    "ld.relaxed.cta.shared::cta.u32": Kind.WATCHDOG,
    "ld.relaxed.sys.global.u32": Kind.WATCHDOG,
}

_FAMILY = re.compile(
    r"(?:red|atom|fence|membar|bar|barrier|mbarrier|multimem|griddepcontrol|clusterlaunchcontrol)\b|cp\.async|"
    r"cp\.reduce|st\.async|st\.bulk|red\.async|tcgen05|wgmma|ldu\.|"
    r"(?:ld|st)\.[\w.:]*\b(?:acquire|release|acq_rel|relaxed|volatile|mmio|nc)\b"
)
_PLAIN = re.compile(
    r"(?:ld|st)(?:\.(?:global|shared|param|const))?(?:\.L1::no_allocate)?(?:\.v[24])?\.[busf](?:8|16|32|64)|"
    r"prefetch\.global\.L2|bra(?:\.uni)?|ret|"
    r"(?:add|sub|mul|mad|fma|div|rem|min|max|abs|neg|and|or|xor|not|lop3|sh[lrf]|mov|cvta?|selp|setp|prmt|bfe|bfi|bfind|"
    r"brev|popc|clz|ex2|lg2|rcp|rsqrt|sqrt|sin|cos|tanh|copysign|testp|createpolicy|dp4a|dp2a|szext|"
    r"shfl|vote|match|redux|elect|activemask|mma|movmatrix)(?:\.[\w:]+)*"
)
"""Opcodes that neither order memory nor leave the kernel's text."""
_CONSTANT_LOAD = re.compile(r"ld\.global\.nc\b")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_FUNCTION = re.compile(r"\.(?:entry|func)\b[^;{]*?([\w$]+)\s*\([^){]*\)[^;{]*\{")
_STATEMENT = re.compile(
    r"(?:[{}\s]|[\w$]+:(?!:))*(?:@(?P<predicate>!?%?\w+)\s+)?(?P<opcode>[a-z][\w.:]*)\s*(?P<operands>.*)", re.DOTALL
)


@dataclass(frozen=True)
class Instruction:
    """One synchronising instruction; `line` is 1-based in the PTX."""

    kind: Kind
    opcode: str
    operands: tuple[str, ...]
    line: int


def read_ptx(ptx: str) -> dict[str, list[Instruction]]:
    """Synchronising instructions of every kernel and function of `ptx`, by symbol name, in textual order.

    Raises AMK607 with the instruction if one belongs to a synchronising family and is in no known form.
    """
    text = _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), ptx)
    return {
        match[1]: list(_instructions(text, match.end(), _end_of_block(text, match.end())))
        for match in _FUNCTION.finditer(text)
    }


def count_kinds(instructions: list[Instruction]) -> dict[Kind, int]:
    """How often each kind occurs; kinds that do not occur are absent."""
    counts: dict[Kind, int] = {}
    for instruction in instructions:
        counts[instruction.kind] = counts.get(instruction.kind, 0) + 1
    return counts


def _instructions(text: str, start: int, end: int) -> Iterator[Instruction]:
    line = text.count("\n", 0, start) + 1
    before, alone = 0, False  # the line of the instruction before, and whether that synchronises
    for statement in text[start:end].split(";"):
        match = _STATEMENT.match(statement)
        if match is not None:
            at, orders = line + statement.count("\n", 0, match.start("opcode")), bool(_FAMILY.match(match["opcode"]))
            if at == before and (orders or alone):
                raise _refused(match, at, "the PTX has another instruction in the line of one that synchronises")
            if orders:
                yield _classify(match, at)
            elif not _PLAIN.fullmatch(match["opcode"]):
                raise _refused(match, at, "the PTX has an instruction that no rule covers")
            before, alone = at, orders
        line += statement.count("\n")


def _classify(match: re.Match[str], line: int) -> Instruction:
    opcode = match["opcode"]
    kind = Kind.LOAD_CONSTANT if _CONSTANT_LOAD.match(opcode) else FORMS.get(opcode)
    if kind is None:
        raise _refused(match, line, "the PTX synchronises in a form that no rule covers")
    if match["predicate"] and kind is not Kind.LOAD_CONSTANT:
        raise _refused(match, line, "the PTX synchronises under a predicate")
    operands = tuple(part.strip() for part in re.split(r",(?![^{]*\})", match["operands"]) if part.strip())
    return Instruction(kind, opcode, operands, line)


def _refused(match: re.Match[str], line: int, why: str) -> AmkError:
    return refusal.unsafe("AMK607", why, shown(f"line {line}: {match['opcode']} {match['operands']}".strip()))


def _end_of_block(text: str, start: int) -> int:
    depth = 1
    for match in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.start()
    raise refusal.internal("the PTX ends inside a function")
