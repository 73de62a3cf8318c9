"""Warps of one CTA, or of a cluster, that meet too rarely."""

from amk.systems.builder import System
from amk.systems.incidents.registry import incident


@incident("vllm-project/vllm/pull/26026", "AMK20", "epilogue", "load", hardware="sm_100")
def cutlass_mla_arrives_and_goes_round(sys: System, fixed: bool) -> None:
    """A compute warp without work arrives at a named barrier, does not wait, loops around and arrives again; the load
    warps, which arrive and wait, miss a phase. Fix: `arrive_and_wait`. Encoded with one warp of each kind."""
    epilogue = sys.barrier("epilogue", 2)
    with sys.agent("compute") as compute, sys.agent("load") as load:
        for _ in range(2):
            if fixed:
                compute.sync(epilogue)
            else:
                compute.arrive(epilogue)
            load.sync(epilogue)


@incident("NVlabs/cuda-oxide/pull/1066", "AMK302", "TILE_INFO", "producer", hardware="sm_100a")
def gemm_sol_mailbox_without_acknowledgement(sys: System, fixed: bool) -> None:
    """The producer warp publishes a tile's coordinates, signals, and publishes the next; nobody says that the five
    readers have copied them. Fix: a barrier that counts five arrivals, waited for before it publishes again."""
    info, ready, free = sys.buffer("TILE_INFO", 12), sys.mbarrier("TILE_READY"), sys.mbarrier("TILE_INFO_FREE", 5)
    tiles = 2
    with sys.agent("producer") as p:
        for k in range(tiles):
            if fixed and k:
                p.wait_parity(free, (k - 1) % 2)
            p.write(info, 0, 12, value=k)
            p.arrive(ready)
    for n in range(5):
        with sys.agent("mma" if n == 0 else f"epilogue {n - 1}") as r:
            for k in range(tiles):
                r.wait_parity(ready, k % 2)
                r.read(info, 0, 12, value=k)
                if fixed:
                    r.arrive(free)


@incident("tile-ai/tilelang/issues/2613", "AMK302", "A_shared", "ws")
def tilelang_no_barrier_at_the_end_of_the_loop(sys: System, fixed: bool) -> None:
    """All threads stage one operand, both warp groups read it by asynchronous wgmma, and the next iteration stages the
    next one without a barrier behind the reads. Fix: the `__syncthreads` at the loop's end."""
    a, staged = sys.buffer("A_shared", 32), sys.barrier("syncthreads", 2)
    for n in range(2):
        with sys.agent(f"ws {n}") as w:
            for k in range(2):
                w.write(a, n * 16, n * 16 + 16, value=k)
                w.fence_async()
                w.sync(staged)
                w.read(a, 0, 32, value=k, proxy="async")
                if fixed:
                    w.sync(staged)


@incident("Dao-AILab/flash-attention/issues/1344", "AMK302", "smem O")
def flash_attention_epilogue_without_barrier(sys: System, fixed: bool) -> None:
    """With variable lengths all threads copy the output from shared to global memory, and nothing makes them wait for
    the warps that still write it to shared memory. Fix: a barrier between the two."""
    o, barrier = sys.buffer("smem O", 32), sys.barrier("epilogue", 2)
    for n in range(2):
        with sys.agent(f"warp {n}") as w:
            w.write(o, n * 16, n * 16 + 16, value="O")
            if fixed:
                w.sync(barrier)
            w.read(o, 16 - n * 16, 32 - n * 16, value="O")


@incident("warpfront/hipfire/pull/575", "AMK302", "sdata[0:4]", hardware="gfx1100")
def hipfire_broadcast_word_used_again(sys: System, fixed: bool) -> None:
    """All waves read a sum from sdata[0]; then it is used again without a barrier, and lagging waves read something
    else as the sum. Fix: `__syncthreads` between."""
    sdata, barrier = sys.buffer("sdata", 256), sys.barrier("syncthreads", 2)
    for n in range(2):
        with sys.agent(f"wave {n}") as w:
            if n == 0:
                w.write(sdata, 0, 4, value="sum of squares")
            w.sync(barrier)
            w.read(sdata, 0, 4, value="sum of squares")
            if fixed:
                w.sync(barrier)
            w.write(sdata, n * 128, n * 128 + 128, value="normed")


