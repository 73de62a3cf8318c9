"""The PTX of an edited kernel in the emulator, beside that of the kernel as it is.

Both run the same requests; steps of several rows are given all tokens. From the first position with warps in turns and
copies late, in drawn order, with copies at once, and from a later position, where attention reads a cache that earlier
tokens left. A fault, other tokens or logits, or another content of global memory refuse the edit. The kernel as it is
must run without a fault; its results are kept, also in a folder that processes of a recorded run share, by the PTX and
all sources.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile, gettempdir

import numpy as np
from numpy.typing import NDArray

import amk
from amk.emulator.decode import EmulatedEngine
from amk.emulator.machine.machine import Limits, Order
from amk.emulator.ptx.encode import GLOBAL_BASE
from amk.judges.request import hidden_state
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.ops.begin import pos_register
from amk.schedule_ir.sampling import GREEDY, Sampling
from amk.schedule_ir.schedule import Schedule, mode_of
from amk.weights.bfloat import to_bf16_bits
from amk.weights.e4m3 import to_e4m3
from tests.engine import tiny
from tests.engine.tiny import RandomTensors

LIMITS = Limits(instructions=6_000_000, megabytes=2_000)
"""The kernels as they are take at most 1.6 million instructions."""
ROUNDING = 2e-6
"""Of logits, relative to the largest; what the emulator's tests allow against the interpreter."""
SHARED = Path(gettempdir()) / f"amk-kernels-{os.getuid()}"
DRAWN = Sampling(0.8, 40, 0.9, 7)


@dataclass(frozen=True)
class Request:
    """launches: tokens of each. position: of the first token; above 0 the cache holds drawn rows, and live texts are
    one position further each. chosen: in steps of several rows, how many rows at the end have the largest logit behind
    them, not a given token. sampling: of kernels that draw, of all sequences or of each. repelled: added to the biases
    of queries and taken from those of keys, so all scores are far below zero. ended: sequences at the end of a batch
    whose text has ended. ends: tokens that end a text, of which the kernel as it is gives one. column: the only one
    that the last norm keeps, and lm_head multiplies it with negative numbers; all logits then have one sign. parents:
    where rows are a tree, the row that each behind the first comes behind, the one before it unless given.
    """

    name: str
    order: Order
    launches: tuple[int, ...] = (4,)
    position: int = 0
    chosen: int = 1
    sampling: Sampling | tuple[Sampling, ...] = DRAWN
    repelled: float = 0.0
    ended: int = 0
    ends: tuple[int, ...] = ()
    column: int | None = None
    parents: tuple[int, ...] = ()


REQUESTS = (
    Request("turns", Order(), launches=(3, 1)),
    Request("late position", Order(seed=2, slice=300), launches=(2,), position=70),
    Request("drawn", Order(seed=1, slice=50), chosen=5),
    Request("early copies", Order(eager=True), launches=(2,)),
)


@dataclass(frozen=True)
class Shown:
    """fault: the kind of the first fault, "" if there is none. Tokens and logits of every launch. left: a digest of
    what the kernel writes to global memory, behind the last launch."""

    fault: str
    tokens: tuple[int, ...] = ()
    logits: tuple[NDArray[np.float32], ...] = ()
    left: str = ""


def shown(schedule: Schedule, ptx: str, request: Request) -> Shown:
    """What one request of a kernel shows."""
    engine = EmulatedEngine(schedule, _weights(schedule, request), ptx, limits=LIMITS, races=True)
    if schedule.model.slice is not None:
        return _of_slice(engine, schedule, request)
    length = 3 if schedule.rows == 1 else request.position + schedule.rows * sum(request.launches)
    texts = [[3 + 2 * sequence, 17, 5, *range(6, 3 + length)][:length] for sequence in range(schedule.batch)]
    drawn = GREEDY if mode_of(schedule) == "greedy" else request.sampling
    engine.request_batch(texts, request.ends, drawn, parents=request.parents)
    if schedule.rows > 1:
        engine.machine.write("request", np.array([length + 1 - request.chosen], np.int32))
    if request.position:
        _resume(engine, schedule, request.position)
    if request.ended:
        engine.set_state(done=(1 << schedule.batch) - (1 << schedule.batch - request.ended))
    tokens: list[int] = []
    logits: list[NDArray[np.float32]] = []
    for count in request.launches:
        outcome = engine.launch(count, request.order)
        if outcome.faults or not outcome.ended:
            return Shown(outcome.faults[0].kind if outcome.faults else "did not end")
        tokens += engine.output(count).reshape(-1).tolist()
        if not schedule.headless:
            logits.append(engine.logits())
    return Shown("", tuple(tokens), tuple(logits), _left(engine))


def _weights(schedule: Schedule, request: Request) -> RandomTensors:
    source = RandomTensors(schedule.model)
    for name, values in source.arrays.items():
        if request.repelled and name.endswith((".bq", ".bk")):
            values += request.repelled if name.endswith(".bq") else -request.repelled
    if request.column is not None:
        norm, head = source.arrays["final_norm"], source.arrays["lm_head"]
        norm[...] = np.where(np.arange(norm.size) == request.column, norm, 0)
        head[...] = -np.abs(head)
    return source


