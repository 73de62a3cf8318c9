"""What torch makes of an engine's memory: bytes as the engine is given them become the numbers that they stand for."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch", reason="prompts are read by torch")

from amk.engine.backends.request import first_buffers  # noqa: E402  after torch is known to be there
from amk.interpreter.constants import constants  # noqa: E402
from amk.interpreter.packing import packed_arrays  # noqa: E402
from amk.models.matrices import matrix, scale_buffer  # noqa: E402
from amk.models.model_spec import ModelSpec  # noqa: E402
from amk.planner.formats import formats  # noqa: E402
from amk.prefill.forward import PromptForward  # noqa: E402
from amk.prefill.views import shaped  # noqa: E402
from amk.schedule_ir.launch_needs import host_buffers  # noqa: E402
from amk.schedule_ir.layout import matrix_places  # noqa: E402
from amk.schedule_ir.schedule import Schedule  # noqa: E402
from amk.weights.weight_format import Chunk  # noqa: E402
from tests.engine.tiny import NEOX, RandomTensors, tiny_model, tiny_plan  # noqa: E402
from tests.prefill.rows import PACKED, stored_rows  # noqa: E402
from tests.prefill.test_forward import CASES as READ  # noqa: E402
from tests.prefill.test_forward import PROMPT, Interpreted  # noqa: E402

TYPES = {"bf16": torch.bfloat16, "f32": torch.float32, "i32": torch.int32, "fp8": torch.float8_e4m3fn}
MORE: dict[str, tuple[ModelSpec, dict[str, Any]]] = {
    "a batch that draws": (tiny_model(), {"batch": 2, "sampling": "top-k-top-p"}),
    "sequences that live": (tiny_model(), {"batch": 4, "live": True, "workers": 8}),
    "rows": (tiny_model(), {"rows": 4}),
    "rows that are a tree": (tiny_model(), {"rows": 4, "tree": True}),
    "norms of heads": (tiny_model(qk_norm=True, qkv_bias=True, layers=1), {}),
    "shifts of norms": (tiny_model(**NEOX), {}),
    "fp8 cache": (tiny_model(), {"kv_dtype": "fp8"}),
    "codes beside bf16": (tiny_model(ffn=160), {"weights": formats("int4-g64", "bf16"), "workers": 5, "warps": 8}),
}
PLANS = {name: (model, {"weights": wanted} | settings) for name, (model, wanted, settings) in PACKED.items()} | MORE


def memory(schedule: Schedule, source: RandomTensors) -> dict[str, NDArray[np.uint8]]:
    """The bytes of every constant and state, as `gpu_engine` leaves them; 0xff where it writes nothing."""
    kept = [buffer for buffer in schedule.buffers if buffer.space == "global" and buffer.role != "scratch"]
    found = {buffer.name: np.full(buffer.bytes, 0xFF, np.uint8) for buffer in kept}
    packed, scales = packed_arrays(schedule, source)
    written = constants(schedule, source) | first_buffers(schedule) | scales | {schedule.streams[0].source: packed}
    for name, data in written.items():
        found[name][: data.nbytes] = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return found


def views(schedule: Schedule, bytes_of: dict[str, NDArray[np.uint8]]) -> dict[str, Any]:
    return {name: shaped(schedule, name, torch.from_numpy(data)) for name, data in bytes_of.items()}


@pytest.mark.parametrize("name", PLANS)
def test_every_buffer_is_its_memory_in_its_type_and_shape(name: str) -> None:
    model, settings = PLANS[name]
    source, schedule = RandomTensors(model), tiny_plan(model, **settings)
    bytes_of, wanted = memory(schedule, source), constants(schedule, source)
    seen = views(schedule, bytes_of)
    buffers, known = {buffer.name: buffer for buffer in schedule.buffers}, host_buffers(schedule)
    assert {"weights", "k_cache", "v_cache", "norm", "rope"} <= seen.keys()
    for each, tensor in seen.items():
        buffer = buffers[each]
        assert tensor.dtype is TYPES[buffer.dtype] and tensor.is_contiguous(), each
        assert tuple(tensor.shape) == (known[each][1] if each in known else buffer.shape), each
        assert tensor.data_ptr() == bytes_of[each].ctypes.data and tensor.nbytes == buffer.bytes, each
        if each in wanted:
            exact = wanted[each]
            numbers = exact if exact.dtype != np.uint16 else (exact.astype(np.uint32) << 16).view(np.float32)
            np.testing.assert_array_equal(tensor.double().numpy(), numbers.astype(np.float64).reshape(tensor.shape))
    cache = (model.layers, schedule.caches, schedule.kv.context, model.head_dim)
    assert seen["k_cache"].shape == seen["v_cache"].shape == cache


@pytest.mark.parametrize("name", PACKED)
def test_packed_weights_are_the_numbers_of_their_format(name: str) -> None:
    model, wanted, settings = PACKED[name]
    source, schedule = RandomTensors(model), tiny_plan(model, weights=wanted, **settings)
    seen, (stream,) = views(schedule, memory(schedule, source)), schedule.streams
    chunks = seen[stream.source].reshape(-1).view(torch.uint8).reshape(-1, stream.chunk_bytes)
    for (matrix_name, layer), places in matrix_places(schedule, stream).items():
        if matrix_name == "lm_head":
            continue
        chunk, shape = stream.chunk(matrix_name, layer), matrix(model, matrix_name)
        rows = numbers(chunks[torch.from_numpy(places).long()], chunk)
        rows = rows.reshape(shape.groups, -1, 8, chunk.columns).transpose(1, 2).reshape(8 * shape.groups, -1)
        if chunk.apart:
            rows *= seen[scale_buffer(matrix_name)][layer, : len(rows), None]
        product = model.graph.products[matrix_name]
        if product.in_turn:  # a group has as many rows of each tensor
            rows = rows.reshape(shape.groups, len(product.rows), -1, rows.shape[1]).transpose(0, 1)
            rows = rows.reshape(len(product.rows), -1, rows.shape[-1])[:, : shape.rows // len(product.rows)]
        found = rows.reshape(-1, rows.shape[-1])[: shape.rows, : shape.k]
        expected = stored_rows(schedule, source, matrix_name, layer)
        np.testing.assert_array_equal(found.numpy(), expected, err_msg=f"{matrix_name} of layer {layer}")


def numbers(chunks: Any, chunk: Chunk) -> Any:
    """Bytes [n, chunk_bytes] as f32 [n, 8, columns], by what amk/weights/chunks.py says of tiles, lanes and codes."""
    form, count = chunk.weights, len(chunks)
    bits = {"bf16": 16, "int8": 8, "fp8": 8, "int4": 4}[form.codes]
    codes, behind = chunks[:, : chunk.columns * bits].contiguous(), chunks[:, chunk.columns * bits :]
    if form.codes == "bf16":
        return codes.view(torch.bfloat16).view(count, -1, 8, 32).transpose(1, 2).reshape(count, 8, -1).float()
    each = -(-chunk.columns // form.group) if form.group else 1
    width = form.group or chunk.columns
    if bits == 4:
        pairs = codes.view(count, -1, 8, 4, 2, 8)
        tiles = torch.cat([pairs & 15, pairs >> 4], dim=-1)  # [n, tiles, rows, lanes, units, 16]
        values = tiles.permute(0, 2, 1, 4, 3, 5).reshape(count, 8, -1).float()
        zeros = torch.full((count, 8, each), 8.0)
        if form.zeros:
            zeros = behind[:, 16 * each : 24 * each].reshape(count, 8, each).float()
        values -= zeros.repeat_interleave(width, -1)[:, :, : chunk.columns]
    else:
        words = codes.view(count, -1, 8, 4, 4, 4)[..., [0, 2, 1, 3], :].reshape(count, -1, 8, 4, 16)
        kind = torch.int8 if form.codes == "int8" else torch.float8_e4m3fn
        values = words.contiguous().view(kind).float().transpose(1, 2).reshape(count, 8, -1)
    if chunk.apart:
        return values
    scales = behind[:, : 16 * each].contiguous().view(torch.float16).view(count, 8, each).float()
    return values * scales.repeat_interleave(width, -1)[:, :, : chunk.columns]


@pytest.mark.parametrize("name", READ)
def test_a_prompt_is_written_where_the_engine_keeps_its_cache(name: str) -> None:
    """Keys and values in the bytes of bf16 or fp8, of the numbers that torch computes over wider memory."""
    model, settings = READ[name]
    source, schedule, end = RandomTensors(model), tiny_plan(model, **settings), len(PROMPT)
    wide, bytes_of = Interpreted(schedule, source, torch.bfloat16), memory(schedule, source)
    names = [name for name in model.graph.products if name != "lm_head"]

    def matrices(layer: int) -> Any:
        return {name: torch.from_numpy(stored_rows(schedule, source, name, layer)).to(torch.bfloat16) for name in names}

    wide.prompt.read(PROMPT, 0)
    PromptForward(schedule, views(schedule, bytes_of), matrices).read(PROMPT, 0)
    for cache, expected in zip(("k_cache", "v_cache"), wide.caches, strict=True):
        kind = TYPES[schedule.kv.dtype]
        kept = torch.from_numpy(bytes_of[cache]).view(kind).view(expected.shape)
        assert torch.equal(kept[:, :, :end].float(), torch.from_numpy(expected[:, :, :end]).to(kind).float())
        untouched = torch.from_numpy(bytes_of[cache]).view(*expected.shape[:3], -1)[:, :, end:]
        assert (untouched == 0xFF).all() and prod(expected.shape) * kind.itemsize == bytes_of[cache].nbytes
