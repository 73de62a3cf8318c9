"""Asynchronous copies that nobody waits for, and proxies without a fence."""

from amk.systems.builder import System
from amk.systems.incidents.registry import incident


@incident("tile-ai/tilelang/issues/2634", "AMK507", "sparse operand", "fence.proxy.async")
def tilelang_sparse_gemm_without_proxy_fence(sys: System, fixed: bool) -> None:
    """Threads write an operand tile by ordinary stores, meet, and `wgmma.sp` reads it by the async proxy; the fence of
    the dense path is missing. Fix: `fence.proxy.async` before they meet."""
    tile, met = sys.buffer("sparse operand", 32), sys.barrier("syncthreads", 2)
    for n in range(2):
        with sys.agent(f"warp {n}") as w:
            w.write(tile, n * 16, n * 16 + 16, value="A")
            if fixed:
                w.fence_async()
            w.sync(met)
            w.read(tile, 0, 32, value="A", proxy="async")


@incident("pengcuo/FlashMLA-ETAP/pull/3", "AMK507", "smem_p")
def flash_mla_p_handed_to_wgmma_unfenced(sys: System, fixed: bool) -> None:
    """A warp group stores P to shared memory and at once issues the wgmma that reads all of it, rows of its other warps
    included. Fix: a proxy fence behind the stores and a named barrier of the group. Encoded with two of the warps."""
    p, ready = sys.buffer("smem_p", 32), sys.barrier("PReady", 2)
    for n in range(2):
        with sys.agent(f"warp {n}") as w:
            w.write(p, n * 16, n * 16 + 16, value="P")
            if fixed:
                w.fence_async()
                w.sync(ready)
            w.read(p, 0, 32, value="P", proxy="async")


@incident("uccl-project/mKernel/pull/18", "AMK302", "tile", "load")
def mkernel_loads_over_a_store_in_flight(sys: System, fixed: bool) -> None:
    """One tile holds an input during the GEMM and the output after it. The wait for the output's store is at a fixed
    iteration, which is too late for some shapes, and the next task's load comes while the store still reads. Fix: the
    wait at the start of each task. Encoded as one warp that loads, computes and stores."""
    tile, full, c = sys.shared("tile", 16), sys.mbarrier("full"), sys.buffer("C", 32)
    with sys.agent("warp") as w:
        for task in range(2):
            if fixed:
                w.wait_group(0, read=True)
            w.expect(full, 16)
            w.load(None, (tile, 0, 16), full, value=(task, "A"))
            w.wait_parity(full, task % 2)
            if not fixed:
                w.wait_group(0, read=True)
            w.read(tile, 0, 16, value=(task, "A"))
            w.write(tile, 0, 16, value=(task, "C"))
            w.fence_async()
            w.store((tile, 0, 16), (c, task * 16, task * 16 + 16), value=(task, "C"))
            w.commit()
        w.wait_group(0)


@incident("NVIDIA/Fuser/pull/5448", "AMK302", "T3")
def nvfuser_store_not_waited_for_in_the_loop(sys: System, fixed: bool) -> None:
    """Results are written to shared memory and stored by TMA in a loop; the group is committed and waited for behind
    the loop alone, so the next iteration overwrites what is still being stored. Fix: commit and wait in the loop."""
    tile, out = sys.shared("T3", 16), sys.buffer("T5", 32)
    with sys.agent("consumer") as c:
        for k in range(2):
            c.write(tile, 0, 16, value=k)
            c.fence_async()
            c.store((tile, 0, 16), (out, k * 16, k * 16 + 16), value=k)
            if fixed:
                c.commit()
                c.wait_group(0)
        c.commit()
        c.wait_group(0)


@incident("deepseek-ai/DeepGEMM/pull/343", "AMK302", "tensormap", "load")
def deep_gemm_changes_a_tensormap_in_use(sys: System, fixed: bool) -> None:
    """When the scheduler switches groups, the producer changes the tensor maps in global memory, and loads that it
    issued before may still read them. Fix: wait until those loads are complete. The fences that a tensor map needs
    besides are left out."""
    tensormap, tile = sys.buffer("tensormap", 128), sys.buffer("tile", 32)
    full = [sys.mbarrier(f"full {n}") for n in range(2)]
    with sys.agent("producer") as p:
        for group in range(2):
            if fixed and group:
                p.wait_parity(full[0], 0)
            p.write(tensormap, 0, 128, value=group)
            p.fence_async()
            p.expect(full[group], 16)
            load = p.issue("load")
            load.read(tensormap, 0, 128, value=group, proxy="async")
            load.write(tile, group * 16, group * 16 + 16, value=group, proxy="async")
            load.complete(full[group], 16)


@incident("facebookexperimental/triton/pull/680", "AMK302", "a_desc")
def tlx_grouped_gemm_updates_a_descriptor_in_use(sys: System, fixed: bool) -> None:
    """The loop over groups makes a new descriptor in the place of the last one, and the loads of the last group may
    still read it. Fix: wait for them right before the update."""
    desc, tile = sys.buffer("a_desc", 128), sys.buffer("tile", 64)
    full = [sys.mbarrier(f"full {n}") for n in range(4)]
    with sys.agent("producer") as p:
        for group in range(2):
            if fixed and group:
                p.wait_parity(full[0], 0)
                p.wait_parity(full[1], 0)
            p.write(desc, 0, 128, value=group)
            p.fence_async()
            for k in range(2):
                n = 2 * group + k
                p.expect(full[n], 16)
                load = p.issue("load")
                load.read(desc, 0, 128, value=group, proxy="async")
                load.write(tile, n * 16, n * 16 + 16, value=n, proxy="async")
                load.complete(full[n], 16)
