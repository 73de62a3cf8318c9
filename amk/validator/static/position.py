"""Facts about the position, for every position of the context.

H counts the KV heads of all sequences of a batch. `pos` is the position of any one of them: they stand at the same, or
each at its own (`sequences`).

With B = block, S = splits, A = attending warps, C = context, and for a position p:  split(p) = (p div B) mod S,
warp(p) = the a with B*a div A <= p mod B < B*(a+1) div A. Claims, for all 0 <= p <= pos < C:
    partition   exactly one (split, warp) reads p: warp(p) exists and is unique; split(p) is a function
    bounds      cache rows ((l*H + h)*C + p) lie inside the cache
    append      the split that appends pos is split(pos), the one that reads it
    active      split s owns some p <= pos  iff  s < min(S, pos div B + 1): writers and readers of partials agree
    stable      split(p) does not depend on pos, so a row written in one token is read by the same worker in all others
Waits and signals never depend on the position, because expressions cannot name it.

`agent_positions`, `owns_position` and `active_splits` of the attention ops are this arithmetic in Python; the tests
compare them with it at every position.
"""

from __future__ import annotations

from itertools import pairwise

from amk.schedule_ir.ops.attend import AttendOp
from amk.schedule_ir.schedule import Schedule
from amk.validator.program.trace import all_sites
from amk.validator.smt import Obligation, obligation


def position_obligations(schedule: Schedule) -> list[Obligation]:
    """The claims for this schedule's numbers."""
    kv, model = schedule.kv, schedule.model
    b, s, c = kv.block, kv.splits, kv.context
    within = {"pos": f"(and (<= 0 pos) (< pos {c}))", "p": "(and (<= 0 p) (<= p pos))"}
    split = f"(mod (div p {b}) {s})"
    active = f"(ite (< (+ (div pos {b}) 1) {s}) (+ (div pos {b}) 1) {s})"
    found = [
        obligation(
            "rows of the current token and before lie inside the cache", "AMK103",
            within | {"l": f"(and (<= 0 l) (< l {model.layers}))", "h": f"(and (<= 0 h) (< h {schedule.caches}))"}, [],
            f"(let ((row (+ (* (+ (* l {schedule.caches}) h) {c}) p))) "
            f"(and (<= 0 row) (< row {model.layers * schedule.caches * c})))",
        ),
        obligation(
            "a split owns a position up to pos iff it is active", "AMK104",
            within | {"s": f"(and (<= 0 s) (< s {s}))"}, [],
            f"(and (=> (= {split} s) (< s {active})) "
            f"(=> (< s {active}) (let ((q (* s {b}))) (and (<= q pos) (= (mod (div q {b}) {s}) s)))))",
        ),
        obligation(
            "the split that appends a row is the one that reads it, in this token and later", "AMK104", within, [],
            f"(exists ((k Int)) (and (<= 0 k) (= (div p {b}) (+ (mod (div p {b}) {s}) (* k {s}))) "
            f"(<= 0 {split}) (< {split} {s})))",
        ),
    ]  # fmt: skip
    sizes = {r.name: r.count for r in schedule.roles}
    for agents in sorted(
        {sizes[site.step.op.role] for site in all_sites(schedule) if isinstance(site.step.op, AttendOp)}
    ):
        edges = [b * a // agents for a in range(agents + 1)]
        inside = [f"(and (<= {lo} r) (< r {hi}))" for lo, hi in pairwise(edges)]
        count = " ".join(f"(ite {term} 1 0)" for term in inside)
        found.append(
            obligation(
                f"exactly one of {agents} warps reads each position of a block", "AMK101",
                {"p": f"(and (<= 0 p) (< p {c}))"}, [], f"(let ((r (mod p {b}))) (= (+ 0 {count}) 1))",
            )
        )  # fmt: skip
    return found
