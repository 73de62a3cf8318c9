"""The CUDA driver: the only module that imports its bindings, and only when a GPU is asked for.

Every driver call goes through `Driver.call`, which checks the return code; nothing in the product can ignore one.
The kernel takes one argument by value, a block of addresses and launch parameters, which sits in constant memory;
nothing in it changes between the replays of a captured launch.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from amk.lowering import refusal
from amk.lowering.cubin import SYSTEM_SHARED, Resources
from amk.report.diagnostic import AmkError, Diagnostic, Exit, shown

_JIT_LOG_BYTES = 16 * 1024
_MINIMUM_DRIVER = 13_000
_WITHOUT_GPU = "`amk generate`, `amk chat` and `amk serve` need no GPU with `--device cpu`"


class Driver:
    """The driver bindings with every return code checked. `api` is the module `cuda.bindings.driver`."""

    def __init__(self, api: Any) -> None:
        self.api = api

    @classmethod
    @functools.cache
    def load(cls) -> Self:
        """The process-wide driver, initialised. Raises AMK602 (exit 5) if there is none that can be used."""
        try:
            driver = cls(importlib.import_module("cuda.bindings.driver"))
            version = driver.call("cuDriverGetVersion")
        except (ImportError, RuntimeError) as error:  # the bindings raise RuntimeError when libcuda is not there
            raise refusal.unusable(
                f"no CUDA driver: {error}", advice=f"install the NVIDIA driver; {_WITHOUT_GPU}"
            ) from error
        if version < _MINIMUM_DRIVER:
            raise refusal.unusable(
                f"the CUDA driver supports CUDA {version // 1000}.{version % 1000 // 10}, 13.0 is needed",
                advice=f"install a driver of release 580 or later; {_WITHOUT_GPU}",
            )
        try:
            driver.call("cuInit", 0)
        except AmkError as error:
            raise refusal.unusable(f"no usable GPU: {error}", advice=_WITHOUT_GPU) from error
        return driver

    def call(self, name: str, *arguments: Any) -> Any:
        """Call one driver function and return its one output (None, or a tuple if it has several).

        Raises AMK603 with the name of the call and of the error.
        """
        status, *outputs = getattr(self.api, name)(*arguments)
        if int(status) != 0:
            error = getattr(status, "name", str(status))
            raise AmkError(Diagnostic("AMK603", f"{name}: {error}"), Exit.INTERNAL)
        if len(outputs) > 1:
            return tuple(outputs)
        return outputs[0] if outputs else None

    def status(self, name: str, *arguments: Any) -> str:
        """Call a query (cuStreamQuery, cuEventQuery) whose answer is its return code; other errors raise AMK603."""
        status = getattr(self.api, name)(*arguments)[0]
        error = getattr(status, "name", str(status))
        if error not in ("CUDA_SUCCESS", "CUDA_ERROR_NOT_READY"):
            raise AmkError(Diagnostic("AMK603", f"{name}: {error}"), Exit.INTERNAL)
        return str(error)


@dataclass(frozen=True)
class Device:
    """One GPU with its primary context current, so that tensors of other libraries can be used in the same process."""

    driver: Driver
    ordinal: int
    name: str
    arch: str
    sm_count: int
    memory_bytes: int
    shared_bytes_per_block: int
    shared_bytes_per_sm: int
    registers_per_sm: int
    context: Any = None

    @classmethod
    def open(cls, ordinal: int = 0, driver: Driver | None = None) -> Self:
        """Retain the primary context of a GPU and make it current. Raises AMK602 if there is no such GPU."""
        driver = driver or Driver.load()
        count = driver.call("cuDeviceGetCount")
        if not 0 <= ordinal < count:
            raise refusal.unusable(f"there is no GPU {ordinal}: the driver shows {count}")
        handle = driver.call("cuDeviceGet", ordinal)

        def attribute(name: str) -> int:
            key = getattr(driver.api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
            return int(driver.call("cuDeviceGetAttribute", key, handle))

        if not attribute("COOPERATIVE_LAUNCH"):
            raise refusal.unusable(f"GPU {ordinal} has no cooperative launch, which the kernel needs")
        context = driver.call("cuDevicePrimaryCtxRetain", handle)
        driver.call("cuCtxSetCurrent", context)
        major, minor = attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")
        return cls(
            driver=driver,
            ordinal=ordinal,
            name=driver.call("cuDeviceGetName", 256, handle).split(b"\0")[0].decode(),
            arch=compiled_arch(major, minor),
            sm_count=attribute("MULTIPROCESSOR_COUNT"),
            memory_bytes=int(driver.call("cuDeviceTotalMem", handle)),
            shared_bytes_per_block=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            shared_bytes_per_sm=attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            registers_per_sm=attribute("MAX_REGISTERS_PER_MULTIPROCESSOR"),
            context=context,
        )

    def make_current(self) -> None:
        """The driver's calls in this thread are about this GPU from here on; in the thread of `open` they are."""
        self.driver.call("cuCtxSetCurrent", self.context)

    def uuid(self) -> str:
        """What tells this GPU from others of its name."""
        handle = self.driver.call("cuDeviceGet", self.ordinal)
        return bytes(self.driver.call("cuDeviceGetUuid", handle).bytes).hex()

    def free_bytes(self) -> int:
        """Device memory that can be allocated now."""
        return int(self.driver.call("cuMemGetInfo")[0])

    def close(self) -> None:
        """Release the primary context; objects made from this device must not be used after it."""
        self.driver.call("cuDevicePrimaryCtxRelease", self.driver.call("cuDeviceGet", self.ordinal))


