"""Fleet's megakernel on MI355: what two pull requests list, and what comments and documents of its tree say of them."""

from typing import Final

from amk.systems.builder import System
from amk.systems.incidents.registry import incident

TREE: Final = "ROCm/fleet-chiplet-megakernel/blob/2c776b7b757211f374b028c7d45032806687deb3/docs/mpk"


@incident("ROCm/fleet-chiplet-megakernel/pull/6", "AMK202", "chunks done", hardware="gfx950")
def fleet_split_kv_chunks_never_dispatched(sys: System, fixed: bool) -> None:
    """The number of chunks that are dispatched does not grow with the length of the sequence, and workers wait for
    chunks that never come. Fix: as many as the length asks for. Encoded with 4 waited for and 2 dispatched."""
    part, done = sys.buffer("partial", 64), sys.counter("chunks done")
    for n in range(4 if fixed else 2):
        with sys.agent(f"chunk {n}", cta=n) as c:
            c.write(part, n * 16, n * 16 + 16, value=n)
            c.signal(done)
    with sys.agent("combine", cta=9) as w:
        w.wait(done, 4)
        for n in range(4):
            w.read(part, n * 16, n * 16 + 16, value=n)


@incident("ROCm/fleet-chiplet-megakernel/pull/6", "AMK202", "QKV epoch", hardware="gfx950")
def fleet_qkv_epoch_from_an_unordered_snapshot(sys: System, fixed: bool) -> None:
    """Workers wait for a snapshot of the epoch counter plus one, and the snapshot is not ordered against the producers:
    taken late it holds their signal already. Fix, as we understand the summary: a threshold that is known before.
    A value that is read cannot be a threshold here: encoded is the bad order, in which the snapshot is 1."""
    q, epoch = sys.buffer("qkv", 16), sys.counter("QKV epoch")
    with sys.agent("qkv", cta=0) as p:
        p.write(q, 0, 16, value="qkv")
        p.signal(epoch)
    with sys.agent("attention", cta=1) as c:
        snapshot = 0 if fixed else 1
        c.wait(epoch, snapshot + 1)
        c.read(q, 0, 16, value="qkv")


@incident(
    "ROCm/fleet-chiplet-megakernel/pull/8", "AMK202", "W13 arrivals", "to 1, and 3 is asked for", hardware="gfx950"
)
def fleet_w13_tile_returns_without_arriving(sys: System, fixed: bool) -> None:
    """Batches above 1 launch a tile per token. A tile whose token is not routed to the expert returns before it
    arrives, so the release of W2, which counts all tiles, never comes. Fix: tiles without work arrive too. Told by the
    comments of the fused MoE kernel; encoded with three tiles of which one has work."""
    out, arrived = sys.buffer("swiglu_out", 16), sys.counter("W13 arrivals")
    for n, routed in enumerate((True, False, False)):
        with sys.agent(f"W13 tile {n}", cta=n) as tile:
            if routed:
                tile.write(out, 0, 16, value="swiglu")
            if routed or fixed:
                tile.signal(arrived)
    with sys.agent("W2", cta=9) as w2:
        w2.wait(arrived, 3)
        w2.read(out, 0, 16, value="swiglu")


@incident(
    "ROCm/fleet-chiplet-megakernel/pull/8", "AMK202", "barrier of slot 0", "to 2, and 3 is asked for", hardware="gfx950"
)
def fleet_w13_barrier_found_through_the_mask(sys: System, fixed: bool) -> None:
    """The barrier's address comes from the routing mask, of which all layers share one buffer: a tile that reads the
    mask of the next layer arrives at another expert's barrier, and W2 waits for ever. Fix: a barrier for each slot.
    Told by the comments of the fused MoE kernel. A value that is read cannot choose a counter here: encoded is the bad
    order, in which one of three tiles has read the other mask."""
    out, mine = sys.buffer("swiglu_out", 48), sys.counter("barrier of slot 0")
    other = sys.counter("barrier of another expert")
    for n in range(3):
        with sys.agent(f"W13 tile {n}", cta=n) as tile:
            tile.write(out, n * 16, n * 16 + 16, value=n)
            tile.signal(mine if fixed or n < 2 else other)
    with sys.agent("W2", cta=9) as w2:
        w2.wait(mine, 3)
        for n in range(3):
            w2.read(out, n * 16, n * 16 + 16, value=n)


