"""Order on the device: streams, events that time, graphs that replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from amk.lowering.launch import Device


class Stream:
    """Work in order. Independent of the default stream, so that other libraries do not serialise with it."""

    def __init__(self, device: Device) -> None:
        self.device = device
        flags = int(device.driver.api.CUstream_flags.CU_STREAM_NON_BLOCKING)
        self.handle: Any = device.driver.call("cuStreamCreate", flags)

    def synchronise(self) -> None:
        """Wait for everything enqueued. An error inside a kernel surfaces here as AMK603."""
        self.device.driver.call("cuStreamSynchronize", self.handle)

    def is_done(self) -> bool:
        """Whether everything enqueued has completed; does not wait."""
        return self.device.driver.status("cuStreamQuery", self.handle) == "CUDA_SUCCESS"

    def close(self) -> None:
        self.device.driver.call("cuStreamDestroy", self.handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Event:
    """A point in a stream, with a time stamp."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.handle: Any = device.driver.call("cuEventCreate", int(device.driver.api.CUevent_flags.CU_EVENT_DEFAULT))

    def record(self, stream: Stream) -> None:
        self.device.driver.call("cuEventRecord", self.handle, stream.handle)

    def synchronise(self) -> None:
        self.device.driver.call("cuEventSynchronize", self.handle)

    def milliseconds_since(self, start: Event) -> float:
        """Time from `start` to this event; both must have completed."""
        return float(self.device.driver.call("cuEventElapsedTime", start.handle, self.handle))

    def close(self) -> None:
        self.device.driver.call("cuEventDestroy", self.handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Graph:
    """Work captured once and replayed. A cooperative launch stays cooperative because it is captured from a stream."""

    def __init__(self, stream: Stream, enqueue: Callable[[Any], None]) -> None:
        """Capture what `enqueue(stream handle)` enqueues; nothing runs. What it passes by address must outlive this."""
        driver = stream.device.driver
        self.device = stream.device
        driver.call(
            "cuStreamBeginCapture",
            stream.handle,
            driver.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        )
        try:
            enqueue(stream.handle)
        except BaseException:
            # Leave capture mode, or the stream stays unusable; what went wrong in `enqueue` is what matters.
            driver.api.cuStreamEndCapture(stream.handle)
            raise
        graph = driver.call("cuStreamEndCapture", stream.handle)
        try:
            self.handle: Any = driver.call("cuGraphInstantiate", graph, 0)
        finally:
            driver.call("cuGraphDestroy", graph)

    def replay(self, stream: Stream) -> None:
        self.device.driver.call("cuGraphLaunch", self.handle, stream.handle)

    def close(self) -> None:
        self.device.driver.call("cuGraphExecDestroy", self.handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
