"""Run by test_launch.py in a process of its own whose libcuda.so.1 is fake_cuda.c."""

import numpy as np

from amk.lowering.device_memory import DeviceBuffer, MappedBuffer
from amk.lowering.launch import CooperativeLaunch, Device, Module
from amk.lowering.stream import Event, Graph, Stream
from amk.report.diagnostic import AmkError

device = Device.open()
print(
    device.name, device.arch, device.sm_count, device.memory_bytes, device.shared_bytes_per_block, device.free_bytes()
)
with (
    DeviceBuffer.of(device, np.arange(10, dtype=np.float32)) as buffer,
    MappedBuffer(device, 4) as mapped,
    Stream(device) as stream,
    Event(device) as start,
    Event(device) as end,
):
    print(buffer.download(np.float32, 3, offset=8).tolist(), mapped.words.tolist(), mapped.address != 0)
    buffer.fill(1, stream.handle)
    with Module(device, b"\x7fELF and more") as module:
        kernel = module.kernel("step", 200000)
        print(kernel.registers, kernel.static_smem, kernel.max_threads)
        launch = CooperativeLaunch(kernel, 132, 512)
        start.record(stream)
        launch(np.array([0xABC], np.uint64), stream.handle)
        end.record(stream)
        print(stream.is_done(), stream.is_done(), end.milliseconds_since(start))
        with Graph(stream, lambda handle: launch(np.array([0xDEF], np.uint64), handle)) as graph:
            graph.replay(stream)
        stream.synchronise()
        for refused in (
            lambda: Module(device, "bad ptx"),
            lambda: CooperativeLaunch(kernel, 133, 512),
            lambda: CooperativeLaunch(kernel, 1, 544),
            lambda: CooperativeLaunch(kernel, 1, 1056),
            lambda: module.kernel("step", 231937),
            lambda: module.kernel("other"),
            lambda: Device.open(3),
        ):
            try:
                refused()
            except AmkError as error:
                print(error, int(error.exit_code), *(fact.text for fact in error.diagnostics[0].facts))
device.close()
