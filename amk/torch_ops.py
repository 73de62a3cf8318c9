"""Slices of layers and the output head as torch operators, `torch.ops.amk.layers` and `torch.ops.amk.lm_head`, which
torch.compile and CUDA graphs take as they are."""

from __future__ import annotations

from itertools import count

import torch
from torch import Tensor

from amk.engine.backends.layer_call import Layers

_CALLS: dict[int, Layers] = {}
_NUMBERS = count(1)


def registered(call: Layers) -> int:
    """The number by which the operators find the call (`amk.layers`, `amk.lm_head` make one), until `forget`."""
    number = next(_NUMBERS)
    _CALLS[number] = call
    return number


def forget(number: int) -> None:
    """Let go of a call. Its memory is free once `free` is called; graphs that captured it must not be replayed then."""
    del _CALLS[number]


def _layers(call: int, hidden: Tensor, k_cache: Tensor, v_cache: Tensor, position: Tensor) -> Tensor:
    """The residual stream behind the layers, for one token; the caches' row at the position is written.

    call: what `registered` gave. hidden: f32 with `hidden` elements, in any shape, which is that of the result; of a
    call with the output head the result is logits, [..., vocab]. Caches and position: as
    `amk.engine.backends.layer_call.Layers` says. Enqueued on torch's current stream, without waiting.
    """
    out = _shaped(call, hidden)
    _CALLS[call](*_flat(hidden, out), k_cache.detach(), v_cache.detach(), position, stream=_stream(hidden))
    return out


def _lm_head(call: int, hidden: Tensor) -> Tensor:
    """The logits of the state behind the last layer, f32 [..., vocab], for one token. All else is as for layers."""
    out = _shaped(call, hidden)
    _CALLS[call](*_flat(hidden, out), stream=_stream(hidden))
    return out


def _flat(hidden: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    return hidden.detach().reshape(-1), out.view(-1)


def _stream(hidden: Tensor) -> int:
    return torch.cuda.current_stream(hidden.device).cuda_stream if hidden.is_cuda else 0


def _shaped(call: int, hidden: Tensor, *_: Tensor) -> Tensor:
    """A result without content, which is also what tracing sees."""
    model = _CALLS[call].schedule.model
    return hidden.new_empty((*hidden.shape[:-1], model.vocab if model.has_head else hidden.shape[-1]))


layers = torch.library.custom_op("amk::layers", _layers, mutates_args=("k_cache", "v_cache"))
layers.register_fake(_shaped)
lm_head = torch.library.custom_op("amk::lm_head", _lm_head, mutates_args=())
lm_head.register_fake(_shaped)
