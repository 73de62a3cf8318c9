"""A recorded launch: the cycle counter of its SM after every step of every warp, for the last token of the launch.

The file is JSON: what was run and where, and `marks`, the counters as little-endian 32-bit words in base64, shaped
[workers, warps, length]. Entry 0 of a warp is the start of the token, entry i the end of its i-th step; a warp with
fewer steps leaves the rest as they were. The counters of different SMs do not start together, so times of different
workers are compared from the start of the token on each. A token lasts less than 2^31 cycles.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from amk.lowering.emit import trace_length
from amk.report.diagnostic import AmkError, Diagnostic, Where
from amk.report.json_file import read_json
from amk.report.schema import schema_error
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.memory import Frozen
from amk.schedule_ir.schedule import Schedule

MAX_BYTES: Final = 256 * 2**20
U32 = npt.NDArray[np.uint32]


class Recording(Frozen):
    """schedule: hash of what ran; token_us: time of a token, measured between two events; pos: of the last token."""

    format: Literal["amk.recording/1"] = "amk.recording/1"
    schedule: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    device: Annotated[str, Field(max_length=200)]
    pos: Annotated[int, Field(ge=0, le=2**24)]
    token_us: Annotated[float, Field(gt=0, lt=1e9, allow_inf_nan=False)]
    shape: tuple[
        Annotated[int, Field(ge=1, le=4096)], Annotated[int, Field(ge=1, le=32)], Annotated[int, Field(ge=2, le=10**6)]
    ]
    marks: str

    @classmethod
    def of(cls, schedule: Schedule, device: str, pos: int, token_us: float, marks: U32) -> Recording:
        """marks: [workers, warps, length]."""
        words = base64.b64encode(np.ascontiguousarray(marks, "<u4").tobytes()).decode("ascii")
        shape = (marks.shape[0], marks.shape[1], marks.shape[2])
        return cls(
            schedule=schedule_hash(schedule), device=device, pos=pos, token_us=token_us, shape=shape, marks=words
        )

    def cycles(self) -> npt.NDArray[np.int64]:
        """[workers, warps, length] cycles since the first warp of the same worker began the token."""
        marks = np.frombuffer(base64.b64decode(self.marks, validate=True), "<u4").reshape(self.shape)
        since = (marks - marks[:, :1, :1]).astype(np.int32).astype(np.int64)  # wraps with the counter
        cycles: npt.NDArray[np.int64] = since - since[:, :, 0].min(axis=1)[:, None, None]
        return cycles


def read_recording(path: Path, schedule: Schedule) -> Recording:
    """AMK00x for a file that is none, AMK005 for one of another schedule."""
    raw = read_json(path, MAX_BYTES)
    where = Where(file=str(path))
    if isinstance(raw, dict) and isinstance(raw.get("shape"), list):
        raw |= {"shape": tuple(raw["shape"])}
    try:
        recording = Recording.model_validate(raw)
    except ValidationError as error:
        raise schema_error(error, str(path)) from error
    launch = schedule.launch
    wanted = (launch.workers, launch.warps, trace_length(schedule))
    if recording.schedule != schedule_hash(schedule) or recording.shape != wanted:
        message = f"the recording is of another schedule, {recording.schedule[:12]}"
        raise AmkError(Diagnostic("AMK005", message, where=where, help="give the schedule that was recorded"))
    try:
        size = len(base64.b64decode(recording.marks, validate=True))
    except (binascii.Error, ValueError) as error:
        raise AmkError(Diagnostic("AMK005", f"the marks are not base64: {error}", where=where)) from error
    if size != 4 * int(np.prod(wanted)):
        message = f"the marks hold {size:,} bytes, the shape needs {4 * int(np.prod(wanted)):,}"
        raise AmkError(Diagnostic("AMK005", message, where=where))
    return recording
