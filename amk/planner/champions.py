"""Plans that searches on a GPU found faster than the planner's, each as what it differs in: settings, then edits.

An entry is for one shape of model, one weight format, one GPU and one number of sequences, with a bf16 cache that has
as many splits as the plan that was measured. Its edits name steps, so they fit every length of the cache with those
splits. Where one of them does not apply, the planner's own plan stands. Searches measure greedy choice; a plan that
draws has the same edits, and its time was not measured. A test verifies every entry at several lengths of the cache.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from amk.models.model import load_model
from amk.models.model_spec import ModelSpec
from amk.planner.formats import Layered, label_of
from amk.planner.settings import FAST, Settings
from amk.planner.space import Value
from amk.report.diagnostic import AmkError
from amk.report.json_file import read_json
from amk.report.schema import schema_error
from amk.schedule_ir.edits.apply import apply
from amk.schedule_ir.edits.kinds import Edit
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import Target

SHIPPED = Path(str(files("amk.planner") / "champions.json"))
MOST_BYTES = 1 << 20
SHAPE = (
    "family", "layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab", "qkv_bias", "qk_norm", "parallel",
    "activation", "rotary_dim", "slice",
)  # fmt: skip
"""What the steps and shares of a plan depend on; names, tied embeddings and rotary frequencies are no part of it."""


class Champion(BaseModel):
    """batch: sequences decoded together. splits: of the cache of the plan that was measured. gain: log speed over the
    planner's plan of its time. settings: values that differ from that. record: of the search, in the repository.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    model: str
    target: str
    dtype: str
    batch: Annotated[int, Field(ge=1)]
    splits: Annotated[int, Field(ge=1)]
    gain: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    settings: Mapping[str, Value]
    edits: Annotated[tuple[Edit, ...], Field(strict=False)]
    record: str

    def fits(self, model: ModelSpec, target: Target, runs: Layered, batch: int) -> bool:
        """Whether it is of this problem."""
        if (self.target, self.dtype, self.batch) != (target.name, label_of(runs), batch):
            return False
        measured = load_model(self.model)
        return all(getattr(measured, name) == getattr(model, name) for name in SHAPE)

    def edited(self, schedule: Schedule) -> Schedule | None:
        """The plan with those settings, edited; None where the edits are for another one."""
        if schedule.kv.splits != self.splits:
            return None
        try:
            return apply(schedule, self.edits).schedule
        except AmkError:
            return None


@cache
def champions(path: Path = SHIPPED) -> tuple[Champion, ...]:
    """The entries of a file. AMK005 for one that is none."""
    try:
        return tuple(Champion.model_validate_json(json.dumps(entry)) for entry in read_json(path, MOST_BYTES))
    except ValidationError as error:
        raise schema_error(error, str(path)) from error


def champion_of(model: ModelSpec, target: Target, runs: Layered, settings: Settings) -> Champion | None:
    """The entry for a plan of these settings, if it is the fast one and there is one."""
    if replace(settings, batch=FAST.batch, sampling=FAST.sampling, max_tokens=FAST.max_tokens) != FAST:
        return None
    return next((entry for entry in champions() if entry.fits(model, target, runs, settings.batch)), None)
