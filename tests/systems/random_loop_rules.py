"""Random kernels with an open loop and barriers by phase, named barriers, copies: right, then changed a little."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from amk.systems.affine import Index
from amk.systems.loops import LoopSystem

BOX = 32


class N(NamedTuple):
    """(k + plus) // div % mod * times + add; mod 0: no remainder."""

    plus: int = 0
    div: int = 1
    mod: int = 0
    times: int = 1
    add: int = 0

    def at(self, k: Index) -> Any:
        number = (k + self.plus) // self.div if self.div > 1 else k + self.plus
        return (number % self.mod if self.mod else number) * self.times + self.add


class Draft:
    """Calls per agent: (part, verb, arguments)."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.declared: list[tuple[str, tuple[Any, ...]]] = []
        self.calls: dict[str, list[tuple[str, str, tuple[Any, ...]]]] = {}
        rng.choice((self.ring, self.ring, self.loads, self.loads, self.meet, self.stores))()

    def declare(self, verb: str, *arguments: Any) -> str:
        self.declared.append((verb, arguments))
        return str(arguments[0])

    def call(self, agent: str, verb: str, *arguments: Any, part: str = "lap") -> None:
        self.calls.setdefault(agent, []).append((part, verb, arguments))

    def built(self) -> LoopSystem:
        sys = LoopSystem("random")
        of = {str(arguments[0]): getattr(sys, verb)(*arguments) for verb, arguments in self.declared}

        def real(argument: Any, k: Index) -> Any:
            if isinstance(argument, N):
                return argument.at(k)
            if isinstance(argument, tuple) and argument and argument[0] == "of":
                return of[argument[1]] if len(argument) == 2 else of[argument[1]][argument[2].at(k)]
            return tuple(real(part, k) for part in argument) if isinstance(argument, tuple) else argument

        def put(agent: Any, calls: list[Any], which: str, k: Index) -> None:
            for part, verb, arguments in calls:
                if part == which:
                    getattr(agent, verb)(*(real(argument, k) for argument in arguments))

        for name, calls in self.calls.items():
            agent = sys.agent(name)
            put(agent, calls, "before", Index() * 0)
            with agent.loop() as k:
                put(agent, calls, "lap", k)
            put(agent, calls, "behind", sys.laps)
        return sys

    def slot(self, slots: int) -> tuple[Any, ...]:
        return ("of", "data"), N(mod=slots, times=BOX), N(mod=slots, times=BOX, add=BOX)

    def barriers(self, slots: int, arrivals: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        self.declare("mbarriers", "full", slots)
        self.declare("mbarriers", "empty", slots, arrivals)
        return ("of", "full", N(mod=slots)), ("of", "empty", N(mod=slots))

    def ring(self) -> None:
        """Mbarriers; warps copy."""
        slots, consumers = self.rng.choice((1, 1, 2)), self.rng.choice((1, 1, 2))
        self.declare("buffer", "data", slots * BOX)
        full, empty = self.barriers(slots, consumers)
        box, value = self.slot(slots), ("tile", N())
        self.call("producer", "wait_parity", empty, N(slots, slots, 2))
        self.call("producer", "write", *box, value)
        self.call("producer", "arrive", full)
        for n in range(consumers):
            self.call(f"consumer {n}", "wait_parity", full, N(0, slots, 2))
            self.call(f"consumer {n}", "read", *box, value)
            self.call(f"consumer {n}", "arrive", empty)

    def loads(self) -> None:
        """Mbarriers; bulk copies fill the slots, of which some begin before the loop."""
        slots, consumers, pieces = self.rng.choice((1, 1, 2)), self.rng.choice((1, 1, 2)), self.rng.choice((1, 1, 2))
        self.declare("buffer", "data", slots * BOX)
        full, empty = self.barriers(slots, consumers)
        box, value = self.slot(slots), ("tile", N())
        self.call("producer", "wait_parity", empty, N(slots, slots, 2))
        self.call("producer", "expect", full, BOX)
        for piece in range(pieces):
            size = BOX // pieces
            part = (box[0], N(mod=slots, times=BOX, add=piece * size), N(mod=slots, times=BOX, add=piece * size + size))
            self.call("producer", "load", None, part, full, value)
        for n in range(consumers):
            self.call(f"consumer {n}", "wait_parity", full, N(0, slots, 2))
            self.call(f"consumer {n}", "read", *box, value)
            if self.rng.random() < 0.3:
                self.call(f"consumer {n}", "fence_async")
            self.call(f"consumer {n}", "arrive", empty)

    def meet(self) -> None:
        """Named barriers: one writes, the others read."""
        warps = self.rng.choice((2, 2, 3))
        self.declare("buffer", "data", BOX)
        self.declare("barrier", "ready", warps)
        self.declare("barrier", "done", warps)
        for n in range(warps):
            if n == 0:
                self.call("w0", "write", ("of", "data"), 0, BOX, ("turn", N()))
                self.call("w0", self.rng.choice(("arrive", "sync")), ("of", "ready"))
                self.call("w0", "sync", ("of", "done"))
            else:
                self.call(f"w{n}", "sync", ("of", "ready"))
                self.call(f"w{n}", "read", ("of", "data"), 0, BOX, ("turn", N()))
                self.call(f"w{n}", self.rng.choice(("arrive", "sync")), ("of", "done"))

    def stores(self) -> None:
        """One warp fills slots and stores them in bulk groups."""
        slots = self.rng.choice((1, 2, 2))
        self.declare("buffer", "data", slots * BOX)
        self.declare("buffer", "out", 1 << 21)
        value = ("tile", N())
        self.call("warp", "wait_group", slots - 1, True)
        self.call("warp", "write", *self.slot(slots), value)
        self.call("warp", "fence_async")
        self.call("warp", "store", self.slot(slots), (("of", "out"), N(times=BOX), N(times=BOX, add=BOX)), value)
        self.call("warp", "commit")

    def change(self) -> None:
        """One edit of one call."""
        rng = self.rng
        calls = self.calls[rng.choice(list(self.calls))]
        if not calls:
            return
        k, other = rng.randrange(len(calls)), rng.randrange(len(calls))
        part, verb, arguments = calls[k]
        how = rng.randrange(6)
        if how == 0:
            del calls[k]
        elif how == 1:
            calls[k], calls[other] = calls[other], calls[k]
        elif how == 2:
            calls.insert(rng.randrange(len(calls) + 1), calls[k])
        elif how == 3 and verb == "wait_parity":
            number = arguments[1]
            calls[k] = (part, verb, (arguments[0], number._replace(plus=number.plus + rng.choice((1, number.div)))))
        elif how == 4 and verb in ("arrive", "sync"):
            calls[k] = (part, "sync" if verb == "arrive" else "arrive", arguments)
        elif how == 5 and verb == "wait_group":
            calls[k] = (part, verb, (arguments[0] + rng.choice((0, 1)), not arguments[1]))
        elif how == 5:
            where = rng.choice(("before", "behind"))
            if where == "behind" or not any(isinstance(one, tuple) and len(one) > 2 for one in arguments):
                calls.append((where, verb, arguments))


def random_loop_rules(rng: Random, changes: tuple[int, ...] = (0, 0, 1, 1, 2)) -> LoopSystem:
    draft = Draft(rng)
    for _ in range(rng.choice(changes)):
        draft.change()
    return draft.built()
