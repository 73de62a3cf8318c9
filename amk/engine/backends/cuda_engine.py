"""A schedule on a GPU: its buffers, its kernel, and launches of N tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.engine.admission.admission import AdmittedKernel
from amk.engine.backends.launches_ahead import AHEAD, LaunchesAhead
from amk.engine.backends.request import TextEngine, first_buffers, slice_buffers, slice_result, tokens_of
from amk.engine.backends.tag_life import tokens_told_apart
from amk.lowering import refusal
from amk.lowering.abi import Abi, abi, counter_names, member
from amk.lowering.cubin import SYSTEM_SHARED
from amk.lowering.device_memory import DeviceBuffer, MappedBuffer, StreamCopies
from amk.lowering.emit import KERNEL
from amk.lowering.launch import CooperativeLaunch, Device, Kernel, Module
from amk.lowering.stream import Stream
from amk.lowering.watchdog import HEADER, BlockedWait, check_log, empty_log, plain_words
from amk.schedule_ir.schedule import Schedule
from amk.validator.static.resources import CompiledResources

LOG_RECORDS = 64
LOG_WORDS = HEADER.itemsize // 4
"""Of the watchdog's log, whether it has records."""
REQUEST_WORDS = 16 * 1024
"""Page-locked words for what a text begins with."""
STALL_NS = 2_000_000_000
"""A wait that makes no progress for this long stops the kernel."""


