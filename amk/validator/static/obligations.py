"""What holds for every lap of a ring and every position, as obligations that solvers decide.

Obligations are SMT-LIB text, decided by z3, cvc5 or both; nothing else imports a solver. An obligation is valid iff its
script is unsatisfiable; `unknown` and timeouts stay unknown.

Rings. Proved once for any number of slots and laps, so that chunks are never enumerated.

A ring slot in lap k lives through  issue(k) < complete(k) < waited(k) < drained(k) < issue(k+1): the owner warp waits
for the copy, drains it, then issues the next one into the slot; slots do not interact. T is any time function.
    U           when the wait for lap k starts, k arrivals of the slot's mbarrier are guaranteed
    O           arrival k+2 happens after that wait, so a parity test cannot be fooled by a later phase
    parity      with k <= arrivals <= k+1, the test of parity k succeeds iff arrivals >= k+1
    reuse       the copy of lap k+1 starts after the last read of lap k (write after read on the slot)
    next        chunk j + S has the slot of chunk j in the next lap, whatever S
Static side conditions: one copy per phase with all its bytes expected on it, slots of all warps disjoint and inside the
ring, and the copy's alignment; nothing else is in those bytes (`owners`).

So rings add no edges between agents: a slot is filled, awaited and drained by one warp.

Positions. Proved for all of the context. H counts the KV heads of all sequences of a batch. `pos` is the position of
any one of them: they stand at the same, or each at its own (`sequences`).

With B = block, S = splits, A = attending warps of a turn, C = context, and for a position p:  split(p) = (p div B)
mod S, warp(p) = the a with B*a div A <= p mod B < B*(a+1) div A. Claims, for all 0 <= p <= pos < C:
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

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import pairwise
from typing import Literal

from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.report.schema import finding
from amk.schedule_ir.layout import stream_layout
from amk.schedule_ir.memory import Buffer, Stream
from amk.schedule_ir.ops.attend import AttendOp
from amk.schedule_ir.ops.attention import of_turn
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.refill import RefillOp
from amk.schedule_ir.schedule import Schedule
from amk.validator.program.trace import Item, all_sites, require_length, unroll

Outcome = Literal["proved", "refuted", "unknown"]
Solver = Literal["z3", "cvc5", "both"]


@dataclass(frozen=True)
class Obligation:
    """name: what is claimed. code: the diagnostic if it fails. script: SMT-LIB, unsatisfiable iff the claim holds."""

    name: str
    code: str
    script: str


@dataclass(frozen=True)
class Proof:
    """The solver's answer; model: values of a counterexample, as text."""

    obligation: Obligation
    outcome: Outcome
    model: str = ""


def obligation(name: str, code: str, variables: dict[str, str], assume: list[str], claim: str) -> Obligation:
    """Integer variables with their sort's condition as SMT-LIB terms, assumptions, and the claim to be proved."""
    lines = ["(set-logic ALL)"]
    lines += [f"(declare-const {v} Int)" for v in variables]
    lines += [f"(assert {term})" for term in (*variables.values(), *assume) if term]
    lines += [f"(assert (not {claim}))", "(check-sat)"]
    return Obligation(name, code, "\n".join(lines) + "\n")


def prove(obligations: list[Obligation], timeout_ms: int = 2000, solver: Solver = "z3") -> list[Proof]:
    """Each obligation on its own, with a time limit each.

    "both" asks z3 and cvc5: what one refutes or leaves open is not proved. Raises AMK901 if one proves what the
    other refutes, AMK207 for a solver that is not installed.
    """
    if solver != "both":
        ask = _z3 if solver == "z3" else _cvc5
        if find_spec(solver) is None:
            advice = f"pip install '{'amk[cvc5]' if solver == 'cvc5' else 'z3-solver'}'"
            raise AmkError(Diagnostic("AMK207", f"{solver} is not installed", help=advice))
        return [Proof(item, *ask(item.script, timeout_ms)) for item in obligations]
    pairs = zip(prove(obligations, timeout_ms, "z3"), prove(obligations, timeout_ms, "cvc5"), strict=True)
    return [_agreed(first, second) for first, second in pairs]


def _agreed(first: Proof, second: Proof) -> Proof:
    if {first.outcome, second.outcome} == {"proved", "refuted"}:
        message = f"z3 says {first.outcome}, cvc5 says {second.outcome}: {first.obligation.name}"
        raise AmkError(Diagnostic("AMK901", message), Exit.INTERNAL)
    return second if first.outcome == "proved" else first


