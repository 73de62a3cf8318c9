"""A run of the compiled kernel: the schedule's PTX in the emulator, whole grid, with the buffers' own types.

Accesses that nothing orders, between warps or between lanes of one, refute it also where its values are right. It
shares neither `accesses` nor `reference` with what it judges; it shares what the host does before a launch (packed
weights, constants, argument block). Equal PTX is run once for an equal request if the host prepares equal bytes for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, MutableMapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.emulator.decode import EmulatedEngine
from amk.emulator.machine.machine import Limits, Order
from amk.engine.backends.request import first_state
from amk.judges.forward import Rows
from amk.judges.request import Broken, Refused, Request, Shown, hidden_state, state_of
from amk.judges.weights import RandomWeights
from amk.report.diagnostic import AmkError
from amk.schedule_ir.sampling import GREEDY, Sampling
from amk.schedule_ir.schedule import Schedule, mode_of
from amk.weights.bfloat import to_bf16_bits
from amk.weights.e4m3 import to_e4m3

LIMITS = Limits(instructions=20_000_000, seconds=120.0, megabytes=2_000)
Printed = Callable[[Schedule], str]
"""The PTX of a schedule; AmkError where the lowering cannot print or refuses it."""


class EmulatedKernel:
    """A `judge.Machine`. orders: `random:SEED`, `priorities:SEED` are drawn, `early-copies` lands copies at once; in
    `delay:WORKER` the worker, in `favour:WORKER` all others run only where nothing else can happen; in any other warps
    take turns and copies land late. results: what runs have shown, for several to share. runs, shared:
    how many it made, and how many it found there."""

    def __init__(self, printed: Printed, results: MutableMapping[str, Shown | Broken] | None = None) -> None:
        self._printed = printed
        self._known: MutableMapping[str, Shown | Broken] = {} if results is None else results
        self.runs = self.shared = 0

    def __call__(
        self, schedule: Schedule, weights: RandomWeights, request: Request, order: str, before: Sequence[Rows] | None
    ) -> Shown:
        try:
            ptx = self._printed(schedule)
        except AmkError as error:
            raise Refused(f"not printed: {error.diagnostics[0].code}") from None
        engine = _prepared(schedule, weights, request, before, ptx)
        key = _key(engine, ptx, request, order)
        found = self._known.get(key)
        if found is None:
            self.runs += 1
            try:
                found = _shown(engine, request, order)
            except Broken as broken:
                found = broken
            self._known[key] = found
        else:
            self.shared += 1
        if isinstance(found, Broken):
            raise found
        return found


def _key(engine: EmulatedEngine, ptx: str, request: Request, order: str) -> str:
    """Equal for runs that show the same."""
    model, batch = engine.schedule.model, engine.schedule.batch
    asked = repr((request, order, model.vocab, model.hidden, batch))
    return hashlib.sha256(ptx.encode() + b"\0" + asked.encode() + engine.fingerprint()).hexdigest()


def _prepared(
    schedule: Schedule, weights: RandomWeights, request: Request, before: Sequence[Rows] | None, ptx: str
) -> EmulatedEngine:
    """What the host does before the first launch."""
    try:
        engine = EmulatedEngine(schedule, weights, ptx, limits=LIMITS, races=True)
        drawn = [Sampling(d.temperature, d.top_k, d.top_p, d.seed) for d in request.drawings]
        drawn = drawn if mode_of(schedule) != "greedy" else [GREEDY] * schedule.batch
        if not request.calls:
            engine.request_batch(request.written, request.ends, drawn, len(request.texts[0]), request.parents)
        if before is not None:
            _resume(engine, schedule, request, before)
    except (AmkError, KeyError, ValueError) as error:
        raise Refused(f"not started: {error}") from None
    return engine


def _shown(engine: EmulatedEngine, request: Request, order: str) -> Shown:
    schedule, shown = engine.schedule, Shown()
    for number, count in enumerate(request.launches):
        if request.calls:
            engine.machine.write("hidden_in", hidden_state(schedule.model.hidden, number))
            if schedule.model.layers:
                engine.machine.write("position", np.array([request.calls[number]], np.int32))
        outcome = engine.launch(count, _order(order, schedule))
        if outcome.faults or not outcome.ended:
            kind = outcome.faults[0].kind if outcome.faults else "hang"
            raise Broken(kind, f"launch {number}: {outcome.faults[0] if outcome.faults else 'did not end'}")
        if not outcome.races_checked:
            raise Refused("races were not looked for to the end: too wide for the memory of the emulator")
        shown.state.append(state_of(np.array(list(engine.state().values())), schedule.batch))
        if request.calls:
            model = schedule.model
            name, count = ("logits", model.vocab) if model.has_head else ("hidden_out", model.hidden)
            found = engine.machine.read(name, np.float32, count).view(np.float32)
            shown.hidden.append(found.astype(np.float64))
            continue
        shown.tokens.append(engine.output(count).astype(np.int64).reshape(count, schedule.vectors))
        if not schedule.headless:
            logits = engine.logits().astype(np.float64).reshape(schedule.vectors, -1)
            shown.logits.append(logits[:, : schedule.model.vocab])
    return shown


def _order(name: str, schedule: Schedule) -> Order:
    kind, _, number = name.partition(":")
    if kind in ("random", "priorities"):
        return Order(seed=int(number))
    every = frozenset(product(range(schedule.launch.workers), range(schedule.launch.warps)))
    if kind in ("delay", "favour"):
        return Order(last=frozenset(one for one in every if (one[0] == int(number)) == (kind == "delay")))
    return Order(eager=kind == "early-copies")


def _resume(engine: EmulatedEngine, schedule: Schedule, request: Request, before: Sequence[Rows]) -> None:
    """The cache and the launch state at the request's first positions; other rows of the cache are zeros."""
    model = schedule.model
    shape = model.layers, schedule.batch, model.kv_heads, schedule.kv.context, model.head_dim
    filled: list[NDArray[Any]] = []
    for place in (0, 1):
        cache = np.zeros(shape, np.float32)
        for sequence, layers in enumerate(before):
            for layer, rows in enumerate(layers):
                cache[layer, sequence, :, : len(rows[place])] = rows[place].transpose(1, 0, 2)
        filled.append(to_e4m3(cache) if schedule.kv.dtype == "fp8" else to_bf16_bits(cache))
    engine.fill_cache(*filled)
    if not request.calls:
        engine.set_state(**first_state(request.texts, request.starts or request.start))
