"""Fleet's fused layer on MI355: bugs of its barriers that the comments of the fixed kernel tell, each with its cause.

A block there is four waves that are in step at `__syncthreads` alone, and `s_waitcnt vmcnt(0)` waits for the stores of
one wave. So a wave is an agent here, and a store that is not waited for is an operation of its own.
"""

from typing import Any, Final

from amk.systems.agent import Agent
from amk.systems.builder import System
from amk.systems.incidents.registry import incident

LAYER: Final = (
    "ROCm/fleet-chiplet-megakernel/blob/06fe4d7830d78b1feb58defc2605d1c03d50860f/"
    "include/mirage/persistent_kernel/tasks/mi300/gang_full_layer_fused_mi300.cuh"
)


def stored(wave: Agent, buffer: Any, lo: int, hi: int, value: object, counter: Any) -> None:
    """A store of the wave, which is there some time later; `counter` counts those that are."""
    store = wave.issue("global_store")
    store.write(buffer, lo, hi, value=value)
    store.signal(counter)


@incident(LAYER, "AMK302", "attn_out", "attn_global", hardware="gfx950")
def fleet_attention_released_by_an_older_snapshot(sys: System, fixed: bool) -> None:
    """The last merge of a layer releases the O-proj. Which is the last, a snapshot of the counter told, rounded up; a
    worker that takes it before the last arrival of the layer before counts in that layer's group, and its own arrival
    seems to be the last. Fix: the arrival's own number, modulo the number of merges. A value that is read cannot decide
    here: encoded is the bad order with two merges, the first of which releases."""
    out, attn_global, release = sys.buffer("attn_out", 32), sys.counter("attn_global"), sys.counter("attn_release")
    for n in range(2):
        with sys.agent(f"merge {n}", cta=n) as merge:
            merge.write(out, 16 * n, 16 * n + 16, value=n)
            merge.signal(attn_global)
            if n == (1 if fixed else 0):
                merge.wait(attn_global, 2 if fixed else 1)
                merge.signal(release)
    with sys.agent("O-proj", cta=2) as oproj:
        oproj.wait(release, 1)
        oproj.read(out, 0, 16, value=0)
        oproj.read(out, 16, 32, value=1)


@incident(LAYER, "AMK302", "o_acc", "chunk wave 1", hardware="gfx950")
def fleet_chunk_arrives_before_its_waves_have_drained(sys: System, fixed: bool) -> None:
    """A chunk's block meets, then each wave waits for its own stores, then one thread arrives: it arrives while other
    waves' partial results are under way, and the merge reads them. Fix: wait, then meet, then arrive. Encoded with two
    waves of one chunk; the merge is another block's."""
    partial, arrived = sys.buffer("o_acc", 32), sys.counter("chunk_barrier")
    met = sys.barrier("__syncthreads", 2)
    for n in range(2):
        done = sys.counter(f"vmcnt of wave {n}")
        with sys.agent(f"chunk wave {n}") as wave:
            stored(wave, partial, 16 * n, 16 * n + 16, n, done)
            if fixed:
                wave.wait(done, 1)
            wave.sync(met)
            if not fixed:
                wave.wait(done, 1)
            if n == 0:
                wave.signal(arrived)
    with sys.agent("merge", cta=1) as merge:
        merge.wait(arrived, 1)
        merge.read(partial, 0, 16, value=0)
        merge.read(partial, 16, 32, value=1)


@incident(LAYER, "AMK302", "attn_out", "merge wave 1", hardware="gfx950")
def fleet_merge_publishes_for_waves_that_it_has_not_met(sys: System, fixed: bool) -> None:
    """All waves of a merge write its result through, and the first publishes after waiting for its own stores alone:
    the O-proj of another block reads what other waves have not written. Fix: the block meets between. Encoded with two
    waves."""
    out, release = sys.buffer("attn_out", 32), sys.counter("attn_global")
    met = sys.barrier("__syncthreads", 2)
    for n in range(2):
        done = sys.counter(f"vmcnt of wave {n}")
        with sys.agent(f"merge wave {n}") as wave:
            stored(wave, out, 16 * n, 16 * n + 16, n, done)
            wave.wait(done, 1)
            if fixed:
                wave.sync(met)
            if n == 0:
                wave.signal(release)
    with sys.agent("O-proj", cta=1) as oproj:
        oproj.wait(release, 1)
        oproj.read(out, 0, 16, value=0)
        oproj.read(out, 16, 32, value=1)


