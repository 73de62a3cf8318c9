"""Several kernels in flight."""

from amk.systems.builder import System
from amk.systems.incidents.registry import incident


@incident("flashinfer-ai/flashinfer/issues/2708", "AMK302", "activations", hardware="sm_120")
def flashinfer_dependent_launch_compiled_without_waits(sys: System, fixed: bool) -> None:
    """Kernels are launched with programmatic dependent launch, but without a flag of the compiler `griddepcontrol.wait`
    is an empty function: the next kernel reads what the one before it still writes. Fix: the flag."""
    data = sys.buffer("activations", 16)
    with sys.kernel("quantise") as first:
        first.agent("writer").write(data, 0, 16, value="fp4")
    with sys.kernel("gemm") as second:
        reader = second.agent("reader", cta=1)
        if fixed:
            reader.wait_kernel(first)
        reader.read(data, 0, 16, value="fp4")


@incident("deepseek-ai/DeepEP/issues/496", "AMK201", "rank 0", "rank 1")
def deep_ep_and_nccl_in_different_orders(sys: System, fixed: bool) -> None:
    """Two communication kernels of which each needs the whole GPU are launched in one order on even ranks and in the
    other on odd ones: each occupies its GPU and waits for a peer that cannot start. Fix: one order on all ranks. That
    a kernel starts only when the other has left is encoded as an order of the stream."""
    names = ("dispatch", "all-gather")
    met = {name: sys.counter(name, scope="sys") for name in names}
    for rank in range(2):
        before = None
        for name in names if rank == 0 or fixed else names[::-1]:
            with sys.kernel(f"{name} on rank {rank}", after=before) as kernel:
                agent = kernel.agent(f"rank {rank}: {name}", gpu=rank)
                agent.signal(met[name])
                agent.wait(met[name], 2)
            before = kernel
