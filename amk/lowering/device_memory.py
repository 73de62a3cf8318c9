"""Memory that a kernel reads and writes: device memory, host memory mapped into the device, and copies between them."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from amk.lowering import refusal
from amk.lowering.launch import Device
from amk.lowering.stream import Stream

_DEFAULT_STREAM = 0


class DeviceBuffer:
    """`nbytes` bytes of device memory at `address` (256-byte aligned), freed by `free` or at the end of a `with`."""

    def __init__(self, device: Device, nbytes: int) -> None:
        """Raises AMK603 if the memory is not there, AMK901 for an empty buffer."""
        if nbytes <= 0:
            raise refusal.internal(f"a device buffer of {nbytes} bytes")
        self.device = device
        self.nbytes = nbytes
        self._handle: Any = device.driver.call("cuMemAlloc", nbytes)
        self.address = int(self._handle)

    @classmethod
    def of(cls, device: Device, data: NDArray[Any]) -> Self:
        """A buffer that holds a copy of `data`."""
        buffer = cls(device, data.nbytes)
        with ExitStack() as kept:
            kept.callback(buffer.free)
            buffer.upload(data)
            kept.pop_all()
        return buffer

    def upload(self, data: NDArray[Any], offset: int = 0) -> None:
        """Copy a C-contiguous array to `offset` bytes into the buffer; returns when it is there."""
        if not data.flags.c_contiguous:
            raise refusal.internal("upload of an array that is not contiguous")
        self._check(offset, data.nbytes)
        if data.nbytes:
            self.device.driver.call("cuMemcpyHtoD", self.address + offset, data.ctypes.data, data.nbytes)
            # The copy returns when pageable memory is staged; a non-blocking stream would not wait for the rest.
            self.device.driver.call("cuStreamSynchronize", _DEFAULT_STREAM)

    def download(self, dtype: DTypeLike, shape: int | tuple[int, ...], offset: int = 0) -> NDArray[Any]:
        """A copy of part of the buffer. Work on non-blocking streams must be synchronised before."""
        data = np.empty(shape, dtype=dtype)
        self._check(offset, data.nbytes)
        if data.nbytes:
            self.device.driver.call("cuMemcpyDtoH", data.ctypes.data, self.address + offset, data.nbytes)
        return data

    def upload_from(self, host: int, nbytes: int, offset: int, stream: Any) -> None:
        """Copy page-locked memory at address `host` to `offset` bytes into the buffer, in the order of `stream`."""
        self._check(offset, nbytes)
        self.device.driver.call("cuMemcpyHtoDAsync", self.address + offset, host, nbytes, stream)

    def download_to(self, host: int, nbytes: int, stream: Any) -> None:
        """Copy the first bytes to page-locked memory at address `host`, in the order of `stream`."""
        self._check(0, nbytes)
        self.device.driver.call("cuMemcpyDtoHAsync", host, self.address, nbytes, stream)

    def fill(self, byte: int, stream: Any) -> None:
        """Set every byte, in the order of `stream` (its handle)."""
        self.device.driver.call("cuMemsetD8Async", self.address, byte, self.nbytes, stream)

    def free(self) -> None:
        """Give the memory back; a second call does nothing."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            self.device.driver.call("cuMemFree", handle)

    def _check(self, offset: int, nbytes: int) -> None:
        if self._handle is None:
            raise refusal.internal("use of a device buffer that was freed")
        if offset < 0 or offset + nbytes > self.nbytes:
            raise refusal.internal(f"copy of {nbytes} bytes at {offset} in a buffer of {self.nbytes}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()


class MappedBuffer:
    """Page-locked host memory that a running kernel sees: `words` at `host_address`, `address` on the device.

    This is how the host asks a kernel to stop, and reads what it says, while it runs.
    """

    def __init__(self, device: Device, words: int) -> None:
        """`words` 32-bit words, zero."""
        if words <= 0:
            raise refusal.internal(f"a mapped buffer of {words} words")
        self.device = device
        driver = device.driver
        flags = driver.api.CU_MEMHOSTALLOC_DEVICEMAP
        self._host: int | None = int(driver.call("cuMemHostAlloc", 4 * words, flags))
        self.host_address = self._host
        with ExitStack() as kept:
            kept.callback(self.free)
            self.address = int(driver.call("cuMemHostGetDevicePointer", self._host, 0))
            kept.pop_all()
        memory = (ctypes.c_uint32 * words).from_address(self._host)
        self.words: NDArray[np.uint32] = np.ctypeslib.as_array(memory)
        self.words[:] = 0

    def free(self) -> None:
        """Give the memory back; `words` must not be used afterwards. A second call does nothing."""
        if self._host is not None:
            host, self._host = self._host, None
            self.words = np.empty(0, dtype=np.uint32)
            self.device.driver.call("cuMemFreeHost", host)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()


class StreamCopies:
    """Copies of 32-bit words in the order of a stream; the host waits for all of them at once, with `wait`.

    words: of page-locked memory, in which the words lie until then. Not thread safe.
    """

    def __init__(self, stream: Stream, words: int) -> None:
        self._stream, self._memory, self._used = stream, MappedBuffer(stream.device, words), 0

    def upload(self, buffer: DeviceBuffer, data: NDArray[Any], offset: int = 0) -> None:
        """Copy an array of 32-bit words to `offset` bytes into a buffer, as it is now."""
        words = data.reshape(-1).view(np.uint32)
        if (first := self._place(len(words))) is None:
            self.wait()
            buffer.upload(words, offset)
        else:
            self._memory.words[first : self._used] = words
            buffer.upload_from(self._memory.host_address + 4 * first, words.nbytes, offset, self._stream.handle)

    def download(self, buffer: DeviceBuffer, count: int) -> NDArray[np.uint32]:
        """The first words of a buffer as they are at this point of the stream: there after the next `wait`, and until
        the next copy. AMK901 for more than there is room for."""
        if (first := self._place(count)) is None:
            raise refusal.internal(f"a copy of {count} words, there is room for {len(self._memory.words) - self._used}")
        buffer.download_to(self._memory.host_address + 4 * first, 4 * count, self._stream.handle)
        return self._memory.words[first : self._used]

    def wait(self) -> None:
        """Wait for everything on the stream."""
        self._stream.synchronise()
        self._used = 0

    def free(self) -> None:
        self._memory.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()

    def _place(self, words: int) -> int | None:
        """Where there is room for so many words."""
        first, end = self._used, self._used + words
        if end > len(self._memory.words):
            return None
        self._used = end
        return first
