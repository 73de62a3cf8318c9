"""Slices of layers as a torch operator, `torch.ops.amk.layers`, which torch.compile and CUDA graphs take as it is."""

from __future__ import annotations

from itertools import count

import torch
from torch import Tensor

from amk.engine.backends.layer_call import Layers

_CALLS: dict[int, Layers] = {}
_NUMBERS = count(1)


def registered(call: Layers) -> int:
    """The number by which the operator finds the call (`amk.layers` makes one), until `forget`."""
    number = next(_NUMBERS)
    _CALLS[number] = call
    return number


def forget(number: int) -> None:
    """Let go of a call. Its memory is free once `free` is called; graphs that captured it must not be replayed then."""
    del _CALLS[number]


def _layers(call: int, hidden: Tensor, k_cache: Tensor, v_cache: Tensor, position: Tensor) -> Tensor:
    """The residual stream behind the layers, for one token; the caches' row at the position is written.

    call: what `registered` gave. hidden: f32 with `hidden` elements, in any shape, which is that of the result. Caches
    and position: as `amk.engine.backends.layer_call.Layers` says. Enqueued on torch's current stream, without waiting.
    """
    out = torch.empty_like(hidden, memory_format=torch.contiguous_format)
    stream = torch.cuda.current_stream(hidden.device).cuda_stream if hidden.is_cuda else 0
    given, left = hidden.detach().reshape(-1), out.view(-1)
    _CALLS[call](given, left, k_cache.detach(), v_cache.detach(), position, stream=stream)
    return out


def _shaped(call: int, hidden: Tensor, k_cache: Tensor, v_cache: Tensor, position: Tensor) -> Tensor:
    """What the result looks like, for tracing."""
    return torch.empty_like(hidden, memory_format=torch.contiguous_format)


layers = torch.library.custom_op("amk::layers", _layers, mutates_args=("k_cache", "v_cache"))
layers.register_fake(_shaped)
