"""Certificates of schedules: accepted only if they prove the schedule SAFE. Depends on numpy and on the data of the
schedule (its objects and the footprints of its ops), on nothing that judges or plans.

Accepts if, for two tokens and two layers (why that is enough: (6), `layers`):
(1) to (4), `core`: the certificate's times are a complete run, its vectors follow from each other, all conflicting
    accesses are ordered by them, and every byte read holds what is meant; the final content is what the model wants;
(5) rings are private: nothing else lies in their bytes, their source is constant, refills are fenced, and no agent
    waits for a copy that it has not issued;
(6) epochs: each awaited counter gains per token what its thresholds grow by, thresholds reach at most one token back,
    signals of one token are all given before any of the next, and values stay within the wrapping comparison; in a
    launch of one token, what stands before its loop is over before what it conflicts with behind the loop;
(7) at every position exactly one (split, warp) reads each row, and the split that appends a row reads it; where
    sequences have positions of their own, what is written at some of one's only is touched by its own workers only;
(8) all fits the device, at once; (9) what the device code of every op relies on holds (`needs`);
(10) registers hold the token that is meant.

Total: any input yields a verdict; what a short text can multiply has limits. What it takes on trust: README.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt
from pydantic import Field, TypeAdapter, ValidationError

from amk.checker import facts
from amk.checker.core import EDGES, OUTSIDE, Bytes, Claims, Order, Within, check_run
from amk.checker.counters import ITEM, MOST, WARP, WEAK, WORKER, Counters
from amk.checker.epochs import check_epochs
from amk.checker.footprints import PLACE, READ, WRITE, Footprints
from amk.checker.layers import short
from amk.checker.needs import needs_unmet
from amk.checker.parts import BUFFER, HI, LO, MOVED, VALUE
from amk.checker.programs import MAX_ITEMS, TOKENS, Rejected, programs_of, require, require_small
from amk.checker.words import FlagWords, passes
from amk.schedule_ir.references import check_references
from amk.schedule_ir.schedule import Schedule

I64 = npt.NDArray[np.int64]
KIND: Final = 6
FORMAT: Final = "amk.certificate/5"
Number = Annotated[int, Field(strict=True, ge=0, lt=1 << 30)]
TIMES: TypeAdapter[Any] = TypeAdapter(list[tuple[Number, list[Number]]])
CLOCKS: TypeAdapter[Any] = TypeAdapter(
    list[tuple[Number, Annotated[int, Field(strict=True, ge=0, lt=MOST)], list[Number]]]
)
OBLIGATIONS: TypeAdapter[Any] = TypeAdapter(Annotated[list[tuple[str, str]], Field(max_length=1000)])
UNREADABLE: Final = (KeyError, IndexError, ValueError, OverflowError, MemoryError)
"""What is raised by schedules that are outside what the checker reads: it refuses them."""


@dataclass(frozen=True)
class Verdict:
    accepted: bool
    reason: str = ""


def check_certificate(schedule: Schedule, digest: str, certificate: object, proof: Proof | None = None) -> Verdict:
    """digest: the hash of the schedule's canonical text, which the certificate must name. proof: `Proof(schedule)`, if
    there is one already; nothing of it depends on certificates."""
    try:
        require(isinstance(certificate, Mapping) and certificate.get("format") == FORMAT, "certificate: malformed")
        assert isinstance(certificate, Mapping)
        require(certificate.get("schedule") == digest, "certificate: made for another schedule")
        named = {script for _, script in read(OBLIGATIONS, certificate.get("obligations"), "obligations")}
        require(not schedule.streams or named >= facts.RING_LEMMA, "obligations: the ring lemma is missing")
        (proof or Proof(schedule)).check(certificate.get("times"), certificate.get("clocks"))
    except Rejected as reason:
        return Verdict(False, str(reason))
    except UNREADABLE as error:
        return Verdict(False, f"schedule: outside what the checker reads ({type(error).__name__}: {error})")
    return Verdict(True)


class Proof:
    """What the schedule does, for two tokens and few layers, and what a certificate says about it."""

    def __init__(self, schedule: Schedule) -> None:
        require(not check_references(schedule), "schedule: malformed")
        require_small(schedule)
        for need in needs_unmet(schedule):
            require(False, f"needs: {need}")
        self.full, self.schedule = schedule, short(_roomy(schedule))
        self.programs = programs_of(self.schedule)
        self.counters = Counters(self.schedule, self.programs)
        self.footprints = Footprints(self.schedule, self.programs)
        placed = self.footprints.placed(self._boundary())
        self.rows = placed[np.argsort(placed[:, BUFFER], kind="stable")]
        tagged = [n for n, b in enumerate(self.schedule.buffers) if b.tag is not None]
        words = self.different(self.rows[np.isin(self.rows[:, BUFFER], tagged)])
        self.words = FlagWords(self.schedule, passes(schedule), words, self.footprints.rows_of_splits)
        self._orders: dict[str, tuple[dict[tuple[int, int], bytes], bytes, Order]] = {}

    def check(self, times: object, clocks: object) -> None:
        """Rejected, or the schedule is SAFE."""
        self.run(times)
        require(isinstance(clocks, Mapping) and set(clocks) == set(EDGES), "clocks: malformed")
        assert isinstance(clocks, Mapping)
        claims = {edges: self.claims(clocks[edges]) for edges in EDGES}
        time = self.order("time", claims["time"])
        fence = self.order("fence", claims["fence"]) if self.words.readings else time
        wait = self.order("wait", claims["wait"]) if self.relaxed_waits else time
        for order in {id(order): order for order in (time, fence, wait)}.values():
            order.check()
        self.memory(time, fence, wait)
        self.one_token(time, fence)
        check_epochs(self.programs, self.counters, fence, wait, self.full.launch.max_tokens)
        facts.check_fields(self.schedule, self.programs)
        shared = np.searchsorted(self.rows[:, BUFFER], len(self.schedule.buffers))
        facts.check_rings(self.schedule, self.rows[shared:])
        facts.check_scales(self.schedule, self.programs, self.rows[shared:])
        facts.check_refills(self.schedule, self.programs)
        facts.check_positions(self.full, self.programs)
        if self.schedule.live:
            inside = self.rows[:shared][self.rows[:shared, WORKER] != OUTSIDE]
            facts.check_sequences(self.schedule, self.different(inside))
        facts.check_launch(self.full, self.programs)
        facts.check_registers(self.schedule, self.programs)

    def run(self, times: object) -> None:
        """(1) times: [[workers, [time of each item]], ...], runs of workers, each within one program."""
        group = [p for p in sorted(self.programs, key=lambda p: p.workers.start) for _ in p.workers]
        rows: list[list[int]] = []
        for count, row in read(TIMES, times, "times"):
            mine = group[len(rows) : len(rows) + count]
            require(len(mine) == count > 0 and all(p is mine[0] for p in mine), "times: malformed")
            require(len(row) == len(mine[0].items), "times: malformed")
            rows += [row] * count
        require(len(rows) == len(group), "times: malformed")
        self.level = np.zeros((len(rows), max(len(row) for row in rows)), np.int64)
        for worker, row in enumerate(rows):
            self.level[worker, : len(row)] = row
        check_run(self.programs, self.counters, self.words, self.level)

    def claims(self, raw: object) -> Claims:
        """[[instance, threshold, [value, repeat, value, repeat, ...]], ...]"""
        warp_classes, claims = self.counters.warp_classes * self.schedule.launch.workers, dict[tuple[int, int], I64]()
        for instance, threshold, coded in read(CLOCKS, raw, "clocks"):
            require((instance, threshold) in self.counters.awaited, "clocks: nobody waits for it")
            require(len(coded) % 2 == 0 and sum(coded[1::2]) == warp_classes, "clocks: malformed")
            require(max(coded[::2]) <= MAX_ITEMS, "clocks: not a post-fixpoint")
            claims[instance, threshold] = np.repeat(np.array(coded[::2], np.int64), coded[1::2])
            require(len(claims) * warp_classes <= 1 << 26, "clocks: malformed")
        return claims

    def order(self, edges: str, claims: Claims) -> Order:
        """(2) Made once for equal claims and times, the last ones: whoever makes a certificate ends with its own."""
        said = {key: claim.tobytes() for key, claim in sorted(claims.items()) if claim.any()}
        if edges not in self._orders or self._orders[edges][:2] != (said, self.level.tobytes()):
            order = Order(edges, self.programs, self.counters, self.words, self.level, claims)
            self._orders[edges] = said, self.level.tobytes(), order
        return self._orders[edges][2]

    @property
    def relaxed_waits(self) -> bool:
        """Is there anything that blocks and orders no memory?"""
        return bool(self.counters.waits[:, WEAK].any())

    def memory(self, time: Order, fence: Order, wait: Order) -> None:
        """(3), (4), buffer by buffer. What the warps of one worker order in its memory, they order in that of every
        worker that runs the same program and touches the same bytes."""
        within, alike = Within(time), set[tuple[int, bytes]]()
        for placed in np.split(self.rows, np.flatnonzero(np.diff(self.rows[:, BUFFER])) + 1):
            number = int(placed[0, BUFFER])
            key = self._alike(placed) if number >= len(self.schedule.buffers) else None
            if key in alike:
                continue
            shown = self.schedule.buffers[number] if number < len(self.schedule.buffers) else None
            name, tagged = f"'{shown.name}'" if shown else "private memory of a worker", shown and shown.tagged
            alone = key is not None
            for part in self.footprints.parts.by_parts(placed):
                found = Bytes(part, self.level)
                alone = alone and found.ordered(within, within)
                if not alone:
                    found.check_races(wait if tagged else time, fence, bool(tagged), name)
                found.check_values(name)
            if key is not None and alone:
                alike.add(key)

    def one_token(self, time: Order, fence: Order) -> None:
        """(3) of a launch of one token, where what stands before the loop meets what stands behind it. Up to there the
        launch runs as one of two does before its second token; so what comes before the last step of the first token
        that a warp runs comes before what that warp runs behind the loop."""
        shown = self.rows[self.rows[:, WORKER] != OUTSIDE]
        before, last = np.zeros(len(shown), bool), np.full(len(shown), -1)
        for program in self.programs:
            token = np.array([item.token for item in program.items])
            begun = int(np.argmax(token >= 0))
            outside = np.flatnonzero(np.isin(shown[:, WORKER], program.workers))
            outside = outside[token[shown[outside, ITEM]] < 0]
            early = shown[outside, ITEM] < begun
            before[outside[early]] = True
            for warp in range(program.warps):
                ran = [j for j, role in enumerate(program.roles) if token[j] == 0 and warp in role]
                behind = outside[~early & (shown[outside, WARP] == warp)]
                require(ran or not len(behind), "race: behind a loop that a warp does not run")
                last[behind] = max(ran, default=-1)
        moved = shown.copy()
        moved[last >= 0, ITEM] = last[last >= 0]
        for number in np.intersect1d(shown[before, BUFFER], shown[last >= 0, BUFFER]).tolist():
            here = moved[:, BUFFER] == number
            early, late = (self.different(moved[here & mine]) for mine in (before, last >= 0))
            p, q = np.repeat(early, len(late), axis=0), np.tile(late, (len(early), 1))
            met = (p[:, LO] < q[:, HI]) & (q[:, LO] < p[:, HI]) & ((p[:, KIND] != READ) | (q[:, KIND] != READ))
            for order, some in ((time, met & (p[:, KIND] == READ)), (fence, met & (p[:, KIND] != READ))):
                require(order.before(p[some][:, PLACE], q[some][:, PLACE]).all(), "race: in a launch of one token")

    def different(self, placed: I64) -> I64:
        return self.footprints.parts.different(placed)

    def _alike(self, placed: I64) -> tuple[int, bytes]:
        """The program of the worker whose memory these rows are in, and what they are but for the worker; as only
        displacements of one value are compared, they count from the least of it."""
        worker = int(placed[0, WORKER])
        require((placed[:, WORKER] == worker).all(), "race: in private memory of a worker")
        rows = placed.copy()
        rows[:, [WORKER, BUFFER]] = 0
        _, value = np.unique(rows[:, VALUE], return_inverse=True)
        least = np.full(len(rows), np.iinfo(np.int64).max)
        np.minimum.at(least, value, rows[:, MOVED])
        rows[:, MOVED] -= least[value]
        number = next(n for n, program in enumerate(self.programs) if worker in program.workers)
        return number, hashlib.sha256(rows.tobytes()).digest()

    def _boundary(self) -> I64:
        """Launch state before; outputs, state and the last logits after, or state and hidden state or logits of a
        slice."""
        size = {b.name: b.bytes for b in self.schedule.buffers}
        number, code, one = self.footprints.number, self.footprints.code, 4 * self.schedule.vectors
        model, wanted = self.schedule.model, [("state", 0, size["state"], code("state", 1))]
        if model.slice is None:
            wanted += [("output", one * n, one * (n + 1), code("output", 0) + n + 1) for n in range(TOKENS)]
        if model.slice is not None and not model.slice.head:
            last = code("h", len(model.graph.additions) * model.layers) + TOKENS
            wanted += [("hidden_out", 0, model.hidden * one, last)]
        elif model.slice is not None or not self.schedule.headless:
            wanted += [("logits", 0, model.vocab * one, code("logits", 0) + TOKENS)]
        state = number["state"]
        before = (OUTSIDE, 0, 0, state, 0, size["state"], WRITE, code("state", 0), 0, 15, 0, state)
        after = [(OUTSIDE, 1, 0, number[b], lo, hi, READ, value, 0, 15, 0, number[b]) for b, lo, hi, value in wanted]
        return np.array([before, *after], np.int64)


def _roomy(schedule: Schedule) -> Schedule:
    """What is proved are two tokens. Where launches are shorter, `output` has no room for the second one's."""
    if schedule.launch.max_tokens >= TOKENS:
        return schedule
    rooms = {b.name: (TOKENS, *b.shape[1:]) for b in schedule.buffers if b.name == "output"}
    buffers = (b.model_copy(update={"shape": rooms.get(b.name, b.shape)}) for b in schedule.buffers)
    return schedule.model_copy(update={"buffers": tuple(buffers)})


def read(form: TypeAdapter[Any], raw: object, name: str) -> Any:
    try:
        return form.validate_python(raw)
    except ValidationError:
        raise Rejected(f"{name}: malformed") from None
