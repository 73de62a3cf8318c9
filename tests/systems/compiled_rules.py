"""`rules.c` through ctypes: what `rule_runs.Rules` says of many small systems, in microseconds each."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from tests.systems.joined import Joined
from tests.validator.compiled_explorer import compiler

SOURCE = Path(__file__).with_name("rules.c")
WRONG = ("deadlock", "race", "unfenced", "arrivals", "value")
"""As bits, from the lowest on."""
BLOCK = (
    "agent_first", "counter_init", "wait_first", "wait_counter", "wait_threshold", "signal_first", "signal_counter",
    "signal_amount", "access_first", "access_buffer", "access_lo", "access_hi", "access_kind", "access_value",
)  # fmt: skip


@cache
def library() -> ctypes.CDLL:
    """The compiled explorer; RuntimeError without a C compiler."""
    found = compiler()
    if found is None:
        raise RuntimeError("no C compiler")
    with tempfile.TemporaryDirectory(prefix="amk-rules-") as folder:
        target = Path(folder) / "rules.so"
        flags = ["-O2", "-std=c11", "-Wall", "-Werror", "-shared", "-fPIC"]
        subprocess.run([found, *flags, str(SOURCE), "-o", str(target)], check=True)
        handle = ctypes.CDLL(str(target))
    handle.explore_all.restype = ctypes.c_int64
    return handle


def explored(many: Joined, limit: int = 20_000, all_of_it: bool = False) -> tuple[list[set[str] | None], int]:
    """Of each system what some interleaving shows, or something of it, None where there are more than `limit` states;
    and the number of states."""
    system, rules = many.system, many.system.rules
    assert rules is not None
    found = [getattr(system.block, name) for name in BLOCK]
    found += [rules.wait, rules.signal, rules.phase, rules.proxy, system.acquires, system.releases]
    columns = [np.ascontiguousarray(column, dtype=np.int64) for column in found]
    if any(len(column) and int(abs(column).max()) >= 1 << 24 for column in columns):
        raise ValueError("a number is too large for the compiled explorer")
    table = (ctypes.c_void_p * len(columns))(*(column.ctypes.data for column in columns))
    owners = [np.ascontiguousarray(column) for column in (many.agents, many.counters)]
    bits = np.zeros(len(many.agents) - 1, dtype=np.int64)
    pointers = [ctypes.c_void_p(column.ctypes.data) for column in (*owners, bits)]
    numbers = [ctypes.c_int64(number) for number in (len(bits), limit, all_of_it)]
    states = library().explore_all(table, *pointers[:2], *numbers, pointers[2])
    if states < 0:
        raise ValueError("a system is too large for the compiled explorer")
    named = [None if b < 0 else {name for k, name in enumerate(WRONG) if b >> k & 1} for b in bits.tolist()]
    return named, states
