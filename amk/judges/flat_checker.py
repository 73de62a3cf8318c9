"""The certificate checker: accepts only proofs, and depends on nothing but numpy.

Accepts a system and a certificate only if

(1) the order is a complete legal run: every event once, in program order, each wait met when its event runs;
(2) the claimed vectors K[c, t] are a post-fixpoint: with  P(b) = P*(pred b) v JOIN K[c, t]  over the waits of b, every
    K[c, t][w] = x > 0 has producers p with P*(p)[w] < x that weigh less than t - init(c) in all. Then event i of agent
    w finishes before b starts in every execution whenever P(b)[w] > i. If one agent alone signals c, K[c, t] is not
    claimed: it is P*(p) of the event p that completes t - init(c), which holds by program order;
(3) neighbouring groups of touches of each atom are ordered by P, hence all conflicting pairs are; along an atom in run
    order a group is one write, or the reads (integer sums, float sums) between two other touches;
(4) each byte read, in that order, holds the value and displacement it should; so does each final byte;
(5) if `deterministic` is claimed, float sums into one atom are ordered too.

(1) and "counters only grow" give termination of every interleaving. (2) and (3) exclude races in all of them, and with
(3) what (4) finds in one order holds in all. Total: any input yields a verdict.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
READ, WRITE, FLOAT, DONT_CARE, OUTSIDE = 0, 1, 3, -1, -1
SYSTEM, CERTIFICATE = "amk.system/1", "amk.certificate/1"
BYTES, COUNT, CELLS = 1 << 44, 1 << 26, 1 << 28
BOX: Final = {
    "buffer": (0, 1 << 18),
    "lo": (0, BYTES),
    "hi": (1, BYTES + 1),
    "value": (DONT_CARE, 1 << 62),
    "delta": (-BYTES, BYTES),
}
TABLES: Final[dict[str, dict[str, tuple[int, int]]]] = {
    "wait": {"counter": (0, COUNT), "threshold": (0, 1 << 60)},
    "signal": {"counter": (0, COUNT), "amount": (1, 1 << 32)},
    "access": BOX | {"kind": (READ, FLOAT + 1)},
}


class Rejected(Exception):
    """Why the certificate proves nothing about the system."""


@dataclass(frozen=True)
class Verdict:
    accepted: bool
    reason: str
    deterministic: bool = False


def require(condition: object, reason: str) -> None:
    if not condition:
        raise Rejected(reason)


def integers(raw: object, name: str, low: int, high: int) -> I64:
    if not isinstance(raw, np.ndarray):
        require(isinstance(raw, list) and all(type(x) is int and low <= x < high for x in raw), f"{name}: malformed")
        raw = np.array(raw, dtype=np.int64)
    require(raw.ndim == 1 and raw.dtype == np.int64 and len(raw) <= COUNT, f"{name}: malformed")
    require(len(raw) == 0 or (low <= int(raw.min()) and int(raw.max()) < high), f"{name}: out of range")
    return raw


def offsets(raw: object, name: str, rows: int | None, entries: int | None) -> I64:
    first = integers(raw, name, 0, COUNT + 1)
    require(len(first) >= 1 and first[0] == 0 and bool((np.diff(first) >= 0).all()), f"{name}: not offsets")
    require(rows is None or len(first) == rows + 1, f"{name}: wrong number of rows")
    require(entries is None or first[-1] == entries, f"{name}: wrong number of entries")
    return first


class Checked:
    """The system's columns, read and bounded; per event its agent and index."""

    def __init__(self, raw: object) -> None:
        require(isinstance(raw, Mapping) and raw.get("format") == SYSTEM, "system: malformed")
        assert isinstance(raw, Mapping)
        self.first = offsets(raw.get("agent_first"), "agent_first", None, None)
        self.agents, self.events = len(self.first) - 1, int(self.first[-1])
        require(self.events <= 1 << 24 and self.agents <= 1 << 20, "system: too large")
        self.size = np.diff(self.first)
        self.agent = np.repeat(np.arange(self.agents), self.size)
        self.index = np.arange(self.events) - np.repeat(self.first[:-1], self.size)
        self.init = integers(raw.get("counter_init"), "counter_init", 0, 1 << 32)
        self.column: dict[str, I64] = {"agent_first": self.first, "counter_init": self.init}
        for table, fields in (TABLES | {"initial": BOX, "final": BOX}).items():
            for name, (low, high) in fields.items():
                self.column[f"{table}_{name}"] = integers(raw.get(f"{table}_{name}"), f"{table}_{name}", low, high)
            sizes = {len(self.column[f"{table}_{name}"]) for name in fields}
            require(len(sizes) == 1, f"{table}: columns differ in length")
            if table in TABLES:
                first = offsets(raw.get(f"{table}_first"), f"{table}_first", self.events, sizes.pop())
                self.column[f"{table}_first"] = first
                self.column[f"{table}_event"] = np.repeat(np.arange(self.events), np.diff(first))
            if "counter" in fields:
                require(bool((self.column[f"{table}_counter"] < len(self.init)).all()), f"{table}: no such counter")
            if "lo" in fields:
                require(bool((self.column[f"{table}_lo"] < self.column[f"{table}_hi"]).all()), f"{table}: empty box")

    def digest(self) -> str:
        state = hashlib.sha256(SYSTEM.encode())
        for name in sorted(name for name in self.column if not name.endswith("_event")):
            state.update(f"{name}:{len(self.column[name])}:".encode() + self.column[name].astype("<i8").tobytes())
        return state.hexdigest()


