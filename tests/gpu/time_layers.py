"""Times of a token whose layers are one call, two, four or one each, and the output head another, as one CUDA graph.

    timeout 240 python -m tests.gpu.time_layers [MODEL]

Prints milliseconds a token at position 128, the median of 5 runs of 200 replays.
"""

from __future__ import annotations

import sys
from statistics import median

import torch

from amk.bench.tools.torch_model import TorchWeights
from amk.lowering.launch import Device
from amk.models.model import load_model
from amk.targets.target import targets
from tests.gpu.sliced import Sliced

REPLAYS, RUNS, CONTEXT, POSITION = 200, 5, 512, 128


def milliseconds(slices: Sliced) -> float:
    slices.capture()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    found = []
    for _ in range(RUNS):
        slices.position.fill_(POSITION)
        begin.record()
        for _ in range(REPLAYS):
            slices.graph.replay()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / REPLAYS)
    return median(found)


def main(name: str) -> None:
    model, device = load_model(name), Device.open()
    target = max((t for t in targets() if t.arch == device.arch and t.sms <= device.sm_count), key=lambda t: t.sms)
    weights = TorchWeights.random(model, 1)
    print(f"{name}, {device.name}, layers and output head\ncalls  ms a token")
    for calls in (1, 2, 4, model.layers):
        cuts = sorted({model.layers * n // calls for n in range(calls + 1)})
        slices = Sliced(model, weights, target.name, cuts, CONTEXT)
        print(f"{len(cuts) - 1:5}  {milliseconds(slices):.3f}", flush=True)
        slices.free()


if __name__ == "__main__":
    main((sys.argv[1:] or ["smollm2-135m"])[0])