def compiled_arch(major: int, minor: int) -> str:
    """The architecture name to compile for: with the feature suffix from sm_90 on, where cubins are specific anyway."""
    number = 10 * major + minor
    return f"sm_{number}a" if number >= 90 else f"sm_{number}"


class Module:
    """Loaded code. A cubin is loaded as it is; PTX of an earlier architecture is compiled by the driver for this GPU.

    PTX of an `a` architecture (sm_90a) runs on that architecture only; emulating another target needs sm_80, 86 or 89.
    """

    def __init__(self, device: Device, image: bytes | str) -> None:
        """Load a cubin (bytes) or PTX (str). Raises AMK603, with the driver's compile log for PTX."""
        self.device = device
        driver = device.driver
        text = image.encode() if isinstance(image, str) else image
        buffer = np.frombuffer(text + b"\0", dtype=np.uint8)
        log = bytearray(_JIT_LOG_BYTES)
        option = driver.api.CUjit_option
        keys = [option.CU_JIT_ERROR_LOG_BUFFER, option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
        try:
            self.handle = driver.call("cuModuleLoadDataEx", buffer.ctypes.data, len(keys), keys, [log, len(log)])
        except AmkError as error:
            words = log.split(b"\0")[0].decode(errors="replace").strip()
            if not words:
                raise
            message = error.diagnostics[0].message
            raise AmkError(Diagnostic("AMK603", message, facts=(shown(words),)), error.exit_code) from error

    def kernel(self, name: str, dynamic_smem: int = 0) -> Kernel:
        """A kernel by symbol name, allowed `dynamic_smem` bytes of dynamic shared memory a block."""
        return Kernel(self, name, dynamic_smem)

    def close(self) -> None:
        self.device.driver.call("cuModuleUnload", self.handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Kernel:
    """One kernel with its dynamic shared memory fixed; what the driver says it uses is read once."""

    def __init__(self, module: Module, name: str, dynamic_smem: int) -> None:
        self.device = module.device
        self.name = name
        self.dynamic_smem = dynamic_smem
        self.module = module  # keeps the code loaded
        driver = self.device.driver
        self.handle = driver.call("cuModuleGetFunction", module.handle, name.encode())
        self.registers = self._attribute("NUM_REGS")
        self.static_smem = self._attribute("SHARED_SIZE_BYTES")
        self.local_bytes = self._attribute("LOCAL_SIZE_BYTES")
        self.max_threads = self._attribute("MAX_THREADS_PER_BLOCK")
        key = driver.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        try:
            driver.call("cuFuncSetAttribute", self.handle, key, dynamic_smem)
        except AmkError as error:
            if "INVALID_VALUE" not in error.diagnostics[0].message:
                raise
            raise refusal.unsafe(
                "AMK401",
                f"{name} has {self.static_smem} bytes of shared memory and asks for {dynamic_smem} more, "
                f"a block on {self.device.name} may have {self.device.shared_bytes_per_block}",
            ) from error

    def _attribute(self, name: str) -> int:
        driver = self.device.driver
        key = getattr(driver.api.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(driver.call("cuFuncGetAttribute", key, self.handle))

    def keep_largest_shared_memory(self) -> None:
        """Ask for the same split of L1 in every kernel: kernels with different splits do not run on one SM together."""
        driver = self.device.driver
        key = driver.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        driver.call("cuFuncSetAttribute", self.handle, key, 100)

    def matches(self, compiled: Resources) -> bool:
        """Whether the driver loaded the code whose resources were checked (false for PTX compiled by the driver).

        From sm_90 on the static figure of a cubin includes what the system reserves, so both forms are accepted.
        """
        static = (compiled.static_smem, compiled.static_smem + SYSTEM_SHARED)
        return self.registers == compiled.registers and self.static_smem in static

    def max_active_blocks(self, threads: int) -> int:
        """Blocks of `threads` threads that one SM holds at a time, with the kernel's real registers and memory."""
        call = self.device.driver.call
        return int(call("cuOccupancyMaxActiveBlocksPerMultiprocessor", self.handle, threads, self.dynamic_smem))


class CooperativeLaunch:
    """A cooperative launch of fixed shape, checked once: all blocks are resident at the same time or it is refused.

    Progress of every block is promised only for cooperative launches, and a block that waits for one that is not
    resident waits for ever.
    """

    def __init__(self, kernel: Kernel, grid: int, block: int) -> None:
        """Raises AMK402 if `grid` blocks of `block` threads are not co-resident, AMK403 if a block cannot run."""
        if grid < 1 or block < 1 or block % 32:
            raise refusal.internal(f"a launch of {grid} blocks of {block} threads: not whole warps")
        if block > kernel.max_threads:
            raise refusal.unsafe(
                "AMK403",
                f"{kernel.name} runs with at most {kernel.max_threads} threads a block, {block} were asked for",
            )
        active = kernel.max_active_blocks(block)
        resident = active * kernel.device.sm_count
        if grid > resident:
            raise refusal.unsafe(
                "AMK402",
                f"{kernel.name}: {grid} workers, at most {resident} are resident on {kernel.device.name}",
                shown(
                    f"{kernel.registers} registers a thread, {block} threads, "
                    f"{kernel.static_smem} + {kernel.dynamic_smem} bytes of shared memory a block: "
                    f"{active} blocks on each of {kernel.device.sm_count} SMs"
                ),
                advice="plan with fewer threads, registers or shared memory a worker, or with fewer workers",
            )
        self.kernel = kernel
        self.grid = grid
        self.block = block
        self._enqueue = Enqueue(kernel, grid, block, "COOPERATIVE")

    def __call__(self, argument: NDArray[Any], stream: Any) -> None:
        """Enqueue on `stream` (its handle). Asynchronous: errors inside the kernel show at the next synchronisation.

        argument: the bytes of the kernel's one parameter, passed by value.
        """
        self._enqueue(argument, stream)


class OverlappingLaunch:
    """A launch that may start before the one ahead of it on the stream has ended.

    The kernel waits for that one itself (sync::wait_for_earlier_kernels), and its blocks for nothing else.
    """

    def __init__(self, kernel: Kernel, grid: int, block: int) -> None:
        self.kernel, self.grid, self.block = kernel, grid, block
        self._enqueue = Enqueue(kernel, grid, block, "PROGRAMMATIC_STREAM_SERIALIZATION")

    def __call__(self, argument: NDArray[Any], stream: Any) -> None:
        """As that of `CooperativeLaunch`."""
        self._enqueue(argument, stream)


class Enqueue:
    """A launch whose shape is told to the driver's bindings once: they take longer for that than for the launch.

    how: a launch attribute that is switched on; None for a kernel whose blocks wait for nothing.
    """

    def __init__(self, kernel: Kernel, grid: int, block: int, how: str | None = None) -> None:
        api = kernel.device.driver.api
        self._kernel, self._config = kernel, api.CUlaunchConfig()
        self._config.gridDimX, self._config.gridDimY, self._config.gridDimZ = grid, 1, 1
        self._config.blockDimX, self._config.blockDimY, self._config.blockDimZ = block, 1, 1
        self._config.sharedMemBytes = kernel.dynamic_smem
        if how is not None:
            attribute = api.CUlaunchAttribute()
            attribute.id = getattr(api.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{how}")
            setattr(attribute.value, _MEMBERS[how], 1)
            self._config.attrs = [attribute]
            self._config.numAttrs = 1

    def __call__(self, argument: NDArray[Any], stream: Any) -> None:
        self._config.hStream = stream
        # The driver reads an array of pointers to the arguments, and the arguments, before it returns.
        pointers = np.array([argument.ctypes.data], dtype=np.uint64)
        self._kernel.device.driver.call("cuLaunchKernelEx", self._config, self._kernel.handle, pointers.ctypes.data, 0)


_MEMBERS = {
    "COOPERATIVE": "cooperative",
    "PROGRAMMATIC_STREAM_SERIALIZATION": "programmaticStreamSerializationAllowed",
}
"""Launch attributes by name, and the member of the value that switches each on."""


def launch_cooperative(kernel: Kernel, grid: int, block: int, argument: NDArray[Any], stream: Any) -> None:
    """One cooperative launch, checked and enqueued; use `CooperativeLaunch` to check once and launch often."""
    CooperativeLaunch(kernel, grid, block)(argument, stream)
