"""A prompt by torch: keys and values of many tokens at once, written where the schedule's kernel looks for them.

Matrices are multiplied in bf16 with float32 sums; hidden states stay in float32, as in the kernel. What codes of
weights stand for is rounded to bf16 before it is multiplied, by at most 2^-9 of each weight, which the kernel does not
do. Keys and values are rounded as the cache rounds them. Everything that differs between families of models is read
from the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from amk.models.graph import Attention, MatrixName, Norm, Product
from amk.models.matrices import bias_buffer
from amk.schedule_ir.ops import OPS
from amk.schedule_ir.schedule import CacheDtype, Schedule
from amk.weights.e4m3 import E4M3_MOST

BLOCK = 4096
"""Tokens that are read at once: it bounds the memory for activations."""
BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Of attention; the others compile a kernel for every length."""
Matrices = Mapping[MatrixName, Tensor]
"""Of a layer, [rows, k] each, the tensors that are rows of one below each other."""


class PromptForward:
    """Reads tokens into a cache.

    buffers: the schedule's, by name, in their shapes; the caches are written. matrices: those of a layer, in `dtype`;
    asked for in order, and what was given for a layer may be overwritten when the next one is asked for. head: lm_head
    [vocab, hidden] in `dtype`, for `behind`.
    """

    def __init__(
        self,
        schedule: Schedule,
        buffers: Mapping[str, Tensor],
        matrices: Callable[[int], Matrices],
        dtype: torch.dtype = torch.bfloat16,
        head: Tensor | None = None,
    ) -> None:
        self._schedule, self._model, self._buffers = schedule, schedule.model, buffers
        self._matrices, self._dtype, self.head = matrices, dtype, head
        self.device = buffers["k_cache"].device

    def read(self, tokens: Sequence[int], start: int, sequence: int = 0) -> None:
        """Append tokens at position `start` of a sequence of the batch, whose cache has all positions before it."""
        for first in range(0, len(tokens), BLOCK):
            self.read_block(self._ids(tokens[first : first + BLOCK]), start + first, sequence)

    def behind(self, tokens: Sequence[int], start: int) -> Tensor:
        """Logits f32 [vocab] behind the last of the tokens, which are appended at `start` of the only sequence."""
        first = (len(tokens) - 1) // BLOCK * BLOCK
        self.read(tokens[:first], start)
        return self.behind_block(self._ids(tokens[first:]), self._ids([len(tokens) - 1 - first]), start + first)

    def read_block(self, ids: Tensor, start: int, sequence: int = 0) -> None:
        """As `read`, tokens i64 [at most BLOCK] on the device; waits for nothing there."""
        with torch.inference_mode(), sdpa_kernel(BACKENDS):
            self._through(ids, start, sequence)

    def behind_block(self, ids: Tensor, row: Tensor, start: int) -> Tensor:
        """As `read_block`; logits f32 [vocab] behind the token in a row, i64 [1] on the device."""
        assert self.head is not None
        with torch.inference_mode(), sdpa_kernel(BACKENDS):
            hidden = self._normed(self._model.graph.head, self._model.layers, self._through(ids, start, 0, row))
            if self._dtype is torch.float32:
                return F.linear(hidden, self.head)[0]
            return torch.mm(hidden, self.head.T, out_dtype=torch.float32)[0]

    def _ids(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor(tokens, dtype=torch.int64).to(self.device)

    def _through(self, ids: Tensor, start: int, sequence: int, row: Tensor | None = None) -> Tensor:
        x = F.embedding(ids, self._buffers["embedding"]).float()
        for layer in range(self._model.layers):
            x = self._layer(layer, x, start, sequence, row)
        return x

    def _layer(self, layer: int, x: Tensor, start: int, sequence: int, row: Tensor | None) -> Tensor:
        """The hidden state [tokens, hidden], float32, behind a layer; of the last layer only its keys and values and,
        if a row is asked for, the state of that one, [1, hidden]."""
        matrices, states, values = self._matrices(layer), [x], dict[str, Tensor]()
        for node in self._model.graph.nodes:
            if isinstance(node, Attention):
                q, keys, kept = self._appended(node, layer, values["qkv"], start, sequence)
                if layer + 1 < self._model.layers:
                    values["attn"] = attended(q, keys, kept).to(self._dtype)
                    continue
                if row is None:
                    break
                states = [each.index_select(0, row) for each in states]
                values = {name: each.index_select(0, row) for name, each in values.items()}
                values["attn"] = attended_by(q.index_select(1, row), keys, kept, start + row).to(self._dtype)
                continue
            reads = node.reads
            inputs = self._normed(node, layer, states[reads.reads]) if isinstance(reads, Norm) else values[reads]
            output = self._product(node, layer, inputs, matrices[node.matrix])
            if node.then == "residual":
                states.append(states[-1] + output)
            else:
                values["qkv" if node.then == "rows" else "act"] = (
                    output if node.then == "rows" else self._active(node, output)
                )
        return states[-1]

    def _normed(self, node: Product, layer: int, x: Tensor) -> Tensor:
        assert isinstance(node.reads, Norm)
        model, buffers = self._model, self._buffers
        number = model.graph.norm_of(node.matrix, layer, model.layers)
        weight = buffers["norm"][number]
        if node.reads.shift is not None:
            norm = F.layer_norm(x, (model.hidden,), weight, buffers["norm_shift"][number], model.rms_eps)
        else:
            norm = F.rms_norm(x, (model.hidden,), weight, model.rms_eps)
        return norm.to(self._dtype)

    def _product(self, node: Product, layer: int, inputs: Tensor, matrix: Tensor) -> Tensor:
        output = F.linear(inputs, matrix)
        return output.float() + self._buffers[bias_buffer(node.matrix)][layer] if node.biases else output

    def _active(self, node: Product, output: Tensor) -> Tensor:
        """What the MLP makes of its first product."""
        active: Tensor = OPS[node.taken_by].activated_in_torch(output, dict(node.settings), F)
        return active.to(self._dtype)

    def _appended(
        self, node: Attention, layer: int, joint: Tensor, start: int, sequence: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [heads, tokens, head_dim], and all keys and values so far, [KV heads, positions, head_dim]."""
        model, end = self._model, start + len(joint)
        heads = joint.view(len(joint), -1, model.head_dim)
        turned, v = heads[:, : -model.kv_heads], heads[:, -model.kv_heads :]
        if node.q_norm is not None:
            weights = [self._buffers[name][layer] for name in ("q_norm", "k_norm")]
            each = [w.expand(n, -1) for w, n in zip(weights, (model.heads, model.kv_heads), strict=True)]
            turned = F.rms_norm(turned.float(), (model.head_dim,), None, model.rms_eps) * torch.cat(each)
        once = torch.float32 if self._schedule.kv.dtype == "fp8" else self._dtype  # keys are rounded once
        turned = rotated(turned, self._buffers["rope"][start:end, None], once)
        rows = slice(sequence * model.kv_heads, (sequence + 1) * model.kv_heads)
        both = []
        for name, fresh in (("k_cache", turned[:, model.heads :]), ("v_cache", v)):
            cache = self._buffers[name][layer, rows, :end]
            cache[:, start:] = for_cache(fresh.transpose(0, 1), self._schedule.kv.dtype, cache.dtype)
            both.append(cache.to(self._dtype))
        return turned[:, : model.heads].transpose(0, 1).to(self._dtype), both[0], both[1]


def for_cache(values: Tensor, cache_dtype: CacheDtype, dtype: torch.dtype) -> Tensor:
    """Keys or values, rounded as a cache of `cache_dtype` rounds them, in `dtype`."""
    if cache_dtype == "fp8":
        values = values.clamp(-E4M3_MOST, E4M3_MOST).to(torch.float8_e4m3fn)
    return values.to(dtype)


def rotated(x: Tensor, table: Tensor, dtype: torch.dtype) -> Tensor:
    """x [tokens, heads, head_dim] with pairs (i, i + head_dim / 2) turned, in float32, rounded to `dtype`.

    table: f32 [tokens, 1, head_dim], cosines, then sines.
    """
    cos, sin = table.chunk(2, dim=-1)
    a, b = x.chunk(2, dim=-1)
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    first, second = out.chunk(2, dim=-1)
    by_cos = x.unflatten(-1, (2, -1)) * cos.unsqueeze(-2)
    torch.addcmul(by_cos[..., 0, :], b, sin, value=-1, out=first)
    torch.addcmul(by_cos[..., 1, :], a, sin, out=second)
    return out


def attended(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """[tokens, heads * head_dim]: every token over the positions up to its own, the tokens being the last of them."""
    causal = causal_lower_right(q.shape[1], keys.shape[1])
    out = F.scaled_dot_product_attention(q[None], keys[None], values[None], causal, enable_gqa=True)
    return out[0].transpose(0, 1).reshape(q.shape[1], -1)


def attended_by(q: Tensor, keys: Tensor, values: Tensor, at: Tensor) -> Tensor:
    """The same of one token, q [heads, 1, head_dim], whose position is `at`, i64 [1]."""
    seen = torch.arange(keys.shape[1], device=keys.device) <= at
    out = F.scaled_dot_product_attention(q[None], keys[None], values[None], seen[None], enable_gqa=True)
    return out[0].transpose(0, 1).reshape(1, -1)