def _left(engine: EmulatedEngine) -> str:
    """A digest of the buffers that a kernel writes; undefined bytes count as such, whatever they are."""
    digest, memory, grid = sha256(), engine.machine.memory, engine.machine.grid
    for buffer in engine.buffers.values():
        if buffer.space == "global" and buffer.role != "constant":
            start = memory.addresses[buffer.name] - GLOBAL_BASE
            here = slice(start, start + buffer.bytes)
            undefined = grid.undefined[here] != 0
            digest.update(np.where(undefined, 0, grid.memory[here]).tobytes() + undefined.tobytes())
    return digest.hexdigest()


def _of_slice(engine: EmulatedEngine, schedule: Schedule, request: Request) -> Shown:
    """Launches of hidden states, each for all tokens of a launch; what comes out stands for logits."""
    if request.position:
        _draw_cache(engine, schedule, request.position)
    found: list[NDArray[np.float32]] = []
    model, position = schedule.model, request.position
    headed = model.slice is not None and model.slice.head
    name, count_out = ("logits", model.vocab) if headed else ("hidden_out", model.hidden)
    for number, count in enumerate(request.launches):
        engine.machine.write("hidden_in", hidden_state(schedule.model.hidden, number))
        engine.machine.write("position", np.array([position], np.int32))
        outcome = engine.launch(count, request.order)
        position += count
        if outcome.faults or not outcome.ended:
            return Shown(outcome.faults[0].kind if outcome.faults else "did not end")
        found.append(engine.machine.read(name, np.float32, count_out).view(np.float32).copy())
    return Shown("", (), tuple(found), _left(engine))


def _resume(engine: EmulatedEngine, schedule: Schedule, position: int) -> None:
    apart = schedule.batch - 1 if schedule.live else 0
    _draw_cache(engine, schedule, position + apart)
    further = {f"token.{s}": 4 + s for s in range(1, schedule.batch)}
    further |= {pos_register(s): position + s for s in range(1, apart + 1)}
    engine.set_state(token=4, pos=position, **further)


def _draw_cache(engine: EmulatedEngine, schedule: Schedule, position: int) -> None:
    """Rows of the cache before `position` are drawn, the others undefined as on a fresh device."""
    model, draw = schedule.model, np.random.default_rng(5)
    shape = model.layers, schedule.batch, model.kv_heads, schedule.kv.context, model.head_dim
    for name in ("k_cache", "v_cache"):
        cache_of = draw.standard_normal(shape).astype(np.float32)
        rows = to_e4m3(cache_of) if schedule.kv.dtype == "fp8" else to_bf16_bits(cache_of)
        flat, row = rows.reshape(-1, *shape[3:]), rows.itemsize * model.head_dim
        for head, content in enumerate(flat):
            engine.machine.write(name, content[:position], head * schedule.kv.context * row)


_KEPT: dict[tuple[str, str], Shown] = {}


@cache
def _sources() -> bytes:
    """A digest of what a result depends on beside PTX and schedule: weights and requests are drawn by other modules."""
    files = *sorted(Path(amk.__path__[0]).rglob("*.py")), Path(tiny.__file__), Path(__file__)
    return sha256(b"".join([np.__version__.encode(), *(path.read_bytes() for path in files)])).digest()


def _kept(schedule: Schedule, ptx: str, request: Request) -> Shown:
    words = b"".join((_sources(), ptx.encode(), schedule_hash(schedule).encode(), repr(request).encode()))
    path = SHARED / f"{sha256(words).hexdigest()}.npz"
    if path.exists():
        with np.load(path, allow_pickle=False) as known:
            return Shown("", tuple(known["tokens"].tolist()), tuple(known["logits"]), str(known["left"]))
    found = shown(schedule, ptx, request)
    if not found.fault:
        SHARED.mkdir(mode=0o700, exist_ok=True)
        with NamedTemporaryFile(dir=SHARED, suffix=".npz", delete=False) as file:
            np.savez(file, tokens=np.array(found.tokens), logits=np.array(found.logits), left=found.left)
        Path(file.name).replace(path)
    return found


def expected(subject: str, schedule: Schedule, ptx: str, request: Request) -> Shown:
    """What the kernel as it is shows, run once; it has no fault."""
    key = subject, request.name
    if key not in _KEPT:
        _KEPT[key] = _kept(schedule, ptx, request)
        without = replace(request, ends=())
        assert not request.ends or _kept(schedule, ptx, without).left != _KEPT[key].left, f"{key}: no text ends"
    assert _KEPT[key].fault == "", (key, _KEPT[key].fault)
    return _KEPT[key]


def difference(
    subject: str, schedule: Schedule, original: str, ptx: str, requests: tuple[Request, ...] = REQUESTS
) -> str | None:
    """The first thing that differs from the kernel as it is: a kind of fault, "tokens", "logits", "memory"; None if
    nothing does.

    "logits, within rounding" where bits differ by less than two machines may.
    """
    rounded = False
    for request in requests:
        known = expected(subject, schedule, original, request)
        try:
            found = shown(schedule, ptx, request)
        except AmkError as error:
            return error.diagnostics[0].code
        if found.fault or found.tokens != known.tokens:
            return found.fault or "tokens"
        for one, other in zip(found.logits, known.logits, strict=True):
            if not np.abs(one - other).max() <= ROUNDING * np.abs(other).max():
                return "logits"
            rounded |= one.tobytes() != other.tobytes()
        if not rounded and found.left != known.left:
            return "memory"
    return "logits, within rounding" if rounded else None
