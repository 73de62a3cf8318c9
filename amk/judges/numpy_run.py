"""A run on the numpy machine: the stand-in where no kernel can be compiled or none can be emulated.

It shares the ops' `reference` with what it judges, and for tagged words alone, to know which of them a step awaits,
their `accesses`; a read beyond these of a word with another tag is a fault. Counters are Python's integers here, so
nothing is said about 32 bits. What no analysis covers (`schedule.py`: waits for `==`, resets, locks, ...) is run as if
it were not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.interpreter.fault import Deadlock, Fault, OutOfBounds, PoisonRead, StaleRegisters, WrongChunk
from amk.interpreter.interpret import Machine
from amk.judges.forward import Rows
from amk.judges.orders import Bounded, TooLong, order_of
from amk.judges.request import (
    Broken,
    Refused,
    Request,
    Shown,
    hidden_state,
    request_words,
    state_of,
    state_words,
    tree_words,
)
from amk.judges.weights import RandomWeights
from amk.schedule_ir.sampling import Sampling
from amk.schedule_ir.schedule import Node, Schedule, Step, mode_of

MOST_ELEMENTS = 1 << 25
MOST_STEPS = 200_000
MOST_EVENTS = 400_000
KINDS: dict[type[Fault], str] = {
    Deadlock: "hang", PoisonRead: "poison", OutOfBounds: "bounds", WrongChunk: "chunk", StaleRegisters: "registers",
}  # fmt: skip
CACHES = ("k_cache", "v_cache")


def run(
    schedule: Schedule, weights: RandomWeights, request: Request, order: str, before: Sequence[Rows] | None = None
) -> Shown:
    """before: keys and values of the positions before `request.start`, for each sequence.

    Raises Broken for what no correct schedule does, Refused for what the machine cannot run.
    """
    _within_limits(schedule, max(request.launches))
    machine = _machine(schedule, weights)
    _start(machine, schedule, request, before)
    shown = Shown()
    for number, count in enumerate(request.launches):
        _give_hidden(machine, schedule, request, number)
        try:
            with np.errstate(all="ignore"):  # wrong values overflow, and are looked at afterwards
                machine.launch(count, Bounded(order_of(order), MOST_EVENTS))
        except TooLong:
            raise Refused("too many events") from None
        except Fault as fault:
            raise Broken(KINDS.get(type(fault), "fault"), f"launch {number}: {fault}") from None
        except MemoryError:
            raise Refused("too much memory") from None
        except Exception as error:  # noqa: BLE001  an op that cannot be carried out is no correct one, whatever it raises
            raise Broken(type(error).__name__, f"launch {number}: {error}") from None
        (_look_at_hidden if request.calls else _look)(machine, schedule, count, shown)
    shown.caches = _caches(machine, schedule)
    return shown


def _machine(schedule: Schedule, weights: RandomWeights) -> Machine:
    try:
        return Machine(schedule, weights, copies="events" if len(schedule.streams) == 1 else "whole")
    except MemoryError:
        raise Refused("too much memory") from None
    except Exception as error:  # noqa: BLE001  the host packs weights and fills constants here, and refuses many ways
        raise Refused(f"not started: {type(error).__name__}: {error}") from None


def _start(machine: Machine, schedule: Schedule, request: Request, before: Sequence[Rows] | None) -> None:
    try:
        for name, data in (_inputs(schedule, request) if not request.calls else NOTHING_READ).items():
            machine.set(name, data)
        if before is not None:
            _resume(machine, schedule, before)
    except (KeyError, ValueError) as error:
        raise Refused(f"not started: {type(error).__name__}: {error}") from None


NOTHING_READ: dict[str, NDArray[Any]] = {"state": np.zeros(4, np.int32)}


def _inputs(schedule: Schedule, request: Request) -> dict[str, NDArray[Any]]:
    padded = np.zeros((schedule.batch, schedule.kv.context), np.int32)
    for row, text in zip(padded, request.written, strict=True):
        row[: len(text)] = text
    filled: dict[str, NDArray[Any]] = {
        "request": request_words(request), "prompt": padded.reshape(-1), "state": state_words(request),
    }  # fmt: skip
    if schedule.tree:
        filled["tree"] = tree_words(request.parents, schedule.rows)
    if mode_of(schedule) != "greedy":
        each = [Sampling(d.temperature, d.top_k, d.top_p, d.seed).words() for d in request.drawings]
        filled["sampling"] = np.concatenate(each)
    return filled


def _give_hidden(machine: Machine, schedule: Schedule, request: Request, number: int) -> None:
    """What the caller of a slice of layers lends it."""
    if not request.calls:
        return
    try:
        machine.set("hidden_in", hidden_state(schedule.model.hidden, number))
        if schedule.model.layers:
            machine.set("position", np.array([request.calls[number]], np.int32))
    except (KeyError, ValueError) as error:
        raise Refused(f"not started: {type(error).__name__}: {error}") from None


def _look_at_hidden(machine: Machine, schedule: Schedule, count: int, shown: Shown) -> None:
    try:
        shown.hidden.append(machine.get("logits" if schedule.model.has_head else "hidden_out").astype(np.float64))
        shown.state.append(state_of(machine.get("state"), 1))
    except (KeyError, ValueError) as error:
        raise Refused(f"nothing to look at: {type(error).__name__}: {error}") from None


def _shape(schedule: Schedule) -> tuple[int, ...]:
    model = schedule.model
    return model.layers, schedule.batch, model.kv_heads, schedule.kv.context, model.head_dim


def _resume(machine: Machine, schedule: Schedule, before: Sequence[Rows]) -> None:
    for place, name in enumerate(CACHES):
        data = machine.get(name)
        cache = data.reshape(_shape(schedule))
        for sequence, layers in enumerate(before):
            for layer, rows in enumerate(layers):
                cache[layer, sequence, :, : len(rows[place])] = rows[place].transpose(1, 0, 2)
        machine.set(name, data)


def _caches(machine: Machine, schedule: Schedule) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    try:
        keys, values = (machine.get(name).reshape(_shape(schedule)).astype(np.float64) for name in CACHES)
    except (KeyError, ValueError):
        return None
    return keys, values


def _look(machine: Machine, schedule: Schedule, count: int, shown: Shown) -> None:
    try:
        output, state = machine.get("output"), machine.get("state")
        shown.tokens.append(output[: count * schedule.vectors].astype(np.int64).reshape(count, schedule.vectors))
        if not schedule.headless:
            logits = machine.get("logits").astype(np.float64).reshape(schedule.vectors, -1)
            shown.logits.append(logits[:, : schedule.model.vocab])
        shown.state.append(state_of(state, schedule.batch))
    except (KeyError, ValueError) as error:
        raise Refused(f"nothing to look at: {type(error).__name__}: {error}") from None


def _within_limits(schedule: Schedule, tokens: int) -> None:
    workers = schedule.launch.workers
    elements = sum(b.elements * (workers if b.space == "shared" else 1) for b in schedule.buffers)
    steps = sum(p.count * _steps(p.body, tokens) for p in schedule.programs) * schedule.launch.warps
    if elements > MOST_ELEMENTS or steps > MOST_STEPS or schedule.kv.context > 1 << 16:
        raise Refused("too large")


def _steps(body: tuple[Node, ...], tokens: int) -> int:
    """Steps of a warp that runs everything."""
    each = (1 if isinstance(n, Step) else (n.count or tokens) * _steps(n.body, tokens) for n in body)
    return sum(each)
