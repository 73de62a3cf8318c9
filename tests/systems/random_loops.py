"""Random kernels with an open loop: rings and barriers of several agents, put together right, then changed a little."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from amk.systems.affine import Index
from amk.systems.loop_agent import LoopAgent
from amk.systems.loops import LoopSystem

BOX = 16


@dataclass(frozen=True)
class Op:
    """verb of (counter or buffer `of`): numbers are scale * (k // div) + plus; a box is slot (k + plus) % slots."""

    verb: str
    of: int
    scale: int = 1
    plus: int = 0
    relaxed: bool = False


@dataclass(frozen=True)
class Program:
    init: tuple[int, ...]
    slots: int
    before: tuple[tuple[Op, ...], ...]
    lap: tuple[tuple[Op, ...], ...]
    behind: tuple[tuple[Op, ...], ...]


def built(program: Program) -> LoopSystem:
    sys = LoopSystem("random")
    counters = [sys.counter(f"c{n}", init=init) for n, init in enumerate(program.init)]
    buffer = sys.buffer("b", 1 << 20)

    def do(stream: LoopAgent, op: Op, k: Index | int) -> None:
        if op.verb == "wait":
            stream.wait(counters[op.of], op.scale * k + op.plus, order="relaxed" if op.relaxed else "acquire")
        elif op.verb == "signal":
            stream.signal(counters[op.of], op.scale, order="relaxed" if op.relaxed else "release")
        else:
            own = (k + op.plus) % program.slots * BOX if op.of == 0 else k * BOX + (1 << 12) + op.plus * BOX
            getattr(stream, op.verb)(buffer, own, own + BOX)

    for agent, (before, lap, behind) in enumerate(zip(program.before, program.lap, program.behind, strict=True)):
        stream = sys.agent(f"a{agent}")
        for op in before:
            do(stream, op, 0)
        with stream.loop() as k:
            for op in lap:
                do(stream, op, k)
        for op in behind:
            do(stream, op, sys.laps)
    return sys


def random_program(rng: Random) -> Program:
    slots = rng.choice((1, 1, 2, 3))
    program = rng.choice((_ring, _ring, _barrier, _pair))(rng, slots)
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        program = _changed(rng, program)
    return program


def _ring(rng: Random, slots: int) -> Program:
    """Producers, each with its share of a tile, fill; consumers read."""
    producers, consumers, weight = rng.choice((1, 1, 2)), rng.choice((1, 1, 2)), rng.choice((1, 1, 1, 7))
    arrivals = [weight if n == 0 else 1 for n in range(producers)]
    fill = [
        (Op("wait", 1, consumers, consumers), Op("write", 0), Op("signal", 0, arrivals[n])) for n in range(producers)
    ]
    if producers == 2:
        fill[1] = (fill[1][0], Op("write", 1), fill[1][2])
    total = sum(arrivals)
    drain = (Op("wait", 0, total, total), Op("read", 0), *((Op("read", 1),) if producers == 2 else ()), Op("signal", 1))
    lap = (*fill, *(drain for _ in range(consumers)))
    nothing = ((),) * len(lap)
    end = (
        ((Op("wait", 1, consumers, consumers * slots), Op("write", 0)), *nothing[1:]) if rng.random() < 0.3 else nothing
    )
    return Program((0, slots * consumers), slots, nothing, lap, end)


def _barrier(rng: Random, slots: int) -> Program:
    """All write their own, arrive, wait for all, read the first's, arrive again."""
    agents, early = rng.choice((2, 3)), rng.choice((1, 1, 5))
    weights = [early if n == 0 else 1 for n in range(agents)]
    total = sum(weights)
    lap = []
    for n in range(agents):
        touch = Op("write", 0) if n == 0 else Op("read", 0)
        first = (touch,) if n == 0 else ()
        lap.append(
            (
                Op("wait", 1, total, 0),
                *first,
                Op("signal", 0, weights[n]),
                Op("wait", 0, total, total),
                *(() if n == 0 else (touch,)),
                Op("signal", 1, weights[n]),
            )
        )
    nothing = ((),) * agents
    return Program((0, 0), slots, nothing, tuple(lap), nothing)


def _pair(_: Random, slots: int) -> Program:
    """Two that hand one buffer to and fro, one of them with a start before its loop."""
    lap = (
        (Op("wait", 1, 1, 1), Op("write", 0), Op("signal", 0)),
        (Op("wait", 0, 1, 1), Op("read", 0), Op("signal", 1)),
    )
    return Program((0, 0), 1, ((), (Op("read", 0), Op("signal", 1))), lap, ((), ()))


def _changed(rng: Random, program: Program) -> Program:
    agent = rng.randrange(len(program.lap))
    code = list(program.lap[agent])
    at = rng.randrange(len(code))
    op = code[at]
    how = rng.randrange(6)
    if how == 0 and len(code) > 1:
        del code[at]
    elif how == 1:
        other = rng.randrange(len(code))
        code[at], code[other] = code[other], code[at]
    elif how == 2:
        code[at] = replace(op, plus=max(0, op.plus + rng.choice((-1, 1)))) if op.verb != "signal" else op
    elif how == 3:
        code[at] = replace(op, relaxed=op.verb in ("wait", "signal"))
    elif how == 4:
        init = list(program.init)
        init[rng.randrange(2)] += rng.choice((1, 2))
        return replace(program, init=tuple(init))
    else:
        code[at] = replace(op, scale=max(1, op.scale + rng.choice((-1, 1, 4)))) if op.verb in ("wait", "signal") else op
    lap = (*program.lap[:agent], tuple(code), *program.lap[agent + 1 :])
    return replace(program, lap=lap)
