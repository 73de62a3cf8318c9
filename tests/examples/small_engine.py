"""A small engine whose decode is replaced: `amk.layers` does the layers of every token.

    python -m tests.examples.small_engine DIRECTORY [interpreter]

Embedding, output head and choice stay the engine's, and so do caches and position. On a GPU one step is one CUDA graph.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F

import amk
from amk.engine.checkpoints.open_checkpoint import open_checkpoint
from amk.torch_ops import registered


class SmallEngine:
    def __init__(self, weights: Any, model: Any, context: int, where: str = "cuda", cuts: tuple[int, ...] = ()) -> None:
        self.model, self.where = model, where
        self.on = on = torch.device("cuda" if where == "cuda" else "cpu")
        top = {name: torch.from_numpy(weights.tensor(name)).to(on) for name in ("embed", "final_norm", "lm_head")}
        self.embed, self.norm, self.head = top["embed"], top["final_norm"], top["lm_head"]
        ends = (0, *cuts, model.layers)
        kwargs: dict[str, Any] = {"weights": weights, "max_context": context, "device": where}
        kwargs |= {} if where == "cuda" else {"gpu": "h200"}
        self.calls = [amk.layers(model, a, b, **kwargs) for a, b in pairwise(ends)]
        self.numbers = [registered(call) for call in self.calls]
        shape = model.layers, model.kv_heads, context, model.head_dim
        self.k_cache, self.v_cache = (torch.zeros(shape, dtype=torch.bfloat16, device=on) for _ in range(2))
        self.parts = [(self.k_cache[a:b], self.v_cache[a:b]) for a, b in pairwise(ends)]
        self.position = torch.zeros(1, dtype=torch.int32, device=on)
        self.token = torch.zeros(1, dtype=torch.int64, device=on)
        self.graph: Any = None

    def step(self) -> None:
        """Token at position -> next token, next position. All of it is on the device, so a graph can hold it."""
        hidden = F.embedding(self.token, self.embed).float()
        for number, (keys, values) in zip(self.numbers, self.parts, strict=True):
            hidden = torch.ops.amk.layers(number, hidden, keys, values, self.position)
        logits = F.rms_norm(hidden, (self.model.hidden,), self.norm, self.model.rms_eps) @ self.head.T
        self.token.copy_(logits.argmax(-1))
        self.position += 1

    def captured(self) -> Any:
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.step()  # torch makes its libraries ready
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            self.step()
        return graph

    def generate(self, prompt: list[int], tokens: int) -> list[int]:
        """Greedy; the prompt goes through the same step, token by token (an engine would write the caches itself)."""
        if self.graph is None and self.on.type == "cuda":
            self.graph = self.captured()
        self.position.zero_()
        answer: list[int] = []
        for n in range(len(prompt) + tokens - 1):
            if n < len(prompt):
                self.token.fill_(prompt[n])
            self.graph.replay() if self.graph is not None else self.step()
            answer += [int(self.token)] if n >= len(prompt) - 1 else []
        return answer


if __name__ == "__main__":
    checkpoint = open_checkpoint(sys.argv[1])
    engine = SmallEngine(checkpoint, checkpoint.spec, context=64, where=(sys.argv[2:] or ["cuda"])[0])
    print(engine.generate([1, 2, 3], 8))
