"""The ruling on a schedule: SAFE, UNSAFE or OPEN (policy), by definitions, for a bounded number of tokens.

Every position of the context is a possible start. Order depends on the position only through tagged words, so it is
computed once as long as the same words are needed. Races and wrong content are questions about the accesses to one
space: where these, what lies there before and after a launch, and the order are those of an earlier position, so is the
answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from amk.judges.oracle.facts import broken_rules, policies
from amk.judges.oracle.flatten import MAX_SEGMENTS, Spelled, spell
from amk.judges.oracle.lags import wrong_comparison
from amk.judges.oracle.memory import content_by_space, launch_spans, misread, word_needs
from amk.judges.oracle.order import Needs, Order, execute, system_of
from amk.judges.oracle.races import Orders, race
from amk.judges.oracle.stretches import stretches
from amk.judges.oracle.touched import Place, Touched, Toucher, ways
from amk.schedule_ir.schedule import Schedule


@dataclass(frozen=True)
class Ruling:
    """status OPEN: whether this is allowed is a policy, neither SAFE nor UNSAFE may be claimed."""

    status: Literal["SAFE", "UNSAFE", "OPEN"]
    why: str = ""


class Judge:
    """One schedule, spelled out for `tokens` tokens."""

    def __init__(self, schedule: Schedule, tokens: int, most: int = MAX_SEGMENTS) -> None:
        self.schedule = schedule
        self.spelled: Spelled = spell(schedule, tokens, most)
        self.toucher = Toucher(self.spelled)
        self.tagged = {i for i, b in enumerate(schedule.buffers) if b.tagged}
        self.perhaps = {
            (number, self.toucher.number[getattr(visit.step.op, field)])
            for number, segment in enumerate(self.spelled.segments)
            for visit in segment.visits
            for field in visit.step.op.perhaps
        }
        self.known: tuple[Needs, Needs, list[int], Orders | None, str | None] | None = None
        """Needs, sure needs, and what follows from them: see `_orders`."""
        self.right: dict[int, tuple[bytes, ...]] = {}
        """What was found right in that order, by space."""

    def at(self, pos: Place) -> str | None:
        """What is wrong with a launch that starts at this position, whichever guesses are right; ValueError if none may
        start there."""
        places, last = [pos] if isinstance(pos, int) else [*pos], last_start(self.schedule, self.spelled.tokens)
        if not all(0 <= place <= last for place in places):
            raise ValueError(f"{self.spelled.tokens} tokens from position {pos} do not fit the context")
        for way in ways(self.schedule, self.spelled.tokens):
            self.toucher.moved = way
            if wrong := self._at(pos):
                return wrong
        return None

    def _at(self, pos: Place) -> str | None:
        touched = self.toucher.at(pos)
        if touched.outside or touched.written_constants:
            return f"accesses outside {touched.outside} or writes to constants {touched.written_constants}"
        if self.toucher.clashing:
            return f"in {sorted(self.toucher.clashing)} two arrays share bytes, one of which is written"
        needs, sure, never = word_needs(touched, self.tagged, self.perhaps)
        if never:
            return never
        order, orders, wrong = self._orders(needs, sure)
        if orders is None:
            return f"{len(self.spelled.segments) - len(order)} segments never run"
        if wrong:
            return wrong
        here = self._spaces(touched, pos)
        new = frozenset(space for space, what in here.items() if self.right.get(space) != what)
        touched = touched.within(new)
        cut = stretches(touched, launch_spans(self.toucher, pos, new))
        wrong = race(self.spelled, touched, cut, self.tagged, orders)
        wrong = wrong or misread(self.toucher, touched, cut, order, pos, new)
        self.right |= {} if wrong else here
        return wrong

    def _spaces(self, touched: Touched, pos: Place) -> dict[int, tuple[bytes, ...]]:
        """All that is accessed and held, by space."""
        content = content_by_space(self.toucher, pos)
        rows = touched.by_space()
        return {s: (rows.get(s, b""), repr(content.get(s)).encode()) for s in {*rows, *content}}

    def _orders(self, needs: Needs, sure: Needs) -> tuple[list[int], Orders | None, str | None]:
        """An execution, what is before what, and what compares wrongly. sure: needs of what is read whatever the data
        say; only that orders."""
        if self.known is None or self.known[:2] != (needs, sure):
            self.right.clear()
            self.known = needs, sure, *self._ordered(needs, sure)
        return self.known[2:]

    def _ordered(self, needs: Needs, sure: Needs) -> tuple[list[int], Orders | None, str | None]:
        order = execute(system_of(self.spelled, "block", needs))
        if len(order) < len(self.spelled.segments):
            return order, None, None
        word = Order(system_of(self.spelled, "word", sure), order)
        fence, block = word, word
        if self.tagged:
            fence = Order(system_of(self.spelled, "fence", sure), order)
            block = Order(system_of(self.spelled, "block", sure), order)
        return order, Orders(block, word, fence), wrong_comparison(system_of(self.spelled, "block", sure))


def last_start(schedule: Schedule, tokens: int) -> int:
    """The last position from which that many tokens fit the context."""
    return max(schedule.kv.context - tokens * schedule.rows, 0)


def start_positions(schedule: Schedule, tokens: int) -> list[int]:
    """Every first position of a launch of that many tokens."""
    return list(range(last_start(schedule, tokens) + 1))


def telling_positions(schedule: Schedule, tokens: int) -> list[Place]:
    """The first, the last, and those around the first block and the first round of splits; where sequences are live,
    each of them at one of these, in turn."""
    last, block = last_start(schedule, tokens), schedule.kv.block
    found = {0, last, block - 1, block * (schedule.kv.splits - 1)}
    places = sorted(p for p in found if 0 <= p <= last)
    turns = range(len(places)) if schedule.live else ()
    apart = {
        tuple(places[(n + step * s) % len(places)] for s in range(schedule.batch)) for n in turns for step in turns
    }
    return [*places, *sorted(apart)]


def rule(
    schedule: Schedule, tokens: int = 3, positions: Iterable[Place] | None = None, most: int = MAX_SEGMENTS
) -> Ruling:
    """Decide; the first thing that is wrong decides. `TooBig` beyond `most` segments or too many bytes."""
    judge = Judge(schedule, tokens, most)
    for why in broken_rules(judge.spelled):
        return Ruling("UNSAFE", why)
    for pos in telling_positions(schedule, tokens) if positions is None else positions:
        if why_not := judge.at(pos):
            return Ruling("UNSAFE", f"position {pos}: {why_not}")
    for why in policies(schedule):
        return Ruling("OPEN", why)
    return Ruling("SAFE")
