"""Mistakes of fact: shares, shapes, arithmetic, resources, policies; and legal schedules that must stay SAFE."""

from __future__ import annotations

from amk.adversary.edits import Edit, after, at, find, named, waiting
from amk.adversary.recipe import (
    WORKERS as W,
)
from amk.adversary.recipe import (
    Recipe,
    alias,
    drift,
    drop,
    field_of,
    op_field,
    put,
    strengthened,
    two_programs,
)

FACTS = [
    Recipe(
        "rows-twice",
        "19 overlap after a share change",
        "fenced",
        "AMK102",
        "two workers own a row group",
        lambda s: [Edit("replace", ("tables", "hidden.count", 0), s["tables"]["hidden.count"][0] + 1)],
    ),
    Recipe(
        "rows-missing",
        "output not covered",
        "fenced",
        "AMK101",
        "a row group has no owner",
        lambda s: [Edit("replace", ("tables", "qkv.count", 1), s["tables"]["qkv.count"][1] - 1)],
    ),
    Recipe(
        "head-split-twice",
        "duplicated rows",
        "fenced",
        "AMK102",
        "two workers append the same cache rows",
        put(lambda s: ("tables", "attn.split", 1), 0),
    ),
    Recipe(
        "op-missing",
        "model graph",
        "fenced",
        "AMK106",
        "the layer never applies its MLP activation",
        drop(lambda s: find(s, "swiglu")),
    ),
    Recipe(
        "op-twice",
        "8 task twice",
        "fenced",
        "AMK106",
        "the projection is added twice",
        lambda s: [
            Edit(
                "insert",
                after(find(s, "add_residual", matrix="o")),
                {"op": at(s, find(s, "add_residual", matrix="o"))["op"]},
            )
        ],
    ),
    Recipe(
        "wrong-layer",
        "model graph",
        "fenced",
        "AMK106",
        "every layer uses the first layer's weights",
        put(op_field("gemv", "layer", matrix="o"), 0),
    ),
    Recipe(
        "sum-of-fewer",
        "split mismatch",
        "fenced",
        "AMK106",
        "the sum of squares leaves a warp out",
        put(op_field("swiglu", "ssq_agents"), 3),
    ),
    Recipe(
        "barrier-of-fewer",
        "29 wrong arrival count",
        "fenced",
        "AMK404",
        "a warp leaves before all have arrived",
        put(op_field("barrier", "agents"), 3),
    ),
    Recipe(
        "barrier-of-more",
        "29 wrong arrival count",
        "fenced",
        "AMK404",
        "the warps that arrive are never enough",
        put(op_field("barrier", "agents"), 5),
    ),
    Recipe(
        "constant-written",
        "40 non-coherent load",
        "fenced",
        "AMK509",
        "rows are handed over in a buffer that is read as a constant",
        lambda s: [
            Edit("replace", op_field("store_rows", "out")(s), "norm"),
            Edit("replace", op_field("rope_append", "qkv")(s), "norm"),
        ],
    ),
    Recipe(
        "small-buffer",
        "access out of bounds",
        "fenced",
        "AMK103",
        "the last activations lie behind the buffer",
        put(field_of("buffers", "act", "shape"), [88]),
    ),
    Recipe(
        "counter-shape",
        "access out of bounds",
        "fenced",
        "AMK103",
        "the second layer's counter does not exist",
        put(field_of("counters", "attn", "shape"), [1]),
    ),
    Recipe(
        "cta-scope",
        "38 cta scope",
        "fenced",
        "AMK505",
        "the counter crosses SMs with block scope",
        put(field_of("counters", "h_out", "scope"), "cta"),
    ),
    Recipe(
        "ring-over-x",
        "slot reused by something else",
        "fenced",
        "AMK301",
        "weight copies land on the staged vector",
        alias("ring", "x"),
    ),
    Recipe(
        "ring-too-small",
        "27 ring depth changed",
        "fenced",
        "AMK103",
        "the ring has more slots than memory",
        put(field_of("streams", "weights", "slots"), 5),
    ),
    Recipe(
        "shared-overflow",
        "resources",
        "fenced",
        "AMK401",
        "a worker asks for more shared memory than a block has",
        put(lambda s: ("launch", "shared_bytes"), 240_000),
    ),
    Recipe(
        "shared-end",
        "resources",
        "fenced",
        "AMK401",
        "a buffer ends behind the launch's shared memory",
        put(lambda s: ("launch", "shared_bytes"), 1024),
    ),
    Recipe(
        "not-resident",
        "44 co-residency",
        "fenced",
        "AMK402",
        "more workers per SM than registers allow",
        put(lambda s: ("launch", "ctas_per_sm"), 8),
    ),
    Recipe(
        "not-cooperative",
        "44 co-residency",
        "fenced",
        "AMK402",
        "nothing promises that all workers run",
        put(lambda s: ("launch", "cooperative"), False),
    ),
    Recipe(
        "misaligned",
        "resources",
        "fenced",
        "AMK406",
        "a bulk copy needs its alignment",
        lambda s: [
            Edit("replace", field_of("buffers", "ring", "offset")(s), at(s, named(s, "buffers", "ring"))["offset"] + 8)
        ],
    ),
    Recipe(
        "ring-without-fence",
        "39 missing proxy fence",
        "fenced",
        "AMK507",
        "slots are refilled without a proxy fence: a policy, not a proof",
        put(field_of("streams", "weights", "refill_fence"), False),
        "UNKNOWN",
    ),
    Recipe(
        "epoch-drift",
        "41 no epoch separation",
        "fenced",
        "AMK203",
        "a threshold grows slower than its counter",
        lambda s: drift(s),
        "UNKNOWN",
    ),
    Recipe(
        "idle-worker-behind-hints",
        "43 inactive split",
        "idle",
        "AMK302",
        "worker 3 passes nothing on, and with a given token nobody looks at its candidates before the state is stored",
        lambda s: strengthened(s, "best", ("hint", "relaxed", "relaxed")),
    ),
]

LEGAL = [
    Recipe(
        "redundant-wait",
        "12 dropped redundant wait",
        "tagged",
        "SAFE",
        "every worker passes words on, so nothing is lost without the hint",
        drop(lambda s: waiting(s, "h_mid")),
        "SAFE",
    ),
    Recipe(
        "two-equal-programs",
        "renaming",
        "fenced",
        "SAFE",
        "workers may run copies of one program",
        lambda s: two_programs(s, lambda _: []),
        "SAFE",
    ),
    Recipe(
        "lower-thresholds-of-one-owner",
        "6 legal partial threshold",
        "fenced",
        "SAFE",
        "a wait that a later full wait makes redundant",
        lambda s: [
            Edit(
                "insert",
                waiting(s, "attn"),
                at(s, waiting(s, "attn"))
                | {"waits": [at(s, waiting(s, "attn"))["waits"][0] | {"at_least": {"t": W, "1": 1}}]},
            )
        ],
        "SAFE",
    ),
]
