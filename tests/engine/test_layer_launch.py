"""What a call on a GPU passes to the kernel, with the driver's memory played by the host's."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from amk.api.layers import layers
from amk.engine.admission import admission
from amk.engine.backends import cuda_engine
from amk.engine.backends.layer_call import GpuLayers, lent_buffers
from amk.lowering.dlpack import _Tensor
from amk.report.diagnostic import AmkError
from tests.emulator.host_driver import HostDriver, HostModules, host_device
from tests.engine.tiny import RandomTensors, tiny_model

MODEL = tiny_model(layers=3)
CODES = {"f32": (2, 32), "i32": (0, 32), "bf16": (4, 16)}
Launches = list[tuple[NDArray[np.void], Any]]


class OnGpu:
    """A tensor that says it is on GPU 0, as an exporter of DLPack does; it must not be asked to wait for anything."""

    def __init__(self, shape: tuple[int, ...], dtype: str, address: int, ordinal: int = 0) -> None:
        self._shape, (code, bits) = (ctypes.c_int64 * len(shape))(*shape), CODES[dtype]
        self._tensor = _Tensor(
            data=address, device_type=2, device_id=ordinal, ndim=len(shape), code=code, bits=bits, lanes=1,
            shape=self._shape,
        )  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._tensor.device_id

    def __dlpack__(self, stream: int | None = None) -> Any:
        assert stream == -1, "the caller's stream orders, nobody waits"
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return make(ctypes.addressof(self._tensor), b"dltensor", None)


CALLS: dict[str, tuple[tuple[int, int, bool], tuple[str, ...]]] = {
    "layers": ((1, 3, False), ("hidden_in", "hidden_out", "k_cache", "v_cache", "position")),
    "layers and head": ((1, 3, True), ("hidden_in", "logits", "k_cache", "v_cache", "position")),
    "head": ((3, 3, True), ("hidden_in", "logits")),
}
"""First layer, last but one, output head; and what the caller lends, in the order of the arguments."""


@pytest.fixture
def played(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[GpuLayers, Launches]:
    """The real call, but for the driver and the code; its launches are noted. Layers, unless a test asks for more."""
    launches: Launches = []
    admitted = {"certificate": {"format": "played"}, "loadable": bytes}
    monkeypatch.setattr(admission, "started", lambda schedule: SimpleNamespace(schedule=schedule, **admitted))
    monkeypatch.setattr(cuda_engine, "Module", HostModules())
    monkeypatch.setattr(
        cuda_engine, "CooperativeLaunch", lambda *_: lambda argument, stream: launches.append((argument, stream))
    )
    monkeypatch.setattr(cuda_engine, "check_loaded", lambda *_: None)
    monkeypatch.setattr("amk.lowering.launch.Device.open", lambda: host_device(HostDriver()))
    (first, stop, head), _ = CALLS[getattr(request, "param", "layers")]
    call = layers(MODEL, first, stop, head=head, gpu="h200", weights=RandomTensors(MODEL), max_context=16)
    assert isinstance(call, GpuLayers)
    return call, launches


def tensors(call: GpuLayers, **changes: Any) -> list[OnGpu]:
    buffers = {b.name: b for b in call.schedule.buffers}
    result = []
    for number, name in enumerate(lent_buffers(call.schedule.model)):
        fields = {"shape": buffers[name].shape, "dtype": buffers[name].dtype, "address": (number + 1) << 20}
        result.append(OnGpu(**fields | changes.get(name, {})))
    return result


@pytest.mark.parametrize(("played", "lent"), [(name, lent) for name, (_, lent) in CALLS.items()], indirect=["played"])
def test_the_kernel_is_given_the_callers_memory_and_its_own(
    played: tuple[GpuLayers, Launches], lent: tuple[str, ...]
) -> None:
    call, launches = played
    bound = call.bind(*tensors(call))
    bound.enqueue(7)
    bound.enqueue(8)
    (first, one), (second, other) = launches
    assert (one, other) == (7, 8) and first.tobytes() == second.tobytes(), (
        "every launch is the same: it can be replayed"
    )
    assert [int(first[f"b_{name}"]) for name in lent] == [(n + 1) << 20 for n in range(len(lent))]
    assert int(first["tokens"]) == 1
    names = first.dtype.names or ()
    own = [int(first[name]) for name in names if name.startswith("b_") and name.removeprefix("b_") not in lent]
    assert len(set(own)) == len(own) and {int(first["b_state"]), int(first["b_weights"])} <= set(own)
    assert not set(lent) & call._engine.buffers.keys(), "the engine allocates nothing that the caller owns"


def test_a_call_allocates_and_writes_nothing(played: tuple[GpuLayers, Launches]) -> None:
    call, launches = played
    driver: Any = call._engine.device.driver
    before = {address: memory.tobytes() for address, memory in driver.held.items()}
    call(*tensors(call), stream=7)
    assert len(launches) == 1
    assert {address: memory.tobytes() for address, memory in driver.held.items()} == before


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("hidden_in", {"address": (1 << 20) + 4}),
        ("hidden_out", {"address": (1 << 20) + 16}),
        ("k_cache", {"shape": (3, MODEL.kv_heads, 16, MODEL.head_dim)}),
        ("v_cache", {"dtype": "f32"}),
        ("position", {"ordinal": 1}),
    ],
)
def test_other_memory_is_refused(played: tuple[GpuLayers, Launches], name: str, change: dict[str, Any]) -> None:
    call, launches = played
    with pytest.raises(AmkError) as refused:
        call(*tensors(call, **{name: change}))
    assert refused.value.diagnostics[0].code == "AMK005" and not launches


@pytest.mark.parametrize("played", CALLS, indirect=True)
def test_another_number_of_tensors_is_refused(played: tuple[GpuLayers, Launches]) -> None:
    call, launches = played
    arguments = tensors(call)
    others = arguments[:-1], [*arguments, OnGpu((1,), "i32", 9 << 20)] if len(arguments) == 2 else arguments[:2]
    for tensors_given in others:
        with pytest.raises((AmkError, TypeError)) as refused:
            call(*tensors_given)
        assert isinstance(refused.value, TypeError) or refused.value.diagnostics[0].code == "AMK005"
    assert not launches


def test_tags_last_longer_than_any_text(played: tuple[GpuLayers, Launches]) -> None:
    assert played[0].most_calls >= (2**31 - 1) // 2
