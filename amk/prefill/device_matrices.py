"""The matrices of a layer in bf16, made on the GPU from the packed weights that the schedule's kernel streams.

Unpacking reads a layer's packed bytes and writes two bytes a weight, which is most of the time of a short prompt.
So the first layers, as many as half of the free memory holds, are unpacked once and stay. The others share the buffers
of two layers: while one is multiplied, the next is unpacked on a stream of its own.

The unpacking kernel is not admitted: it is no kernel of a schedule. It reads the engine's weights and scales, and
writes matrices that were made for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from amk.engine.backends.cuda_engine import CudaEngine
from amk.lowering.compile import compile_cuda
from amk.lowering.launch import Enqueue, Module
from amk.lowering.plan_constants import code_includes, code_type, codes_of
from amk.models.matrices import MatrixName, matrix, scale_buffer
from amk.prefill.forward import Matrices
from amk.prefill.views import view
from amk.schedule_ir.layout import matrix_places
from amk.schedule_ir.schedule import Schedule

WARPS = 8
"""Of a block: chunks that it unpacks."""
ARGUMENT = np.dtype(
    [(name, np.uint64) for name in ("chunks", "places", "out", "apart", "stride")]
    + [(name, np.uint32) for name in ("count", "across", "columns", "rows", "k", "parts", "group", "zeros")]
)
"""`amk::unpack::Matrix`."""


def kernel_of(codes: str) -> str:
    """The name of the kernel that unpacks a kind of code."""
    return f"amk_unpack_{codes}"


def source_of(kinds: Iterable[str]) -> str:
    """A kernel for each of these kinds of codes."""
    kernels = (
        f"""extern "C" __global__ void __launch_bounds__(256)
{kernel_of(codes)}(const __grid_constant__ amk::unpack::Matrix matrix) {{
  amk::unpack::unpack<{code_type(codes)}>(matrix);
}}
"""
        for codes in sorted(kinds)
    )
    return code_includes(kinds) + '#include "amk/unpack.cuh"\n' + "".join(kernels)


def argument(
    schedule: Schedule, name: MatrixName, layer: int, count: int, chunks: int, places: int, out: int, apart: int
) -> np.ndarray[Any, Any]:
    """The kernel's parameter: `count` chunks. Addresses of the packed weights, of the places of the matrix's chunks, of
    its rows, and of the scales of its rows, 0 where they are in the chunks."""
    (stream,) = schedule.streams
    shape, chunk = matrix(schedule.model, name), stream.chunk(name, layer)
    product, form = schedule.model.graph.products[name], chunk.weights
    block = np.zeros((), ARGUMENT)
    values = {
        "chunks": chunks, "places": places, "out": out, "apart": apart, "stride": stream.piece_bytes, "count": count,
        "across": shape.k_chunks(chunk.columns), "columns": chunk.columns, "rows": shape.rows, "k": shape.k,
        "parts": len(product.rows) if product.in_turn else 1, "group": form.group, "zeros": int(form.zeros),
    }  # fmt: skip
    for field, value in values.items():
        block[field] = value
    return block


def layers_that_stay(layers: int, layer_bytes: int, free: int) -> int:
    """How many of the first layers are unpacked once. layer_bytes: of a layer's matrices in bf16; free: on the GPU."""
    return min(layers, free // 2 // layer_bytes)


class DeviceMatrices:
    """`PromptForward`'s matrices for an engine. Used on the stream that is current when a layer is asked for.

    stay: first layers that are unpacked here and stay; None for as many as half of the GPU's free memory holds. head:
    lm_head, unpacked once; None where it would take more than a quarter of that memory.
    """

    def __init__(self, engine: CudaEngine, stay: int | None = None) -> None:
        self._engine, self._schedule = engine, engine.schedule
        self._device = torch.device("cuda", engine.device.ordinal)
        kinds = codes_of(engine.schedule.streams[0])
        compiled = compile_cuda(source_of(kinds), engine.schedule.target.arch)
        self._module = Module(engine.device, compiled.cubin)
        self._kernels = {codes: self._module.kernel(kernel_of(codes)) for codes in kinds}
        self._side = torch.cuda.Stream(self._device)
        self._ready = [torch.cuda.Event() for _ in range(2)]
        places = matrix_places(self._schedule, self._schedule.streams[0])
        self._places = {key: torch.from_numpy(each).to(self._device) for key, each in places.items()}
        self.head = self._unpacked_head()
        shapes = {name: matrix(self._schedule.model, name) for name, _ in self._places}
        layers = self._schedule.model.layers
        if stay is None:
            layer_bytes = sum(2 * shape.rows * shape.k for shape in shapes.values())
            stay = layers_that_stay(layers, layer_bytes, torch.cuda.mem_get_info(self._device)[0])
        self._stay = stay
        self._buffers: list[Matrices] = [
            {
                name: torch.empty((shape.rows, shape.k), dtype=torch.bfloat16, device=self._device)
                for name, shape in shapes.items()
            }
            for _ in range(min(layers, stay + 2))
        ]
        self._launches: list[list[tuple[Enqueue, np.ndarray[Any, Any]]]] = [[] for _ in range(layers)]
        for (name, layer), each in self._places.items():
            launch = self._launch(name, layer, len(each))
            out = self._buffers[self._place(layer)][name]
            self._launches[layer].append((launch, self._argument(name, layer, each, out)))
        for layer in range(stay):
            self._unpack(layer)
        self._side.synchronize()

    def __call__(self, layer: int) -> Matrices:
        """The matrices of a layer; those of the layer before are overwritten from here on, unless they stay."""
        current = torch.cuda.current_stream(self._device)
        for each in (layer, layer + 1) if layer == 0 else (layer + 1,):
            if self._stay <= each < self._schedule.model.layers:
                self._side.wait_stream(current)
                self._unpack(each)
        if layer >= self._stay:
            current.wait_event(self._ready[layer % 2])
        return self._buffers[self._place(layer)]

    def _place(self, layer: int) -> int:
        """Of a layer among the buffers."""
        return layer if layer < self._stay else self._stay + (layer - self._stay) % 2

    def _unpack(self, layer: int) -> None:
        for launch, parameters in self._launches[layer]:
            launch(parameters, self._side.cuda_stream)
        self._ready[layer % 2].record(self._side)

    def _unpacked_head(self) -> torch.Tensor | None:
        name, layer = next(key for key in self._places if key[0] == "lm_head")
        places, shape = self._places.pop((name, layer)), matrix(self._schedule.model, name)
        if 2 * shape.rows * shape.k > torch.cuda.mem_get_info(self._device)[0] // 4:
            return None
        head = torch.empty((shape.rows, shape.k), dtype=torch.bfloat16, device=self._device)
        launch = self._launch(name, layer, len(places))
        launch(self._argument(name, layer, places, head), self._side.cuda_stream)
        self._side.synchronize()
        return head

    def _launch(self, name: MatrixName, layer: int, chunks: int) -> Enqueue:
        codes = self._schedule.streams[0].chunk(name, layer).weights.codes
        return Enqueue(self._kernels[codes], -(-chunks // WARPS), 32 * WARPS)

    def _argument(self, name: MatrixName, layer: int, places: torch.Tensor, out: torch.Tensor) -> np.ndarray[Any, Any]:
        (stream,) = self._schedule.streams
        apart = 0
        if stream.chunk(name, layer).apart:
            apart = view(self._engine, scale_buffer(name))[layer].data_ptr()
        chunks = self._engine.buffers[stream.source].address
        return argument(self._schedule, name, layer, len(places), chunks, places.data_ptr(), out.data_ptr(), apart)