def run_times(s: Checked, raw: object) -> I64:
    """(1) [events] when each event runs."""
    require(isinstance(raw, list) and all(isinstance(leg, list) and len(leg) == 2 for leg in raw), "order: malformed")
    assert isinstance(raw, list)
    agent = integers([leg[0] for leg in raw], "order", 0, max(s.agents, 1))
    count = integers([leg[1] for leg in raw], "order", 0, s.events + 1)
    require(int(count.sum()) == s.events, "order: not every event once")
    steps = np.repeat(agent, count)
    require(bool((np.bincount(steps, minlength=s.agents)[: s.agents] == s.size).all()), "order: not every event once")
    time = np.argsort(steps, kind="stable")
    stamp = s.column["signal_counter"] * (s.events + 1) + time[s.column["signal_event"]]
    by_time = np.argsort(stamp, kind="stable")
    total = np.concatenate(([0], np.cumsum(s.column["signal_amount"][by_time])))
    counter = s.column["wait_counter"]
    since = np.searchsorted(stamp[by_time], counter * (s.events + 1))
    until = np.searchsorted(stamp[by_time], counter * (s.events + 1) + time[s.column["wait_event"]])
    value = s.init[counter] + total[until] - total[since]
    require(bool((value >= s.column["wait_threshold"]).all()), "order: an event runs before its waits hold")
    return time


