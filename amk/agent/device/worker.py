"""The GPU worker: a process that runs programs on request and may die at any time.

Questions come on standard input, answers leave on the descriptor named on the command line, so that nothing a library
prints can be taken for an answer. A second descriptor carries the one byte that means "abort": a thread reads it and
sets the kernel's abort word, because the main thread may be waiting for the GPU for ever.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from typing import Protocol

from pydantic import ValidationError

from amk.agent.device.wire import QUESTION, Answer, Block, Canary, Check, Load, Open, PositionCheck, Question
from amk.agent.gate.isolation import bound_files, die_with, first_to_be_killed
from amk.report.diagnostic import AmkError


class Runner(Protocol):
    """What the worker drives: a GPU, or in tests a processor that misbehaves on demand."""

    def open(self) -> str: ...
    def load(self, question: Load) -> None: ...
    def check(self, question: Check) -> Sequence[PositionCheck]: ...
    def block(self, question: Block) -> tuple[Sequence[Sequence[float]], int]:
        """(ms per token of every step at every position, tokens that the device counted)."""
        ...

    def canary(self) -> bool: ...
    def abort(self) -> None:
        """Stop whatever is running; called from another thread."""
        ...


def serve(runner: Runner, arguments: Sequence[str]) -> None:
    """arguments: parent pid, answer descriptor, abort descriptor. Returns when standard input ends."""
    parent, answers, aborts = (int(word) for word in arguments)
    die_with(parent)
    bound_files()
    first_to_be_killed()
    threading.Thread(target=_listen, args=(runner, aborts), daemon=True).start()
    with os.fdopen(answers, "w", encoding="utf-8") as out:
        for line in sys.stdin:
            out.write(answer(runner, line).model_dump_json() + "\n")
            out.flush()


def _listen(runner: Runner, aborts: int) -> None:
    while os.read(aborts, 1):
        runner.abort()


def answer(runner: Runner, line: str) -> Answer:
    """What the runner says to one question. An exception that means a broken process is left to end it."""
    try:
        question = QUESTION.validate_json(line)
    except ValidationError:
        return Answer(nonce=0, error="not a question", kind="protocol")
    try:
        return _ask(runner, question)
    except AmkError as error:
        return Answer(nonce=question.nonce, error=str(error)[:4000], kind=error.diagnostics[0].code)
    except MemoryError:
        return Answer(nonce=question.nonce, error="out of memory", kind="memory")
    except RuntimeError as error:  # what torch raises, out of memory included
        kind = "memory" if "out of memory" in str(error) else "runtime"
        return Answer(nonce=question.nonce, error=str(error)[:4000], kind=kind)


def _ask(runner: Runner, question: Question) -> Answer:
    nonce = question.nonce
    match question:
        case Open():
            return Answer(nonce=nonce, device=runner.open())
        case Load():
            runner.load(question)
            return Answer(nonce=nonce, key=question.key)
        case Check():
            return Answer(nonce=nonce, checks=tuple(runner.check(question)))
        case Block():
            times, tokens = runner.block(question)
            return Answer(nonce=nonce, times=tuple(tuple(t) for t in times), tokens=tokens)
        case Canary():
            good = runner.canary()
            return Answer(nonce=nonce, error="" if good else "wrong answer", kind="" if good else "canary")


def gpu_runner() -> Runner:
    """The compiler is loaded before torch, which brings an NVRTC of its own: code is only taken that this process's
    compiler makes of the schedule, and what the gate's makes would have to be compiled again, or be refused."""
    from amk.lowering.compile import compiler_build

    with contextlib.suppress(AmkError):  # without a compiler nothing can be loaded, which the answers say
        compiler_build()
    from amk.agent.device.gpu_runner import GpuRunner

    return GpuRunner()


if __name__ == "__main__":
    serve(gpu_runner(), sys.argv[1:])
