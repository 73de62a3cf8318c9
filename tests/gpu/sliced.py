"""A model's layers as calls on the GPU, with torch's random weights. Imported inside tests, where torch is there."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from amk.api.layers import layers, lm_head
from amk.bench.tools.torch_model import TorchWeights
from amk.models.model_spec import ModelSpec
from amk.torch_ops import forget, registered


class Tensors:
    """`TorchWeights` by the names of a checkpoint."""

    def __init__(self, weights: TorchWeights) -> None:
        self._weights, self._model = weights, weights.model

    def tensor(self, name: str, rows: slice = slice(None)) -> NDArray[np.float32]:
        layer, dot, part = name.partition(".")
        found = self._of_layer(int(layer[1:]), part) if dot else self._top(name)
        return np.ascontiguousarray(found[rows].float().cpu().numpy())

    def _top(self, name: str) -> Tensor:
        w = self._weights
        return {"embed": w.embedding, "final_norm": w.norm[-1], "lm_head": w.matrices["lm_head"][0]}[name]

    def _of_layer(self, layer: int, part: str) -> Tensor:
        w, model = self._weights, self._model
        if part in ("attn_norm", "ffn_norm"):
            return w.norm[2 * layer + (part == "ffn_norm")]
        if part in ("wq", "wk", "wv", "bq", "bk", "bv"):
            joint = w.matrices["qkv"][layer] if part[0] == "w" else self._kept(w.bias)[layer]
            return joint.split([model.q_dim, model.kv_dim, model.kv_dim])["qkv".index(part[1])]
        if part in ("w_gate", "w_up"):
            return w.matrices["gate_up"][layer].chunk(2)[part == "w_up"]
        if part in ("q_norm", "k_norm"):
            return self._kept(w.q_norm if part == "q_norm" else w.k_norm)[layer]
        return w.matrices[{"wo": "o", "w_down": "down"}[part]][layer]

    @staticmethod
    def _kept(tensor: Tensor | None) -> Tensor:
        assert tensor is not None
        return tensor


class Sliced:
    """Slices [cuts[i], cuts[i + 1]) of a model and its output head, with caches and position of the caller."""

    def __init__(self, model: ModelSpec, weights: TorchWeights, gpu: str, cuts: Sequence[int], context: int) -> None:
        self.calls: list[Any] = [
            layers(model, a, b, gpu=gpu, weights=Tensors(weights), max_context=context) for a, b in pairwise(cuts)
        ]
        self.numbers = [registered(call) for call in self.calls]
        self.head = lm_head(model, gpu=gpu, weights=Tensors(weights))
        self.head_number = registered(self.head)
        shape = model.layers, model.kv_heads, context, model.head_dim
        caches = [torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
        self.parts = [tuple(cache[a:b] for cache in caches) for a, b in pairwise(cuts)]
        self.hidden, self.out = (torch.zeros(model.hidden, device="cuda") for _ in range(2))
        self.logits = torch.zeros(model.vocab, device="cuda")
        self.position = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.graph: Any = None

    def step(self) -> None:
        """hidden -> out and logits at the position, which moves on."""
        hidden = self.hidden
        for number, (keys, values) in zip(self.numbers, self.parts, strict=True):
            hidden = torch.ops.amk.layers(number, hidden, keys, values, self.position)
        self.out.copy_(hidden)
        self.logits.copy_(torch.ops.amk.lm_head(self.head_number, hidden))
        self.position += 1

    def capture(self) -> None:
        """Record a step; a first one runs before it, so that nothing is made ready while recording."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()

    def states(self, rows: Tensor) -> Tensor:
        """The state behind the layers for each row of `given`, f32 [tokens, hidden], from position 0 on."""
        return self.run(rows)[0]

    def run(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """`states`, and the logits of each, f32 [tokens, vocab]."""
        self.position.zero_()
        found, logits = [], []
        for row in rows:
            self.hidden.copy_(row)
            self.graph.replay() if self.graph is not None else self.step()
            found.append(self.out.clone())
            logits.append(self.logits.clone())
        torch.cuda.synchronize()
        for call in (*self.calls, self.head):
            call.check()
        return torch.stack(found), torch.stack(logits)

    def free(self) -> None:
        torch.cuda.synchronize()
        self.graph = None
        for number, call in zip((*self.numbers, self.head_number), (*self.calls, self.head), strict=True):
            forget(number)
            call.free()


def logits_of(states: Tensor, weights: TorchWeights) -> Tensor:
    """[tokens, vocab], fp64."""
    model, norm = weights.model, weights.norm[-1].double()
    return F.linear(
        F.rms_norm(states.double(), (model.hidden,), norm, model.rms_eps), weights.matrices["lm_head"][0].double()
    )
