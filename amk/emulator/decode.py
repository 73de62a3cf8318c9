"""A schedule's kernel in the emulator, with the interface of the engines: request, step, state, logits.

What the host does is what `amk.engine.backends.cuda_engine` does: the same argument block, the same initial memory,
scratch poisoned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.emulator.footprints import Mismatch, mismatches
from amk.emulator.machine.machine import Limits, Machine, Order, Outcome
from amk.emulator.machine.report import Fault
from amk.emulator.memory.global_memory import Allocation
from amk.emulator.ptx.parse import parse
from amk.emulator.ptx.program import Program, assemble
from amk.emulator.steps import ABORT, COUNTERS, LOG, Steps
from amk.emulator.synchronisation import Difference, differences
from amk.engine.backends.request import (
    first_buffers,
    first_state,
    request_buffers,
    sampling_buffer,
    starts_of,
    tokens_of,
)
from amk.interpreter.constants import constants
from amk.interpreter.packing import packed_arrays
from amk.lowering.abi import COUNTER_STRIDE, abi, member
from amk.lowering.emit import KERNEL
from amk.lowering.watchdog import empty_log
from amk.models.row_groups import TensorSource
from amk.schedule_ir.sampling import GREEDY, Sampling
from amk.schedule_ir.schedule import Schedule
from amk.weights.bfloat import from_bf16_bits
from amk.weights.e4m3 import from_e4m3
from amk.weights.quantised import Quantiser, nearest

LOG_RECORDS = 64
STALL_NS = 2_000_000_000
SHOWN = ("state", "output", "logits", "hidden_in", "hidden_out", "position")
"""What is read or written between launches."""


@dataclass
class Result:
    """tokens: [n], [n, batch] in a batch. logits: f32 [vocab] or [batch, vocab] of the last token; where there is
    no output head, what a launch leaves instead: keys and values, f32 [2, elements].

    faults: what no correct kernel does, in the order in which it was seen; empty for a run without any. `tokens` and
    `logits` mean nothing unless `ended`. mismatches: of footprints, differences: of
    synchronisation, where they were compared.
    """

    tokens: NDArray[np.int32]
    logits: NDArray[np.float32]
    faults: list[Fault]
    ended: bool
    instructions: int
    outcomes: list[Outcome] = field(default_factory=list)
    mismatches: tuple[Mismatch, ...] = ()
    differences: tuple[Difference, ...] = ()


@lru_cache(maxsize=8)
def _assembled(ptx: str) -> Program:
    """Reading PTX takes as long as a short run of it, and one kernel is run many times: orders, prompts, texts."""
    program = assemble(parse(ptx), KERNEL)
    program.code.flags.writeable = program.lines.flags.writeable = False
    return program


class EmulatedEngine:
    """Memory and kernel of one schedule.

    schedule: any, SAFE or not. source: the tensors of its model. ptx: what its lowering was compiled to, or any PTX
    with the same entry and argument block. quantise: see `run`. Raises AMK801, AMK802 or AMK803 for PTX that cannot be
    run, or a grid beyond `limits`.
    """

    def __init__(
        self,
        schedule: Schedule,
        source: TensorSource,
        ptx: str,
        *,
        limits: Limits | None = None,
        races: bool = False,
        touches: bool = False,
        quantise: Quantiser = nearest,
    ) -> None:
        self.schedule, self.abi = schedule, abi(schedule)
        program = _assembled(ptx)
        content = constants(schedule, source)
        content |= weights_of(schedule, source, quantise)
        launch = schedule.launch
        allocations = [
            Allocation(b.name, b.bytes, b.role, content.get(b.name)) for b in schedule.buffers if b.space == "global"
        ]
        log = empty_log(LOG_RECORDS)
        allocations += [
            Allocation(COUNTERS, self.abi.counter_bytes, "state", self._counters()),
            Allocation(LOG, log.nbytes, "state", log),
            Allocation(ABORT, 4, "constant", np.zeros(1, np.uint32)),
        ]
        self.machine = Machine(
            program,
            launch.workers,
            launch.warps,
            launch.shared_bytes,
            allocations,
            limits,
            races=races,
            touches=touches,
            arrays=[(b.offset or 0, (b.offset or 0) + b.bytes) for b in schedule.buffers if b.space == "shared"],
        )
        self.buffers = {b.name: b for b in schedule.buffers}
        self.tokens_left = 0
        self.write(first_buffers(self.schedule))
        self.set_state(**dict.fromkeys(schedule.state_words, 0))
        self._forget_scratch()

    def _counters(self) -> NDArray[np.uint32]:
        words = np.zeros(self.abi.counter_bytes // 4, np.uint32)
        for counter in self.schedule.counters:
            base = self.abi.counter_base[counter.name] * COUNTER_STRIDE
            words[base : base + counter.count * COUNTER_STRIDE : COUNTER_STRIDE] = counter.init
        return words

    def _forget_scratch(self) -> None:
        """Scratch is undefined; tagged words hold a tag that no token has, as the launcher leaves them."""
        for buffer in self.buffers.values():
            if buffer.space == "global" and buffer.role == "scratch":
                if buffer.tagged:
                    self.machine.write(buffer.name, np.full(buffer.bytes, 0xFF, np.uint8))
                else:
                    self.machine.poison(buffer.name)

    def set_state(self, **words: int) -> None:
        names = self.schedule.state_words
        now = dict.fromkeys(names, 0)
        if self.machine.defined("state", 0, 4 * len(names)):
            now = self.state()
        self.machine.write("state", np.array([(now | words)[name] for name in names], np.int32))

    def state(self) -> dict[str, int]:
        names = self.schedule.state_words
        return dict(zip(names, self.machine.read("state", np.int32, len(names)).tolist(), strict=True))

    def write(self, buffers: Mapping[str, NDArray[Any]]) -> None:
        for name, data in buffers.items():
            self.machine.write(name, data)

    def request_batch(
        self,
        prompts: Sequence[Sequence[int]],
        eos: tuple[int, ...] = (),
        sampling: Sampling | Sequence[Sampling] = GREEDY,
        prompt_length: int | None = None,
        parents: Sequence[int] = (),
    ) -> None:
        """Start a text of each sequence; the position starts over. sampling: of all, or of each its own.

        prompt_length, parents: see `request_buffers`."""
        buffers = request_buffers(self.schedule, prompts, eos, prompt_length, parents)
        self.write(buffers | sampling_buffer(self.schedule, sampling))
        self.set_state(**first_state(prompts, starts_of(self.schedule, 0)))

    def fill_cache(self, keys: NDArray[Any], values: NDArray[Any]) -> None:
        """The whole cache, in the buffers' own type: bf16 as its bits (uint16), fp8 as its bytes."""
        self.machine.write("k_cache", keys)
        self.machine.write("v_cache", values)

    def fingerprint(self) -> bytes:
        """Before the first launch: engines of the same PTX for which it is equal show the same under equal launches."""
        logits = self.buffers["logits"].elements if "logits" in self.buffers else 0
        read = (self.schedule.state_words, self.schedule.vectors, logits)
        places = [(name, self.machine.memory.addresses.get(name)) for name in SHOWN]
        text = repr((read, places, self._argument(1), self._argument(2)))
        return sha256(self.machine.fingerprint() + text.encode()).digest()

    def launch(self, tokens: int, order: Order | None = None) -> Outcome:
        """One launch of `tokens` tokens."""
        return self.machine.launch(self._argument(tokens), order)

    def _argument(self, tokens: int) -> bytes:
        """The kernel's one parameter."""
        places = self.machine.memory.addresses
        values = {member(name): at for name, at in places.items()}
        values |= {
            "counters": places[COUNTERS], "watchdog_log": places[LOG], "abort_word": places[ABORT],
            "stall_ns": STALL_NS, "tokens": tokens, "trace": 0,
        }  # fmt: skip
        return bytes(self.abi.pack(values).tobytes())

    def output(self, tokens: int) -> NDArray[np.int32]:
        words = self.machine.read("output", np.int32, tokens * self.schedule.vectors)
        return tokens_of(self.schedule, words.view(np.int32))

    def logits(self) -> NDArray[np.float32]:
        """f32 [vocab] of the last token that ran, [batch, vocab] in a batch."""
        found = self.machine.read("logits", np.float32, self.buffers["logits"].elements).view(np.float32)
        return found if self.schedule.vectors == 1 else found.reshape(self.schedule.vectors, -1)

    def caches(self) -> NDArray[np.float32]:
        """Keys and values, f32 [2, elements]."""
        count, coded = self.buffers["k_cache"].elements, self.schedule.kv.dtype == "fp8"
        found = [self.machine.read(name, np.uint8 if coded else np.uint16, count) for name in ("k_cache", "v_cache")]
        return np.stack([from_e4m3(bits) if coded else from_bf16_bits(bits.view(np.uint16)) for bits in found])


