"""Whether each read finds what it should, in every period, given that all conflicting accesses are in order.

Of what a byte got before a read, everything else comes before the last write. Each period near the beginning looks that
write up by itself, and all later ones share one look. There every write of the loop is a fixed number of periods
earlier, so it is the same write. What it wrote and what is read are lines that must be equal. Later on, a read that
moves finds what moves with it alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from amk.systems.loop_proof.knowledge import MOST_PERIODS
from amk.systems.loop_proof.numbers import need
from amk.systems.loop_proof.order import Order, never_meet, shifts
from amk.systems.loop_proof.periods import READ, WRITE, Event, at

CARES = "a byte is read that holds something else"


@dataclass(frozen=True)
class Written:
    """A write of period `q`, or (event None) the content before the launch; `later`: the more, the later the read."""

    event: Event | None
    q: int
    lo: int
    hi: int
    value: tuple[Any, ...] | None
    later: bool = False


class Contents:
    def __init__(self, order: Order) -> None:
        self.order, self.cut, self.m = order, order.cut, order.m
        touches = [event for event in self.cut.events() if event.does == "touch"]
        self.writes = [event for event in touches if event.kind == WRITE]
        self.reads = [event for event in touches if event.kind == READ and event.value is not None]
        sums = {event.of for event in touches if event.kind not in (READ, WRITE)}
        valued = {event.of for event in touches if event.value is not None}
        valued |= {buffer for buffer, _, _, value in self.cut.initial if value is not None}
        need(not sums & valued, "sums of bytes that mean something")

    def check(self) -> None:
        for read in self.reads:
            if read.part == "before":
                self.check_read(read, 0, False)
            elif read.part == "behind":
                self.check_read(read, self.m, True)
            else:
                settled = self.settled(read)
                need(settled <= MOST_PERIODS, "periods far apart")
                for q in range(settled):
                    self.check_read(read, q, False)
                self.check_read(read, settled, True)

    def settled(self, read: Event) -> int:
        """From this period on, the writes of the loop that a read may find are all there."""
        found = 1
        for write in self.writes:
            if write.of != read.of:
                continue
            if write.part != "lap":
                first = self.order.first(write, read) if self.order.index(write) is not None else inf
                found = max(found, 0 if first == inf else int(first))
                continue
            lag = self.order.lag(write, read)
            if lag == inf:
                continue
            same = write.line[1] == read.line[1] != 0
            found = max([found, int(lag) + 1, *(d + 1 for d in (shifts(write, read) if same else ()))])
        return found

    def check_read(self, read: Event, q: int, onwards: bool) -> None:
        """What the read of period q finds; onwards: and of all later ones."""
        lo = read.line[0] + read.line[1] * q
        hi = lo + read.size
        every = list(self.visible(read, q, onwards))
        seen = [one for one in every if one.lo < hi and lo < one.hi]
        bounds = sorted({lo, hi, *(edge for one in seen for edge in (one.lo, one.hi) if lo < edge < hi)})
        for byte in bounds[:-1]:
            here = [one for one in seen if one.lo <= byte < one.hi]
            last = next((one for one in here if all(one is other or self.before(other, one) for other in here)), None)
            need(last is not None, CARES)
            assert last is not None and read.value is not None
            need(last.value == at(read.value, q), CARES)
            if onwards:
                self.always(read, last, every)

    def always(self, read: Event, last: Written, every: list[Written]) -> None:
        """Later reads find the same; a read that moves may come to what stays, which must be older."""
        stays = (one for one in every if read.line[1] and one.event is not None and not one.later)
        need(all(self.before(one, last) for one in stays), CARES)
        if last.later:
            assert last.event is not None and last.event.value is not None and read.value is not None
            need(slopes(last.event.value) == slopes(read.value) and last.event.line[1] == read.line[1], CARES)
        else:
            assert read.value is not None
            need(read.line[1] == 0 and not any(slopes(read.value)), CARES)

    def visible(self, read: Event, q: int, onwards: bool) -> Iterator[Written]:
        """Writes that come before the read of period q, of each that repeats in place the last."""
        for buffer, lo, hi, value in self.cut.initial:
            if buffer == read.of:
                yield Written(None, 0, lo, hi, value)
        for write in self.writes:
            if write.of == read.of:
                yield from self.of(write, read, q, onwards)

    def of(self, write: Event, read: Event, q: int, onwards: bool) -> Iterator[Written]:
        if write.part == "lap":
            yield from self.of_loop(write, read, q, onwards)
            return
        if write.part == "behind" and self.order.index(write) is None:
            if read.part == "behind" and self.order.always(write, read):
                need(write.line[1] == read.line[1], "what is read moves otherwise than what is written")
                yield self.written(write, q, onwards)
            return
        # it is there once, at the same place for any number of periods, or it moves with their number
        if self.order.first(write, read) <= q:
            moves = write.line[1] != 0 or any(slopes(write.value or ()))
            need(not moves or (read.part == "behind" and onwards), "what is read moves otherwise than what is written")
            yield self.written(write, self.m if write.part == "behind" else 0, moves)

    def of_loop(self, write: Event, read: Event, q: int, onwards: bool) -> Iterator[Written]:
        if read.part == "before":
            count = self.order.times(write, read)
            need(count <= MOST_PERIODS, "periods far apart")
            yield from (self.written(write, i, False) for i in range(int(count)))
            return
        behind = read.part == "behind"
        lag = self.order.end_lag(write, read) if behind else self.order.lag(write, read)
        if lag == inf:
            return
        if write.line[1] == read.line[1] != 0:
            behind_it = [d for d in shifts(write, read) if d >= max(lag, 1 if behind else lag)]
        elif write.line[1] == read.line[1]:
            behind_it = [int(max(lag, 1) if behind else lag)]
        else:
            need(never_meet(write, read), "what is read moves otherwise than what is written")
            return
        for d in behind_it:
            if q - d >= 0 and (not behind or d >= 1):
                yield self.written(write, q - d, onwards)
            else:
                need(not behind, "periods far apart")

    def written(self, write: Event, q: int, later: bool) -> Written:
        lo = write.line[0] + write.line[1] * q
        value = None if write.value is None else at(write.value, q)
        return Written(write, q, lo, lo + write.size, value, later)

    def before(self, one: Written, other: Written) -> bool:
        """One write comes before the other."""
        if one.event is None or other.event is None:
            return one.event is None and other.event is not None
        a, b = one.event, other.event
        if a.part == b.part == "lap":
            return other.q - one.q >= self.order.lag(a, b)
        if a.part == "lap":
            if b.part == "behind" and self.m - one.q >= self.order.end_lag(a, b):
                return True
            return not one.later and one.q < self.order.times(a, b)
        if self.order.index(a) is not None:
            return self.order.first(a, b) <= other.q
        return b.part == "behind" and self.order.always(a, b)


def slopes(value: tuple[Any, ...]) -> list[int]:
    return [part[1] if isinstance(part, tuple) else 0 for part in value]
