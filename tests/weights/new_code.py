"""What a kind of code can do that amk finds in its folders; `test_new_code.py` puts one there.

python -m tests.weights.new_code FORMAT
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import numpy as np

from amk.checker.certificate import check_certificate
from amk.emulator.decode import run
from amk.engine.backends.cpu_engine import CpuEngine
from amk.interpreter.packing import packed_arrays
from amk.lowering.kernel import build
from amk.models.matrices import scale_buffer
from amk.planner.formats import formats
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.layout import matrix_places
from amk.schedule_ir.schedule import Schedule
from amk.validator.export.of_schedule import certify_schedule
from amk.validator.verify import verify
from amk.weights.bfloat import to_bf16_bits
from amk.weights.chunks import pack_quantised, unpack_chunks
from amk.weights.quantised import dequantised, nearest
from amk.weights.weight_format import FORMATS, Chunk, weight_format
from tests.engine.tiny import RandomTensors, tiny_model, tiny_plan

TOKENS, ROUNDING = 3, 2.0**-7


def quantises(name: str) -> None:
    form, rows = weight_format(name), np.random.default_rng(1).standard_normal((8, 200)).astype(np.float32)
    codes = nearest(rows, form)
    steps = np.repeat(codes.scales.astype(np.float32), form.group or 200, axis=1)[:, :200]
    assert (np.abs(dequantised(codes, form) - rows) <= steps * 0.501).all()
    chunk = Chunk(format=name, columns=form.unit * 4)
    packed = unpack_chunks(pack_quantised(codes, chunk), chunk)
    assert np.array_equal(packed[0, :, :200], dequantised(codes, form)), "every byte is where it is looked for"
    assert not packed[0, :, 200:].any(), "a row is filled up with zeros"


def quantises_on_a_gpu(name: str) -> None:
    """What `amk bench` does there, by torch."""
    import torch

    from amk.bench.tools.device_quantise import packed_chunks, quantised

    form, rows = weight_format(name), np.random.default_rng(2).standard_normal((16, 200)).astype(np.float32)
    host, device = nearest(rows, form), quantised(torch.from_numpy(rows), form)
    chunk = Chunk(format=name, columns=form.unit * 4)
    assert np.array_equal(packed_chunks(device, chunk).numpy(), pack_quantised(host, chunk))
    assert np.array_equal(device.values(form).numpy(), dequantised(host, form))


def runs(schedule: Schedule, prompts: list[list[int]]) -> None:
    """It is SAFE with a certificate that the checker takes, and the kernel gives the interpreter's tokens."""
    assert verify(schedule).safe
    assert check_certificate(schedule, schedule_hash(schedule), certify_schedule(schedule)).reason == ""
    source = RandomTensors(schedule.model)
    expected = CpuEngine(schedule, source, numerics="device")
    expected.request_batch(prompts)
    tokens = expected.step(TOKENS).tolist()
    result = run(schedule, source, build(schedule).compiled.ptx, prompts=prompts, tokens=TOKENS, races=True)
    assert result.ended and result.faults == [] and result.tokens.tolist() == tokens
    assert np.abs(result.logits - expected.logits()).max() <= ROUNDING * np.abs(expected.logits()).max()


def unpacks(schedule: Schedule) -> None:
    """For torch to read prompts."""
    from amk.emulator.ptx.parse import parse
    from amk.emulator.ptx.program import assemble
    from amk.lowering.compile import compile_ptx
    from amk.prefill.device_matrices import kernel_of, source_of
    from tests.prefill.test_unpack import unpacked

    source, (stream,) = RandomTensors(schedule.model), schedule.streams
    chunk = stream.chunk("o", 1)
    codes = chunk.weights.codes
    kernels = {codes: assemble(parse(compile_ptx(source_of([codes]), "sm_90a")), kernel_of(codes))}
    packed, scales = packed_arrays(schedule, source)
    expected = to_bf16_bits(dequantised(nearest(source.tensor("l1.wo"), chunk.weights), chunk.weights))
    places: Any = matrix_places(schedule, stream)["o", 1]
    apart = scales.get(scale_buffer("o"))
    assert np.array_equal(unpacked(kernels, schedule, "o", 1, packed, places, apart, expected.shape), expected)


def main(name: str) -> None:
    assert name in FORMATS
    quantises(name)
    wide = {"warps": 8, "chunk_bytes": 1024, "workers": 5}
    single = tiny_plan(tiny_model(ffn=160), weights=formats(name), **wide)
    runs(single, [[3, 17]])
    runs(tiny_plan(tiny_model(layers=1), weights=formats(name), **wide, batch=2), [[3, 17], [40]])
    if importlib.util.find_spec("torch") is not None:
        quantises_on_a_gpu(name)
        unpacks(single)
    print("done")


if __name__ == "__main__":
    main(sys.argv[1])