class Order:
    """(2) Rows of P at the waiting events, from verified claims."""

    def __init__(self, s: Checked, time: I64, thresholds: object, clocks: object) -> None:
        self.s = s
        counter, event = s.column["signal_counter"], s.column["signal_event"]
        by_counter = np.lexsort((time[event], counter))
        self.first = np.searchsorted(counter[by_counter], np.arange(len(s.init) + 1))
        self.event, self.amount = event[by_counter], s.column["signal_amount"][by_counter]
        claims = self.read_claims(thresholds, clocks)
        self.build_rows(time, claims, self.deciding_events())
        for (number, threshold), claim in claims.items():
            members = slice(*self.first[number : number + 2].tolist())
            require(self.holds(claim, members, threshold - int(s.init[number])), "clocks: not a post-fixpoint")

    def deciding_events(self) -> list[int]:
        """Per wait on a counter with one owner the event that completes it; -1 for all others and those met by init."""
        counter = self.s.column["wait_counter"]
        start, total = self.first[counter], np.concatenate(([0], np.cumsum(self.amount)))
        need = self.s.column["wait_threshold"] - self.s.init[counter]
        shared = np.concatenate(([0, 0], np.cumsum(np.diff(self.s.agent[self.event]) != 0)))[: len(total)]
        sole = shared[self.first[counter + 1]] == shared[np.minimum(start + 1, self.first[counter + 1])]
        at = np.searchsorted(total, total[start] + need) - 1
        return np.where(sole & (need > 0), np.append(self.event, -1)[at], -1).tolist()  # type: ignore[no-any-return]

    def read_claims(self, thresholds: object, clocks: object) -> dict[tuple[int, int], I64]:
        require(isinstance(thresholds, list) and isinstance(clocks, list), "clocks: malformed")
        assert isinstance(thresholds, list) and isinstance(clocks, list)
        require(len(thresholds) == len(clocks) and len(clocks) * self.s.agents <= CELLS, "clocks: malformed")
        claims: dict[tuple[int, int], I64] = {}
        for key, row in zip(thresholds, clocks, strict=True):
            counter, threshold = (*integers(key, "thresholds", 0, 1 << 60).tolist(), -1, -1)[:2]
            require(0 <= counter < len(self.s.init) and threshold >= 0, "thresholds: malformed")
            coded = integers(row, "clocks", 0, 1 << 30)
            require(len(coded) % 2 == 0 and int(coded[1::2].sum()) == self.s.agents, "clocks: malformed")
            claims[counter, threshold] = np.repeat(coded[::2], coded[1::2])
        return claims

    def build_rows(self, time: I64, claims: dict[tuple[int, int], I64], deciding: list[int]) -> None:
        s, heads = self.s, np.unique(self.s.column["wait_event"])
        require((len(heads) + 1) * s.agents <= CELLS, "system: too large")
        last = np.zeros(s.events, dtype=np.int64)
        last[heads] = np.arange(1, len(heads) + 1)
        last = np.maximum.accumulate(last) if s.events else last
        owner = np.concatenate(([-1], s.agent[heads]))
        self.row = np.where(owner[last] == s.agent, last, 0)
        self.rows = np.zeros((len(heads) + 1, s.agents), dtype=np.int32)
        pairs = zip(s.column["wait_counter"].tolist(), s.column["wait_threshold"].tolist(), strict=True)
        claim = [claims.get(pair) for pair in pairs]
        bounds = s.column["wait_first"].tolist()
        for event in heads[np.argsort(time[heads], kind="stable")].tolist():
            row = self.rows[self.row[event]]
            if s.index[event]:
                row[:] = self.rows[self.row[event - 1]]
            for k in range(bounds[event], bounds[event + 1]):
                vector, producer = claim[k], deciding[k]
                if producer >= 0:
                    np.maximum(row, self.rows[self.row[producer]], out=row)
                    row[s.agent[producer]] = max(row[s.agent[producer]], s.index[producer] + 1)
                elif vector is not None:
                    np.maximum(row, vector, out=row, casting="unsafe")

    def holds(self, claim: I64, members: slice, need: int) -> bool:
        """Producers that may finish with less than the claim weigh less than what the wait needs."""
        event = self.event[members]
        finished = self.rows[self.row[event]]
        finished[np.arange(len(event)), self.s.agent[event]] = self.s.index[event] + 1
        weight = self.amount[members] @ (finished < claim)
        return bool((weight[claim > 0] < need).all())

    def before(self, a: I64, b: I64) -> Bools:
        """Event a must finish before event b starts (elementwise; content outside the run is always ordered)."""
        if self.s.events == 0:
            return np.ones(len(a), dtype=bool)
        seen = self.rows[self.row[b], self.s.agent[a]] > self.s.index[a]
        same = self.s.agent[a] == self.s.agent[b]
        ordered: Bools = (a == OUTSIDE) | (b == OUTSIDE) | np.where(same, a <= b, seen)
        return ordered


