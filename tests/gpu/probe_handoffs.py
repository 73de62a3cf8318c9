"""What hand-offs of other structures cost on this GPU while all SMs stream weights; handoffs.cu says what each is.

    python -m tests.gpu.probe_handoffs --record FILE [--seconds S]     (sm_90 and later, 100 s)

A row has the microseconds of one hand-off in a chain of them, what the SMs streamed beside it, how many bytes a block
fetched, and whether every value was right. It is the difference of a long and a short launch, `ROUNDS` times. Rows of
`local` are what a round takes without any hand-off. How many clusters are resident at once is the driver's answer.
The command goes on where FILE ends; after a row that the GPU refuses it ends with 2, and goes on if called again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from amk.bench.tools.hardware import provenance
from amk.bench.tools.times import summary
from amk.bench.tools.timing import HEAD_START, timed
from amk.lowering.compile import compile_cuda
from amk.lowering.launch import Device, Kernel, Module
from amk.report.diagnostic import AmkError

SOURCE = Path(__file__).with_name("handoffs.cu")
PROBE = np.dtype([(name, "<u8") for name in (
    "data", "own", "words", "hint", "out", "rounds", "count", "slots", "adders", "slack", "cluster", "bursts",
)])  # fmt: skip
FEW, MANY, ROUNDS = 100, 1_100, 11
THREADS, CHUNK, STREAMS, MOST_SLOTS = 512, 2048, 8, 12
SHARED = 224 * 1024
"""Dynamic shared memory of a block, so that an SM has one: the rings take what two vectors leave."""
NO_HINT = 2**64 - 1
CLUSTERS = (2, 4, 8, 16)
DATA = 16 << 30


@dataclass(frozen=True)
class Case:
    """cluster: blocks of a cluster, 1 for none; words: of 4 bytes of payload; slots: of 2 KB a streaming warp, as many
    as fit; adders: blocks that add to a counting word, 0 for all; slack: signals that the hint does without, None for
    no hint."""

    kernel: str
    cluster: int = 1
    words: int = 2048
    slots: int = MOST_SLOTS
    adders: int = 0
    slack: int | None = 16
    bursts: bool = False


def bursts() -> Iterator[Case]:
    """As in a kernel that fills its rings when a product is done, and then waits."""
    for words in (256, 1024, 2048, 4096, 8192):
        for kernel in ("local", "words"):
            yield Case(kernel, words=words, bursts=True)
        yield from (Case("gather", cluster, words, bursts=True) for cluster in CLUSTERS)
    for words in (1024, 2048, 4096):
        yield Case("words", words=words, slack=0, bursts=True)
        yield Case("counting_bulk", words=words, bursts=True)
        yield from (Case("counting", words=words, adders=adders, bursts=True) for adders in (0, 8))
    for cluster in CLUSTERS:
        yield from (Case("inside", cluster, words, bursts=True) for words in (4 * cluster, 256, 1024, 2048))
        yield from (Case("local", cluster, words, bursts=True) for words in (256, 2048))
    for kernel, each in (("local", (1, *CLUSTERS)), ("words", (1,)), ("plain", (1,)), ("multicast", (1, *CLUSTERS))):
        yield from (Case(kernel, cluster, 16384, slack=0, bursts=True) for cluster in each)


def cases() -> Iterator[Case]:
    """The most telling first."""
    yield from bursts()
    for slots in (12, 0, 6):
        yield Case("stream", slots=slots)
        for words in (1024, 2048, 4096):
            yield Case("local", words=words, slots=slots)
            for slack in (16, 0, None):
                yield Case("words", words=words, slots=slots, slack=slack)
            yield Case("counting_bulk", words=words, slots=slots)
            for adders in (0, 1, 4, 8):
                yield Case("counting", words=words, slots=slots, adders=adders)
            yield Case("plain", words=words, slots=slots, slack=0)
        yield from (Case("stream", cluster, slots=slots) for cluster in CLUSTERS)
        for cluster in CLUSTERS:
            yield Case("barrier", cluster, slots=slots)
            yield Case("words", cluster, slots=slots)
            for words in (4 * cluster, 256, 1024, 2048):
                yield Case("inside", cluster, words, slots)
            for words in (1024, 2048, 4096):
                yield Case("gather", cluster, words, slots)
        for cluster in (1, *CLUSTERS):
            yield from (Case("multicast", cluster, words, slots, slack=0) for words in (2048, 16384))
        yield Case("plain", words=16384, slots=slots, slack=0)
        for words in (256, 8192, 16384):
            yield Case("local", words=words, slots=slots)
            yield Case("words", words=words, slots=slots)
        yield from (Case("gather", cluster, 8192, slots) for cluster in CLUSTERS)


def slots_of(case: Case) -> int:
    return min(case.slots, (SHARED - 8 * case.words) // (STREAMS * CHUNK))


class Rig:
    """The loaded kernels, with buffers for all cases."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.module = Module(device, compile_cuda(SOURCE.read_text(encoding="utf-8"), device.arch).cubin)
        self.data = torch.empty(DATA // 8, dtype=torch.int64, device="cuda").random_()
        self.words = torch.zeros(2 * 16384, dtype=torch.int64, device="cuda")
        self.hint = torch.zeros(32, dtype=torch.int32, device="cuda")
        self.out = torch.zeros(4 * device.sm_count, dtype=torch.int64, device="cuda")

    def kernel(self, name: str, shared: int) -> Kernel:
        """Clusters of 16 are allowed."""
        kernel = self.module.kernel(name, shared)
        key = self.device.driver.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        self.device.driver.call("cuFuncSetAttribute", kernel.handle, key, 1)
        return kernel

    def shape(self, kernel: Kernel, cluster: int, blocks: int) -> Any:
        """The launch of `blocks` blocks of the kernel in clusters."""
        api = self.device.driver.api
        config, attribute = api.CUlaunchConfig(), api.CUlaunchAttribute()
        config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = THREADS, 1, 1
        config.sharedMemBytes = kernel.dynamic_smem
        attribute.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        dimension = attribute.value.clusterDim
        dimension.x, dimension.y, dimension.z = cluster, 1, 1
        config.attrs, config.numAttrs = [attribute], 1
        return config

    def resident(self, kernel: Kernel, cluster: int) -> int:
        """Clusters that are resident at the same time, by the driver."""
        shape = self.shape(kernel, cluster, cluster * (self.device.sm_count // cluster))
        return int(self.device.driver.call("cuOccupancyMaxActiveClusters", kernel.handle, shape))

    def row(self, case: Case) -> dict[str, Any]:
        slots = slots_of(case)
        kernel = self.kernel(case.kernel, SHARED)
        blocks = self.device.sm_count if case.cluster == 1 else case.cluster * self.resident(kernel, case.cluster)
        if blocks == 0:
            return {**asdict(case), "blocks": 0}
        config = self.shape(kernel, case.cluster, blocks)
        own = DATA // blocks // (STREAMS * CHUNK) * (STREAMS * CHUNK)
        slack = NO_HINT if case.slack is None else case.slack
        places = (self.data.data_ptr(), own, self.words.data_ptr(), self.hint.data_ptr(), self.out.data_ptr())
        sizes = (case.words, slots, case.adders or blocks, slack, case.cluster, case.bursts)
        few, many = (np.array((*places, n, *sizes), PROBE) for n in (FEW, MANY))
        us, gbps, fetched, faults = [], [], [], np.zeros(2, np.int64)
        for turn in range(ROUNDS + 1):
            (short, first), (long, second) = self._run(kernel, config, few), self._run(kernel, config, many)
            faults += first[2:] + second[2:]
            if turn:
                us.append(1e3 * (long - short) / (MANY - FEW))
                gbps.append(float(second[0] - first[0]) * CHUNK / (long - short) / 1e6)
                fetched.append(float(second[1] - first[1]) * 16 / (MANY - FEW) / blocks)
        times = summary(us)
        return {
            **asdict(case), "blocks": blocks, 
            "in_flight_mb": round(blocks * slots * STREAMS * CHUNK / 1e6, 2),
            "us": round(times.ms, 4), "p10": round(times.p10, 4), "p90": round(times.p90, 4),
            "stream_gbps": round(float(np.median(gbps)), 1), "fetched_bytes": round(float(np.median(fetched))),
            "wrong": int(faults[0]), "given_up": int(faults[1]),
        }  # fmt: skip

    def _run(self, kernel: Kernel, config: Any, argument: Any) -> tuple[float, Any]:
        """Milliseconds of one launch, and the sums of what its blocks counted."""
        for buffer in (self.words, self.hint, self.out):
            buffer.zero_()
        stream = torch.cuda.current_stream()
        config.hStream = stream.cuda_stream
        pointers = np.array([argument.ctypes.data], dtype=np.uint64)
        driver = self.device.driver
        ms = timed(
            stream, lambda: driver.call("cuLaunchKernelEx", config, kernel.handle, pointers.ctypes.data, 0), HEAD_START
        )  # fmt: skip
        return ms, self.out.cpu().numpy().reshape(-1, 4).sum(axis=0)


def residency(rig: Rig) -> list[dict[str, int]]:
    """By size of cluster, with the shared memory that a plan of today takes."""
    kernel = rig.kernel("stream", SHARED)
    found = [(cluster, rig.resident(kernel, cluster)) for cluster in CLUSTERS]
    return [
        {"cluster": cluster, "resident": n, "lost_sms": rig.device.sm_count - n * cluster, "shared_bytes": SHARED}
        for cluster, n in found
    ]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no case after so many seconds")
    chosen = parser.parse_args(argv)
    began, device = time.monotonic(), Device.open()
    found: dict[str, Any] = json.loads(chosen.record.read_text()) if chosen.record.exists() else {}
    rig = Rig(device)
    if not found:
        run = provenance("python -m tests.gpu.probe_handoffs --record FILE", device)
        found = {"run": run, "sms": device.sm_count, "residency": residency(rig), "rows": []}
        print(json.dumps(found["residency"]), flush=True)
    done = [{each.name: row.get(each.name, False) for each in fields(Case)} for row in found["rows"]]
    for case in cases():
        if asdict(case) in done:
            continue
        if time.monotonic() - began > chosen.seconds:
            print("not measured in time, from", case, flush=True)
            break
        try:
            found["rows"].append(rig.row(case))
        except (AmkError, RuntimeError) as error:  # the context is lost with a launch that fails
            found["rows"].append({**asdict(case), "refused": str(error).splitlines()[0]})
        chosen.record.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(found["rows"][-1]), flush=True)
        if "refused" in found["rows"][-1]:
            return 2
    faults = [row for row in found["rows"] if row.get("wrong") or row.get("given_up")]
    print(f"{len(found['rows'])} rows, {len(faults)} with wrong values or waits that were given up", flush=True)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
