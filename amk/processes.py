"""How children are started: from this same package, with no key, and with nothing of the working directory."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

ENVIRONMENT_NAMES = (
    "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHASHSEED", "VIRTUAL_ENV",
    "XDG_CACHE_HOME", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH", "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "AMK_CACHE",
    "AMK_COMMIT", "HF_HOME", "HF_HUB_OFFLINE",
)  # fmt: skip
"""A list of what is passed on, because a list of secrets is never complete."""
_STARTING: Final = threading.Lock()


def python_module(name: str) -> tuple[str, ...]:
    """The command that runs a module of this package in a child: with -P, so that nothing is imported from the working
    directory, where anybody may have left a folder called amk."""
    return (sys.executable, "-P", "-m", name)


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables a child gets: no API key, no token, nothing that was not named. It imports this same package, and
    an empty part of PYTHONPATH, which means the working directory, is left out."""
    found = {name: environment[name] for name in ENVIRONMENT_NAMES if name in environment}
    root = Path(__file__).resolve().parents[1]
    installed = root.name in ("site-packages", "dist-packages")
    parts = [each for each in found.pop("PYTHONPATH", "").split(os.pathsep) if each]
    if paths := [*([] if installed else [str(root)]), *parts]:
        found["PYTHONPATH"] = os.pathsep.join(paths)
    return found


def process_pool(workers: int, **options: Any) -> ProcessPoolExecutor:
    """A pool of fresh processes that get what `worker_environment` leaves. options: as of ProcessPoolExecutor."""
    with _environment_of_children():
        resource_tracker.ensure_running()  # a child too, which the pool's locks would start
    return ProcessPoolExecutor(workers, mp_context=_Context(), **options)


class _Process(SpawnProcess):
    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any:
        with _environment_of_children():
            return SpawnProcess._Popen(process_obj)


class _Context(SpawnContext):
    Process = _Process


@contextmanager
def _environment_of_children() -> Iterator[None]:
    """While a child starts, this process has what the child may have, and tells it to import as with -P: whatever
    multiprocessing starts inherits the environment, and takes no other."""
    with _STARTING:
        before = dict(os.environ)
        environment = worker_environment(before) | {"PYTHONSAFEPATH": "1"}
        try:
            _become(environment)
            yield
        finally:
            _become(before)


def _become(environment: Mapping[str, str]) -> None:
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
