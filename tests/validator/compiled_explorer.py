"""`explorer.c` through ctypes: what `amk.judges.explore.explore` says of many small systems joined into one."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from amk.validator.program.system import I64, System

SOURCE = Path(__file__).with_name("explorer.c")
MAX_AGENTS = 6
FIELDS = (
    "agent_first", "counter_init", "wait_first", "wait_counter", "wait_threshold", "signal_first", "signal_counter",
    "signal_amount", "access_first", "access_buffer", "access_lo", "access_hi", "access_kind",
)  # fmt: skip


def compiler() -> str | None:
    return shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")


@cache
def library() -> ctypes.CDLL:
    """The compiled explorer; RuntimeError without a C compiler."""
    found = compiler()
    if found is None:
        raise RuntimeError("no C compiler")
    folder = Path(tempfile.mkdtemp(prefix="amk-explorer-"))
    target = folder / "explorer.so"
    flags = ["-O2", "-std=c11", "-Wall", "-Werror", "-shared", "-fPIC"]
    subprocess.run([found, *flags, str(SOURCE), "-o", str(target)], check=True)
    handle = ctypes.CDLL(str(target))
    handle.explore_all.restype = ctypes.c_int64
    shutil.rmtree(folder)
    return handle


@dataclass(frozen=True)
class Truth:
    """stuck: number of maximal cuts of each system; cut [agents]; earliest [events, 6], -1 if never enabled."""

    stuck: I64
    cut: I64
    earliest: np.ndarray
    races: frozenset[tuple[int, int]]
    sums: frozenset[tuple[int, int]]
    states: int


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)


def explore_all(system: System, system_agent: I64) -> Truth:
    """`system_agent` [systems + 1]: first agent of each of the independent systems."""
    columns = [np.ascontiguousarray(getattr(system, f), dtype=np.int64) for f in FIELDS]
    table = (ctypes.c_void_p * len(columns))(*(c.ctypes.data for c in columns))
    systems, room = len(system_agent) - 1, 64 * max(system.events, 16)
    owner = np.ascontiguousarray(system_agent, dtype=np.int64)
    cut, stuck = np.zeros(system.agents, np.int64), np.zeros(systems, np.int64)
    earliest = np.zeros((system.events, MAX_AGENTS), np.int32)
    races, sums = np.zeros((room, 2), np.int64), np.zeros((room, 2), np.int64)
    counts = np.zeros(2, np.int64)
    found = library().explore_all(
        table, _pointer(owner), ctypes.c_int64(systems), _pointer(cut), _pointer(stuck), _pointer(earliest),
        _pointer(races), _pointer(sums), _pointer(counts[:1]), ctypes.c_int64(room), _pointer(counts[1:]),
    )  # fmt: skip
    if found < 0:
        raise ValueError("a system is too large for the compiled explorer")
    pairs = [frozenset(map(tuple, rows.tolist())) for rows in (races[:found], sums[: counts[0]])]
    return Truth(stuck, cut, earliest, pairs[0], pairs[1], int(counts[1]))
