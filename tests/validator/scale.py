"""A decode-shaped system of any size, and a timing table: ``python -m tests.validator.scale [workers phases tokens]``.

Every phase of every token: each worker waits for all workers of the phase before, reads the whole activation vector
(two buffers in turn), does some private work, writes its own tile of the other buffer and signals. A phase has one
counter for all tokens with threshold (token + 1) * workers, so the may-graph is cyclic.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from amk.adversary.system_builder import SystemBuilder
from amk.judges.flat_checker import check
from amk.validator.export.certificate import make_certificate
from amk.validator.memory.flat import Judgement, judge
from amk.validator.memory.races import blocks, find_faults, find_races, touches_of
from amk.validator.order.clocks import must_clocks
from amk.validator.order.greedy_run import greedy
from amk.validator.program.system import System

TILE = 64


def decode_shaped(workers: int, phases: int, tokens: int, private: int = 4) -> System:
    """``private`` is the number of events of a worker and phase between its read and its write."""
    build = SystemBuilder()
    agents = [build.agent() for _ in range(workers)]
    counters = [build.counter() for _ in range(phases)]
    for worker in agents:
        build.initial(1, worker * TILE, (worker + 1) * TILE, 0)
        build.final(phases * tokens % 2 ^ 1, worker * TILE, (worker + 1) * TILE, phases * tokens)
    for step in range(phases * tokens):
        phase = step % phases
        for worker in agents:
            reader = build.event(worker, tag=step)
            if step:
                epoch, before = divmod(step - 1, phases)
                build.wait(reader, counters[before], (epoch + 1) * workers)
            build.read(reader, (step + 1) % 2, 0, workers * TILE, step)
            for _ in range(private):
                build.read(build.event(worker), 2 + worker, 0, TILE)
            writer = build.event(worker, tag=step)
            build.write(writer, step % 2, worker * TILE, (worker + 1) * TILE, step + 1)
            build.signal(writer, counters[phase])
    return build.build()


def measure(workers: int, phases: int, tokens: int) -> dict[str, float]:
    """Seconds per stage; every stage must accept."""
    seconds: dict[str, float] = {}

    def timed(name: str, stage: Callable[[], object]) -> object:
        start = time.perf_counter()
        result = stage()
        seconds[name] = round(time.perf_counter() - start, 4)
        return result

    system = timed("build", lambda: decode_shaped(workers, phases, tokens))
    assert isinstance(system, System)
    run = greedy(system)
    timed("liveness", lambda: greedy(system))
    clocks = timed("clocks", lambda: must_clocks(run))
    pieces = timed("atoms", lambda: list(blocks(touches_of(run))))
    races = timed("races", lambda: find_races(pieces, clocks))  # type: ignore[arg-type]
    faults = timed("dataflow", lambda: find_faults(pieces))  # type: ignore[arg-type]
    judgement = timed("judge", lambda: judge(system))
    assert isinstance(judgement, Judgement)
    certificate = timed("certificate", lambda: make_certificate(judgement))
    raw = system.to_json()
    verdict = timed("checker", lambda: check(raw, certificate))
    assert run.complete and not races.racy and faults.correct, (races, faults)  # type: ignore[attr-defined]
    assert verdict.accepted, verdict  # type: ignore[attr-defined]
    return {"events": system.events, "waits": len(system.wait_counter), **seconds}


if __name__ == "__main__":
    shape = [int(text) for text in sys.argv[1:4]] or [132, 65, 2]
    for name, figure in measure(*shape).items():
        print(f"{name:12} {figure}")
