"""Whole prompts as CUDA graphs: a layer is some 30 launches, which a slow host makes later than the GPU needs them.

A graph is of one length, so a prompt is padded: tokens behind its end write rows of the cache that nobody reads before
the kernel has written them.
"""

from __future__ import annotations

from collections.abc import Sequence
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


class PromptGraphs:
    """Prompts from position 0 of the first sequence. Graphs are made as their lengths come, and share their memory.

    context: positions of the cache. Used on the stream that is current, which must not be the default one.
    """

    def __init__(self, forward: PromptForward, context: int) -> None:
        self._forward, self._context = forward, context
        self._graphs: dict[int, tuple[Any, torch.Tensor]] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def read(self, tokens: Sequence[int]) -> bool:
        """Whether there is a graph that has read them."""
        length = padded(len(tokens))
        if length is None or length > self._context:
            return False
        ids = torch.tensor([*tokens, *[0] * (length - len(tokens))], dtype=torch.int64)
        if length in self._graphs:
            graph, given = self._graphs[length]
            given.copy_(ids)
            graph.replay()
        else:
            self._make(length, ids)
        return True

    def _make(self, length: int, ids: torch.Tensor) -> None:
        """Read the tokens, which also chooses the kernels of products, and record the same for the next time."""
        given = ids.to(self._forward.device)
        self._forward.read_block(given, 0)
        graph = torch.cuda.CUDAGraph()
        # The workspace of products has to be the graph's own: another user of torch may free the one in use.
        torch._C._cuda_clearCublasWorkspaces()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            self._forward.read_block(given, 0)
        finally:
            graph.capture_end()
        torch._C._cuda_clearCublasWorkspaces()
        self._graphs[length] = graph, given
