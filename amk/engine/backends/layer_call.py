"""Layers of a model, or its output head, as a call from another engine: on its stream, in its memory, captured by its
graphs."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from amk.interpreter.interpret import Machine
from amk.lowering.dlpack import CPU, CUDA, Borrowed, borrow
from amk.models.model_spec import ModelSpec
from amk.models.row_groups import TensorSource
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.ops.begin import state_words
from amk.schedule_ir.schedule import Schedule
from amk.weights.bfloat import to_bf16_bits
from amk.weights.quantised import Quantiser, nearest

if TYPE_CHECKING:  # the driver's package is not there on machines without a GPU
    from amk.engine.backends.cuda_engine import CudaEngine

ALIGNED: Final = 16
"""Bytes: the kernel reads so many at once."""
BEHIND: Final = ("k_cache", "v_cache", "position")
"""Buffers of a caller that a slice with layers has."""
_WORDS: Final[dict[str, np.dtype[Any]]] = {
    name: np.dtype(each) for name, each in (("f32", np.float32), ("i32", np.int32), ("bf16", np.uint16))
}


class Layers(Protocol):
    """What calls a slice of layers, with or without the output head, or the head alone, for one token.

    hidden_in: f32 [hidden], the residual stream before the layers, or behind the last.
    out: f32 [hidden] behind the layers, or with the head f32 [vocab], logits.
    position: i32 [1], of the token, held within the context.
    k_cache, v_cache: [layers, kv_heads, context, head_dim] in the schedule's cache type. The call reads rows before the
        position and writes the row at it. The head alone has neither caches nor position.
    certificate: that of the schedule.

    Arguments are any objects with `__dlpack__`, dense, on the device of the call, and apart from each other.
    """

    schedule: Schedule
    certificate: Any

    def __call__(
        self,
        hidden_in: Any,
        out: Any,
        k_cache: Any = None,
        v_cache: Any = None,
        position: Any = None,
        stream: int = 0,
    ) -> None: ...
    def free(self) -> None: ...


def lent_buffers(model: ModelSpec) -> tuple[str, ...]:
    """Buffers that the caller owns, in the order of the call's arguments."""
    return ("hidden_in", "logits" if model.has_head else "hidden_out", *(BEHIND if model.layers else ()))


def lent(schedule: Schedule, tensors: tuple[Any, ...], device: tuple[int, int]) -> dict[str, Borrowed]:
    """The caller's memory by buffer; AMK005 where it is not what the schedule has there. tensors: the arguments of a
    call, in its order."""
    names = lent_buffers(schedule.model)
    tensor_of = {
        name: tensor for name, tensor in zip((*names[:2], *BEHIND), tensors, strict=True) if tensor is not None
    }
    if tensor_of.keys() != set(names):
        text = ", ".join(tensor_of) or "nothing"
        raise _refused(f"a call of {schedule.name} takes {', '.join(names)}, and was given {text}")
    found = {name: borrow(tensor) for name, tensor in tensor_of.items()}
    buffers = {buffer.name: buffer for buffer in schedule.buffers}
    for name, memory in found.items():
        buffer = buffers[name]
        wanted = f"{buffer.dtype} {list(buffer.shape)}"
        if memory.dtype != buffer.dtype or _plain(memory.shape) != _plain(buffer.shape):
            raise _refused(f"{name} is {memory.dtype or 'of another type'} {list(memory.shape)}, not {wanted}")
        if memory.device != device:
            raise _refused(f"{name} is on the DLPack device {memory.device}, the layers run on {device}")
        if not memory.contiguous or memory.address % (ALIGNED if buffer.elements > 1 else 4):
            raise _refused(f"{name} is not dense, or does not begin at a multiple of {ALIGNED} bytes")
    for (one, a), (other, b) in combinations(found.items(), 2):
        if a.overlaps(b):
            raise _refused(f"{one} and {other} share memory, the proof is about buffers that do not")
    return found