_PROVED: set[str] = set()
"""Scripts that z3 has proved in this process: a proof holds under any time limit, and schedules share most of them."""
MOST_PROVED = 10_000


def _z3(script: str, timeout_ms: int) -> tuple[Outcome, str]:
    if script in _PROVED:
        return "proved", ""
    import z3

    solver = z3.Solver()
    solver.set("timeout", timeout_ms)
    solver.from_string(script)
    answer = solver.check()
    if answer == z3.unsat:
        if len(_PROVED) < MOST_PROVED:
            _PROVED.add(script)
        return "proved", ""
    if answer == z3.sat:
        return "refuted", str(solver.model())
    return "unknown", str(solver.reason_unknown())


def _cvc5(script: str, timeout_ms: int) -> tuple[Outcome, str]:
    import cvc5

    solver = cvc5.Solver(cvc5.TermManager())
    solver.setOption("tlimit-per", str(timeout_ms))
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, script, "obligation")
    said = ""
    while not (command := parser.nextCommand()).isNull():
        said += command.invoke(solver, parser.getSymbolManager())
    outcomes: dict[str, Outcome] = {"unsat": "proved", "sat": "refuted"}
    return outcomes.get(said.strip(), "unknown"), "" if said.strip() == "unsat" else f"cvc5: {said.strip()}"


MBARRIER_BYTES = 8
BULK_ALIGN = 16
TOKENS = 2
ROOM = "fewer `slots`, or larger buffers for the ring and its mbarriers"


def ring_obligations() -> list[Obligation]:
    """U, O, parity, reuse, next. Times of one slot: i, c, w, d = issue, complete, waited, drained of a lap."""
    times = {f"{e}{k}": "" for k in range(3) for e in "icwd"}
    life = [f"(< i{k} c{k} w{k} d{k})" for k in range(3)] + [f"(< d{k} i{k + 1})" for k in range(2)]
    lap = {"k": "(<= 0 k)", "n": "(and (<= k n) (<= n (+ k 1)))"}
    index = {"S": "(<= 1 S)", "k": "(<= 0 k)", "s": "(and (<= 0 s) (< s S))", "j": ""}
    return [
        obligation("U: the phase before is complete when a wait starts", "AMK514", times, life, "(< c0 d0)"),
        obligation("O: the phase after next is after this wait", "AMK515", times, life, "(and (< w0 i2) (< i2 c2))"),
        obligation(
            "parity: the test tells this phase from the one before", "AMK515", lap, [],
            "(= (not (= (mod n 2) (mod k 2))) (>= n (+ k 1)))",
        ),
        obligation("reuse: a slot is refilled after its last read", "AMK302", times, life, "(and (< d0 i1) (< i1 c1))"),
        obligation(
            "next: chunk j + S is the same slot one lap later", "AMK302", index, ["(= j (+ (* k S) s))"],
            "(= (+ j S) (+ (* (+ k 1) S) s))",
        ),
    ]  # fmt: skip


def check_rings(schedule: Schedule) -> Iterator[Diagnostic]:
    """The static side conditions; `TooLarge` if two tokens are."""
    buffers = {b.name: b for b in schedule.buffers}
    roles = {r.name: r for r in schedule.roles}
    for program in schedule.programs if schedule.streams else ():
        require_length(program, TOKENS)
    ran = _ran(schedule) if schedule.streams else []
    for i, stream in enumerate(schedule.streams):
        path = ("streams", i)
        agents = roles[stream.role].count
        yield from _room(stream, buffers, agents, path)
        yield from _drained(schedule, stream, path)
        yield from _refilled(schedule, stream, ran)
        if stream.engine == "bulk" and not stream.refill_fence:
            message = f"slots of '{stream.name}' are refilled by bulk copies without a proxy fence after the reads"
            policy = "whether the fence is needed here is a policy: the memory model is silent, so no verdict is SAFE"
            yield finding("AMK507", message, path, policy)


def _ran(schedule: Schedule) -> list[list[Item]]:
    """Steps that use rings, by program: of two tokens, so that the order around each loop's edge is seen too."""
    return [unroll(p, n, TOKENS, (RefillOp, GemvOp)) for n, p in enumerate(schedule.programs)]