def weights_of(schedule: Schedule, source: TensorSource, quantise: Quantiser) -> dict[str, NDArray[Any]]:
    """The packed weights, and scales that stand apart, by buffer."""
    packed, scales = packed_arrays(schedule, source, quantise)
    return {schedule.streams[0].source: packed, **scales}


def run(
    schedule: Schedule,
    source: TensorSource,
    ptx: str,
    *,
    prompts: Sequence[Sequence[int]] = ((1,),),
    position: int = 0,
    cache: tuple[NDArray[Any], NDArray[Any]] | None = None,
    tokens: int = 1,
    launches: int = 1,
    order: Order | None = None,
    limits: Limits | None = None,
    sampling: Sampling | Sequence[Sampling] = GREEDY,
    eos: tuple[int, ...] = (),
    races: bool = False,
    text: str | None = None,
    prompt_length: int | None = None,
    quantise: Quantiser = nearest,
) -> Result:
    """Run `launches` launches of `tokens` tokens each of a schedule's PTX, and say what came out.

    prompts: given tokens, one text for each sequence of the batch. After them the kernel chooses.
    prompt_length: so many of the first text are given; what follows are guesses.
    position: of the first token. Above 0, `cache` (keys, values, in the buffers' own type) is what earlier tokens left.
    races: also tell accesses that nothing orders.
    text: the CUDA that `ptx` was compiled from with `steps.LINE_INFO`, to compare what the steps of a single launch
        touch with `accesses`, and how they synchronise with the schedule.
    quantise: makes the codes of matrices that `source` holds as numbers. Two engines agree only under one choice (that
        of `amk generate` is `quantize.search.searched`).

    The first fault that ends a launch ends the run. Raises AmkError for what cannot be run at all, never for what the
    kernel does.
    """
    touches = text is not None
    engine = EmulatedEngine(schedule, source, ptx, limits=limits, races=races, touches=touches, quantise=quantise)
    engine.request_batch(prompts, eos, sampling, prompt_length)
    if cache is not None:
        engine.fill_cache(*cache)
    engine.set_state(**schedule.all_at(position))
    outcomes: list[Outcome] = []
    found: list[NDArray[np.int32]] = []
    for _ in range(launches):
        outcome = engine.launch(tokens, order)
        outcomes.append(outcome)
        if not outcome.ended:
            break
        found.append(engine.output(tokens))
    steps = Steps(schedule, text, engine.machine, tokens, position) if text is not None else None
    ended = outcomes[-1].ended
    return Result(
        tokens=np.concatenate(found) if found else np.empty(0, np.int32),
        logits=engine.caches() if schedule.headless else engine.logits(),
        faults=[fault for outcome in outcomes for fault in outcome.faults],
        ended=all(outcome.ended for outcome in outcomes),
        instructions=sum(outcome.instructions for outcome in outcomes),
        outcomes=outcomes,
        mismatches=tuple(mismatches(steps)) if steps and ended else (),
        differences=tuple(differences(steps, ended)) if steps else (),
    )