def _plain(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _refused(message: str) -> AmkError:
    return AmkError(Diagnostic("AMK005", message))


@dataclass(frozen=True)
class BoundCall:
    """One call with its memory: every `enqueue` is the same launch. It keeps the caller's tensors alive."""

    engine: CudaEngine
    argument: NDArray[np.void]
    memory: dict[str, Borrowed]

    def enqueue(self, stream: int) -> None:
        """Launch on a CUDA stream (its handle as a number). Waits for nothing, so a stream may capture it."""
        self.engine.launch(self.argument, stream)


class GpuLayers:
    """On a GPU. Calls are in order: two launches of one object must not run at a time, as they share counters.

    A launch leaves the epoch, which counters and tags are compared with, in device memory: every replay of a captured
    launch goes on where the one before stopped. After `most_calls` launches, replays counted,
    tags repeat: call `reset`.
    """

    def __init__(self, engine: CudaEngine) -> None:
        self._engine = engine
        self.schedule, self.certificate = engine.schedule, engine.admitted.certificate
        self.most_calls: int = engine.most_epochs

    def bind(
        self, hidden_in: Any, out: Any, k_cache: Any = None, v_cache: Any = None, position: Any = None
    ) -> BoundCall:
        """The call with this memory, checked once; AMK005 for memory that the schedule is not about."""
        tensors = (hidden_in, out, k_cache, v_cache, position)
        memory = lent(self.schedule, tensors, (CUDA, self._engine.device.ordinal))
        addresses = {name: each.address for name, each in memory.items()}
        return BoundCall(self._engine, self._engine.argument(1, lent=addresses), memory)

    def __call__(
        self,
        hidden_in: Any,
        out: Any,
        k_cache: Any = None,
        v_cache: Any = None,
        position: Any = None,
        stream: int = 0,
    ) -> None:
        """Bind and enqueue; the tensors must live until the launch, or the graph that captured it, is done."""
        self.bind(hidden_in, out, k_cache, v_cache, position).enqueue(stream)

    def reset(self) -> None:
        """Begin at epoch 0 again. No launch may be under way."""
        self._engine.device.make_current()
        self._engine.reset()

    def check(self) -> None:
        """AMK604, naming who waits for what, if a launch since `reset` was stopped. Launches must have ended."""
        self._engine.device.make_current()
        self._engine.check()

    def free(self) -> None:
        self._engine.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()


class InterpretedLayers:
    """The same in numpy, for tests: the caller's tensors lie in the memory of the host, and the call returns when it
    is done. Caches are copied in and out."""

    def __init__(
        self, schedule: Schedule, certificate: Any, source: TensorSource, quantise: Quantiser = nearest
    ) -> None:
        self.schedule, self.certificate = schedule, certificate
        self._machine = Machine(schedule, source, numerics="device", quantise=quantise)
        self._machine.set("state", np.zeros(len(state_words(schedule.batch)), np.int32))

    def __call__(
        self,
        hidden_in: Any,
        out: Any,
        k_cache: Any = None,
        v_cache: Any = None,
        position: Any = None,
        stream: int = 0,
    ) -> None:
        if stream:
            raise _refused("the interpreter has no streams")
        memory = lent(self.schedule, (hidden_in, out, k_cache, v_cache, position), (CPU, 0))
        arrays = {name: _array(each) for name, each in memory.items()}
        for name, array in arrays.items():
            self._machine.set(name, array.copy())
        self._machine.launch(1)
        for name in arrays.keys() - {"hidden_in", "position"}:
            found = self._machine.get(name)
            arrays[name][:] = to_bf16_bits(found) if memory[name].dtype == "bf16" else found

    def free(self) -> None:
        """Nothing is held outside the process."""


def _array(memory: Borrowed) -> NDArray[Any]:
    """The caller's memory, flat; bf16 as its bits."""
    if memory.dtype not in _WORDS:
        raise _refused(f"the interpreter takes no {memory.dtype} from a caller")
    raw = (ctypes.c_uint8 * memory.nbytes).from_address(memory.address)
    return np.ctypeslib.as_array(raw).view(_WORDS[memory.dtype])
