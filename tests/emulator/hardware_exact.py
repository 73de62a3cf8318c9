"""Logits of small models from a GPU and from the emulator, bit by bit, with one set of approximate instructions.

python -m tests.emulator.hardware_exact FILE     # on a GPU, with cupy and numba

Both sides run the same PTX on the same memory. The emulator asks the GPU for the result of every approximate
instruction that it comes to, so what is left to differ is everything else: every bit of every logit has to be equal.
"""

from __future__ import annotations

import base64
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from amk.bench.tools.provenance import commit
from amk.emulator.arithmetic import bits
from amk.emulator.arithmetic.floating import arithmetic, function
from amk.emulator.ptx.encode import form_table
from tests.emulator import hardware, instructions
from tests.emulator.hardware_values import Value, Values, take

PROCESSES = 3


def gpu_value() -> Value:
    """One instruction on one lane of the GPU."""
    import cupy  # type: ignore[import-not-found]

    kernels: dict[str, Any] = {}
    inputs, found = cupy.zeros((2, 32), cupy.uint32), cupy.zeros(32, cupy.uint32)

    def value(name: str, a: int, b: int) -> int:
        if name not in kernels:
            kernels[name] = instructions.gpu_kernel(instructions.ptx(name))
        inputs.set(np.repeat(np.array([[a], [b]], np.uint32), 32, axis=1))
        kernels[name]((1,), (32,), (inputs, found))
        return int(found.get()[0])

    return value


def rounded_once(name: str, a: int, b: int) -> int:
    """The emulator's own result."""
    form = form_table()[name]
    mode = form.mode & 0xFF
    if form.operands == "dab":
        return int(bits.call(arithmetic, form.operation, mode, a, b, 0))
    return int(bits.call(function, form.operation, mode, a))


_TAKEN: list[Values] = []


def start(value: Value | None = None) -> None:
    """Of this process."""
    _TAKEN.append(take(value or gpu_value()))


def compared(case: str) -> dict[str, Any]:
    """What became of a case here; "equal" says that PTX, memory, tokens and every logit's bits are the same."""
    values = _TAKEN[0]
    values.said.clear()
    values.run.clear()
    there = hardware.on_gpu(case)
    here, _ = hardware.emulated(case)
    one, other = (np.frombuffer(base64.b64decode(e["logits"]), np.uint32) for e in (there, here))
    entry: dict[str, Any] = {
        "ptx": here["ptx"],
        "same_ptx": here["ptx"] == there["ptx"],
        "other_memory": hardware.other_memory(there, here),
        "tokens": here["tokens"],
        "same_tokens": here["tokens"] == there["tokens"],
        "logits": one.size,
        "equal_bits": int((one == other).sum()),
        "instructions": asked(values),
    }
    entry["equal"] = (
        entry["same_ptx"] and entry["same_tokens"] and not entry["other_memory"] and bool((one == other).all())
    )
    return entry if entry["equal"] else entry | {"equal_after_one_token": hardware.equal_parts(case, there)}


def asked(values: Values) -> dict[str, dict[str, int]]:
    """By instruction: how often it was run, on how many different words, and how the GPU's results lie beside those
    rounded once."""
    if values.failed:
        raise RuntimeError(values.failed[0])
    out = {}
    for name, times in sorted(values.run.items()):
        said = {key: word for key, word in values.said.items() if key[0] == name}
        apart = [abs(word - rounded_once(*key)) for key, word in said.items()]
        out[name] = {
            "run": times, "inputs": len(said), "rounded otherwise": sum(d > 0 for d in apart),
            "most units of the last place": max(apart, default=0),
        }  # fmt: skip
    return out


def main(path: Path) -> int:
    run = {"commit": commit(), "date": datetime.now(UTC).isoformat(timespec="seconds"), "hardware": hardware.gpu_name()}
    run["command"] = f"python -m tests.emulator.hardware_exact {path.name}"
    spawn = multiprocessing.get_context("spawn")
    cases: dict[str, Any] = {}
    with ProcessPoolExecutor(PROCESSES, mp_context=spawn, initializer=start) as pool:
        for case, entry in zip(hardware.CASES, pool.map(compared, hardware.CASES), strict=True):
            cases[case] = entry
            print(case, entry, flush=True)
            path.write_text(json.dumps({"format": 1, "run": run, "cases": cases}, indent=1) + "\n", encoding="utf-8")
    return 0 if all(entry["equal"] for entry in cases.values()) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
