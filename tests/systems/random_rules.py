"""Random kernels of the new constructs: protocols that are right, put together and then changed a little."""

from __future__ import annotations

from random import Random

from amk.systems import System
from amk.systems.names import Barrier, Buffer, Counter

BOX = 4


class Made:
    """A protocol as a list of calls per agent, so that calls can be dropped, swapped and changed."""

    def __init__(self, rng: Random, changes: tuple[int, ...] = (0, 0, 1, 1, 1, 2)) -> None:
        self.rng, self.sys = rng, System("random")
        self.calls: dict[str, list[tuple[str, tuple[object, ...]]]] = {}
        rng.choice((self.ring, self.ring, self.named, self.flags, self.bulk, self.cluster, self.stores))()
        for _ in range(rng.choice(changes)):
            self.change()

    @property
    def key(self) -> str:
        """Two systems of the same key are the same system."""
        sys = self.sys
        made = (sys._counters, sys._init, sorted(sys._phases.items()), sys._buffers)
        calls = [
            (agent, [(verb, _plain(arguments)) for verb, arguments in calls]) for agent, calls in self.calls.items()
        ]
        return repr((made, calls))

    def call(self, agent: str, verb: str, *arguments: object) -> None:
        self.calls.setdefault(agent, []).append((verb, arguments))

    def built(self) -> System:
        for name, calls in self.calls.items():
            agent = self.sys.agent(name)
            for verb, arguments in calls:
                getattr(agent, verb)(*arguments)
        return self.sys

    def change(self) -> None:
        rng = self.rng
        calls = self.calls[rng.choice(list(self.calls))]
        if not calls:
            return
        k, other = rng.randrange(len(calls)), rng.randrange(len(calls))
        verb, arguments = calls[k]
        how = rng.randrange(4)
        if how == 0:
            del calls[k]
        elif how == 1:
            calls[k], calls[other] = calls[other], calls[k]
        elif how == 2 and verb in ("wait_parity", "wait_equal", "set"):
            calls[k] = (verb, (arguments[0], 1 - int(str(arguments[1]))))
        elif how == 3 and verb == "arrive":
            calls[k] = ("sync", (arguments[0],))
        elif verb == "sync":
            calls[k] = ("arrive", arguments)

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
                self.call(f"consumer {n}", "read", data, s * BOX, s * BOX + BOX, k)
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
            self.call("consumer", "read", data, 0, pieces * BOX, k)
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
        self.call("reader", "read", out, 0, BOX, 0)

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
                    self.call(f"w{n}", "read", data, 0, BOX, k)
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
                self.call(f"c{n}", "read", data, other * BOX, other * BOX + BOX, (k, other))
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
            self.call("taker", "read", data, 0, BOX, k)
            self.call("taker", "set", flag, 0)


def _plain(argument: object) -> object:
    """Counters and buffers by their numbers."""
    if isinstance(argument, tuple):
        return tuple(_plain(part) for part in argument)
    return argument.number if isinstance(argument, Counter | Buffer) else argument


def random_rules(rng: Random) -> System:
    return Made(rng).built()


__all__ = ["Barrier", "random_rules"]