@incident(f"{TREE}/row-symmetry-b-gt-1.md", "AMK302", "moe_mask", "padding tile", hardware="gfx950")
def fleet_layers_share_one_routing_mask(sys: System, fixed: bool) -> None:
    """One mask serves all layers, and no barrier is between them: a worker that has no share in layer 0's result may
    still read the mask while the router of layer 1 writes it. Fix, as the document proposes it: order the mask where
    layers meet. What was released instead makes a stale mask harmless for control flow. Encoded with two workers."""
    mask, result = sys.buffer("moe_mask", 8), sys.buffer("layer 0", 16)
    routed, done = sys.counter("routing_ready"), sys.counter("layer 0 done")
    with sys.agent("router", cta=0) as router:
        router.write(mask, 0, 8, value="layer 0")
        router.signal(routed)
        router.wait(done, 2 if fixed else 1)
        router.read(result, 0, 16, value="W2")
        router.write(mask, 0, 8, value="layer 1")
    with sys.agent("tile", cta=1) as tile:
        tile.wait(routed, 1)
        tile.read(mask, 0, 8, value="layer 0")
        tile.write(result, 0, 16, value="W2")
        tile.signal(done)
    with sys.agent("padding tile", cta=2) as padding:
        padding.wait(routed, 1)
        padding.read(mask, 0, 8, value="layer 0")
        if fixed:
            padding.signal(done)


@incident("ROCm/fleet-chiplet-megakernel/pull/8", "AMK302", "swiglu_out", "W13 arrivals", hardware="gfx950")
def fleet_layer_counter_never_published(sys: System, fixed: bool) -> None:
    """The barrier between W13 and W2 counts on through all layers, and W2 waits for the layer's number. The dispatch of
    single layers does not publish that number: W2 waits for the first layer's release in every layer. Fix: publish it.
    Encoded with two layers of two tiles; how the next layer waits for W2 is ours."""
    tiles, out = 2, sys.buffer("swiglu_out", 32)
    arrived, done = sys.counter("W13 arrivals"), sys.counter("W2 done")
    for n in range(tiles):
        with sys.agent(f"W13 tile {n}", cta=n) as tile:
            for layer in range(2):
                tile.wait(done, layer)
                tile.write(out, n * 16, n * 16 + 16, value=(layer, n))
                tile.signal(arrived)
    with sys.agent("W2", cta=9) as w2:
        for layer in range(2):
            w2.wait(arrived, tiles * (layer + 1 if fixed else 1))
            for n in range(tiles):
                w2.read(out, n * 16, n * 16 + 16, value=(layer, n))
            w2.signal(done)


@incident(f"{TREE}/row-symmetry-b-gt-1.md", "AMK302", "rmsnorm_out_moe", "does not acquire", hardware="gfx950")
def fleet_moe_tiles_without_an_invalidate(sys: System, fixed: bool) -> None:
    """Workers that have no share in a phase skip its barrier, and the invalidate behind it does nothing on this GPU:
    the MoE tiles that they draw next may read the norm's output of before. Fix: an invalidate of system scope in each
    layer. Which poll such a worker passes is not told: encoded is one without acquire."""
    norm, ready = sys.buffer("rmsnorm_out_moe", 16), sys.counter("norm ready")
    with sys.agent("norm", cta=0) as p:
        p.write(norm, 0, 16, value="norm")
        p.signal(ready)
    with sys.agent("W13 tile", cta=1) as tile:
        tile.wait(ready, 1, order="acquire" if fixed else "relaxed")
        tile.read(norm, 0, 16, value="norm")
