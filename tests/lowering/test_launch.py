"""The driver layer without a GPU: what reaches libcuda through the real bindings, and how errors are named."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from amk.cli import _parser
from amk.lowering.device_memory import DeviceBuffer, MappedBuffer
from amk.lowering.launch import Device, Driver, compiled_arch
from amk.lowering.stream import Graph, Stream
from amk.report.diagnostic import AmkError, Exit

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


class Result(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


def fake_device(**functions: Any) -> Device:
    """A device whose driver has only `functions`, each returning (status, outputs...)."""
    api = SimpleNamespace(**functions)
    return Device(Driver(api), 0, "fake", "sm_90a", 132, 1, 1, 1, 1)


def run_python(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        check=False,
    )


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_what_the_real_bindings_pass_to_the_driver(tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", library, HERE / "fake_cuda.c", "-ldl"], check=True)
    done = run_python([str(HERE / "drive_fake_cuda.py")], LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    shape = "launch 0x3000 grid 132 1 1 block 512 1 1 shared 200000 stream 0x4000 attributes 1: 2=1 argument"
    expected = [
        "Fake H200 sm_90a 132 150000000000 232448 5",
        "[2.0, 3.0, 4.0] [0, 0, 0, 0] True",
        "load ELF keys 5 6 size 16384",
        "set 8 to 200000",
        "100 512 1024",
        f"{shape} abc extra 0",
        "False True 2.5",
        "capture mode 1",
        f"{shape} def extra 0",
        "replay 0x7000 on 0x4000",
        "AMK603: cuModuleLoadDataEx: CUDA_ERROR_INVALID_PTX 4 ptxas: line 3 is bad",
        "AMK402: step: 133 workers, at most 132 are resident on Fake H200 1 100 registers a thread, 512 threads, "
        "512 + 200000 bytes of shared memory a block: 1 blocks on each of 132 SMs",
        "AMK402: step: 1 workers, at most 0 are resident on Fake H200 1 100 registers a thread, 544 threads, "
        "512 + 200000 bytes of shared memory a block: 0 blocks on each of 132 SMs",
        "AMK403: step runs with at most 1024 threads a block, 1056 were asked for 1",
        "set 8 to 231937",
        "AMK401: step has 512 bytes of shared memory and asks for 231937 more, a block on Fake H200 may have 232448 1",
        "AMK603: cuModuleGetFunction: CUDA_ERROR_NOT_FOUND 4",
        "AMK602: there is no GPU 3: the driver shows 1 5",
    ]
    assert sorted(done.stdout.splitlines()) == sorted(expected)


def test_a_machine_without_a_driver_gets_exit_code_5(tmp_path: Path) -> None:
    """A libcuda that cannot be loaded; importing the module alone must not look for it."""
    (tmp_path / "libcuda.so.1").write_text("not a library")
    program = (
        "import sys, amk.lowering.launch, amk.lowering.stream, amk.lowering.device_memory\n"
        "assert not [name for name in sys.modules if name.startswith('cuda')]\n"
        "from amk.report.diagnostic import AmkError\n"
        "try:\n    amk.lowering.launch.Device.open()\n"
        "except AmkError as error:\n    print(error)\n    sys.exit(int(error.exit_code))\n"
    )
    done = run_python(["-c", program], LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == Exit.NO_GPU, done.stderr
    assert done.stdout.startswith("AMK602: no CUDA driver: ")


@pytest.mark.parametrize("version", [None, 12_080, 13_000])
def test_advice_names_commands_that_take_it(version: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the bindings, with an old driver, and with one that finds no GPU."""

    def bindings(name: str) -> SimpleNamespace:
        if version is None:
            raise ImportError(name)
        no_device = Result.CUDA_ERROR_OUT_OF_MEMORY
        return SimpleNamespace(cuDriverGetVersion=lambda: (Result.CUDA_SUCCESS, version), cuInit=lambda _: (no_device,))

    monkeypatch.setattr("importlib.import_module", bindings)
    with pytest.raises(AmkError) as caught:
        Driver.load.__wrapped__(Driver)
    monkeypatch.undo()
    advice = caught.value.diagnostics[0].help or ""
    commands = re.findall(r"`amk (\w+)`", advice)
    assert commands and "`--device cpu`" in advice
    for command in commands:
        words = _parser([command]).parse_args([command, "--model", "m", "--device", "cpu"])
        assert words.device == "cpu"


