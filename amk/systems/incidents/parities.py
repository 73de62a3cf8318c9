"""Waits for the wrong phase, and barriers that get the wrong arrivals."""

from amk.systems.builder import System
from amk.systems.incidents.registry import incident


@incident("tile-ai/tilelang/pull/3087", "AMK20", "by parity 0", "mma done is in phase 2", hardware="sm_100")
def tilelang_ring_parity_on_a_single_barrier(sys: System, fixed: bool) -> None:
    """The wait for a tensor-core operation asks for the parity of the ring's slot, but its barrier flips once per
    iteration: the wait returns at once, and the next copy overwrites a stage that is still read. Fix: the parity of the
    iteration. The run shown here meets the other side of it: the wait comes after two flips and never ends."""
    stages, laps = 3, 5
    stage = sys.buffer("stage", stages * 16)
    done = sys.mbarrier("mma done")
    with sys.agent("warp") as w:
        for k in range(laps):
            box = (stage, k % stages * 16, k % stages * 16 + 16)
            w.write(*box, value=k)
            w.fence_async()
            mma = w.issue("mma")
            mma.read(*box, value=k, proxy="async")
            mma.arrive(done)
            w.wait_parity(done, k % 2 if fixed else k // stages % 2)


@incident("tile-ai/tilelang/issues/2927", "AMK105", "part 1", "by parity 1, which it found with 0 phases over")
def tilelang_parity_of_the_loop_for_another_barrier(sys: System, fixed: bool) -> None:
    """A multicast copy waits on the barrier of its own iteration with the parity of the loop: on a new barrier parity 1
    passes at once, and the data are read before they are there. Fix: parity 0, the first phase of each."""
    w = sys.agent("cta")
    for s in range(4):
        part, bar = sys.buffer(f"part {s}", 16), sys.mbarrier(f"bar {s}")
        w.expect(bar, 16)
        w.load(None, (part, 0, 16), bar, value=s)
        w.wait_parity(bar, 0 if fixed else s % 2)
        w.read(part, 0, 16, value=s)


@incident("tile-ai/tilelang/pull/2674", "AMK104", "by parity 0, which it found with 1 phase over")
def tilelang_phase_begins_anew_with_each_tile(sys: System, fixed: bool) -> None:
    """Under a persistent outer loop the phase is computed from the inner iteration alone, which is right only if the
    trip count is a multiple of twice the stages. Told in a comment on the pull request, with wrong results and launch
    failures from the second wave on. Fix: the phase goes on from tile to tile. Encoded with 2 stages and 3 trips."""
    stages, trips, tiles = 2, 3, 2
    slots = sys.buffer("slots", stages * 16)
    full = [sys.mbarrier(f"full {s}") for s in range(stages)]
    empty = [sys.mbarrier(f"empty {s}") for s in range(stages)]
    with sys.agent("producer") as p, sys.agent("consumer") as c:
        for tile in range(tiles):
            for trip in range(trips):
                k = tile * trips + trip if fixed else trip
                s, phase = k % stages, k // stages % 2
                box = (slots, s * 16, s * 16 + 16)
                p.wait_parity(empty[s], 1 - phase)
                p.expect(full[s], 16)
                p.load(None, box, full[s], value=(tile, trip))
                c.wait_parity(full[s], phase)
                c.read(*box, value=(tile, trip))
                c.arrive(empty[s])


@incident("NVIDIA/TensorRT-LLM/pull/15338", "AMK302", "compute", "bar 0")
def tinygemm_polls_the_barrier_of_the_first_stage(sys: System, fixed: bool) -> None:
    """The spin wait uses a pointer to the first stage's barrier that is never updated. That barrier is complete since
    the first iteration, so a producer that lags behind is not waited for. Fix: the barrier of the current stage."""
    stages = 4
    slots = sys.buffer("slots", stages * 16)
    ready = [sys.mbarrier(f"bar {s}") for s in range(stages)]
    with sys.agent("producer") as p, sys.agent("compute") as c:
        for s in range(stages):
            p.expect(ready[s], 16)
            p.load(None, (slots, s * 16, s * 16 + 16), ready[s], value=s)
            c.wait_parity(ready[s if fixed else 0], 0)
            c.read(slots, s * 16, s * 16 + 16, value=s)


@incident("tile-ai/tilelang/issues/2566", "AMK202", "still needs 1 of 1 arrivals")
def tilelang_expects_bytes_and_never_arrives(sys: System, fixed: bool) -> None:
    """With one iteration the copy is lowered to a 1D bulk copy, with `expect_tx` and without an arrival. The barrier
    counts one: the bytes come, the arrival never does. Fix: `arrive.expect_tx`, as for more iterations."""
    tile, full = sys.buffer("tile", 16), sys.mbarrier("full")
    with sys.agent("producer") as p:
        p.expect(full, 16, arrives=fixed)
        p.load(None, (tile, 0, 16), full, value="A")
    with sys.agent("consumer") as c:
        c.wait_parity(full, 0)
        c.read(tile, 0, 16, value="A")


@incident("tile-ai/tilelang/issues/2567", "AMK201", "producer", "consumer", "empty")
def tilelang_back_pressure_behind_what_needs_it(sys: System, fixed: bool) -> None:
    """For unaligned lengths the consumer's arrival that frees the buffer comes after work that needs that buffer's
    load, and the producer's first wait needs the arrival. Fix: as for aligned lengths, the arrival comes first. The
    report names the cycle and proposes another classification; encoded with one buffer and two iterations."""
    q, full, empty = sys.buffer("Q", 16), sys.mbarrier("full"), sys.mbarrier("empty")
    with sys.agent("producer") as p, sys.agent("consumer") as c:
        for k in range(2):
            p.wait_parity(empty, k % 2)
            p.expect(full, 16)
            p.load(None, (q, 0, 16), full, value=k)
            if fixed and k == 0:
                c.arrive(empty)
            c.wait_parity(full, k % 2)
            c.read(q, 0, 16, value=k)
            if not fixed or k == 0:
                c.arrive(empty)


@incident("NVIDIA/cutlass/issues/2418", "AMK201", "empty 0", "still needs 128 of 128 arrivals")
def cute_dsl_the_signalling_thread_is_a_producer(sys: System, fixed: bool) -> None:
    """The empty barrier counts arrivals of the consumers, but the class lets thread 0 signal, and warp group 0 is the
    producer here. Fix: whoever consumes arrives. The count of 128 is encoded as one agent with a count."""
    stages, slots = 2, sys.buffer("slots", 32)
    full = [sys.mbarrier(f"full {s}") for s in range(stages)]
    empty = [sys.mbarrier(f"empty {s}", 128) for s in range(stages)]
    with sys.agent("warp group 0, producer") as p, sys.agent("warp group 1, consumer") as c:
        for k in range(4):
            s, phase = k % stages, k // stages % 2
            p.wait_parity(empty[s], 1 - phase)
            p.expect(full[s], 16)
            p.load(None, (slots, s * 16, s * 16 + 16), full[s], value=k)
            c.wait_parity(full[s], phase)
            c.read(slots, s * 16, s * 16 + 16, value=k)
            if fixed:
                c.arrive(empty[s], 128)
        if not fixed:
            for s in (0, 1):
                p.arrive(empty[s], 128)


@incident("NVIDIA/cutlass/issues/3324", "AMK505", "scope cta", hardware="sm_100")
def cutlass_trampoline_of_two_ctas_at_cta_scope(sys: System, fixed: bool) -> None:
    """The MMA of a leader reads both CTAs' shared memory. The other CTA's copies signal a barrier of its own, whose
    waiter arrives at the leader's ClusterBarrier, with CTA scope: the leader may see it full before the data. Fix:
    arrivals and waits at cluster scope. Both CTAs have started, and neither ends before the other."""
    theirs = sys.shared("smem of CTA 1", 16, cta=1)
    local = sys.mbarrier("local")
    full = sys.mbarrier("trampoline", scope="cluster" if fixed else "cta")
    leave = sys.barrier("leave", 2, "cluster")
    with sys.agent("copies of CTA 1", cta=1) as copies:
        copies.write(theirs, 0, 16, value="B")
        copies.fence_async()
        copies.arrive(local)
    with sys.agent("relay of CTA 1", cta=1) as relay:
        relay.sync(leave)
        relay.wait_parity(local, 0)
        relay.arrive(full)
        relay.sync(leave)
    with sys.agent("leader", cta=0) as leader:
        leader.sync(leave)
        leader.wait_parity(full, 0)
        leader.read(theirs, 0, 16, value="B", proxy="async")
        leader.sync(leave)