@incident(LAYER, "AMK302", "weights", "wave 1", hardware="gfx950")
def fleet_weights_multiplied_before_other_waves_loaded_them(sys: System, fixed: bool) -> None:
    """Each wave loads its slices of the O-proj's weights into LDS and waits for its own loads; a wave multiplies with
    the slices of all. Fix: the block meets behind the wait. Encoded with two waves and a slice each."""
    weights, met = sys.shared("weights", 32), sys.barrier("__syncthreads", 2)
    for n in range(2):
        done = sys.counter(f"vmcnt of wave {n}", scope="cta")
        with sys.agent(f"wave {n}") as wave:
            wave.copy(None, (weights, 16 * n, 16 * n + 16), done, value=("slice", n))
            wave.wait(done, 1)
            if fixed:
                wave.sync(met)
            for other in range(2):
                wave.read(weights, 16 * other, 16 * other + 16, value=("slice", other))


@incident(LAYER, "AMK302", "QKV epoch", "does not acquire", hardware="gfx950")
def fleet_qkv_gate_without_its_fence(sys: System, fixed: bool) -> None:
    """The gate before attention polls an epoch and drops its acquire, because the counter never leaves the chiplet: the
    poll sees the epoch and not what it stands for. Three runs at a context of 4,096 gave three texts. Fix: the fence
    stays. Encoded with one producer."""
    q, epoch = sys.buffer("qkv", 16), sys.counter("QKV epoch")
    with sys.agent("qkv", cta=0) as p:
        p.write(q, 0, 16, value="qkv")
        p.signal(epoch)
    with sys.agent("attention", cta=1) as c:
        c.wait(epoch, 1, order="acquire" if fixed else "relaxed")
        c.read(q, 0, 16, value="qkv")


@incident(LAYER, "AMK202", "layer_release", hardware="gfx950")
def fleet_layer_gate_waits_for_more_than_garbage(sys: System, fixed: bool) -> None:
    """Workers that have no share in W2 wait at the layer's gate and do not arrive there; what they wait to be exceeded
    is set by arriving, so for them it is what LDS held: all workers hang. Fix: who waits arrives. A value that is read
    cannot be a threshold here: encoded is garbage of 100, with two layers and one worker of each kind."""
    release, arrived = sys.counter("layer_release"), sys.counter("layer_local")
    with sys.agent("with W2", cta=0) as worker:
        for layer in range(2):
            worker.signal(arrived)
            worker.wait(arrived, (2 if fixed else 1) * (layer + 1))
            worker.signal(release)
    with sys.agent("without W2", cta=1) as waiter:
        for layer in range(2):
            if fixed:
                waiter.signal(arrived)
            waiter.wait(release, layer + 1 if fixed else 101)


@incident(LAYER, "AMK302", "moe_workspace_f32", "layer_release", hardware="gfx950")
def fleet_layer_gate_passes_on_the_layer_before(sys: System, fixed: bool) -> None:
    """The same gate with its threshold set to -1 for those who do not arrive: the release of the layer before is enough
    for them, and they read the workspace of MoE before this layer's W2 has written it. Fix: who waits arrives, and
    waits for this layer's release. Encoded with the second layer's release, one producer and one consumer."""
    space, release = sys.buffer("moe_workspace_f32", 16), sys.counter("layer_release", init=1)
    with sys.agent("W2", cta=0) as producer:
        producer.write(space, 0, 16, value="layer 2")
        producer.signal(release)
    with sys.agent("QKV of layer 3", cta=1) as consumer:
        consumer.wait(release, 2 if fixed else 1)
        consumer.read(space, 0, 16, value="layer 2")


@incident("ROCm/fleet-chiplet-megakernel/pull/6", "AMK104", "TaskDesc[24:32]", hardware="gfx950")
def fleet_task_slots_hold_the_task_before(sys: System, fixed: bool) -> None:
    """A task's description is copied into a slot that the task before used, its pointers only as far as it has some,
    and the loop over layers reads all: behind its own it finds those of the task before. Fix: all are written. Told by
    the comment at the constructor of TaskDesc; how a kernel then hangs it does not tell. Encoded with four pointers, of
    which the second layer has three."""
    slots, copied, used = sys.buffer("TaskDesc", 32), sys.counter("copied"), sys.counter("used")
    with sys.agent("scheduler") as host:
        host.write(slots, 0, 32, value="layer 1")
        host.signal(copied)
        host.wait(used, 1)
        host.write(slots, 0, 32 if fixed else 24, value="layer 2")
        host.signal(copied)
    with sys.agent("worker") as worker:
        for layer in (1, 2):
            worker.wait(copied, layer)
            worker.read(slots, 0, 32, value=f"layer {layer}")
            worker.signal(used)
