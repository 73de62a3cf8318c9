"""In products of codes of eight bits a slot is given back before what was in it is multiplied.

Taken by machine code alone: the order of the source is not that of the compiler.
"""

from __future__ import annotations

import re

import pytest

from amk.lowering.compile import compile_ptx
from amk.lowering.emit import emit
from amk.lowering.kernel import build
from amk.lowering.sass import disassemble
from amk.lowering.stamp import stamped
from amk.models.model import load_model
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.weights.weight_format import FormatName

MATRICES = 5


def planned(form: FormatName) -> Schedule:
    return plan(load_model("smollm2-135m"), load_target("h200"), formats=formats(form))


def printed(schedule: Schedule) -> str:
    """The PTX, without machine code made of it."""
    return compile_ptx(stamped(emit(schedule), schedule), schedule.target.arch)


def order(listing: str, wait: str, copy: str, product: str) -> list[str]:
    """Which of copy and product follows each wait first, where a product follows it before the next wait."""
    found = re.findall(rf"{wait}|{copy}|{product}", listing)
    between = " ".join("w" if re.match(wait, f) else "c" if re.match(copy, f) else "p" for f in found).split("w")
    return [part.split()[0] for part in between if "p" in part]


@pytest.mark.turns(24)
@pytest.mark.parametrize(
    ("form", "types", "first"), [("int8", "s32.s8", "c"), ("fp8", "f32.f16", "c"), ("int4-g128", "s32.s8", "p")]
)
def test_the_refill_is_ordered_before_the_product(form: FormatName, types: str, first: str) -> None:
    product = r"mma\.sync\.aligned\.m16n8k\d+\.row\.col\." + re.escape(types)
    found = order(printed(planned(form)), r"mbarrier\.try_wait", r"cp\.async\.bulk\.shared", product)
    assert found == [first] * MATRICES


@pytest.mark.turns(12)
def test_bytes_of_fp8_are_converted_where_they_are() -> None:
    listing = disassemble(build(planned("fp8")).compiled.cubin)
    if listing is None:
        pytest.skip("needs nvdisasm")
    halves = re.findall(r"F2FP\.F16\.E4M3\.UNPACK_B \w+, \w+(\.H1)?", listing)
    assert len(halves) > 0
    assert halves.count(".H1") == halves.count("")