def _refilled(schedule: Schedule, stream: Stream, ran: list[list[Item]]) -> Iterator[Diagnostic]:
    """An agent waits for copies that it has issued: of S slots fewer than S are owed a refill whenever it waits.

    Copies are issued by the ring's owner in the order of its drains, each after the last read of its slot. So the next
    S - n chunks are in the ring or in flight while n slots are owed. A product leaves the n that it begins with, or
    deferred - r when r of its chunks are to come, if that is more: at most deferred - 1 before its last wait. What an
    agent with few chunks owes may be less. ran: the steps that use rings, of each program in the order in which they
    run; what is owed when a token begins is the same for every token but the first.
    """
    warps = {r.name: (r.first, r.count) for r in schedule.roles}
    for items in ran:
        owed = 0
        for item in items:
            op = item.step.op
            if isinstance(op, RefillOp) and op.stream == stream.name and warps[op.role] == warps[stream.role]:
                owed = max(0, owed - op.most)
            elif isinstance(op, GemvOp) and op.stream == stream.name:
                path = (*item.site.path, "op")
                if owed >= stream.slots:
                    message = f"when this product begins, a warp may have deferred the refills of all {owed} slots"
                    found = finding("AMK302", message, path, "the warp then waits for a copy that it holds back itself")
                    yield replace(found, help="put a `refill` step between the product that defers them and this one")
                    break
                if op.deferred > stream.slots or (op.deferred and (stream.engine != "bulk" or not stream.run_ahead)):
                    message = (
                        f"{op.deferred} refills deferred on '{stream.name}', whose rings have {stream.slots} slots"
                    )
                    yield finding("AMK302", message, path)
                    break
                owed = max(owed, op.deferred)


def _room(stream: Stream, buffers: dict[str, Buffer], agents: int, path: tuple[str | int, ...]) -> Iterator[Diagnostic]:
    ring, source = buffers[stream.ring], buffers[stream.source]
    need = agents * stream.slots * stream.chunk_bytes
    if ring.space != "shared" or ring.bytes < need:
        message = f"the ring of '{stream.name}' needs {need:,} bytes of shared memory, '{ring.name}' has {ring.bytes:,}"
        yield replace(finding("AMK103", message, path), help=ROOM)
    if stream.full is not None:
        full = buffers[stream.full]
        if full.space != "shared" or full.bytes < agents * stream.slots * MBARRIER_BYTES:
            message = f"'{full.name}' cannot hold {agents * stream.slots} mbarriers"
            yield replace(finding("AMK103", message, path), help=ROOM)
        elif (full.offset or 0) % MBARRIER_BYTES:
            yield finding("AMK406", f"mbarriers in '{full.name}' are not aligned to {MBARRIER_BYTES} bytes", path)
    if (ring.offset or 0) % BULK_ALIGN or stream.chunk_bytes % BULK_ALIGN:
        yield finding("AMK406", f"copies of '{stream.name}' are not aligned to {BULK_ALIGN} bytes", path)
    if source.space != "global" or source.role != "constant":
        message = f"copies of '{stream.name}' read '{source.name}', which the launch may write"
        why = "copies run ahead of every wait, and no fence orders them behind ordinary writes"
        yield finding("AMK507", message, (*path, "source"), why)


def _drained(schedule: Schedule, stream: Stream, path: tuple[str | int, ...]) -> Iterator[Diagnostic]:
    """Every program drains and refills the stream by its own warps, in the packed order; all chunks fit the source."""
    warps = {r.name: (r.first, r.count) for r in schedule.roles}
    for site in all_sites(schedule):
        op = site.step.op
        if isinstance(op, GemvOp) and op.stream == stream.name and op.role != stream.role:
            message = f"gemv runs on role '{op.role}', the stream '{stream.name}' belongs to '{stream.role}'"
            yield finding("AMK106", message, (*site.path, "op", "role"))
        elif isinstance(op, RefillOp) and op.stream == stream.name and warps[op.role] != warps[stream.role]:
            message = f"refill runs on role '{op.role}', the rings of '{stream.name}' are those of '{stream.role}'"
            yield finding("AMK106", message, (*site.path, "op", "role"))
    try:
        layout = stream_layout(schedule, stream)
    except ValueError as error:
        yield finding("AMK106", str(error), path)
        return
    need = int(layout.places.sum()) * stream.chunk_bytes
    have = next(b.bytes for b in schedule.buffers if b.name == stream.source)
    if need > have:
        yield finding(
            "AMK103", f"the chunks of '{stream.name}' fill {need:,} bytes, '{stream.source}' has {have:,}", path
        )


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
    attend = {sizes[site.step.op.role] for site in all_sites(schedule) if isinstance(site.step.op, AttendOp)}
    for agents in sorted({of_turn(role, schedule.geometry()) for role in attend}):
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
