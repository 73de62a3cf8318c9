"""Flags and counters in global memory: missing releases, resets that race, signals that never come."""

from amk.systems.builder import System
from amk.systems.incidents.registry import incident


@incident("ROCm/aiter/pull/4007", "AMK302", "histogram", "does not release", hardware="gfx942")
def aiter_topk_arrives_without_fence(sys: System, fixed: bool) -> None:
    """Blocks add to a histogram by relaxed atomics, then arrive at a barrier of the grid without a fence between: who
    passes it may see the histogram incomplete. Fix: `__threadfence()` before the arrival. The divergence that makes it
    a hang follows from the values read and is not encoded."""
    histogram, arrived = sys.buffer("histogram", 16), sys.counter("finished_block_cnt")
    for n in range(2):
        with sys.agent(f"block {n}", cta=n) as b:
            b.add(histogram, 0, 16, floating=False)
            b.signal(arrived, order="release" if fixed else "relaxed")
            b.wait(arrived, 2)
            b.read(histogram, 0, 16)


@incident("AMD-AGI/Primus-Turbo/pull/482", "AMK302", "ring", "does not release", hardware="gfx950")
def deep_ep_tail_published_by_a_cheap_fence(sys: System, fixed: bool) -> None:
    """Several waves write rows, meet, and one publishes the tail with a relaxed store behind a fence of its own wave
    alone. A receiver on another GPU that sees the tail may read what the ring held before. Fix: a release at system
    scope."""
    ring, tail = sys.buffer("ring", 32), sys.counter("tail", scope="sys")
    met = sys.counter("sync_barrier", scope="cta")
    for n in range(2):
        with sys.agent(f"wave {n}", gpu=0) as w:
            w.write(ring, n * 16, n * 16 + 16, value="rows")
            w.signal(met)
            if n == 0:
                w.wait(met, 2)
                w.signal(tail, order="release" if fixed else "relaxed")
    with sys.agent("receiver", gpu=1) as r:
        r.wait(tail, 1)
        r.read(ring, 0, 32, value="rows")


@incident("pytorch/pytorch/pull/195761", "AMK20", "flag", "is 0", hardware="gfx942")
def nvshmem_flag_zeroed_behind_the_signal(sys: System, fixed: bool) -> None:
    """A rank zeroes its flag on its stream, and its peer sets it to 1; nothing orders the two, and if the zero comes
    last the waiter waits for ever. Fix: a barrier between zeroing and setting."""
    flag, out = sys.flag("flag", scope="sys"), sys.buffer("out", 16)
    ready = sys.counter("barrier", scope="sys")
    with sys.agent("rank 0", gpu=0) as a:
        a.set(flag, 0)
        if fixed:
            a.signal(ready)
        a.wait_equal(flag, 1)
        a.read(out, 0, 16, value="inp")
    with sys.agent("rank 1", gpu=1) as b:
        if fixed:
            b.wait(ready, 1)
        b.write(out, 0, 16, value="inp")
        b.set(flag, 1)


@incident("tenstorrent/tt-metal/pull/47257", "AMK20", "drained", "is 0", hardware="Wormhole")
def tt_metal_init_clears_an_advanced_semaphore(sys: System, fixed: bool) -> None:
    """Each thread's `init` clears a flag that a peer may have advanced already in the first barrier: the advance is
    lost and the handshake waits for ever. Fix: the flags are not cleared there."""
    drained = sys.flag("drained")
    with sys.agent("follower") as f:
        if not fixed:
            f.set(drained, 0)
        f.wait_equal(drained, 1)
    with sys.agent("writer") as w:
        w.set(drained, 1)


@incident(
    "sgl-project/sgl-kernel-npu/issues/69",
    "AMK202",
    "rank 0 waits for ever",
    "bring combine to 2, and 3 is asked for",
    hardware="Ascend",
)
def ep_combine_rank_without_tokens(sys: System, fixed: bool) -> None:
    """Ranks that receive no tokens go on without taking part, and the others wait in combine for messages of all ranks.
    Fix: every rank sends its message. Encoded with three ranks, of which the last has no tokens."""
    arrived, tokens = sys.counter("combine", scope="sys"), (4, 2, 0)
    for n, count in enumerate(tokens):
        with sys.agent(f"rank {n}", gpu=n) as r:
            if count or fixed:
                r.signal(arrived)
                r.wait(arrived, len(tokens))
