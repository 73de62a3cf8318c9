"""`amk doctor`: what this machine can do, found out without ever failing.

It looks at files and package metadata only: the driver is not called, because a broken driver may hang or crash, and
that is when a doctor is needed.
"""

import argparse
import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from amk.commands.output import add_format, print_json, print_table
from amk.report.diagnostic import Exit, printable

Status = Literal["ok", "absent", "bad"]

# The first group is needed everywhere; the second to compile and to run on a GPU.
REQUIRED = ("numpy", "pydantic", "z3-solver", "platformdirs", "rich", "safetensors", "gguf", "tokenizers", "jinja2")
CUDA = ("cuda-bindings", "cuda-core", "nvidia-cuda-nvrtc", "nvidia-cuda-cccl", "nvidia-cuda-runtime", "pyelftools")

_DRIVER = Path("/proc/driver/nvidia")


@dataclass(frozen=True)
class Finding:
    """`bad` means that planning, verifying or compiling will fail; `absent` that something optional is not there."""

    what: str
    status: Status
    detail: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    findings = list(examine())
    if arguments.format == "json":
        print_json({"findings": [asdict(finding) for finding in findings]})
    else:
        print_table(("what", "status", "detail"), [(f.what, f.status, f.detail) for f in findings])
    return Exit.INPUT if any(finding.status == "bad" for finding in findings) else Exit.SAFE


def examine() -> Iterator[Finding]:
    supported = sys.version_info >= (3, 11)
    yield Finding("python", "ok" if supported else "bad", f"{platform.python_version()} at {sys.executable}")
    yield Finding("platform", "ok", f"{platform.platform()}, {os.cpu_count()} CPUs")
    for name in (*REQUIRED, *CUDA):
        yield _package(name)
    yield _nvrtc()
    yield _driver()
    yield from _gpus()
    yield _cache()


def _package(name: str) -> Finding:
    try:
        return Finding(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "bad", f"not installed: pip install {name}")


def _nvrtc() -> Finding:
    """The compiler library itself, which the package may lack on an unsupported platform."""
    try:
        files = importlib.metadata.files("nvidia-cuda-nvrtc") or []
        present = [Path(str(f.locate())) for f in files if f.name.startswith(("libnvrtc.so", "nvrtc64"))]
    except (importlib.metadata.PackageNotFoundError, OSError):
        present = []
    libraries = [path for path in present if path.is_file()]
    if not libraries:
        return Finding("nvrtc library", "bad", "not found; `amk compile` needs it, no GPU or driver is needed")
    return Finding("nvrtc library", "ok", str(libraries[0]))


def _driver() -> Finding:
    text = _first_line(_DRIVER / "version")
    if text is None:
        return Finding("nvidia driver", "absent", "no kernel driver; generate runs on the CPU")
    return Finding("nvidia driver", "ok", text)


def _gpus() -> Iterator[Finding]:
    try:
        entries = sorted((_DRIVER / "gpus").iterdir())
    except OSError:
        entries = []
    if not entries:
        yield Finding("gpu", "absent", "none; plan, verify, compile and generate --device cpu work without one")
    for gpu in entries:
        yield Finding("gpu", "ok", f"{gpu.name}: {_first_line(gpu / 'information') or 'no information'}")


def _first_line(path: Path) -> str | None:
    try:
        return printable(path.read_text(encoding="utf-8", errors="replace").split("\n", 1)[0], 200)
    except OSError:
        return None


def _cache() -> Finding:
    try:
        import platformdirs

        path = Path(platformdirs.user_cache_dir("amk"))
        # The directory is made on first use, so the nearest existing one decides.
        base = next(p for p in (path, *path.parents) if p.exists())
        free = shutil.disk_usage(base).free
    except (ImportError, OSError, RuntimeError, KeyError) as error:  # no home directory, no package
        return Finding("cache directory", "absent", f"cannot be determined: {error}")
    writable = os.access(base, os.W_OK)
    detail = f"{path} ({free / 2**30:.1f} GiB free{'' if writable else ', not writable'})"
    return Finding("cache directory", "ok" if writable else "absent", detail)
