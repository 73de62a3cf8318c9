"""Whole prompts as CUDA graphs: a layer is some 30 launches, which a slow host makes later than the GPU needs them.

A graph is of one length, so a prompt is padded: tokens behind its end write rows of the cache that nobody reads before
the kernel has written them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from amk.prefill.forward import PromptForward

MOST = 2048
"""Tokens; of longer prompts the host is done before the GPU is."""
STEPS = ((64, 16), (256, 32), (512, 64), (MOST, 256))
"""Up to so many tokens, lengths are multiples of the second number."""


def padded(tokens: int) -> int | None:
    """The length of the graph that reads so many tokens; None if there is none."""
    return next((-(-tokens // step) * step for most, step in STEPS if tokens <= most), None)


@dataclass(frozen=True)
class _Graph:
    """ids, row: what a replay reads. logits: what it writes; of no element where they were not asked for."""

    graph: Any
    ids: torch.Tensor
    row: torch.Tensor
    logits: torch.Tensor


class PromptGraphs:
    """Prompts from position 0 of the first sequence. Graphs are made as their lengths come, and share their memory.

    context: positions of the cache. Used on the stream that is current, which must not be the default one.
    """

    def __init__(self, forward: PromptForward, context: int) -> None:
        self._forward, self._context = forward, context
        self._graphs: dict[tuple[int, bool], _Graph] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def read(self, tokens: Sequence[int]) -> bool:
        """Whether there is a graph that has read them."""
        return self._run(tokens, behind=False) is not None

    def behind(self, tokens: Sequence[int]) -> torch.Tensor | None:
        """Logits f32 [vocab] behind them, true until the next call; None if there is no graph."""
        return self._run(tokens, behind=True)

    def _run(self, tokens: Sequence[int], behind: bool) -> torch.Tensor | None:
        length = padded(len(tokens))
        if length is None or length > self._context:
            return None
        ids = torch.tensor([*tokens, *[0] * (length - len(tokens))], dtype=torch.int64)
        row = torch.tensor([len(tokens) - 1], dtype=torch.int64)
        if (graph := self._graphs.get((length, behind))) is None:
            graph = self._graphs[length, behind] = self._record(ids, row, behind)
        graph.ids.copy_(ids)
        graph.row.copy_(row)
        graph.graph.replay()
        return graph.logits

    def _record(self, ids: torch.Tensor, row: torch.Tensor, behind: bool) -> _Graph:
        """Reading the tokens once chooses the kernels of products; then the same is recorded."""
        ids, row = ids.to(self._forward.device), row.to(self._forward.device)
        self._read(ids, row, behind)
        graph = torch.cuda.CUDAGraph()
        # The workspace of products has to be the graph's own: another user of torch may free the one in use.
        torch._C._cuda_clearCublasWorkspaces()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            logits = self._read(ids, row, behind)
        finally:
            graph.capture_end()
        torch._C._cuda_clearCublasWorkspaces()
        return _Graph(graph, ids, row, logits)

    def _read(self, ids: torch.Tensor, row: torch.Tensor, behind: bool) -> torch.Tensor:
        if behind:
            return self._forward.behind_block(ids, row, 0)
        self._forward.read_block(ids, 0)
        return torch.empty(0)
