"""Predictions beside what others published for the same shapes: `python -m amk.bench.published` prints the table.

AutoMegaKernel publishes ratios to cuBLAS in bf16, not times. cuBLAS cannot read its weights faster than the data
sheet's bandwidth, so its kernel takes at least

    bytes of the bf16 weights / bandwidth / ratio

which is what its column says. Ours are times of the simulator: nothing of this table was measured by us.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from amk.models.matrices import MATRICES, matrix
from amk.models.model_spec import ModelSpec
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.report.json_file import read_json
from amk.simulator.floor import simulated_floor_ms
from amk.simulator.kinds import errors_on
from amk.simulator.predict import step_ms
from amk.targets.target import Target, load_target

POS = 0
CONTEXT = 2048
MOST_BYTES = 1 << 16


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Ratio(_Data):
    """cuBLAS's time in bf16 over the published kernel's in int8, for a shape on a target."""

    target: str
    shape: str
    ratio: Annotated[float, Field(gt=0, lt=100)]


class Published(_Data):
    sources: dict[str, str]
    shapes: dict[str, dict[str, int]]
    ratios: Annotated[tuple[Ratio, ...], Field(strict=False)]


def published() -> Published:
    return Published.model_validate(read_json(Path(str(files("amk.bench") / "published.json")), MOST_BYTES))


def model_of(name: str, shape: dict[str, int]) -> ModelSpec:
    named = {"name": f"published-{name.lower()}", "source": "published.json"}
    return ModelSpec.model_validate({**named, "max_context": CONTEXT, "rms_eps": 1e-5, "rope_theta": 1e4, **shape})


def weight_bytes(model: ModelSpec) -> int:
    """In bf16, of all matrices that a token reads."""
    shapes = {name: matrix(model, name) for name in MATRICES}
    return sum(2 * s.rows * s.k * (model.layers if s.per_layer else 1) for s in shapes.values())


def at_least_ms(model: ModelSpec, target: Target, ratio: float) -> float:
    """Bound on the published kernel's time, from its ratio to cuBLAS."""
    return weight_bytes(model) / (target.hbm_gbps * 1e6) / ratio


def table() -> str:
    head = (
        "| target | shape | amk bf16, simulated ms | amk int8, simulated ms | floor of int8 | AutoMegaKernel int8: "
        "times faster than cuBLAS bf16 | so it takes at least, ms |"
    )
    lines, data = [head, "|---|---|---|---|---|---|---|"], published()
    for row in data.ratios:
        model, target = model_of(row.shape, data.shapes[row.shape]), load_target(row.target)
        plans = [plan(model, target, formats=formats(form), max_context=CONTEXT) for form in ("bf16", "int8")]
        wide, narrow = (step_ms(schedule, POS) for schedule in plans)
        bound = at_least_ms(model, target, row.ratio)
        times = f"{wide:.2f} | {narrow:.2f} | {simulated_floor_ms(plans[1], POS):.2f}"
        lines.append(f"| {row.target} | {row.shape} | {times} | {row.ratio:.2f}x | {bound:.2f} |")
    sources = "\n".join(f"* {name}: {text}" for name, text in data.sources.items())
    return "\n".join(lines) + f"\n\n{sources}\n{errors_on(row.target for row in data.ratios)}"


if __name__ == "__main__":
    print(table())
