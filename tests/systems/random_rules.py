"""Random kernels of the new constructs: protocols that are right, put together and then changed a little.

A kernel is data until it is built, so that a million can be drawn, and told apart, in minutes.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from amk.systems import System

BOX = 4
UNIT = 4
"""Bytes of what a box is counted in: a bulk copy is of 16."""
PLACES = {"buffer": (1,), "read": (1, 2), "write": (1, 2), "expect": (1,)}
"""Where a call counts so."""
TURNS = {"arrive": (True,), "wait_others": (False,), "sync": (True, False)}
"""What a call does at a barrier: it arrives, or waits."""
HERE = ("random_rules.py", 1)


class Of(NamedTuple):
    """A counter or buffer by its number; stored: it is a flag, or a counter that is none of those that have phases."""

    number: int
    barrier: bool = False


class Draft:
    """What is declared, in turn."""

    def __init__(self) -> None:
        self.declared: list[tuple[str, tuple[Any, ...]]] = []

    def _new(self, verb: str, *arguments: Any) -> Of:
        self.declared.append((verb, arguments))
        return Of(len(self.declared) - 1, verb in ("mbarrier", "barrier"))

    def buffer(self, name: str, size: int) -> Of:
        return self._new("buffer", name, size)

    def counter(self, name: str) -> Of:
        return self._new("counter", name)

    def flag(self, name: str) -> Of:
        return self._new("flag", name)

    def mbarrier(self, name: str, arrivals: int = 1) -> Of:
        return self._new("mbarrier", name, arrivals)

    def barrier(self, name: str, warps: int, scope: str = "cta") -> Of:
        return self._new("barrier", name, warps, scope)


class Made:
    """A protocol as a list of calls per agent, so that calls can be dropped, swapped and changed."""

    def __init__(self, rng: Random, changes: tuple[int, ...] = (0, 0, 1, 1, 1, 2)) -> None:
        self.rng, self.sys = rng, Draft()
        self.calls: dict[str, list[tuple[str, tuple[Any, ...]]]] = {}
        rng.choice((self.ring, self.ring, self.named, self.flags, self.bulk, self.cluster, self.stores))()
        for _ in range(rng.choice(changes)):
            self.change()

    @property
    def key(self) -> str:
        """Two systems of the same key are the same system."""
        return repr((self.sys.declared, list(self.calls.items())))

    @property
    def defined(self) -> bool:
        """PTX says what happens: whoever waits for others at a barrier has arrived, and at that of a cluster each agent
        arrives and waits in turns."""
        of_cluster = {
            k for k, (verb, arguments) in enumerate(self.sys.declared) if verb == "barrier" and "cluster" in arguments
        }
        for calls in self.calls.values():
            waiting: dict[int, bool] = {}
            for verb, arguments in calls:
                for arrives in TURNS.get(verb, ()):
                    number = arguments[0].number
                    if (number in of_cluster or not arrives) and waiting.get(number, False) == arrives:
                        return False
                    waiting[number] = arrives
        return True

    def call(self, agent: str, verb: str, *arguments: object) -> None:
        self.calls.setdefault(agent, []).append((verb, arguments))

    def built(self) -> System:
        sys = System("random")
        self.build(sys)
        return sys

    def build(self, sys: System, named: str = "", cluster: int = 0) -> None:
        """Add it to a system; named: what the names of its agents, counters and buffers begin with."""
        with sys.at(HERE):
            objects = [
                getattr(sys, verb)(named + name, *_in_bytes(verb, (name, *rest))[1:])
                for verb, (name, *rest) in self.sys.declared
            ]
            for name, calls in self.calls.items():
                agent = sys.agent(named + name, cluster=cluster)
                for verb, arguments in calls:
                    getattr(agent, verb)(*(_real(objects, argument) for argument in _in_bytes(verb, arguments)))

    def read(self, agent: str, data: Of, lo: int, value: object) -> None:
        """Some bytes of a box."""
        first = self.rng.randrange(BOX)
        self.call(agent, "read", data, lo + first, lo + self.rng.randint(first + 1, BOX), value)

    def change(self) -> None:
        """One edit of one call."""
        rng = self.rng
        agent = rng.choice(list(self.calls))
        calls = self.calls[agent]
        if not calls:
            return
        k, other = rng.randrange(len(calls)), rng.randrange(len(calls))
        verb, arguments = calls[k]
        how = rng.randrange(9)
        if how == 0:
            del calls[k]
        elif how == 1:
            calls[k], calls[other] = calls[other], calls[k]
        elif how == 2 and verb in ("wait_parity", "wait_equal", "set"):
            calls[k] = (verb, (arguments[0], 1 - arguments[1]))
        elif how == 3 and verb == "arrive":
            calls[k] = ("sync", (arguments[0],))
        elif how == 4 and verb in ("read", "write"):
            calls[k] = (verb, (*arguments[:2], rng.randint(arguments[1] + 1, arguments[2]), *arguments[3:]))
        elif how >= 6:
            self.add(calls, calls[k], other)
        elif verb == "sync":
            calls[k] = ("arrive", arguments)

    def add(self, calls: list[tuple[str, tuple[Any, ...]]], one: tuple[str, tuple[Any, ...]], at: int) -> None:
        """A call once more, a fence, or a call of another agent."""
        verb, arguments = one
        how = self.rng.randrange(3)
        if how == 0 and verb in ("arrive", "sync", "fence_async", "read", "wait_group", "commit"):
            calls.insert(at, one)
        elif how == 1:
            calls.insert(at, ("fence_async", ()))
        elif how == 2 and verb in ("arrive", "sync", "read", "set", "wait_parity"):
            self.call(self.rng.choice(list(self.calls)), verb, *arguments)

    def ring(self) -> None:
        rng, sys = self.rng, self.sys
        slots, consumers = rng.choice((1, 1, 2)), rng.choice((1, 1, 2))
        laps = rng.choice((2, 3)) if consumers == 1 else 2
        data = sys.buffer("data", slots * BOX)
        full = [sys.mbarrier(f"full {s}") for s in range(slots)]
        weights = [rng.choice((1, 1, 2)) for _ in range(consumers)]
        empty = [sys.mbarrier(f"empty {s}", sum(weights)) for s in range(slots)]
        for k in range(laps):
            s, phase = k % slots, k // slots % 2
            self.call("producer", "wait_parity", empty[s], 1 - phase)
            self.call("producer", "write", data, s * BOX, s * BOX + BOX, k)
            self.call("producer", "arrive", full[s])
            for n in range(consumers):
                self.call(f"consumer {n}", "wait_parity", full[s], phase)
                self.read(f"consumer {n}", data, s * BOX, k)
                self.call(f"consumer {n}", "arrive", empty[s], weights[n])
            if rng.random() < 0.1:
                self.call("stranger", "arrive", empty[s])

    def bulk(self) -> None:
        """Loads into one slot, read by a warp."""
        sys = self.sys
        data, full, empty = sys.buffer("data", 2 * BOX), sys.mbarrier("full"), sys.mbarrier("empty")
        pieces = self.rng.choice((1, 2))
        for k in range(2):
            self.call("producer", "wait_parity", empty, 1 - k)
            apart = self.rng.random() < 0.3
            who = "helper" if apart and self.rng.random() < 0.3 else "producer"
            self.call(who, "expect", full, pieces * BOX, not apart)
            if apart:
                self.call("producer", "arrive", full)
            for piece in range(pieces):
                self.call("producer", "load", None, (data, piece * BOX, piece * BOX + BOX), full, k)
            self.call("consumer", "wait_parity", full, k)
            for piece in range(pieces):
                self.read("consumer", data, piece * BOX, k)
            if self.rng.random() < 0.2:
                self.call("consumer", "write", data, 0, BOX, "scratch")
                self.call("consumer", "fence_async")
            self.call("consumer", "arrive", empty)

    def stores(self) -> None:
        sys = self.sys
        tile, out = sys.buffer("tile", BOX), sys.buffer("out", 2 * BOX)
        for k in range(2):
            self.call("warp", "write", tile, 0, BOX, k)
            self.call("warp", "fence_async")
            self.call("warp", "store", (tile, 0, BOX), (out, k * BOX, k * BOX + BOX), k)
            self.call("warp", "commit")
            self.call("warp", "wait_group", 0, True)
        flag = sys.counter("flag")
        self.call("warp", "wait_group", 0)
        self.call("warp", "signal", flag)
        self.call("reader", "wait", flag, 1)
        self.read("reader", out, 0, 0)

    def named(self) -> None:
        """Warps that meet: all wait, or the producer only arrives."""
        rng, sys = self.rng, self.sys
        warps, data = rng.choice((2, 3)), sys.buffer("data", BOX)
        ready, done = sys.barrier("ready", warps), sys.barrier("done", warps)
        for k in range(2 if warps == 2 else 1):
            for n in range(warps):
                if n == 0:
                    self.call("w0", "write", data, 0, BOX, k)
                    self.call("w0", rng.choice(("arrive", "sync")), ready)
                    self.call("w0", "sync", done)
                else:
                    self.call(f"w{n}", "sync", ready)
                    self.read(f"w{n}", data, 0, k)
                    self.call(f"w{n}", rng.choice(("arrive", "sync")), done)

    def cluster(self) -> None:
        """One barrier, used again and again, with work between arriving and waiting."""
        sys, warps = self.sys, self.rng.choice((2, 2, 3))
        data, meet = sys.buffer("data", warps * BOX), sys.barrier("meet", warps, "cluster")
        for k in range(2 if warps == 2 else 1):
            for n in range(warps):
                self.call(f"c{n}", "write", data, n * BOX, n * BOX + BOX, (k, n))
                self.call(f"c{n}", "arrive", meet)
                self.call(f"c{n}", "wait_others", meet)
                other = (n + 1) % warps
                self.read(f"c{n}", data, other * BOX, (k, other))
                if k == 0 and warps == 2:
                    self.call(f"c{n}", "sync", meet)

    def flags(self) -> None:
        """A flag that is set and reset, on two buffers or one."""
        sys, data = self.sys, self.sys.buffer("data", BOX)
        flag = sys.flag("flag")
        for k in range(2):
            if k:
                self.call("giver", "wait_equal", flag, 0)
            self.call("giver", "write", data, 0, BOX, k)
            self.call("giver", "set", flag, 1)
            self.call("taker", "wait_equal", flag, 1)
            self.read("taker", data, 0, k)
            self.call("taker", "set", flag, 0)


def random_rules(rng: Random) -> System:
    return Made(rng).built()


def _in_bytes(verb: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    places = PLACES.get(verb, ())
    return tuple(UNIT * one if at in places else one for at, one in enumerate(arguments))


def _real(objects: list[Any], argument: Any) -> Any:
    if isinstance(argument, Of):
        return objects[argument.number]
    if isinstance(argument, tuple) and isinstance(argument[0], Of):
        return (objects[argument[0].number], *(UNIT * place for place in argument[1:]))
    return argument
