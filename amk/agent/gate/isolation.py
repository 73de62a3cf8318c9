"""What a child of the driver may not outlive or use up: the driver itself, the disk, the memory of the machine."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from pathlib import Path

PR_SET_PDEATHSIG = 1
LOG_BYTES = 64 * 2**20


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
