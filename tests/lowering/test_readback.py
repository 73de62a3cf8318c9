"""Reading back: PTX gives every synchronising instruction in order, machine code its spills and computed branches."""

from __future__ import annotations

import pytest

from amk.lowering.compile import compile_cuda
from amk.lowering.readback import FORMS, Kind, count_kinds, read_ptx
from amk.lowering.sass import MachineCode, check_sass, disassemble, read_sass
from amk.report.diagnostic import AmkError

HAND_OFF = """
#include "amk/watchdog.cuh"
using namespace amk;
using namespace amk::sync;
struct Arguments { u32* counter; u64* words; uint4* data; WatchdogLog* log; };
extern "C" __global__ void __launch_bounds__(64, 1) step(const Arguments* a) {
  __shared__ Watchdog dog;
  __shared__ alignas(16) uint4 slot[32];
  __shared__ u64 full;
  if (threadIdx.x == 0) {
    watchdog_start(dog, a->log, nullptr, 1000, blockIdx.x);
    mbarrier_init(&full, 1);
    fence_mbarrier_init();
  }
  cta_barrier<0, 64>();
  if (threadIdx.x == 0) {
    fence_proxy_async_shared();
    mbarrier_arrive_expect_tx(&full, 512);
    bulk_load(slot, a->data, 512, &full);
  }
  wait_mbarrier(dog, 0, 0, &full, 0);
  uint4 value = slot[threadIdx.x & 31];
  const uint4 weight = load_constant(a->data + 64);
  if (threadIdx.x < 32) {
    warp_barrier();
    if (threadIdx.x == 0) wait_counter(dog, 1, 5, a->counter, 9);
  }
  cta_barrier<3, 64>();
  value.x += weight.x + load_global_v4(a->data + 128).y;
  store_tagged(a->words + threadIdx.x, value.x, 4);
  cta_barrier<3, 64>();
  if (threadIdx.x == 0) signal_release(a->counter, 1);
}
"""


def test_hand_offs_come_back_in_order() -> None:
    instructions = read_ptx(compile_cuda(HAND_OFF, "sm_90a").ptx)["step"]
    schedule = [item.kind for item in instructions if item.kind is not Kind.WATCHDOG]
    assert schedule == [
        Kind.MBARRIER_INIT,
        Kind.MBARRIER_INIT_FENCE,
        Kind.CTA_BARRIER,
        Kind.PROXY_FENCE_SHARED,
        Kind.MBARRIER_EXPECT,
        Kind.BULK_LOAD,
        Kind.MBARRIER_WAIT,
        Kind.LOAD_CONSTANT,
        Kind.WARP_BARRIER,
        Kind.POLL_ACQUIRE,
        Kind.CTA_BARRIER,
        Kind.TAGGED_STORE,
        Kind.CTA_BARRIER,
        Kind.SIGNAL_RELEASE,
    ]
    barriers = [item.operands for item in instructions if item.kind is Kind.CTA_BARRIER]
    assert barriers == [("0", "64"), ("3", "64"), ("3", "64")]
    assert count_kinds(instructions)[Kind.CTA_BARRIER] == 3


def test_lines_and_operands_are_those_of_the_text() -> None:
    ptx = compile_cuda(HAND_OFF, "sm_90a").ptx
    lines = ptx.splitlines()
    for item in read_ptx(ptx)["step"]:
        assert item.opcode in lines[item.line - 1]
        for operand in item.operands:
            assert operand in lines[item.line - 1]


def body(*statements: str) -> str:
    return (
        ".version 9.0\n.target sm_90a\n.visible .entry k(\n\t.param .u64 p\n)\n.maxntid 64\n{\n\t.reg .b32 %r<2>;\n"
        + "".join(f"\t{statement}\n" for statement in statements)
        + "}\n"
    )


@pytest.mark.parametrize(
    "statement",
    [
        "red.global.add.u32 [%rd1], 1;",
        "red.release.sys.global.add.u32 [%rd1], 1;",
        "red.release.cta.global.add.u32 [%rd1], 1;",
        "atom.global.add.u32 %r1, [%rd1], 1;",
        "@%p1 membar.gl;",
        "fence.sc.gpu;",
        "ld.volatile.global.u32 %r1, [%rd1];",
        "ld.acquire.cta.global.u32 %r1, [%rd1];",
        "st.release.gpu.global.u32 [%rd1], %r1;",
        "bar.arrive 1, 64;",
        "barrier.cluster.arrive;",
        "cp.async.bulk.prefetch.L2.global [%rd1], %r1;",
        "mbarrier.arrive.release.cta.shared::cta.b64 _, [%r1];",
        "cp.async.bulk.commit_group;",
        "$L__BB0_1: { bar.red.popc.u32 %r1, 0, %p1; }",
        "mbarrier.test_wait.shared.b64 %p1, [%r1], %rd1;",
        "mbarrier.try_wait.parity.relaxed.cta.shared::cta.b64 %p1, [%r1], %r2;",
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 512;",
    ],
)
def test_a_form_outside_the_table_is_refused(statement: str) -> None:
    with pytest.raises(AmkError, match="no rule covers") as raised:
        read_ptx(body("add.u32 %r1, %r1, 1;", statement))
    assert raised.value.diagnostics[0].facts[0].text.startswith("line 10: ")