class Touches:
    """Accesses between initial and final content, in run order, cut into the atoms of one buffer at a time."""

    def __init__(self, s: Checked, time: I64) -> None:
        order = np.lexsort((s.column["access_kind"], time[s.column["access_event"]]))
        before, after = len(s.column["initial_lo"]), len(s.column["final_lo"])
        self.column: dict[str, I64] = {
            name: np.concatenate(
                (s.column[f"initial_{name}"], s.column[f"access_{name}"][order], s.column[f"final_{name}"])
            )
            for name in BOX
        }
        for name, first, final in (("event", OUTSIDE, OUTSIDE), ("kind", WRITE, READ)):
            middle = s.column[f"access_{name}"][order]
            self.column[name] = np.concatenate((np.full(before, first), middle, np.full(after, final)))

    def check(self, order: Order, buffer_touches: I64) -> bool:
        """(3), (4) on the touches of one buffer; returns whether float sums are ordered (5)."""
        low, high = self.column["lo"][buffer_touches], self.column["hi"][buffer_touches]
        bounds = np.unique(np.concatenate((low, high)))
        begin, end = np.searchsorted(bounds, low), np.searchsorted(bounds, high)
        require(int((end - begin).sum()) <= CELLS, "system: too large")
        touch = np.repeat(buffer_touches, end - begin)
        atom = np.arange(len(touch)) - np.repeat(np.cumsum(end - begin) - end, end - begin)
        by_atom = np.argsort(atom, kind="stable")
        touch, atom = touch[by_atom], atom[by_atom]
        event, kind = self.column["event"][touch], self.column["kind"][touch]
        require(self.conflicts_ordered(order, atom, event, kind), "race: conflicting accesses are not ordered")
        require(self.values_match(atom, kind, touch), "dataflow: a byte read or required holds the wrong value")
        both = np.flatnonzero((kind[1:] == FLOAT) & (kind[:-1] == FLOAT) & (atom[1:] == atom[:-1]))
        return bool(order.before(event[both], event[both + 1]).all())

    @staticmethod
    def conflicts_ordered(order: Order, atom: I64, event: I64, kind: I64) -> bool:
        fresh = np.concatenate(([True], atom[1:] != atom[:-1]))
        starts = np.flatnonzero(fresh | (kind == WRITE) | np.concatenate(([True], kind[1:] != kind[:-1])))
        size = np.diff(np.append(starts, len(atom)))
        previous = np.where(fresh[starts], 0, np.concatenate(([0], size[:-1])))
        count = np.repeat(previous, size)
        require(int(count.sum()) <= CELLS, "system: too large")
        later = np.repeat(np.arange(len(atom)), count)
        base = np.repeat(starts - previous, size) - (np.cumsum(count) - count)
        earlier = np.repeat(base, count) + np.arange(len(later))
        return bool(order.before(event[earlier], event[later]).all())

    def values_match(self, atom: I64, kind: I64, touch: I64) -> bool:
        value, delta = self.column["value"][touch], self.column["delta"][touch]
        place = np.arange(len(atom))
        last = np.concatenate(([-1], np.maximum.accumulate(np.where(kind != READ, place, -1))[:-1]))
        following = np.minimum.accumulate(np.where(kind != READ, place, len(atom))[::-1])[::-1]
        after = np.minimum(np.concatenate((following[1:], [len(atom)])), len(atom) - 1)
        defined = (last >= 0) & (atom[last] == atom)
        same = defined & (value[last] == value) & (delta[last] == delta)
        cares = value != DONT_CARE
        adds = (after > place) & (atom[after] == atom) & (kind[after] > WRITE) & (value[after] == value)
        partial = adds & (delta[after] == delta)
        read_fine = ~cares | (same & ~partial)
        sum_fine = np.where(cares, same, ~defined | (value[last] == DONT_CARE))
        return bool(np.where(kind == READ, read_fine, (kind == WRITE) | sum_fine).all())


def check(system: object, certificate: object) -> Verdict:
    """Accept only if the certificate proves the system SAFE."""
    try:
        s = Checked(system)
        require(isinstance(certificate, Mapping) and certificate.get("format") == CERTIFICATE, "certificate: malformed")
        assert isinstance(certificate, Mapping)
        require(certificate.get("system") == s.digest(), "certificate: made for another system")
        time = run_times(s, certificate.get("order"))
        order = Order(s, time, certificate.get("thresholds"), certificate.get("clocks"))
        touches = Touches(s, time)
        by_buffer = np.argsort(touches.column["buffer"], kind="stable")
        cuts = np.flatnonzero(np.diff(touches.column["buffer"][by_buffer])) + 1
        fixed = [touches.check(order, part) for part in np.split(by_buffer, cuts) if len(part)]
        claimed = certificate.get("deterministic")
        require(claimed is False or (claimed is True and all(fixed)), "deterministic: float sums are not ordered")
    except Rejected as reason:
        return Verdict(False, str(reason))
    return Verdict(True, "", bool(claimed))
