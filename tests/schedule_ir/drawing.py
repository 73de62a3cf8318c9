"""The drawing steps of a schedule run by themselves, over logits that a test makes up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.schedule_ir.expr import Env
from amk.schedule_ir.ops import BarrierOp, SignalOp, WaitOp
from amk.schedule_ir.ops.argmax_rows import NO_ROWS, head_rows
from amk.schedule_ir.ops.begin import pos_register, token_register
from amk.schedule_ir.sampling import Sampling
from amk.schedule_ir.schedule import Schedule, steps_of

Array = NDArray[Any]


class Memory:
    """What one agent sees: the global arrays, and its worker's shared ones."""

    def __init__(self, arrays: dict[str, Array], positions: Sequence[int]) -> None:
        self.arrays = arrays
        self.regs = {"epoch": 0, "done": 0} | {token_register(s): 0 for s in range(len(positions))}

    def read(self, buffer: str, lo: int, hi: int) -> Array:
        return self.arrays[buffer][lo:hi]

    def read_int(self, buffer: str, lo: int, hi: int) -> Array:
        return self.arrays[buffer][lo:hi].astype(np.int64)

    def write(self, buffer: str, lo: int, data: Any, run: int = 1) -> None:
        self.arrays[buffer][lo : lo + np.asarray(data).size] = data

    def tile(self, *_: Any) -> Array:
        raise AssertionError("drawing reads no weights")


class Drawing:
    """Every agent's steps behind argmax_rows, in program order, one step at a time."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.geo = schedule, schedule.geometry()
        steps = [step.op for step in steps_of(schedule.programs[0].body)]
        names = [op.op for op in steps]
        self.ops = [op for op in steps[names.index("peak") : names.index("select_draw") + 1]]
        self.ops = [op for op in self.ops if not isinstance(op, BarrierOp | WaitOp | SignalOp)]
        self.role = steps[names.index("argmax_rows")].role
        self.tables = {name: np.array(column) for name, column in schedule.tables.items()}

    def __call__(self, logits: Array, sampling: Sampling, pos: int = 0) -> tuple[int, int]:
        """(the chosen token, the key from which on rows were kept)."""
        return self.together([logits], [sampling], [pos])[0]

    def together(
        self, logits: Sequence[Array], samplings: Sequence[Sampling], positions: Sequence[int]
    ) -> list[tuple[int, int]]:
        """The same of each sequence of a batch, at positions of their own."""
        buffers = {b.name: b for b in self.schedule.buffers if b.name not in ("weights", "embedding", "ring", "full")}
        kinds = {"f32": np.float32, "bf16": np.float32, "i32": np.int32, "u32": np.int32}
        arrays = {name: np.zeros(b.elements, kinds[b.dtype]) for name, b in buffers.items() if "cache" not in name}
        arrays["logits"] = np.concatenate(logits).astype(np.float32)
        arrays["sampling"] = np.concatenate([sampling.words() for sampling in samplings])
        arrays["request"][1:] = -1
        shared = {name for name, b in buffers.items() if b.space == "shared"}
        views = [
            Memory(arrays | {name: arrays[name].copy() for name in shared}, positions)
            for _ in range(self.schedule.launch.workers)
        ]
        agents = self.geo.role_size[self.role]
        for worker, agent in np.ndindex(self.schedule.launch.workers, agents):
            _, lo, hi, slot = head_rows(self.env(worker, agent, positions[0]), self.geo, self.role)
            for s, own in enumerate(logits):
                best = own[lo:hi].max() if lo < hi else NO_ROWS
                arrays["best_value"][self.geo.row("best_value", s) + slot] = best
        for op in self.ops:
            for worker, view in enumerate(views):
                for agent in range(self.geo.role_size[op.role]):
                    view.regs |= {pos_register(s): pos for s, pos in enumerate(positions)}
                    op.reference(self.env(worker, agent, positions[0]), self.geo, view)
        return [self.agreed(views, s) for s in range(len(logits))]

    def agreed(self, views: list[Memory], sequence: int) -> tuple[int, int]:
        at = self.geo.row("pick", sequence)
        tokens = {view.regs[token_register(sequence)] for view in views}
        keeps = {int(view.arrays["pick"][at]) & 0xFFFFFFFF for view in views}
        assert len(tokens) == len(keeps) == 1, "the workers disagree"
        return tokens.pop(), keeps.pop()

    def env(self, worker: int, agent: int, pos: int) -> Env:
        return Env({"t": 0, "n": 0}, worker, agent, pos, self.tables)
