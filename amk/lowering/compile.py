"""CUDA C++ to cubin and PTX through NVRTC, on a machine that needs neither a GPU nor a driver.

One compilation gives both: the cubin is shipped, the PTX is what the validator reads back. The PTX is a function of
(source, our headers, options, architecture, compiler build, CUDA headers): our headers come from memory, no path or
time enters the output, and the one line of the log that is a time is dropped. The cubin is one too, but for the numbers
that ptxas gives to registers: one kernel of some hundred differed between two processes of one machine.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amk.lowering import cache, headers, refusal
from amk.lowering.cubin import Resources, read_resources
from amk.report.diagnostic import AmkError, shown

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a")
DEFAULT_OPTIONS = ("--std=c++17", "--fmad=false", "--no-source-include", "--no-cache", "--ptxas-options=-v")
"""With a driver the compiler would answer from a cache of its own, without the log that resources are read from.
Left to itself it contracts some products and sums and not others that are equal: an fma is where a header says so."""
_PROGRAM_NAME = "amk_kernel.cu"
_TIMING_LINE = re.compile(r"^ptxas info\s*: Compile time = .*\n?", re.MULTILINE)
_HEADER_MARKERS = ("cuda_bf16.h", "cuda_fp8.h", "cccl/cuda/std/__cccl/version.h", "cuda/std/__cccl/version.h")


@dataclass(frozen=True)
class Compiled:
    """One compiled source. `resources` is keyed by kernel symbol; `lowered_names` maps each name expression to its."""

    arch: str
    cubin: bytes
    ptx: str
    log: str
    resources: dict[str, Resources]
    lowered_names: dict[str, str]


def compile_cuda(
    source: str,
    arch: str,
    *,
    name_expressions: Sequence[str] = (),
    options: Sequence[str] = DEFAULT_OPTIONS,
    cache_directory: Path | None = None,
    use_cache: bool = True,
) -> Compiled:
    """Compile `source` for `arch` ("sm_90a"). Kernels that are not extern "C" are named in `name_expressions`.

    Raises AMK601 for an architecture outside `ARCHITECTURES`, AMK901 with the compiler's log if the source does not
    compile: the source is generated, so that is an error of ours and not of the user.
    """
    if arch not in ARCHITECTURES:
        raise refusal.unsupported("AMK601", f"cannot compile for {arch!r}; known: {', '.join(ARCHITECTURES)}")
    included = headers.closure(source)
    directory = cache_directory or cache.default_directory()
    key = _key(source, included, arch, name_expressions, options)
    entry = cache.load(directory, key) if use_cache else None
    if entry is None:
        entry = _run_nvrtc(source, included, arch, name_expressions, options)
        if use_cache:
            cache.store(directory, key, entry)
    return Compiled(
        arch=arch,
        cubin=entry.cubin,
        ptx=entry.ptx,
        log=entry.log,
        resources=read_resources(entry.cubin, entry.log, arch),
        lowered_names=entry.lowered_names,
    )


def compile_ptx(source: str, arch: str, *, options: Sequence[str] = DEFAULT_OPTIONS) -> str:
    """The PTX that `compile_cuda` gives, in about half of the time: no machine code is made of it. Errors are the same,
    except that what only ptxas refuses passes."""
    if arch not in ARCHITECTURES:
        raise refusal.unsupported("AMK601", f"cannot compile for {arch!r}; known: {', '.join(ARCHITECTURES)}")
    included, directory = headers.closure(source), cache.default_directory()
    virtual = arch.replace("sm_", "compute_")
    key = _key(source, included, virtual, (), options)
    entry = cache.load(directory, key)
    if entry is None:
        entry = _run_nvrtc(source, included, virtual, (), options)
        cache.store(directory, key, entry)
    return entry.ptx


def _key(
    source: str, included: dict[str, str], arch: str, name_expressions: Sequence[str], options: Sequence[str]
) -> str:
    parts = [source, arch, compiler_build(), cuda_headers_digest(), str(len(options)), *options]
    parts += [str(len(name_expressions)), *name_expressions]
    for name, text in included.items():
        parts += [name, text]
    return cache.cache_key(parts)


@functools.cache
def compiler_build() -> str:
    """The compiler's own build line ("CL-36424714 ... V13.0.88"): nvrtcVersion() alone tells only major and minor."""
    entry = _run_nvrtc("", {}, ARCHITECTURES[0], (), ("--ptxas-options=-v",))
    banner = [line.removeprefix("// ") for line in entry.ptx.splitlines() if "Build ID" in line or "release" in line]
    return " ".join(banner)


