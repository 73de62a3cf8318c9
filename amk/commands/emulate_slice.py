"""`amk emulate` of a slice of a model: what its kernel makes of hidden states, beside the interpreter's."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.emulator.decode import EmulatedEngine, Result
from amk.emulator.footprints import mismatches
from amk.emulator.machine.machine import Limits, Order, Outcome
from amk.emulator.steps import Steps
from amk.emulator.synchronisation import differences
from amk.engine.backends.request import slice_buffers, slice_result
from amk.interpreter.interpret import Machine
from amk.models.row_groups import TensorSource
from amk.quantize.search import searched
from amk.schedule_ir.schedule import Schedule
from amk.weights.bfloat import F32

Caches = list[tuple[NDArray[Any], NDArray[Any]]]
SEED = 21


def emulated_slice(
    schedule: Schedule,
    source: TensorSource,
    ptx: str,
    arguments: argparse.Namespace,
    caches: Caches,
    order: Order,
    limits: Limits,
    text: str | None,
) -> Result:
    """A launch for each token, from the position on, of random hidden states; what they left are the result's `logits`.

    caches: keys and values, as float32 and in the buffer's own type; none of the output head alone. text: as in
    `decode.run`, for a single token.
    """
    engine = EmulatedEngine(
        schedule, source, ptx, limits=limits, races=arguments.races, touches=text is not None, quantise=searched
    )
    if caches:
        engine.fill_cache(caches[0][1], caches[1][1])
    name, count = slice_result(schedule)
    outcomes, left = list[Outcome](), list[F32]()
    for inputs in _inputs(schedule, arguments):
        engine.write(inputs)
        outcomes.append(engine.launch(1, order))
        if not outcomes[-1].ended:
            break
        left.append(engine.machine.read(name, np.float32, count).view(np.float32).copy())
    steps = Steps(schedule, text, engine.machine, 1, arguments.position) if text is not None else None
    ended = outcomes[-1].ended
    return Result(
        tokens=np.empty(0, np.int32),
        logits=np.array(left, np.float32),
        faults=[fault for outcome in outcomes for fault in outcome.faults],
        ended=all(outcome.ended for outcome in outcomes),
        instructions=sum(outcome.instructions for outcome in outcomes),
        outcomes=outcomes,
        mismatches=tuple(mismatches(steps)) if steps and ended else (),
        differences=tuple(differences(steps, ended)) if steps else (),
    )


def interpreted_slice(
    schedule: Schedule, source: TensorSource, arguments: argparse.Namespace, caches: Caches
) -> tuple[NDArray[np.int32], F32]:
    """No tokens, and what the numpy interpreter leaves, which rounds what it stores as the kernel does."""
    machine, found = Machine(schedule, source, numerics="device", quantise=searched), list[F32]()
    machine.set("state", np.zeros(len(schedule.state_words), np.int32))
    for name, (values, _) in zip(("k_cache", "v_cache"), caches, strict=False):
        machine.set(name, values)
    for inputs in _inputs(schedule, arguments):
        for name, data in inputs.items():
            machine.set(name, data)
        machine.launch(1)
        found.append(machine.get(slice_result(schedule)[0]).copy())
    return np.empty(0, np.int32), np.array(found, np.float32)


def _inputs(schedule: Schedule, arguments: argparse.Namespace) -> list[dict[str, NDArray[Any]]]:
    """What is written before each launch."""
    states = np.random.default_rng(SEED).standard_normal((arguments.tokens, schedule.model.hidden))
    return [
        slice_buffers(schedule, state.astype(np.float32), arguments.position + number)
        for number, state in enumerate(states)
    ]