@pytest.mark.parametrize(
    "statement",
    [
        "ld.global.u32 %r1, [%rd1];",
        "ld.param.u64 %rd1, [red.param];",
        "st.shared.v4.b32 [%r1], {%r1, %r1, %r1, %r1};",
        "// fence.sc.gpu;",
        "/* membar.gl; */",
        "brev.b32 %r1, %r1;",
        "prefetch.global.L2 [%rd1];",
    ],
)
def test_ordinary_instructions_are_not_listed(statement: str) -> None:
    assert read_ptx(body(statement)) == {"k": []}


@pytest.mark.parametrize("opcode", sorted(FORMS))
def test_every_known_form_is_of_a_family(opcode: str) -> None:
    (item,) = read_ptx(body(f"{opcode} [%rd1], {{%rd2, %rd3}};"))["k"]
    assert (item.kind, item.operands) == (FORMS[opcode], ("[%rd1]", "{%rd2, %rd3}"))
    with pytest.raises(AmkError, match="under a predicate"):
        read_ptx(body(f"@!%p3 {opcode} [%rd1], {{%rd2, %rd3}};"))


def test_several_functions_are_kept_apart() -> None:
    text = body("bar.sync 0, 64;") + ".func (.reg .b32 %r1) helper(.reg .b32 %r2)\n{\n\tbar.warp.sync -1;\n\tret;\n}\n"
    found = read_ptx(text)
    assert {name: [item.kind for item in items] for name, items in found.items()} == {
        "k": [Kind.CTA_BARRIER],
        "helper": [Kind.WARP_BARRIER],
    }


def test_truncated_ptx_is_refused() -> None:
    with pytest.raises(AmkError, match="ends inside"):
        read_ptx(body("bar.sync 0, 64;")[:-3])


TROUBLE = """
extern "C" __global__ void __launch_bounds__(1024, 2) spills(float* out, const float* in, int n) {
  float r[64];
#pragma unroll
  for (int i = 0; i < 64; i++) r[i] = in[i * n + threadIdx.x];
  for (int j = 0; j < n; j++) {
#pragma unroll
    for (int i = 0; i < 64; i++) r[i] = r[i] * r[(i + 7) % 64] + in[j];
  }
#pragma unroll
  for (int i = 0; i < 64; i++) out[i * n + threadIdx.x] = r[i];
}
extern "C" __global__ void branches(float* out, float (**table)(float), int n) { out[threadIdx.x] = table[n](out[0]); }
"""


@pytest.mark.turns(4)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
def test_machine_code_shows_spills_and_calls(arch: str) -> None:
    compiled = compile_cuda(TROUBLE, arch)
    listing = disassemble(compiled.cubin)
    if listing is None:
        pytest.skip("needs nvdisasm")
    code = read_sass(listing)
    assert code["spills"].local_stores > 0
    assert code["spills"].local_loads > 0
    assert compiled.resources["spills"].spill_stores > 0
    assert code["branches"].calls == 1
    with pytest.raises(AmkError, match="AMK403"):
        check_sass({"spills": code["spills"]})
    with pytest.raises(AmkError, match="AMK205"):
        check_sass({"branches": code["branches"]})


def test_machine_code_of_a_hand_off_is_clean() -> None:
    listing = disassemble(compile_cuda(HAND_OFF, "sm_90a").cubin)
    if listing is None:
        pytest.skip("needs nvdisasm")
    code = read_sass(listing)
    check_sass(code)
    assert code["step"].count("UBLKCP") == 1, "the bulk copy"
    assert code["step"].count("REDG") == 1, "the release signal"


def test_listing_is_read_without_the_tool() -> None:
    listing = (
        ".text.k:\n        /*0000*/                   LDC R1, c[0x0][0x28] ;\n"
        "        /*0010*/              @!P0 BRX R2 -0x10 ;\n        /*0020*/               @P1 STL.64 [R1], R4 ;\n"
    )
    code = read_sass(listing)
    assert code == {"k": MachineCode(code["k"].opcodes)}
    assert (code["k"].indirect_branches, code["k"].local_stores, code["k"].calls) == (1, 1, 0)