_HEADER_PACKAGES = {"cudart": "nvidia-cuda-runtime", "cccl": "nvidia-cuda-cccl"}


@functools.cache
def _header_directories() -> dict[str, str | None]:
    pathfinder = importlib.import_module("cuda.pathfinder")
    return {name: pathfinder.find_nvidia_header_directory(name) for name in _HEADER_PACKAGES}


def cuda_include_directories() -> tuple[str, ...]:
    """Where the CUDA headers (cuda_bf16.h, cuda/std) are, as far as they are installed."""
    return tuple(directory for directory in _header_directories().values() if directory is not None)


@functools.cache
def cuda_headers_digest() -> str:
    """Hash of the headers that carry the versions of the CUDA header packages."""
    digest = hashlib.sha256()
    for directory in cuda_include_directories():
        for marker in _HEADER_MARKERS:
            path = Path(directory) / marker
            if path.is_file():
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _run_nvrtc(
    source: str, included: dict[str, str], arch: str, name_expressions: Sequence[str], options: Sequence[str]
) -> cache.CacheEntry:
    nvrtc = _nvrtc()
    texts = [text.encode() for text in included.values()]
    names = [name.encode() for name in included]
    program = _call(nvrtc, "nvrtcCreateProgram", source.encode(), _PROGRAM_NAME.encode(), len(texts), texts, names)
    try:
        for expression in name_expressions:
            _call(nvrtc, "nvrtcAddNameExpression", program, expression.encode())
        flags = [f"--gpu-architecture={arch}", *options, *(f"-I{path}" for path in cuda_include_directories())]
        status = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])[0]
        log = _text(nvrtc, program, "nvrtcGetProgramLog")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise _compile_failure(arch, status.name, log)
        lowered = {e: _call(nvrtc, "nvrtcGetLoweredName", program, e.encode()).decode() for e in name_expressions}
        return cache.CacheEntry(
            cubin=_blob(nvrtc, program, "nvrtcGetCUBIN") if arch.startswith("sm_") else b"",
            ptx=_text(nvrtc, program, "nvrtcGetPTX"),
            log=_TIMING_LINE.sub("", log),
            lowered_names=lowered,
        )
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _compile_failure(arch: str, status: str, log: str) -> AmkError:
    """AMK605 if a header is not found and a header package is not installed, AMK901 otherwise."""
    missing = [_HEADER_PACKAGES[name] for name, directory in _header_directories().items() if directory is None]
    if missing and re.search("(cannot|could not) open source file", log):
        advice = "pip install " + " ".join(f"{package}==13.0.*" for package in missing)
        return refusal.unsupported("AMK605", "the kernel includes CUDA headers that are not installed", advice)
    return refusal.internal(f"generated CUDA does not compile for {arch} ({status})", shown(log))


@functools.cache
def _nvrtc() -> Any:
    """The NVRTC bindings, loaded. Raises AMK605 if they or the library behind them are not installed."""
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:  # the bindings raise RuntimeError when the library is not found
        advice = "pip install cuda-bindings==13.0.* nvidia-cuda-nvrtc==13.0.*"
        reason = str(error).strip().partition("\n")[0]  # the places that were searched are below
        raise refusal.unsupported("AMK605", f"NVRTC cannot be loaded: {reason}", advice) from error
    return nvrtc


def _blob(nvrtc: Any, program: Any, getter: str) -> bytes:
    size = _call(nvrtc, f"{getter}Size", program)
    data = bytearray(size)
    _call(nvrtc, getter, program, data)
    return bytes(data)


def _text(nvrtc: Any, program: Any, getter: str) -> str:
    return _blob(nvrtc, program, getter).rstrip(b"\0").decode()


def _call(nvrtc: Any, name: str, *arguments: Any) -> Any:
    """Call one NVRTC function, check its result, return its one output (None if it has none)."""
    status, *outputs = getattr(nvrtc, name)(*arguments)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise refusal.internal(f"{name} failed with {status.name}")
    return outputs[0] if outputs else None
