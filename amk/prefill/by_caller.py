"""Prompts by a model of transformers: its cache is amk's memory.

Needs torch and transformers, which are imported with this module. transformers keeps what amk keeps, [KV heads,
positions, head_dim] of each layer with turned keys; only heads that are rotated in part have another order of elements.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from amk.engine.backends.cpu_engine import CpuEngine
from amk.engine.backends.text_cache import TextCache
from amk.engine.checkpoints.safetensors_dir import order_in_head
from amk.models.model_spec import ModelSpec
from amk.prefill.forward import for_cache
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.schedule import CacheDtype

Rows = tuple[Tensor, Tensor]
"""Memory for keys and values of a layer, [KV heads, positions, head_dim] each."""


class CallersPrompts:
    """Reads prompts into amk's cache. model: of transformers; spec: amk's, of the same checkpoint; block: tokens that
    are read at once, or None for all; device: of the tokens, default the model's."""

    def __init__(self, model: Any, spec: ModelSpec, block: int | None = None, device: Any = None) -> None:
        self._decoder, self._spec, self._block = model.base_model, spec, block
        self._device = model.device if device is None else device
        names = inspect.signature(self._decoder.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"

    def read(self, tokens: Sequence[int], place: Any, sequence: int) -> bool:
        """Write keys and values of tokens to a place that a backend lends, see `Writer`; False where torch cannot.

        AMK012 for a model whose keys or values have other shapes.
        """
        kept: CacheDtype = "bf16" if isinstance(place, TextCache) else place.schedule.kv.dtype
        rows = rows_of(place, sequence)
        if rows is None:
            return False
        cache = Cache(layers=[SharedLayer(self._spec, each, kept) for each in rows])
        ids = torch.tensor([[int(token) for token in tokens]], device=self._device)
        with torch.no_grad():
            for part in ids.split(self._block or len(tokens), dim=1):
                self._decoder(input_ids=part, use_cache=True, **{self._cache_name: cache})
        if rows[0][0].is_cuda:
            torch.cuda.synchronize(rows[0][0].device)
        return True


class SharedLayer(DynamicLayer):  # type: ignore[misc]
    """A layer of transformers' cache that writes to amk's memory.

    What is computed on the device of the memory, in its type and order, lies there alone. Otherwise transformers has
    its own, and new rows are copied, rounded as the schedule's kernel rounds them.
    """

    def __init__(self, spec: ModelSpec, rows: Rows, cache_dtype: CacheDtype) -> None:
        super().__init__()
        self._rows, self._cache_dtype = rows, cache_dtype
        self._order = None if spec.rotary_dim is None else torch.from_numpy(order_in_head(spec))
        self._shape = spec.kv_heads, spec.head_dim

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Rows:
        """All keys and values so far, [1, KV heads, positions, head_dim]."""
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        for memory, states in zip(self._rows, (self._ordered(key_states), value_states), strict=True):
            if (states.shape[1], states.shape[3]) != self._shape:
                message = f"the models differ: keys and values are {self._shape} of a token here, not {states.shape}"
                raise AmkError(Diagnostic("AMK012", message))
            memory[:, start:end] = for_cache(states[0], self._cache_dtype, memory.dtype)
        if not self._shared(key_states, value_states):
            both: Rows = super().update(key_states, value_states, *args, **kwargs)
            return both
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
        self.keys, self.values = (memory[None, :, :end] for memory in self._rows)
        return self.keys, self.values

    def _ordered(self, keys: Tensor) -> Tensor:
        return keys if self._order is None else keys[..., self._order.to(keys.device)]

    def _shared(self, *new: Tensor) -> bool:
        same = all(a.dtype == b.dtype and a.device == b.device for a, b in zip(self._rows, new, strict=True))
        return same and self._order is None and self._cache_dtype == "bf16"


def rows_of(place: Any, sequence: int) -> list[Rows] | None:
    """Tensors over the memory for a sequence, by layers; None where torch has no way to it."""
    if isinstance(place, TextCache):
        return [(torch.from_numpy(keys), torch.from_numpy(values)) for keys, values in place.rows()]
    if isinstance(place, CpuEngine):
        shape = next(buffer.shape for buffer in place.schedule.buffers if buffer.name == "k_cache")
        both = [torch.from_numpy(place.memory(name)).view(shape) for name in ("k_cache", "v_cache")]
    else:
        from amk.engine.backends.cuda_engine import CudaEngine
        from amk.prefill.views import view

        if not isinstance(place, CudaEngine) or not torch.cuda.is_available():
            return None
        place.device.make_current()
        place.stream.synchronise()
        both = [view(place, name) for name in ("k_cache", "v_cache")]
    heads = place.schedule.model.kv_heads
    mine = slice(sequence * heads, (sequence + 1) * heads)
    return [(keys[mine], values[mine]) for keys, values in zip(*both, strict=True)]
