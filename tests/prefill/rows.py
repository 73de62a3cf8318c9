"""What a schedule's matrices stand for, computed from the tensors and not from the packed bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.models.matrices import MatrixName
from amk.schedule_ir.schedule import Schedule
from amk.weights.quantised import nearest
from tests.reference.codes import numbers


def stored_rows(schedule: Schedule, source: Any, name: MatrixName, layer: int) -> NDArray[np.float32]:
    """f32 [rows, k], the tensors of a matrix below each other."""
    tensors = schedule.model.graph.products[name].rows
    rows = np.concatenate([source.tensor(f"l{layer}.{tensor.name}") for tensor in tensors])
    form = schedule.streams[0].chunk(name, layer).weights
    if form.codes == "bf16":
        return rows
    codes = nearest(rows, form)
    found = numbers(form.codes, form.group, codes.codes, codes.scales, codes.zeros).astype(np.float32)
    assert np.abs(found - rows).max() > 0, "quantising changes something"
    return found