def test_every_error_names_the_call() -> None:
    driver = Driver(SimpleNamespace(cuMemAlloc=lambda size: (Result.CUDA_ERROR_OUT_OF_MEMORY, None)))
    with pytest.raises(AmkError, match="AMK603: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY"):
        driver.call("cuMemAlloc", 5)


def test_outputs_by_number() -> None:
    api = SimpleNamespace(none=lambda: (Result(0),), one=lambda: (Result(0), 7), two=lambda: (Result(0), 7, 8))
    driver = Driver(api)
    assert (driver.call("none"), driver.call("one"), driver.call("two")) == (None, 7, (7, 8))


def test_a_query_distinguishes_not_ready_from_failed() -> None:
    answers = [Result.CUDA_ERROR_NOT_READY, Result.CUDA_SUCCESS, Result.CUDA_ERROR_ILLEGAL_ADDRESS]
    driver = Driver(SimpleNamespace(cuStreamQuery=lambda stream: (answers.pop(0),)))
    assert driver.status("cuStreamQuery", 1) == "CUDA_ERROR_NOT_READY"
    assert driver.status("cuStreamQuery", 1) == "CUDA_SUCCESS"
    with pytest.raises(AmkError, match="ILLEGAL_ADDRESS"):
        driver.status("cuStreamQuery", 1)


def test_buffers_refuse_copies_outside_and_after_free() -> None:
    freed: list[int] = []
    device = fake_device(
        cuMemAlloc=lambda size: (Result(0), 4096),
        cuMemFree=lambda handle: (freed.append(handle), (Result(0),))[1],
    )
    buffer = DeviceBuffer(device, 64)
    for data, offset in ((np.zeros(65, np.uint8), 0), (np.zeros(1, np.uint8), 64), (np.zeros(1, np.uint8), -1)):
        with pytest.raises(AmkError, match="AMK901"):
            buffer.upload(data, offset)
    with pytest.raises(AmkError, match="not contiguous"):
        buffer.upload(np.zeros((4, 4), np.uint8)[:, :2])
    buffer.free()
    buffer.free()
    assert freed == [4096]
    with pytest.raises(AmkError, match="freed"):
        buffer.download(np.uint8, 1)
    for create in (DeviceBuffer, MappedBuffer):
        with pytest.raises(AmkError):
            create(device, 0)


def test_a_failed_capture_leaves_capture_mode() -> None:
    ended: list[int] = []
    device = fake_device(
        CUstream_flags=SimpleNamespace(CU_STREAM_NON_BLOCKING=1),
        CUstreamCaptureMode=SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1),
        cuStreamCreate=lambda flags: (Result(0), 77),
        cuStreamBeginCapture=lambda stream, mode: (Result(0),),
        cuStreamEndCapture=lambda stream: (ended.append(stream), (Result(0), 1))[1],
    )

    def fails(_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Graph(Stream(device), fails)
    assert ended == [77]


@pytest.mark.parametrize(
    ("capability", "arch"), [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((12, 0), "sm_120a")]
)
def test_arch_of_a_device(capability: tuple[int, int], arch: str) -> None:
    assert compiled_arch(*capability) == arch


def test_only_one_module_names_the_driver_bindings() -> None:
    sources = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in ROOT.glob("amk/**/*.py")}
    naming = {name for name, text in sources.items() if "cuda.bindings.driver" in text or "libcuda" in text}
    assert naming == {"amk/lowering/launch.py"}
    assert not [name for name, text in sources.items() if "import cuda" in text or "from cuda" in text]