@dataclass
class CudaEngine(TextEngine):
    """Device memory and kernel of one schedule.

    admitted: the only code that runs; the driver must have loaded what its cubin says. The weights and other constants
    are written with `upload` (or, for the packed weights, in pieces at `offset` bytes) before the first launch. epoch:
    tokens enqueued since the counters were initial; a graph that replays a launch counts once. lent: buffers that are
    somebody else's memory, which every `argument` then names. buffers: those that another engine has and keeps. Not
    thread safe.
    """

    admitted: AdmittedKernel
    device: Device
    stall_ns: int = STALL_NS
    trace_words: int = 0
    buffers: dict[str, DeviceBuffer] = field(default_factory=dict)
    lent: frozenset[str] = frozenset()
    epoch: int = field(default=0, init=False)
    _stopped: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.schedule: Schedule = self.admitted.schedule
        self.abi: Abi = abi(self.schedule)
        self.most_epochs = tokens_told_apart(self.schedule)
        self._under_way = False
        self._prompt_end: int | None = None  # behind it are zeros alone
        with ExitStack() as memory:
            self._allocate(memory)
            self._memory = memory.pop_all()

    def _allocate(self, memory: ExitStack) -> None:
        """Load the kernel and allocate what it needs; `memory` frees all of it."""
        launch, shared = self.schedule.launch, frozenset(self.buffers)
        code = self.admitted.loadable()
        self.module = memory.enter_context(Module(self.device, code))
        kernel = self.module.kernel(KERNEL, dynamic_smem=launch.shared_bytes)
        check_loaded(self.admitted, code, kernel)
        self.kernel = kernel
        self.launch = CooperativeLaunch(kernel, launch.workers, launch.warps * 32)
        for buffer in self.schedule.buffers:
            if buffer.space == "global" and buffer.name not in self.lent | shared:
                own = DeviceBuffer(self.device, -(-buffer.bytes // 256) * 256)
                self.buffers[buffer.name] = memory.enter_context(own)
        self.counters = memory.enter_context(DeviceBuffer(self.device, self.abi.counter_bytes))
        self.log = memory.enter_context(DeviceBuffer.of(self.device, empty_log(LOG_RECORDS)))
        self.abort = memory.enter_context(MappedBuffer(self.device, 1))
        self.heard = memory.enter_context(MappedBuffer(self.device, AHEAD))
        trace = DeviceBuffer(self.device, 4 * self.trace_words) if self.trace_words else None
        self.trace = trace if trace is None else memory.enter_context(trace)
        self.stream = memory.enter_context(Stream(self.device))
        words = launch.max_tokens * self.schedule.vectors + LOG_WORDS
        self._sent = memory.enter_context(StreamCopies(self.stream, REQUEST_WORDS))
        self._shown = memory.enter_context(StreamCopies(self.stream, words))

    def upload(self, name: str, data: NDArray[Any], offset: int = 0) -> None:
        """Write part of a global buffer."""
        self._arrived()
        if name == "prompt":
            self._prompt_end = None
        self.buffers[name].upload(np.ascontiguousarray(data), offset)

    def upload_constants(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        for name, data in arrays.items():
            self.upload(name, data)

    def reset(self) -> None:
        """Forget everything but the constants: counters to their initial value, state to position 0, epoch 0.

        Scratch is poisoned: words tagged by earlier launches, or left in the memory by an earlier engine, carry tags
        that epoch 0 would take for its own.
        """
        self.poison()
        self._start_counters()
        self.log.upload(empty_log(LOG_RECORDS))
        self._stopped = False
        self.upload_constants(first_buffers(self.schedule))
        self.set_state(**dict.fromkeys(self.schedule.state_words, 0))

    def _start_counters(self) -> None:
        counters = np.zeros(self.abi.counter_bytes // 4, np.uint32)
        stride = len(counters) // max(self.abi.counter_count, 1)
        for counter in self.schedule.counters:
            base = self.abi.counter_base[counter.name]
            counters[base * stride : (base + counter.count) * stride : stride] = counter.init
        self.counters.upload(counters)

    def _start_epochs(self, stream: Any) -> None:
        """Epoch 0 again, between two launches of one text: what carries tags or counts is as after a reset, all else is
        kept. Waits for what the stream (its handle) has to do."""
        for buffer in self.schedule.buffers:
            if buffer.tag is not None and buffer.space == "global":
                self.buffers[buffer.name].fill(0xFF, stream)
        self.device.driver.call("cuStreamSynchronize", stream)
        self._start_counters()
        self.set_state(epoch=0)

    def poison(self) -> None:
        """Fill every scratch buffer with 0xff bytes (NaN), so that a read before a write cannot pass unnoticed."""
        for buffer in self.schedule.buffers:
            if buffer.space == "global" and buffer.role == "scratch":
                self.buffers[buffer.name].fill(0xFF, self.stream.handle)
        self.stream.synchronise()

    def set_state(self, **words: int) -> None:
        """Change words of the launch state (`state_words`); the others keep their value."""
        now, names = self.state() | words, self.schedule.state_words
        self.epoch = now["epoch"]
        self.stands_at(now)
        self.upload("state", np.array([now[name] for name in names], np.int32))

    def state(self) -> dict[str, int]:
        names = self.schedule.state_words
        return dict(zip(names, self.read("state", np.int32, len(names)).tolist(), strict=True))

    def _begin(
        self, buffers: Mapping[str, NDArray[np.int32]], state: Mapping[str, int], lengths: Sequence[int]
    ) -> None:
        self.device.make_current()  # texts may be continued in any thread
        self._sent.wait()
        self._under_way = True
        for name, data in buffers.items():
            first, end = 0, len(data)
            if name == "prompt" and len(lengths) == 1:
                first, last, self._prompt_end = state["pos"], self._prompt_end, lengths[0]
                end = end if last is None else max(last, lengths[0])
            self._sent.upload(self.buffers[name], data[first:end], 4 * first)
        names = self.schedule.state_words
        epoch = names.index("epoch")  # is the device's
        for at, some in ((0, names[:epoch]), (epoch + 1, names[epoch + 1 :])):
            self._sent.upload(self.buffers["state"], np.array([state[name] for name in some], np.int32), 4 * at)

    def _arrived(self) -> None:
        """What a request wrote is there, for what is not in the order of the stream."""
        if self._under_way:
            self._sent.wait()
            self._under_way = False

    def argument(
        self, tokens: int, output: int | None = None, lent: Mapping[str, int] | None = None
    ) -> NDArray[np.void]:
        """The kernel's parameter for a launch of `tokens` tokens; output: where it writes them, if not to the buffer.

        An address that the device can write, with room for a word a token. lent: addresses of the buffers in `lent`.
        """
        values = self._addresses | {member(name): address for name, address in (lent or {}).items()}
        values |= {"stall_ns": self.stall_ns, "tokens": tokens}
        return self.abi.pack(values if output is None else values | {"b_output": output})

    @cached_property
    def _addresses(self) -> dict[str, int]:
        """Of everything that is allocated once, by the names of the kernel's parameter."""
        found = {member(name): buffer.address for name, buffer in self.buffers.items()}
        found |= {"counters": self.counters.address, "watchdog_log": self.log.address}
        return found | {"abort_word": self.abort.address, "trace": self.trace.address if self.trace else 0}

    def enqueue(self, tokens: int, stream: Any = None, output: int | None = None) -> None:
        """Launch a decode of `tokens` tokens; asynchronous, but for a wait before tags would repeat. output: as in
        `argument`.

        AMK604 if a launch before it was stopped: counters are then void until a reset. AMK014 and AMK901 as `_launches`
        says; a graph that replays a launch is its caller's business.
        """
        if self._stopped:
            self.check()
        if stream is not None:
            self._arrived()
        handle = stream if stream is not None else self.stream.handle
        if self.epoch + tokens > self.most_epochs:
            self._start_epochs(handle)
        self._launches(tokens)
        self.launch(self.argument(tokens, output), handle)
        self.epoch += tokens

    def ahead(self, count: int) -> LaunchesAhead:
        """`count` tokens as they are chosen, of one sequence, in launches that follow each other without a gap."""
        return LaunchesAhead(self, count, self.heard)

    def step(self, tokens: int) -> NDArray[np.int32]:
        """Decode `tokens` tokens and return them, [tokens, batch] in a batch.

        Raises AMK604 naming the blocked agents if the watchdog fired.
        """
        self.device.make_current()
        self.enqueue(tokens)
        output = self._shown.download(self.buffers["output"], tokens * self.schedule.vectors)
        self._ended()
        return tokens_of(self.schedule, output.view(np.int32).copy())

    def through(self, hidden: NDArray[np.float32], position: int) -> NDArray[np.float32]:
        """A slice for one token: the hidden state or the logits that it makes of a hidden state. AMK604 as `step`."""
        self.device.make_current()
        self.upload_constants(slice_buffers(self.schedule, hidden, position))
        self.enqueue(1)
        self._ended()
        name, count = slice_result(self.schedule)
        return self.read(name, np.float32, count)

    def _ended(self) -> None:
        """Wait for the end of what runs. AMK604 as `check`."""
        records = self._shown.download(self.log, LOG_WORDS)
        self._shown.wait()
        self._under_way = False
        if records[0]:
            self.check()

    def check(self) -> None:
        """Raise AMK604 if a wait was abandoned in any launch since reset."""

        def describe(wait: BlockedWait) -> str:
            text, names = plain_words(wait), counter_names(self.schedule)
            if wait.kind == "counter" and wait.object < len(names):
                text = text.replace(f"counter {wait.object}", f"counter {names[wait.object]}")
            return text

        self._stopped = True
        check_log(self.log.download(np.uint8, self.log.nbytes), describe)
        self._stopped = False

    def read(self, name: str, dtype: Any, count: int) -> NDArray[Any]:
        """The first `count` elements of a global buffer."""
        self._arrived()
        return self.buffers[name].download(dtype, count)

    def logits(self, row: int | None = None) -> NDArray[np.float32]:
        """f32 [vocab] of the last token that ran, [batch, vocab] in a batch; row: of that vector alone."""
        self.device.make_current()
        vectors, vocab = self.schedule.vectors, self.schedule.model.vocab
        if row is not None:
            return self.buffers["logits"].download(np.float32, vocab, 4 * row * vocab)
        found = self.read("logits", np.float32, vectors * vocab)
        return found if vectors == 1 else found.reshape(vectors, -1)

    def free(self) -> None:
        self.device.make_current()
        self._memory.close()


def check_loaded(admitted: AdmittedKernel, code: bytes | str, kernel: Kernel) -> None:
    """The driver loaded the code whose resources were checked; code that it compiled itself is checked now."""
    expected = admitted.resources_of(code)
    if expected is None:
        admitted.check_used(CompiledResources(kernel.registers, max(0, kernel.static_smem - SYSTEM_SHARED)))
    elif not kernel.matches(expected):
        used = f"{kernel.registers} registers and {kernel.static_smem} bytes of shared memory"
        message = f"the driver loaded code with {used}, the cubin has {expected.registers} and {expected.static_smem}"
        raise refusal.unsafe("AMK403", message)
