"""Every rounding is in the PTX: read-back refuses any other, and the assembler has none to decide."""

from __future__ import annotations

import re
from functools import cache

import pytest

from amk.lowering.compile import DEFAULT_OPTIONS, Compiled, compile_cuda, compile_ptx
from amk.lowering.emit import emit
from amk.lowering.kernel import read_back
from amk.lowering.roundings import check_roundings
from amk.lowering.sass import disassemble
from amk.report.diagnostic import AmkError
from amk.schedule_ir.schedule import Schedule
from tests.lowering.edits.judge import subject

OPEN = [
    "mul.f32 %f1, %f2, %f3;", "@%p1 add.ftz.f32 %f1, %f2, %f3;", "sub.sat.f32 %f1, %f2, %f3;", "add.f64 %d1, %d2, %d3;",
    "mul.bf16x2 %r1, %r2, %r3;", "add.f16 %h1, %h2, %h3;", "mad.f32 %f1, %f2, %f3, %f4;",
    "fma.f16x2 %r1, %r2, %r3, %r4;",
]  # fmt: skip
WRITTEN = [
    "mul.rn.f32 %f1, %f2, %f3;", "fma.rn.bf16x2 %r1, %r2, %r3, %r4;", "add.rz.ftz.f32 %f1, %f2, %f3;",
    "mad.lo.s32 %r1, %r2, %r3, %r4;", "mul.wide.u32 %rd1, %r1, %r2;", "add.s64 %rd1, %rd2, %rd3;",
    "red.relaxed.gpu.global.add.f32 [%rd1], %f1;", "// mul.f32 in words;", "/* add.f32 */ ret;",
]  # fmt: skip
CONTRACTED = tuple(option for option in DEFAULT_OPTIONS if option != "--fmad=false")


@pytest.mark.parametrize("statement", OPEN)
def test_an_open_rounding_is_refused_with_its_line(statement: str) -> None:
    with pytest.raises(AmkError) as refused:
        check_roundings(f"{{\n\tret;\n{statement}\n}}")
    (found,) = refused.value.diagnostics
    assert found.code == "AMK610" and f"line 3: {statement.split('} ')[-1].removeprefix('@%p1 ')[:-1]}" in str(found)


@pytest.mark.parametrize("statement", WRITTEN)
def test_what_names_its_rounding_or_has_none_is_taken(statement: str) -> None:
    check_roundings(f"{{\n{statement}\nret;\n}}")


@pytest.mark.turns(4)
def test_a_kernel_compiled_with_contraction_is_not_built() -> None:
    schedule = subject("tagged")
    read_back(schedule, compile_ptx(emit(schedule), schedule.target.arch))
    with pytest.raises(AmkError) as refused:
        read_back(schedule, compile_ptx(emit(schedule), schedule.target.arch, options=CONTRACTED))
    assert [found.code for found in refused.value.diagnostics] == ["AMK610"]


@cache
def assembled(name: str, contract: bool) -> Compiled:
    schedule: Schedule = subject(name)
    option = f"--ptxas-options=-fmad={str(contract).lower()}"
    return compile_cuda(emit(schedule), schedule.target.arch, options=(*DEFAULT_OPTIONS, option))


def code(compiled: Compiled) -> str:
    listing = disassemble(compiled.cubin)
    if listing is None:
        pytest.skip("needs nvdisasm")
    return listing[listing.index(".text.") :]


@pytest.mark.turns(4)
def test_the_assembler_makes_the_same_code_whether_it_contracts_or_not() -> None:
    """Before roundings were written it contracted 24 products and sums of this kernel."""
    assert code(assembled("family", True)) == code(assembled("family", False))


@pytest.mark.turns(12)
@pytest.mark.parametrize("name", ["family", "fenced"])
def test_machine_code_has_as_many_fma_as_its_ptx(name: str) -> None:
    """Kernels of which ptxas unrolls no loop with one."""
    compiled = assembled(name, True)
    assert len(re.findall(r"\bFFMA\b", code(compiled))) == len(re.findall(r"\bfma\.rn\.f32\b", compiled.ptx)) > 40
