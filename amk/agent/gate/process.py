"""One judging process of `pool.py`: candidates come in over a socket, judgements go out, in order.

It dies with the driver. An error that nobody foresaw is a verdict of UNKNOWN that names it, and ends nothing.
"""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Connection

from amk.agent.gate import certify
from amk.agent.gate.candidate import Candidate
from amk.agent.gate.gate import DETAIL, Gate, Judged
from amk.agent.gate.isolation import die_with, first_to_be_killed
from amk.agent.journal.events import Gated

NICENESS = 5


def serve(parent: int, descriptor: int) -> None:
    """Until the driver closes the channel or dies."""
    die_with(parent)
    first_to_be_killed()
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Connection(descriptor)
    try:
        workshop, runs = channel.recv()
        gate = Gate(workshop, certify.installed(), runs=runs)
        gate.glance = certify.glancing()
        channel.send(True)
        while True:
            channel.send(judged(gate, *channel.recv()))
    except (EOFError, OSError):
        return


def judged(gate: Gate, index: int, candidate: Candidate) -> Judged:
    try:
        return gate.judge(index, candidate)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  the boundary: one candidate does not end the night
        detail = f"the gate failed: {type(error).__name__}: {error}"[:DETAIL]
        return Gated(index=index, verdict="unknown", key=candidate.key, codes=("AMK901",), detail=detail), None


if __name__ == "__main__":
    from amk.agent.gate import process  # the channel's objects are those of the module, not of __main__

    process.serve(int(sys.argv[1]), int(sys.argv[2]))
