"""Baseline `cublas-graph`: torch's bf16 operations for one token, argmax included, replayed as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch

from amk.bench.tools.subject import Subject
from amk.bench.tools.timing import Contestant
from amk.bench.tools.torch_model import TorchDecoder


def cublas_graph(subject: Subject, pos: int) -> Contestant:
    """One token of each sequence at `pos`; row `pos` of the subject's cache is overwritten."""
    decoder = TorchDecoder(subject.weights, subject.k_cache, subject.v_cache, torch.bfloat16)
    token, rotation = subject.tokens(1), decoder.rope(pos)

    def step() -> None:
        token.copy_(decoder.step(token, pos, rotation).argmax(-1).view_as(token))

    return Contestant("cublas-graph", 1, torch.cuda.current_stream(), captured(step))


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """`step` as a CUDA graph, warmed up on another stream as capture demands; returns its replay."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        step()

    def replay(step_of_graph: Callable[[], None] = step) -> None:
        """`step_of_graph` keeps alive the tensors that the graph reads and writes."""
        graph.replay()

    return replay
