"""Memory bandwidth shared by all SMs, as fluid: who pulls, at which rate, and when that changes next.

Flow g is the weight ring of one worker of group g, flow n + g its direct reads (the cache). A ring pulls while it has
room. Three things bound its rate: how fast its slots come round (ring / (copy latency + time of a chunk)), what one SM
can receive, and what it is `allowed` while it holds refills back. Pullers share the memory max-min fairly within their
part of the chip; SMs of small groups have more bandwidth each. Between events all rates are constant: `horizon` says
how long, `advance` moves there.

Units: bytes, microseconds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
TINY = 1e-3
NEVER = float("inf")
SOON = 1e-9
SLOW = 1e-9
SPARE = 1.0
"""Bytes that a ring may pull beyond what a product needs: rounding must not leave it short of the last one."""


class Supply:
    """members[g]: workers of group g. part[g]: index of its part of the chip; bandwidth[part].

    left[quantity, group]: bytes that are left of what a rate uses up: room in the ring, level of the ring, what is
    still to be fetched, what may still be fetched, what is to be drained, what is to be read directly.
    """

    def __init__(
        self, members: F64, part: NDArray[np.int64], bandwidth: F64, alone: float, latency: float = 0.0
    ) -> None:  # fmt: skip
        n = len(members)
        self.count = n
        self.members = np.concatenate((members, members))
        twice = np.concatenate((part, part))
        self.parts = [twice == p for p in range(len(bandwidth))]
        self.bandwidth = bandwidth.tolist()
        self.left = np.zeros((6, n))
        self.room, self.level, self.fetch, self.allowed, self.need, self.direct = self.left
        self.allowed[:] = NEVER
        self.capacity = np.zeros(n)
        self.debt = np.zeros(n)
        self.ahead = np.zeros(n, bool)
        self.drain = np.zeros(n)
        self.latency = latency
        self.slot = np.zeros(n)
        self.flowing = np.zeros(n, bool)
        self.coming = np.full(n, NEVER)
        self.alone = alone
        self.most = np.full(2 * n, alone)
        self.rate = np.zeros(2 * n)
        self.speed = np.zeros((6, n))
        self.moved = np.zeros((6, n), bool)
        crowd = np.bincount(part, weights=members, minlength=len(bandwidth))
        self.fair = (bandwidth[part] / crowd[part]).tolist()
        self.changed = True

    def ring(self, group: int, capacity: float, ahead: bool, most: float) -> None:
        """A ring of `capacity` bytes that starts full if it runs ahead."""
        self.capacity[group], self.ahead[group] = capacity, ahead
        self.level[group] = capacity if ahead else 0.0
        self.room[group] = capacity - self.level[group]
        self.most[group] = min(self.alone, most)

    def begin_drain(
        self, group: int, amount: float, rate: float, copy_us: float = 0.0, chunk_us: float = 0.0,
        held_bytes: float = 0.0, owed_bytes: float = 0.0,
    ) -> None:  # fmt: skip
        """A group begins to drain `amount` bytes at `rate`.

        copy_us + chunk_us: from the request of a copy until its slot is free again, if that limits the ring; a slot is
        requested again once it was drained as a whole. held_bytes: requested at `refill`, not before. owed_bytes: held
        back by an earlier product; the ring does without them until `end_drain`.
        """
        self.need[group], self.drain[group] = amount, rate
        if owed_bytes:
            self.debt[group] = owed_bytes
            self.capacity[group] -= owed_bytes
            self.room[group] = max(0.0, self.capacity[group] - self.level[group])
            self.allowed[group] = NEVER
        if copy_us + chunk_us:
            self.most[group] = min(self.alone, self.capacity[group] / (copy_us + chunk_us))
        self.slot[group] = chunk_us if self.ahead[group] else 0.0
        if not self.ahead[group]:
            self.fetch[group] = amount
        elif held_bytes:
            beyond = max(SPARE, self.capacity[group] - held_bytes)
            self.allowed[group] = max(0.0, amount - self.level[group] + beyond)
        self.changed = True

    def end_drain(self, group: int) -> None:
        """What was owed when the product began is still not asked for."""
        if self.debt[group]:
            self.allowed[group] = self.outstanding(group)
            self.capacity[group] += self.debt[group]
            self.room[group] = self.capacity[group] - self.level[group]
            self.debt[group] = 0.0
            self.changed = True

    def refill(self, group: int, amount: float = NEVER) -> None:
        """So many bytes of what the ring held back are asked for, or all."""
        self.allowed[group] += amount
        self.changed = True

    def outstanding(self, group: int, later: float = 0.0) -> float:
        """Bytes of the ring that were asked for and have not come, now or some time later at the rates of now."""
        asked = min(float(self.room[group]), float(self.allowed[group] if self.ahead[group] else self.fetch[group]))
        if later <= 0 or asked <= 0:
            return asked
        if self.changed:
            self._share()
        rate = float(self.rate[group])
        if not self.flowing[group]:
            later -= float(self.coming[group])
            rate = min(float(self.most[group]), self.fair[group])
        return max(0.0, asked - rate * max(0.0, later))

    def begin_direct(self, group: int, amount: float, most: float) -> None:
        self.direct[group] = amount
        self.most[self.count + group] = most
        self.changed = True

    def _demand(self) -> F64:
        """The rate at which each flow would pull if it were alone; 0 if it does not pull.

        A ring that begins to ask gets its first bytes after the latency of a copy.
        """
        n = self.count
        _, _, fetching, allowed, draining, direct = self.left > TINY
        full = self.level >= self.capacity - TINY
        asking = (self.ahead | fetching) & allowed & (draining | ~full)
        self.flowing &= asking
        self.coming[~asking] = NEVER
        begun = asking & ~self.flowing & (self.coming == NEVER)
        self.coming[begun] = self.latency + np.where(full, self.slot, 0.0)[begun]
        ring = np.where(full, np.minimum(self.most[:n], self.drain), self.most[:n])
        return np.concatenate((np.where(self.flowing, ring, 0.0), np.where(direct, self.most[n:], 0.0)))

    def _share(self) -> None:
        """Max-min fair rates; then what leaves each ring."""
        wanted = self._demand()
        self.rate = np.zeros(2 * self.count)
        pulling = wanted > 0
        for mask, bandwidth in zip(self.parts, self.bandwidth, strict=True):
            mine = (mask & pulling).nonzero()[0]
            if len(mine):
                self.rate[mine] = _fair(wanted[mine], self.members[mine], bandwidth)
        inward = self.rate[: self.count]
        out = np.where(self.level > TINY, self.drain, np.minimum(self.drain, inward))
        out = np.where(self.need > TINY, out, 0.0)
        net = inward - out
        self.speed[:] = net, -net, inward, inward, out, self.rate[self.count :]
        self.moved = self.speed > SLOW
        self.changed = False

    def horizon(self) -> float:
        """Time until a rate changes or something is done; NEVER if nothing moves."""
        if self.changed:
            self._share()
        moving = (self.left > TINY) & self.moved & (self.left < NEVER)
        ends = np.full_like(self.left, NEVER)
        np.divide(self.left, self.speed, out=ends, where=moving)
        return min(float(ends.min()), float(self.coming.min()))

    def advance(self, time: float) -> tuple[list[int], list[int]]:
        """Move on by `time`, at most the horizon: (groups whose drain is done, groups whose direct reads are)."""
        if self.changed:
            self._share()
        before = self.left > TINY
        np.minimum(np.maximum(self.level + self.speed[0] * time, 0.0), self.capacity, out=self.level)
        np.subtract(self.capacity, self.level, out=self.room)
        np.maximum(self.left[2:] - self.speed[2:] * time, 0.0, out=self.left[2:])
        self.coming -= time
        come = self.coming <= SOON
        crossed = before != (self.left > TINY)
        if come.any():
            self.flowing |= come
            self.coming[come] = NEVER
            self.changed = True
        if not crossed.any():
            return [], []
        self.changed = True
        return crossed[4].nonzero()[0].tolist(), crossed[5].nonzero()[0].tolist()


def _fair(demand: F64, members: F64, bandwidth: float) -> F64:
    """Max-min fair rate of each flow: nobody gets more than it wants, the rest is shared equally."""
    if float(demand @ members) <= bandwidth:
        return demand
    order = demand.argsort(kind="stable")
    left, users = bandwidth, float(members.sum())
    rates = demand.copy()
    for place, (one, count) in enumerate(zip(demand[order].tolist(), members[order].tolist(), strict=True)):
        level = left / users
        if one >= level:
            rates[order[place:]] = level
            break
        left -= one * count
        users -= count
    return rates