@incident("ggml-org/llama.cpp/pull/26434", "AMK302", "l_k", hardware="Adreno, Intel")
def llama_cpp_tiles_loaded_again_too_early(sys: System, fixed: bool) -> None:
    """The shared K and V tiles are loaded at the top of the loop with no barrier before: a subgroup that is done early
    overwrites what another still reads. Fix: a barrier where a group has several subgroups."""
    tile, barrier = sys.buffer("l_k", 32), sys.barrier("barrier", 2)
    for n in range(2):
        with sys.agent(f"subgroup {n}") as w:
            for k in range(2):
                if fixed and k:
                    w.sync(barrier)
                w.write(tile, n * 16, n * 16 + 16, value=k)
                w.sync(barrier)
                w.read(tile, 0, 32, value=k)


@incident("facebookexperimental/triton/pull/1992", "AMK302", "qk tmem", hardware="sm_100")
def tlx_attention_stores_p_over_unread_qk(sys: System, fixed: bool) -> None:
    """P is stored to columns of tensor memory that alias qk, by a mapping of warps that differs from the load's: a
    fast warp's store lands where a slow warp has not read yet. Fix: the warps of the task meet between, as the
    cause asks for; we have not seen the report's own fix."""
    qk, barrier = sys.buffer("qk tmem", 64), sys.barrier("task", 2)
    sys.initial(qk, 0, 64, "qk")
    for n in range(2):
        with sys.agent(f"warp {n}") as w:
            w.read(qk, n * 32, n * 32 + 32, value="qk")
            if fixed:
                w.sync(barrier)
            w.write(qk, 32 - n * 32, 64 - n * 32, value="P")


@incident("triton-lang/triton/pull/11334", "AMK302", "phase word")
def triton_cluster_barrier_flips_an_unread_phase(sys: System, fixed: bool) -> None:
    """A thread runs ahead and overwrites the phase that another warp of the barrier has not read yet. Fix: the warps
    meet after reading it. The report says this much; that the phase is a word of shared memory is taken from its words
    'overwrite the phase'."""
    phase, meet = sys.buffer("phase word", 4), sys.barrier("warps", 2)
    sys.initial(phase, 0, 4, 0)
    for n in range(2):
        with sys.agent(f"warp {n}") as w:
            w.sync(meet)
            w.read(phase, 0, 4, value=0)
            if fixed:
                w.sync(meet)
            if n == 0:
                w.write(phase, 0, 4, value=1)


@incident("NVIDIA/cudnn-frontend/pull/396", "AMK302", "tmem", hardware="sm_100")
def dsa_backward_waits_for_the_wrong_release(sys: System, fixed: bool) -> None:
    """The next iteration's MMA is ordered behind the release two generations back, and not behind the reads of the
    columns that it overwrites. Fix: the reduce warp reads them and arrives at a barrier of its own before the slow
    reduction. Encoded with the two aliased parts and two iterations."""
    tmem, barriers = sys.buffer("tmem", 32), [sys.mbarrier(f"dKV {n} made") for n in range(2)]
    old, read = sys.mbarrier("dKV4 released"), sys.barrier("read", 2)
    with sys.agent("mma") as mma, sys.agent("reduce") as reduce:
        for k in range(2):
            if k:
                mma.wait_parity(old, 0)
                if fixed:
                    mma.sync(read)
            mma.write(tmem, 0, 32, value=k)
            mma.arrive(barriers[k])
            reduce.wait_parity(barriers[k], 0)
            if k == 0:
                reduce.arrive(old)
            reduce.read(tmem, 0, 32, value=k)
            if fixed and k == 0:
                reduce.arrive(read)
