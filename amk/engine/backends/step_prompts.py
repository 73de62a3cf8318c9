"""Prompts by a second schedule of the same model, which reads several rows of a text a step: without torch.

It has no output head: the last token of a prompt is read by the schedule that goes on, which chooses.

Both schedules are SAFE by themselves, and `validator.together` holds that their launches may take turns: caches and
constants are one memory, packed weights too where they are the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from amk.engine.backends.schedule_backend import ScheduleEngine
from amk.interpreter.packing import pack_weights
from amk.models.row_groups import TensorSource
from amk.planner.decode import plan
from amk.planner.replan import formats_of
from amk.planner.settings import FAST
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.schedule import Schedule
from amk.validator.together import OWN, apart, crowded, one_packing
from amk.weights.bfloat import Bits
from amk.weights.quantised import Quantiser

if TYPE_CHECKING:
    from amk.engine.backends.cuda_engine import CudaEngine

ROWS = (64, 32, 16, 8)
"""Of a step, as many as shared memory holds."""
LEAST = 2
"""Tokens that are worth a step: it costs a third more than one of one row."""


class StepPrompts:
    """Reads prompts by steps of `engine`, whose caches are those of the engine that goes on.

    Rows of the last step that are behind the prompt write to the cache there; whatever comes there overwrites it.
    """

    def __init__(self, engine: ScheduleEngine) -> None:
        self.engine = engine

    def read(self, tokens: Sequence[int], start: int, sequence: int = 0) -> bool:
        """Append tokens at position `start`; False where they are few, or the context ends before a step does."""
        schedule = self.engine.schedule
        rows, steps = schedule.rows, -(-len(tokens) // schedule.rows)
        last = min(start + (steps - 1) * rows, schedule.kv.context - rows)  # one that begins earlier reads some again
        if len(tokens) < LEAST or last < start:
            return False
        text = [*(0 for _ in range(start)), *map(int, tokens)]
        self._steps(text, start, steps - 1)
        self._steps(text, last, 1)
        return True

    def _steps(self, text: list[int], start: int, steps: int) -> None:
        if steps:
            self.engine.request(text, start=start)
        while steps:
            count = min(steps, self.engine.schedule.launch.max_tokens)
            self.engine.step(count)
            steps -= count

    def free(self) -> None:
        self.engine.free()


def in_steps(schedule: Schedule) -> Schedule:
    """The plan that reads prompts for `schedule`, of one sequence and one row, in its caches: that of the most rows for
    which there is room beside it. Plans of fewer rows may do with its packed weights.

    AMK016 for other schedules, and what keeps the two from taking turns.
    """
    if schedule.vectors > 1:
        message = f"no steps of several rows read prompts where a step reads {schedule.vectors} tokens"
        raise AmkError(Diagnostic("AMK016", message))
    settings = replace(FAST, kv_dtype=schedule.kv.dtype)
    choices = [rows for rows in ROWS if rows <= schedule.kv.context] or ROWS[-1:]
    for rows in choices:
        try:
            found = plan(
                schedule.model,
                schedule.target,
                settings=replace(settings, rows=rows, headless=True),
                wanted=formats_of(schedule),
                max_context=schedule.kv.context,
            )
        except AmkError as error:
            if error.diagnostics[0].code != "AMK401" or rows == choices[-1]:
                raise
            continue
        if told := apart(found, schedule):
            raise AmkError(tuple(told))
        if not (full := crowded((schedule, found))):
            return found
        if rows == ROWS[-1]:
            raise AmkError(tuple(full))
    raise AssertionError("the last plan is found or raises")


def step_prompts(engine: CudaEngine, source: TensorSource, quantise: Quantiser) -> StepPrompts:
    """A reader for an engine on a GPU, proved, compiled and packed; it uses the engine's caches and constants."""
    from amk.engine.admission.admission import started
    from amk.engine.backends.cuda_engine import CudaEngine

    schedule = in_steps(engine.schedule)
    (stream,) = schedule.streams
    packed = one_packing(schedule, engine.schedule)
    own = OWN | {"request", "prompt"} | (set() if packed else {stream.source})
    names = {b.name for b in schedule.buffers if b.space == "global" and b.role != "scratch"} - own
    shared = {name: engine.buffers[name] for name in names if name in engine.buffers}
    made = CudaEngine(started(schedule), engine.device, buffers=shared)

    def upload(first: int, weights: Bits) -> None:
        made.upload(stream.source, weights, first * stream.chunk_bytes)

    if not packed:
        scales = pack_weights(schedule, source, upload, None, quantise)
        made.upload_constants({name: values for name, values in scales.items() if name not in shared})
    made.reset()
    return StepPrompts(made)
