"""A CUDA driver whose device memory is the host's: what an engine writes can be read byte for byte, nothing runs."""

from __future__ import annotations

import ctypes
import threading
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.lowering.device_memory import DeviceBuffer
from amk.lowering.launch import Device, Driver

FRESH = 0xA5
"""What memory holds that nobody has written."""


class _Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2


class HostDriver(Driver):
    """Memory and streams alone: `api` has the calls that `DeviceBuffer`, `MappedBuffer`, `StreamCopies` and `Stream`
    make.

    Copies on a stream are made as late as its order allows, by what waits for it or by `make_copies`, and so is what a
    test enqueues by `later`. An access outside what was allocated is an AssertionError, and so is a call in a thread
    that made no device current. written: by address of the allocation, True where the host wrote. calls: how often one
    that may fail was made; call number `failing` does. streams: those that are not destroyed.
    """

    def __init__(self, failing: int | None = None) -> None:
        self._current = {threading.get_ident()}
        self.calls, self._failing = 0, failing
        self._later: list[tuple[int, Any, tuple[Any, ...]]] = []
        self._streams = 0
        self.streams = set[int]()
        self.held: dict[int, NDArray[np.uint8]] = {}
        self.written: dict[int, NDArray[np.bool_]] = {}
        names = (
            "cuMemAlloc", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemsetD8Async", "cuStreamSynchronize", "cuStreamCreate",
            "cuStreamDestroy", "cuCtxSetCurrent", "cuMemFreeHost", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync",
            "cuMemFree", "cuMemHostGetDevicePointer",
        )  # fmt: skip
        functions: dict[str, Any] = {name: self._checked(getattr(self, f"_{name[2:].lower()}")) for name in names}
        flags = {"CUstream_flags": SimpleNamespace(CU_STREAM_NON_BLOCKING=1), "CU_MEMHOSTALLOC_DEVICEMAP": 2}
        mapped = {"cuMemHostAlloc": functions["cuMemAlloc"]}
        super().__init__(SimpleNamespace(**functions, **flags, **mapped))

    def _checked(self, function: Any) -> Any:
        sets, frees = function == self._ctxsetcurrent, function in (self._memfree, self._memfreehost)

        def call(*arguments: Any) -> tuple[Any, ...]:
            assert sets or threading.get_ident() in self._current, "no device is current in this thread"
            if not (sets or frees or function == self._streamdestroy):
                self.calls += 1
                if self.calls - 1 == self._failing:
                    return (_Status.CUDA_ERROR_OUT_OF_MEMORY,)
            found = function(*arguments)
            return (OK,) if found is None else (OK, found)

        return call

    def _memalloc(self, nbytes: int, *_: Any) -> int:
        memory = np.full(nbytes, FRESH, np.uint8)
        address = int(memory.ctypes.data)
        self.held[address], self.written[address] = memory, np.zeros(nbytes, np.bool_)
        return address

    def _memhostgetdevicepointer(self, host: int, _: int) -> int:
        return host

    def _part(self, address: int, nbytes: int) -> tuple[int, slice]:
        base = max(start for start in self.held if start <= address)
        first = address - base
        assert first + nbytes <= len(self.held[base]), f"{nbytes} bytes at {first} of {len(self.held[base])}"
        return base, slice(first, first + nbytes)

    def _memcpyhtod(self, address: int, source: int, nbytes: int) -> None:
        base, part = self._part(address, nbytes)
        self.held[base][part] = np.frombuffer(ctypes.string_at(source, nbytes), np.uint8)
        self.written[base][part] = True

    def _memcpydtoh(self, destination: int, address: int, nbytes: int) -> None:
        base, part = self._part(address, nbytes)
        ctypes.memmove(destination, self.held[base][part].tobytes(), nbytes)

    def _memsetd8async(self, address: int, byte: int, nbytes: int, _: Any) -> None:
        base, part = self._part(address, nbytes)
        self.held[base][part], self.written[base][part] = byte, True

    def _memcpyhtodasync(self, address: int, source: int, nbytes: int, stream: int) -> None:
        self.later(stream, self._memcpyhtod, address, source, nbytes)

    def _memcpydtohasync(self, destination: int, address: int, nbytes: int, stream: int) -> None:
        self.later(stream, self._memcpydtoh, destination, address, nbytes)

    def later(self, stream: int, work: Any, *arguments: Any) -> None:
        """Enqueue work on a stream."""
        self._later.append((stream, work, arguments))

    def make_copies(self, stream: int | None = None) -> None:
        """Those that were enqueued until now, on a stream or on all."""
        enqueued, self._later = self._later, []
        for on, work, arguments in enqueued:
            if stream in (None, on):
                work(*arguments)
            else:
                self.later(on, work, *arguments)

    def _streamsynchronize(self, stream: int) -> None:
        self.make_copies(stream)

    def _streamdestroy(self, stream: int) -> None:
        assert all(on != stream for on, *_ in self._later), "a stream is destroyed that still copies"
        self.streams.remove(stream)

    def _ctxsetcurrent(self, _: Any) -> None:
        self._current.add(threading.get_ident())

    def _memfreehost(self, address: int) -> None:
        del self.held[address], self.written[address]

    def _memfree(self, address: int) -> None:
        self._memfreehost(address)

    def _streamcreate(self, _: Any) -> int:
        self._streams += 1
        self.streams.add(self._streams)
        return self._streams

    def behind(self, address: int) -> NDArray[np.uint8]:
        """An allocation from an address on, as it is."""
        base, part = self._part(address, 1)
        return self.held[base][part.start :]

    def content(self, buffer: DeviceBuffer) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """The bytes of a buffer as a launch finds them, and which of them the host wrote."""
        self.make_copies()
        return self.held[buffer.address], self.written[buffer.address]


OK = _Status.CUDA_SUCCESS


def host_device(driver: HostDriver) -> Device:
    return Device(driver, 0, "host memory", "sm_90a", 132, 1, 1, 1, 1)


class HostModules:
    """In place of `Module`: nothing is loaded. open: those that are not closed."""

    def __init__(self) -> None:
        self.open = 0

    def __call__(self, *_: Any) -> HostModules:
        return self

    def __enter__(self) -> HostModules:
        self.open += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.open -= 1

    def kernel(self, *_: Any, **__: Any) -> None:
        return None
