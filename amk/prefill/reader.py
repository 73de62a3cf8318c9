"""Long prompts by torch for an engine on a GPU, where torch can use it."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING, Literal, TypeVar

from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.weights.bfloat import F32

if TYPE_CHECKING:  # torch is imported when a reader is made for it, the others where a schedule runs
    from amk.engine.backends.cuda_engine import CudaEngine
    from amk.prefill.forward import PromptForward
    from amk.schedule_ir.schedule import Schedule

Prefill = Literal["auto", "torch", "rows", "kernel"]
"""What reads a prompt: torch where it is there and the prompt is long enough, torch always, a kernel of
several rows a step (`engine.step_prompts`), the schedule's kernel."""

FROM_TOKENS = 6
"""With 'auto': tokens from which torch reads them. On an H200, with layers that stay unpacked, it is faster than the
kernel from 4 tokens of llama3-8b in bf16 and from 6 in int4."""
BUFFERS = ("embedding", "norm", "rope", "k_cache", "v_cache")
"""Buffers that a schedule must have under these names."""
MOST_HEAD_DIM = 256
PAUSE = 0.25
"""Seconds."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Behind:
    """What the model says behind a token: logits f32 [vocab]."""

    behind: F32

    @property
    def largest(self) -> int:
        return int(self.behind.argmax())

    def logits(self) -> F32:
        return self.behind


class TorchPrompts:
    """Reads prompts into the cache of an engine. Torch is imported and prepared in a thread, as that takes seconds:
    when the first prompt needs it, or PAUSE after the engine is there, so that a short prompt is answered before.

    least: tokens from which on it does. forced: an error where torch cannot, instead of leaving it to the kernel.
    """

    def __init__(self, engine: CudaEngine, least: int = FROM_TOKENS, forced: bool = False) -> None:
        self.least, self.forced = least, forced
        self._engine = engine
        self._forward: PromptForward | None = None
        self._failed: Exception | None = None
        self._demand, self._is_freed = Event(), False
        self._preparing = Thread(target=self._prepare, daemon=True)
        self._preparing.start()

    def free(self) -> None:
        """Let go of the engine, which is freed next: what is being prepared reads its weights."""
        self._is_freed = True
        self._demand.set()
        self._preparing.join()
        self._forward = None
        vars(self).pop("_graphs", None)

    def read(self, tokens: Sequence[int], start: int, sequence: int = 0) -> bool:
        """Append tokens at `start` to the cache of a sequence; False where the kernel has to, as they are few.

        Also where torch cannot use the GPU or its memory is full, which is AMK019 if it is forced and otherwise one
        warning. AMK603 where an error of torch is one of the device, which then computes nothing any more. In order on
        the engine's stream: launches that follow find the tokens.
        """
        if len(tokens) < self.least:
            return False

        def by(forward: PromptForward) -> bool:
            if (start, sequence) != (0, 0) or not self._graphs.read(tokens):
                forward.read(tokens, start, sequence)
            return True

        return self._by_torch(by) or False

    def read_all(self, tokens: Sequence[int], start: int) -> Behind | None:
        """Append all tokens of the only text. None where `read` returns False, where the last token alone is left for
        the kernel, or where there is no room for lm_head in bf16."""
        if len(tokens) <= self.least:
            return None

        def by(forward: PromptForward) -> Behind | None:
            if forward.head is None:
                return None
            logits = self._graphs.behind(tokens) if start == 0 else None
            found = forward.behind(tokens, start) if logits is None else logits
            return Behind(found.cpu().numpy())

        return self._by_torch(by)

    def _by_torch(self, work: Callable[[PromptForward], Result]) -> Result | None:
        """What comes of the work on the engine's stream; None where torch cannot do it."""
        self._demand.set()
        self._preparing.join()
        if self._forward is not None:
            import torch

            try:
                with torch.cuda.stream(self._stream):
                    return work(self._forward)
            except torch.OutOfMemoryError as error:
                self._forward, self._failed = None, error
            except RuntimeError:
                self._require_device()
                raise
        if self._failed is not None:
            self._require_device()
        if self.forced:
            raise unusable(str(self._failed)) from self._failed
        if self._failed is not None:
            warnings.warn(f"the kernel reads prompts, as torch cannot: {self._failed}", RuntimeWarning, stacklevel=3)
            self._failed = None
        return None

    def _require_device(self) -> None:
        """AMK603, as behind a kernel of the schedule, where an error has made the context useless."""
        self._engine.device.make_current()
        self._engine.stream.synchronise()

    def _prepare(self) -> None:
        self._demand.wait(PAUSE)
        if self._is_freed:
            return
        try:
            self._forward = self._start()
        except Exception as error:  # noqa: BLE001  told where the first prompt is read
            self._failed = error

    def _start(self) -> PromptForward:
        import torch

        from amk.prefill.device_matrices import DeviceMatrices
        from amk.prefill.forward import PromptForward
        from amk.prefill.graphs import PromptGraphs
        from amk.prefill.views import view

        engine = self._engine
        if not torch.cuda.is_available():
            raise RuntimeError("it finds no GPU")
        engine.device.make_current()
        self._stream = torch.cuda.ExternalStream(int(engine.stream.handle), device=engine.device.ordinal)
        (stream,) = engine.schedule.streams
        streamed = {stream.source, stream.ring, stream.full}
        names = [name for name in engine.buffers if name not in streamed and _is_read(name)]
        buffers, matrices = {name: view(engine, name) for name in names}, DeviceMatrices(engine)
        forward = PromptForward(engine.schedule, buffers, matrices, head=matrices.head)
        self._graphs = PromptGraphs(forward, engine.schedule.kv.context)
        return forward


def _is_read(name: str) -> bool:
    return name in (*BUFFERS, "norm_shift", "q_norm", "k_norm") or name.endswith("_bias")


def prompts_of(engine: CudaEngine, choice: Prefill) -> TorchPrompts | None:
    """The reader that was asked for; None for the kernel. AMK019 where torch was asked for and cannot read."""
    if choice in ("kernel", "rows"):
        return None
    reason = why_not(engine.schedule)
    if reason is None:
        return TorchPrompts(engine, FROM_TOKENS if choice == "auto" else 1, forced=choice == "torch")
    if choice == "torch":
        raise unusable(reason)
    return None


def unusable(reason: str) -> AmkError:
    return AmkError(Diagnostic("AMK019", f"torch cannot read prompts: {reason}"), Exit.UNKNOWN)


def why_not(schedule: Schedule) -> str | None:
    """None where torch may read prompts for the schedule; whether it can use the GPU shows when it is imported."""
    from amk.schedule_ir.ops import OPS

    if importlib.util.find_spec("torch") is None:
        return "it is not installed"
    missing = sorted(set(BUFFERS) - {buffer.name for buffer in schedule.buffers})
    if missing:
        return f"the schedule has no buffer {missing[0]}"
    if len(schedule.streams) != 1:
        return "the schedule has several streams of weights"
    if schedule.model.head_dim > MOST_HEAD_DIM:
        return f"its attention has heads of at most {MOST_HEAD_DIM}"
    activation = schedule.model.graph.products["gate_up"].taken_by
    if "activated_in_torch" not in vars(OPS[activation]):
        return f"it has no {activation}"
    return None
