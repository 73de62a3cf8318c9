"""The memory of a caller: what a call of layers takes, what it refuses, and the torch operator over it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amk.api.layers import layers
from amk.checker.certificate import check_certificate
from amk.lowering.dlpack import borrow
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import schedule_hash
from tests.engine.tiny import NEOX, RandomTensors, tiny_model

torch = pytest.importorskip("torch")

from amk.torch_ops import forget, registered  # noqa: E402  after torch is known to be there

MODEL = tiny_model(layers=3)
CONTEXT = 16


def called(first: int = 1, stop: int = 3) -> Any:
    source = RandomTensors(MODEL)
    return layers(MODEL, first, stop, gpu="h200", device="interpreter", weights=source, max_context=CONTEXT)


@pytest.fixture(scope="module")
def call() -> Any:
    return called()


def memory() -> dict[str, torch.Tensor]:
    shape = 2, MODEL.kv_heads, CONTEXT, MODEL.head_dim
    draw = torch.Generator().manual_seed(1)
    return {
        "hidden_in": torch.randn(MODEL.hidden, generator=draw), "hidden_out": torch.zeros(MODEL.hidden),
        "k_cache": torch.zeros(shape, dtype=torch.bfloat16), "v_cache": torch.zeros(shape, dtype=torch.bfloat16),
        "position": torch.zeros(1, dtype=torch.int32),
    }  # fmt: skip


def test_the_certificate_is_attached_and_is_that_of_the_schedule(call: Any) -> None:
    assert check_certificate(call.schedule, schedule_hash(call.schedule), call.certificate).accepted
    assert call.schedule.model.slice.first == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_borrowed_memory_is_where_torch_has_it(dtype: torch.dtype) -> None:
    whole = torch.zeros((6, 4, 8), dtype=dtype)
    part = borrow(whole[2:4])
    assert part.address == whole[2:4].data_ptr() and part.nbytes == 2 * 32 * whole.element_size()
    assert (part.shape, part.contiguous, part.device) == ((2, 4, 8), True, (1, 0))
    assert not borrow(whole.transpose(0, 1)).contiguous
    assert part.overlaps(borrow(whole[3:5])) and not part.overlaps(borrow(whole[4:5]))
    found = borrow(np.zeros(3, np.float32))
    assert (found.dtype, found.shape) == ("f32", (3,))
    with pytest.raises(TypeError, match="no __dlpack__"):
        borrow([1.0])


def test_a_call_writes_the_callers_memory_at_the_position(call: Any) -> None:
    given = memory()
    given["position"].fill_(5)
    call(**given)
    assert given["hidden_out"].abs().sum() > 0
    rows = given["k_cache"].abs().sum(dim=(0, 1, 3))
    assert rows[5] > 0 and (rows.nonzero() == 5).all()


def wrong(name: str) -> dict[str, torch.Tensor]:
    given = memory()
    changes = {
        "another type": ("hidden_in", given["hidden_in"].double()),
        "another shape": ("k_cache", given["k_cache"][:1]),
        "not dense": ("v_cache", torch.zeros(2, 2, 32, CONTEXT, dtype=torch.bfloat16).transpose(2, 3)),
        "in place": ("hidden_out", given["hidden_in"]),
        "off its alignment": ("hidden_in", torch.zeros(MODEL.hidden + 1)[1:]),
    }
    return given | dict([changes[name]])


@pytest.mark.parametrize("name", ["another type", "another shape", "not dense", "in place", "off its alignment"])
def test_memory_that_the_proof_is_not_about_is_refused(call: Any, name: str) -> None:
    with pytest.raises(AmkError) as refused:
        call(**wrong(name))
    assert refused.value.diagnostics[0].code == "AMK005"


@pytest.mark.turns(2)
def test_the_operator_is_one_that_torch_can_trace(call: Any) -> None:
    given, number = memory(), registered(call)
    hidden = given["hidden_in"].view(1, 1, -1)
    arguments = number, hidden, given["k_cache"], given["v_cache"], given["position"]
    found = torch.library.opcheck(torch.ops.amk.layers.default, arguments)
    assert set(found.values()) == {"SUCCESS"}, found
    out = torch.ops.amk.layers(*arguments)
    call(**memory() | {"hidden_out": given["hidden_out"]})
    assert out.shape == hidden.shape and torch.equal(out.view(-1), given["hidden_out"])
    forget(number)
    with pytest.raises(KeyError):
        torch.ops.amk.layers(*arguments)


def test_what_there_is_no_call_for_is_refused() -> None:
    with pytest.raises(ValueError, match="no slice"):
        called(2, 4)
    with pytest.raises(AmkError) as refused:
        layers(MODEL, 0, 1, gpu="h200", device="interpreter")
    assert refused.value.diagnostics[0].code == "AMK005"
    centred = tiny_model(**NEOX)
    with pytest.raises(AmkError) as refused:
        layers(centred, 0, 1, gpu="h200", device="interpreter", weights=RandomTensors(centred))
    assert refused.value.diagnostics[0].code == "AMK016"
