"""Single instructions whose bits no specification gives, on a GPU and in the emulator, on the same inputs.

python -m tests.emulator.instructions record FILE.npz     # on a GPU (needs cupy): inputs and what came out
python -m tests.emulator.instructions compare FILE.npz    # anywhere: the same PTX in the emulator
python -m tests.emulator.instructions sums FILE.npz       # anywhere: which way of adding the products of an mma fits
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.emulator.machine.machine import Limits, Machine
from amk.emulator.memory.global_memory import Allocation
from amk.emulator.ptx.parse import parse
from amk.emulator.ptx.program import assemble

Words = NDArray[np.uint32]
HEAD = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 given, .param .u64 out)
{{
.reg .b32 %r<40>;
.reg .f32 %f<9>;
.reg .b64 %rd<20>;
ld.param.u64 %rd1, [given];
ld.param.u64 %rd2, [out];
mov.u32 %r1, %tid.x;
mov.u32 %r2, %ctaid.x;
mov.u32 %r3, %ntid.x;
mad.lo.s32 %r4, %r2, %r3, %r1;
shr.u32 %r5, %r4, 5;
and.b32 %r6, %r4, 31;
mad.lo.s32 %r7, %r5, {step}, %r6;
mul.wide.u32 %rd3, %r7, 4;
add.s64 %rd4, %rd1, %rd3;
mad.lo.s32 %r8, %r5, {left}, %r6;
mul.wide.u32 %rd5, %r8, 4;
add.s64 %rd6, %rd2, %rd5;
"""
"""Each warp reads `step` words and leaves `left`, 32 at a time, the lane's own of each."""
MMA = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
ONE = ("ex2.approx.f32", "rsqrt.approx.f32", "div.approx.f32")
WARPS, BLOCK = 512, 8


def ptx(name: str) -> str:
    inputs, outputs = (10, 4) if name == MMA else (2, 1)
    loads = "".join(f"ld.global.u32 %r{10 + i}, [%rd4+{128 * i}];\n" for i in range(inputs))
    if name == MMA:
        a, b, c = ("{" + ", ".join(f"%r{10 + i}" for i in span) + "}" for span in (range(4), range(4, 6), range(6, 10)))
        d = "{" + ", ".join(f"%r{30 + i}" for i in range(4)) + "}"
        body = f"{MMA} {d}, {a}, {b}, {c};\n"
    else:
        second = ", %f2" if name.startswith("div") else ""
        body = f"mov.b32 %f1, %r10;\nmov.b32 %f2, %r11;\n{name} %f3, %f1{second};\nmov.b32 %r30, %f3;\n"
    stores = "".join(f"st.global.u32 [%rd6+{128 * i}], %r{30 + i};\n" for i in range(outputs))
    return HEAD.format(step=32 * inputs, left=32 * outputs) + loads + body + stores + "ret;\n}\n"


def operands(name: str) -> Words:
    """[warps, words of a lane, 32]; of an mma every second sum has terms of very different sizes."""
    rng = np.random.default_rng(24)
    if name == MMA:
        spread = np.where(np.arange(WARPS) % 2, 4.0, 0.0)[:, None, None]
        halves = rng.standard_normal((WARPS, 6, 64)) * 2.0 ** np.round(spread * rng.standard_normal((WARPS, 6, 64)))
        top = halves.astype(np.float32).view(np.uint32) >> 16
        packed = top[..., ::2] | top[..., 1::2] << 16
        sums = (rng.standard_normal((WARPS, 4, 32)) * (np.arange(WARPS) % 4 > 0)[:, None, None]).astype(np.float32)
        return np.concatenate((packed, sums.view(np.uint32)), 1).astype(np.uint32)
    first = {"ex2": rng.uniform(-30, 3, (WARPS, 32)), "rsqrt": 2.0 ** rng.uniform(-20, 14, (WARPS, 32))}
    one = first.get(name.partition(".")[0], rng.standard_normal((WARPS, 32)))
    return np.stack((one, 2.0 ** rng.uniform(-6, 6, (WARPS, 32))), 1).astype(np.float32).view(np.uint32)


def gpu_kernel(text: str) -> Any:
    """The kernel k of a PTX text on the GPU."""
    import cupy  # type: ignore[import-not-found]

    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(text)
        file.flush()
        return cupy.RawModule(path=file.name).get_function("k")


