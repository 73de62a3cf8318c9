"""Memory bandwidth shared by all SMs, as fluid: who pulls, at which rate, and when that changes next.

Flow g is the weight ring of one worker of group g, flow n + g its direct reads (the cache). A ring pulls while it has
room, at most as fast as its slots come round (ring / (copy latency + time of a chunk)) and as one SM can receive, and
not beyond what it is `allowed` while it holds refills back; pullers share the memory max-min fairly within their part
of the chip (SMs of small groups have more bandwidth each). Between events all rates are constant: `horizon` says how
long, `advance` moves there.

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
    """members[g]: workers of group g. part[g]: index of its part of the chip; bandwidth[part]."""

    def __init__(
        self, members: F64, part: NDArray[np.int64], bandwidth: F64, alone: float, latency: float = 0.0
    ) -> None:  # fmt: skip
        n = len(members)
        self.count = n
        self.members = np.concatenate((members, members))
        self.part = np.concatenate((part, part))
        self.bandwidth = bandwidth
        self.level = np.zeros(n)
        self.capacity = np.zeros(n)
        self.ahead = np.zeros(n, bool)
        self.fetch = np.zeros(n)
        self.need = np.zeros(n)
        self.drain = np.zeros(n)
        self.direct = np.zeros(n)
        self.allowed = np.full(n, NEVER)
        self.latency = latency
        self.slot = np.zeros(n)
        self.flowing = np.zeros(n, bool)
        self.coming = np.full(n, NEVER)
        self.alone = alone
        self.most = np.full(2 * n, alone)
        self.rate = np.zeros(2 * n)
        self.out = np.zeros(n)
        self.net = np.zeros(n)
        crowd = np.bincount(part, weights=members, minlength=len(bandwidth))
        self.fair = (bandwidth[part] / crowd[part]).tolist()
        self.changed = True

    def ring(self, group: int, capacity: float, ahead: bool, most: float) -> None:
        """A ring of `capacity` bytes that starts full if it runs ahead."""
        self.capacity[group], self.ahead[group] = capacity, ahead
        self.level[group] = capacity if ahead else 0.0
        self.most[group] = min(self.alone, most)

    def begin_drain(
        self, group: int, amount: float, rate: float, copy_us: float = 0.0, chunk_us: float = 0.0, held: float = 0.0
    ) -> None:
        """copy_us + chunk_us: from the request of a copy until its slot is free again, if that limits the ring. What is
        asked for again is a slot that was drained as a whole. held: bytes that are not asked for until `refill`."""
        self.need[group], self.drain[group] = amount, rate
        if copy_us + chunk_us:
            self.most[group] = min(self.alone, self.capacity[group] / (copy_us + chunk_us))
        self.slot[group] = chunk_us if self.ahead[group] else 0.0
        if not self.ahead[group]:
            self.fetch[group] = amount
        elif held:
            beyond = max(SPARE, self.capacity[group] - held)
            self.allowed[group] = max(0.0, amount - self.level[group] + beyond)
        self.changed = True

    def refill(self, group: int, amount: float = NEVER) -> None:
        """So many bytes of what the ring held back are asked for, or all."""
        self.allowed[group] += amount
        self.changed = True

    def outstanding(self, group: int, later: float = 0.0) -> float:
        """Bytes of the ring that were asked for and have not come, now or some time later at the rates of now."""
        room = float(self.capacity[group] - self.level[group])
        asked = min(room, float(self.allowed[group] if self.ahead[group] else self.fetch[group]))
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

    def _marks(self) -> NDArray[np.bool_]:
        """What rates depend on."""
        return np.concatenate((self.capacity - self.level, self.level, self.fetch, self.allowed)) > TINY

    def _wanted(self) -> F64:
        """The rate at which each flow would pull if it were alone; 0 if it does not pull.

        A ring that begins to ask gets its first bytes after the latency of a copy.
        """
        n = self.count
        draining = self.need > TINY
        full = self.level >= self.capacity - TINY
        asking = (self.ahead | (self.fetch > TINY)) & (self.allowed > TINY) & (draining | ~full)
        self.flowing &= asking
        self.coming[~asking] = NEVER
        begun = asking & ~self.flowing & (self.coming == NEVER)
        self.coming[begun] = self.latency + np.where(full, self.slot, 0.0)[begun]
        ring = np.where(full, np.minimum(self.most[:n], self.drain), self.most[:n])
        ring = np.where(self.flowing, ring, 0.0)
        return np.concatenate((ring, np.where(self.direct > TINY, self.most[n:], 0.0)))

    def _share(self) -> None:
        """Max-min fair rates; then what leaves each ring."""
        wanted = self._wanted()
        self.rate = np.zeros(2 * self.count)
        pulling = wanted > 0
        if pulling.any():
            for p in range(len(self.bandwidth)):
                mine = np.flatnonzero((self.part == p) & pulling)
                if len(mine):
                    self.rate[mine] = _fair(wanted[mine], self.members[mine], float(self.bandwidth[p]))
        inward = self.rate[: self.count]
        out = np.where(self.level > TINY, self.drain, np.minimum(self.drain, inward))
        self.out = np.where(self.need > TINY, out, 0.0)
        self.net = inward - self.out
        self.changed = False

    def horizon(self) -> float:
        """Time until a rate changes or something is done; NEVER if nothing moves."""
        if self.changed:
            self._share()
        n, net, rate = self.count, self.net, self.rate
        left = np.concatenate(
            (self.capacity - self.level, self.level, self.need, self.fetch, self.allowed, self.direct)
        )
        speed = np.concatenate((net, -net, self.out, rate[:n], rate[:n], rate[n:]))
        moving = (left > TINY) & (speed > SLOW) & (left < NEVER)
        first = float((left[moving] / speed[moving]).min()) if moving.any() else NEVER
        return min(first, float(self.coming.min()))

    def advance(self, time: float) -> tuple[list[int], list[int]]:
        """Move on by `time`, at most the horizon: (groups whose drain is done, groups whose direct reads are)."""
        if self.changed:
            self._share()
        n = self.count
        inward, direct = self.rate[:n], self.rate[n:]
        needed, wanted, before = self.need > TINY, self.direct > TINY, self._marks()
        self.level = np.minimum(np.maximum(self.level + self.net * time, 0.0), self.capacity)
        self.fetch = np.maximum(self.fetch - inward * time, 0.0)
        self.need = np.maximum(self.need - self.out * time, 0.0)
        self.direct = np.maximum(self.direct - direct * time, 0.0)
        self.allowed = np.maximum(self.allowed - inward * time, 0.0)
        self.coming = self.coming - time
        come = self.coming <= SOON
        self.flowing |= come
        self.coming[come] = NEVER
        drained, read = needed & (self.need <= TINY), wanted & (self.direct <= TINY)
        if drained.any() or read.any() or come.any() or (before != self._marks()).any():
            self.changed = True
        return np.flatnonzero(drained).tolist(), np.flatnonzero(read).tolist()


def _fair(wanted: F64, members: F64, bandwidth: float) -> F64:
    """Max-min fair rate of each flow: nobody gets more than it wants, the rest is shared equally."""
    if float(wanted @ members) <= bandwidth:
        return wanted
    order = np.argsort(wanted, kind="stable")
    left, users = bandwidth, float(members.sum())
    rates = np.zeros_like(wanted)
    for place, i in enumerate(order.tolist()):
        level = left / users
        if wanted[i] >= level:
            rates[order[place:]] = level
            break
        rates[i] = wanted[i]
        left -= wanted[i] * members[i]
        users -= members[i]
    return rates
