"""What a child of the driver may not have or outlive: keys, the driver's terminal, the working directory's modules, and
the driver itself."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

ALLOWED = (
    "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHASHSEED", "VIRTUAL_ENV",
    "XDG_CACHE_HOME", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH", "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
)  # fmt: skip
"""A list of what is passed on, because a list of secrets is never complete."""

PR_SET_PDEATHSIG = 1
LOG_BYTES = 64 * 2**20


def python_module(name: str) -> tuple[str, ...]:
    """The command that runs a module of this package in a child: with -P, so that nothing is imported from the working
    directory, where anybody may have left a folder called amk."""
    return (sys.executable, "-P", "-m", name)


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables a child gets: no API key, no token, nothing that was not named. It imports this same package, and
    an empty part of PYTHONPATH, which means the working directory, is left out."""
    found = {name: environment[name] for name in ALLOWED if name in environment}
    root = Path(__file__).resolve().parents[3]
    installed = root.name in ("site-packages", "dist-packages")
    parts = [each for each in found.pop("PYTHONPATH", "").split(os.pathsep) if each]
    if paths := [*([] if installed else [str(root)]), *parts]:
        found["PYTHONPATH"] = os.pathsep.join(paths)
    return found


def is_stopped(pid: int) -> bool:
    """Whether a process stands still after SIGSTOP or the like."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def die_with(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent dies; if it is already gone, end now (Linux only, else no effect)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def bound_files() -> None:
    """A worker that prints without end fills its log, not the disk; no core dump of a GPU process either."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LOG_BYTES, LOG_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def first_to_be_killed() -> None:
    """When the machine runs out of memory, the worker goes and the driver stays."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def resident_bytes(pid: int) -> int:
    """Memory of a process; 0 if it cannot be told."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0
