"""Prompts by two more schedules of the same model, which read several rows of a text a step: without torch.

Steps without output head read all but the end of a prompt. Its last rows are read by a step that has one, which tells
the logits behind the last token: the first token of an answer needs no step of one row.

Each schedule is SAFE by itself, and `validator.together` holds that their launches may take turns: caches and constants
are one memory, packed weights too where they are the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from amk.engine.backends.schedule_backend import ScheduleEngine
from amk.models.row_groups import TensorSource
from amk.planner.decode import plan
from amk.planner.replan import formats_of
from amk.planner.settings import FAST
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.schedule import Schedule
from amk.validator.together import OWN, apart, crowded, one_packing
from amk.weights.bfloat import F32
from amk.weights.quantised import Quantiser

if TYPE_CHECKING:
    from amk.engine.backends.cuda_engine import CudaEngine

ROWS = (64, 32, 16, 8)
"""Of a step, as many as shared memory holds."""


def least(rows: int) -> int:
    """Tokens that are worth a step of so many rows: of llama3-8b on an H200 it costs 1.2 (8), 2.1 (32) and 2.5 (64)
    times one of one row."""
    return 2 + rows // 32


@dataclass(frozen=True)
class Behind:
    """What the model says behind the token in a row of the engine's last step. largest: the token with the largest
    logit. True until the engine runs again."""

    engine: ScheduleEngine
    row: int
    largest: int

    def logits(self) -> F32:
        return self.engine.logits(self.row)


class StepPrompts:
    """Reads prompts by steps of `engine`, whose caches are those of the engine that goes on, and their ends by steps of
    `last`, which has an output head.

    Rows of a step that are behind the prompt write to the cache there; whatever comes there overwrites it.
    """

    def __init__(self, engine: ScheduleEngine, last: ScheduleEngine | None = None) -> None:
        self.engine, self.last = engine, last

    def read(self, tokens: Sequence[int], start: int, sequence: int = 0) -> bool:
        """Append tokens at position `start`; False where they are few, or the context ends before a step does."""
        found = self._whole_steps(tokens, start)
        if found is None:
            return False
        text, last = found
        self.engine.request(text, start=last)
        self.engine.step(1)
        return True

    def read_all(self, tokens: Sequence[int], start: int) -> Behind | None:
        """Append all tokens of a text. None where `read` returns False, or where all but one fill steps: the schedule
        of one row reads that one sooner."""
        if self.last is None or len(tokens) % self.engine.schedule.rows == 1:
            return None
        found = self._whole_steps(tokens, start)
        if found is None:
            return None
        text, last = found
        self.last.request(text, start=last, prompt_length=last + 1)
        row = len(text) - 1 - last
        return Behind(self.last, row, int(self.last.step(1).reshape(-1)[row]))

    def _whole_steps(self, tokens: Sequence[int], start: int) -> tuple[list[int], int] | None:
        """Read all but what the last step reads: the text, as far as it is known, and where that step begins."""
        schedule = self.engine.schedule
        rows, steps = schedule.rows, -(-len(tokens) // schedule.rows)
        last = min(start + (steps - 1) * rows, schedule.kv.context - rows)  # one that begins earlier reads some again
        if len(tokens) < least(rows) or last < start:
            return None
        text, left = [*(0 for _ in range(start)), *map(int, tokens)], steps - 1
        if left:
            self.engine.request(text, start=start)
        while left:
            count = min(left, schedule.launch.max_tokens)
            self.engine.step(count)
            left -= count
        return text, last

    def free(self) -> None:
        if self.last is not None:
            self.last.free()
        self.engine.free()


def in_steps(schedule: Schedule) -> Schedule:
    """The plan that reads prompts for `schedule`, of one sequence and one row, in its caches: that of the most rows for
    which there is room beside it. Plans of fewer rows may do with its packed weights.

    AMK016 for other schedules, and what keeps the two from taking turns.
    """
    if schedule.vectors > 1:
        message = f"no steps of several rows read prompts where a step reads {schedule.vectors} tokens"
        raise AmkError(Diagnostic("AMK016", message))
    choices = [rows for rows in ROWS if rows <= schedule.kv.context] or ROWS[-1:]
    for rows in choices:
        try:
            found = _planned(schedule, rows, headless=True)
        except AmkError as error:
            if error.diagnostics[0].code != "AMK401" or rows == choices[-1]:
                raise
            continue
        if diagnostics := apart(found, schedule):
            raise AmkError(tuple(diagnostics))
        if not (full := crowded((schedule, found))):
            return found
        if rows == ROWS[-1]:
            raise AmkError(tuple(full))
    raise AssertionError("the last plan is found or raises")


def last_step(schedule: Schedule, steps: Schedule) -> Schedule | None:
    """The plan with output head that takes turns with both; None where memory has no room for it."""
    try:
        found = _planned(schedule, steps.rows, headless=False)
    except AmkError as error:
        if error.diagnostics[0].code != "AMK401":
            raise
        return None
    if diagnostics := [*apart(found, schedule), *apart(found, steps)]:
        raise AmkError(tuple(diagnostics))
    return None if crowded((schedule, steps, found)) else found


def _planned(schedule: Schedule, rows: int, headless: bool) -> Schedule:
    settings = replace(FAST, kv_dtype=schedule.kv.dtype, rows=rows, headless=headless)
    wanted, context = formats_of(schedule), schedule.kv.context
    return plan(schedule.model, schedule.target, settings=settings, formats=wanted, max_context=context)


Pack = Callable[["CudaEngine"], None]
"""Writes the packed weights of an engine, and those constants that it has for itself."""


def step_prompts(engine: CudaEngine, source: TensorSource, quantise: Quantiser) -> StepPrompts:
    """A reader for an engine on a GPU, proved, compiled and packed; it uses the engine's caches and constants."""

    def pack(step_engine: CudaEngine) -> None:
        from amk.engine.device_packing import pack_into

        scales = pack_into(step_engine, source, quantise)
        step_engine.upload_constants({name: values for name, values in scales.items() if name not in engine.buffers})

    return steps_beside(engine, pack)


def steps_beside(engine: CudaEngine, pack: Pack) -> StepPrompts:
    """As `step_prompts`, where somebody else packs."""
    steps = in_steps(engine.schedule)
    step_engine = beside(steps, (engine,), pack)
    with ExitStack() as memory:
        memory.callback(step_engine.free)
        last = last_step(engine.schedule, steps)
        prompts = StepPrompts(step_engine, beside(last, (engine, step_engine), pack) if last is not None else None)
        memory.pop_all()
    return prompts


def beside(schedule: Schedule, others: Sequence[CudaEngine], pack: Pack) -> CudaEngine:
    """An engine that uses caches, constants and, where they are the same bytes, packed weights of others."""
    from amk.engine.admission.admission import started
    from amk.engine.backends.cuda_engine import CudaEngine

    (stream,) = schedule.streams
    own = OWN | {"request", "prompt", stream.source}
    names = {b.name for b in schedule.buffers if b.space == "global" and b.role != "scratch"} - own
    shared = {name: other.buffers[name] for other in reversed(others) for name in names if name in other.buffers}
    lender = next((other for other in others if one_packing(schedule, other.schedule)), None)
    if lender is not None:
        shared[stream.source] = lender.buffers[stream.source]
    engine = CudaEngine(started(schedule), others[0].device, buffers=shared)
    with ExitStack() as memory:
        memory.callback(engine.free)
        if lender is None:
            pack(engine)
        engine.reset()
        memory.pop_all()
    return engine