def on_gpu(name: str, words: Words) -> Words:
    import cupy

    kernel = gpu_kernel(ptx(name))
    found = cupy.zeros((WARPS, 4 if name == MMA else 1, 32), cupy.uint32)
    kernel((WARPS // BLOCK,), (32 * BLOCK,), (cupy.asarray(words), found))
    return np.asarray(found.get())


def emulated(name: str, words: Words) -> Words:
    shape = (len(words), 4 if name == MMA else 1, 32)
    size = 4 * int(np.prod(shape))
    held = [
        Allocation("given", words.nbytes, "constant", words),
        Allocation("out", size, "state", np.zeros(size, np.uint8)),
    ]
    machine = Machine(assemble(parse(ptx(name)), "k"), len(words) // BLOCK, BLOCK, 0, held, Limits(seconds=300.0))
    at = machine.memory.addresses
    outcome = machine.launch(b"".join(at[n].to_bytes(8, "little") for n in ("given", "out")))
    assert outcome.ended and not outcome.faults, outcome.faults
    return np.asarray(machine.read("out", np.uint32, size // 4)).view(np.uint32).reshape(shape)


def record(path: Path) -> None:
    np.savez_compressed(path, **{name: on_gpu(name, operands(name)) for name in (*ONE, MMA)})


def compare(path: Path) -> None:
    there = np.load(path)
    for name in (*ONE, MMA):
        gpu, own = there[name], emulated(name, operands(name))
        apart = np.abs(gpu.view(np.int32).astype(np.int64) - own.view(np.int32).astype(np.int64))
        equal = f"{(apart == 0).sum():,} of {apart.size:,} equal"
        print(f"{name}: {equal}, at most {apart.max()} units of the last place apart")


def terms(words: Words) -> tuple[Any, Any]:
    """(products f64 [warps, 16 rows, 8 columns, 16], sums f64 [warps, 16, 8]) of every mma."""
    halves = np.stack((words[:, :6] << 16, words[:, :6] & 0xFFFF0000), -1).astype(np.uint32).view(np.float32)
    a, b, c = np.zeros((WARPS, 16, 16)), np.zeros((WARPS, 16, 8)), np.zeros((WARPS, 16, 8))
    for lane, n in itertools.product(range(32), range(4)):
        group, pair = lane >> 2, 2 * (lane & 3)
        row, column = group + 8 * (n & 1), pair + 8 * (n >> 1)
        a[:, row, column : column + 2] = halves[:, n, lane]
        if n < 2:
            b[:, pair + 8 * n : pair + 8 * n + 2, group] = halves[:, 4 + n, lane]
        c[:, group + 8 * (n >> 1), pair + (n & 1)] = words[:, 6 + n, lane].copy().view(np.float32)
    return a[:, :, None, :] * b.transpose(0, 2, 1)[:, None], c


def added(products: Any, sums: Any, together: int, fraction: int, nearest: bool, apart: bool) -> Any:
    """f32 of each sum: `together` terms at a time, cut off below `fraction` bits under the largest exponent. apart:
    the accumulator is added behind the products, not with them."""
    total = sums
    for first in range(0, 16, together):
        part = products[..., first : first + together]
        part = part if apart else np.concatenate((part, total[..., None]), -1)
        largest = np.maximum(np.frexp(np.abs(part))[1].max(-1), -200) - 1
        unit = 2.0 ** (fraction - largest)[..., None]
        found = np.trunc(part * unit).sum(-1) / unit[..., 0]
        total = _f32(found + total if apart else found, nearest)
    return total


def _f32(values: Any, nearest: bool) -> Any:
    near = values.astype(np.float32)
    if nearest:
        return near.astype(np.float64)
    over = np.abs(near.astype(np.float64)) > np.abs(values)
    return np.where(over, np.nextafter(near, np.float32(0)), near).astype(np.float64)


def sums(path: Path) -> None:
    gpu = np.load(path)[MMA].view(np.float32)
    there = np.zeros((WARPS, 16, 8))
    for lane, n in itertools.product(range(32), range(4)):
        there[:, (lane >> 2) + 8 * (n >> 1), 2 * (lane & 3) + (n & 1)] = gpu[:, n, lane]
    products, before = terms(operands(MMA))
    tried = []
    for together, fraction, nearest, apart in itertools.product(
        (4, 8, 16), range(22, 29), (False, True), (False, True)
    ):
        equal = (added(products, before, together, fraction, nearest, apart) == there).mean()
        tried.append((equal, together, fraction, nearest, apart))
    for equal, together, fraction, nearest, apart in sorted(tried, reverse=True)[:6]:
        said = f"{together} together, {fraction} bits, {'nearest' if nearest else 'cut off'}"
        print(f"{equal:.6f} equal: {said}{', accumulator apart' if apart else ''}")


if __name__ == "__main__":
    {"record": record, "compare": compare, "sums": sums}[sys.argv[1]](Path(sys.argv[2]))
