"""The memory of a caller: what a call of layers takes, what it refuses, and the torch operator over it."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from amk.api.layers import layers, lm_head
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
        "hidden_in": torch.randn(MODEL.hidden, generator=draw), "out": torch.zeros(MODEL.hidden),
        "k_cache": torch.zeros(shape, dtype=torch.bfloat16), "v_cache": torch.zeros(shape, dtype=torch.bfloat16),
        "position": torch.zeros(1, dtype=torch.int32),
    }  # fmt: skip


def test_the_certificate_is_attached_and_is_that_of_the_schedule(call: Any) -> None:
    assert check_certificate(call.schedule, schedule_hash(call.schedule), call.certificate).accepted
    assert call.schedule.model.slice.first == 1


@pytest.fixture(scope="module")
def head() -> Any:
    return lm_head(MODEL, gpu="h200", device="interpreter", weights=RandomTensors(MODEL))


def test_the_output_head_is_a_call_with_a_certificate(head: Any) -> None:
    assert check_certificate(head.schedule, schedule_hash(head.schedule), head.certificate).accepted
    source, hidden, logits = RandomTensors(MODEL), memory()["hidden_in"], torch.zeros(MODEL.vocab)
    head(hidden, logits)
    state = hidden.numpy()
    normed = state / np.sqrt(np.mean(state**2) + MODEL.rms_eps) * source.tensor("final_norm")
    wanted = source.tensor("lm_head") @ normed
    np.testing.assert_allclose(logits.numpy(), wanted, atol=2e-2 * np.abs(wanted).max())


def test_layers_with_the_head_are_the_layers_and_then_the_head(head: Any) -> None:
    source = RandomTensors(MODEL)
    both = layers(MODEL, 1, 3, head=True, gpu="h200", device="interpreter", weights=source, max_context=CONTEXT)
    assert check_certificate(both.schedule, schedule_hash(both.schedule), both.certificate).accepted
    one, other = memory(), memory()
    apart, together = torch.zeros(MODEL.vocab), torch.zeros(MODEL.vocab)
    called()(**one)
    head(one["out"], apart)
    both(**other | {"out": together})
    assert torch.equal(one["k_cache"], other["k_cache"]) and torch.equal(one["v_cache"], other["v_cache"])
    assert (apart - together).abs().max() <= 2e-2 * together.abs().max() > 0


@pytest.mark.turns(4)
def test_the_operator_of_the_head_is_one_that_torch_can_trace(head: Any) -> None:
    hidden, number = memory()["hidden_in"].view(1, 1, -1), registered(head)
    found = torch.library.opcheck(torch.ops.amk.lm_head.default, (number, hidden))
    assert set(found.values()) == {"SUCCESS"}, found
    logits = torch.zeros(MODEL.vocab)
    head(hidden.view(-1), logits)
    out = torch.ops.amk.lm_head(number, hidden)
    assert out.shape == (1, 1, MODEL.vocab) and torch.equal(out.view(-1), logits)
    forget(number)


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
    arguments = memory()
    arguments["position"].fill_(5)
    call(**arguments)
    assert arguments["out"].abs().sum() > 0
    rows = arguments["k_cache"].abs().sum(dim=(0, 1, 3))
    assert rows[5] > 0 and (rows.nonzero() == 5).all()


def wrong(name: str) -> dict[str, torch.Tensor]:
    arguments = memory()
    changes = {
        "another type": ("hidden_in", arguments["hidden_in"].double()),
        "another shape": ("k_cache", arguments["k_cache"][:1]),
        "not dense": ("v_cache", torch.zeros(2, 2, 32, CONTEXT, dtype=torch.bfloat16).transpose(2, 3)),
        "in place": ("out", arguments["hidden_in"]),
        "off its alignment": ("hidden_in", torch.zeros(MODEL.hidden + 1)[1:]),
    }
    return arguments | dict([changes[name]])


@pytest.mark.parametrize("name", ["another type", "another shape", "not dense", "in place", "off its alignment"])
def test_memory_that_the_proof_is_not_about_is_refused(call: Any, name: str) -> None:
    with pytest.raises(AmkError) as refused:
        call(**wrong(name))
    assert refused.value.diagnostics[0].code == "AMK005"


@pytest.mark.parametrize("alone", [False, True], ids=["layers", "head"])
def test_arguments_are_told_apart_by_their_names(call: Any, head: Any, alone: bool) -> None:
    """Every other choice of arguments, though what is given in the place of another has its shape."""
    taken = head if alone else call
    every = memory()
    if alone:
        every |= {name: torch.zeros(MODEL.vocab) for name in ("out", "k_cache", "v_cache", "position")}
    right = {"hidden_in", "out"} if alone else set(every)
    for chosen in (set(each) for count in range(6) for each in combinations(every, count)):
        arguments = {name: every[name] if name in chosen else None for name in every}
        if chosen == right:
            taken(**arguments)
            continue
        with pytest.raises(AmkError, match=r"AMK005.*and was given") as refused:
            taken(**arguments)
        message = str(refused.value).partition("was given ")[2]
        assert all((name in message) == (name in chosen) for name in every if name != "out")


@pytest.mark.turns(4)
def test_the_operator_is_one_that_torch_can_trace(call: Any) -> None:
    buffers, number = memory(), registered(call)
    hidden = buffers["hidden_in"].view(1, 1, -1)
    arguments = number, hidden, buffers["k_cache"], buffers["v_cache"], buffers["position"]
    found = torch.library.opcheck(torch.ops.amk.layers.default, arguments)
    assert set(found.values()) == {"SUCCESS"}, found
    out = torch.ops.amk.layers(*arguments)
    call(**memory() | {"out": buffers["out"]})
    assert out.shape == hidden.shape and torch.equal(out.view(-1), buffers["out"])
    forget(number)
    with pytest.raises(KeyError):
        torch.ops.amk.layers(*arguments)


def test_what_there_is_no_call_for_is_refused() -> None:
    with pytest.raises(ValueError, match="no slice"):
        called(2, 4)
    with pytest.raises(ValueError, match="no slice"):
        layers(MODEL, 0, 2, head=True, gpu="h200", device="interpreter", weights=RandomTensors(MODEL))
    with pytest.raises(AmkError) as refused:
        layers(MODEL, 0, 1, gpu="h200", device="interpreter")
    assert refused.value.diagnostics[0].code == "AMK005"
    centred = tiny_model(**NEOX)
    with pytest.raises(AmkError) as refused:
        layers(centred, 0, 1, gpu="h200", device="interpreter", weights=RandomTensors(centred))
    assert refused.value.diagnostics[0].code == "AMK016"
