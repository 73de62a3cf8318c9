"""Where ptxas makes one instruction of a multiplication and an addition, and what a GPU's memory says of it.

python -m tests.emulator.contraction record MEMORY.npz           # on a GPU: what the case leaves after 1 to 6 tokens
python -m tests.emulator.contraction explain RECORD MEMORY.npz   # with ptxas: adds "explained" to the case of RECORD

PTX leaves open whether `mul.f32` and `add.f32` are rounded apart or become one fma. Which of them ptxas contracts shows
from outside: the text in which that fma is written out becomes the same machine code. The emulator runs that text too.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.bench.provenance import commit
from amk.lowering.kernel import build
from amk.lowering.sass import disassemble
from amk.schedule_ir.memory import Buffer
from amk.schedule_ir.schedule import Schedule
from tests.emulator import hardware
from tests.emulator.hardware_exact import _TAKEN, rounded_once, start

CASE = "paired int4"
LIMIT = 1 << 22
_SUM = re.compile(r"\s*(add|sub)\.f32\s+(%f\d+), (\S+), (\S+);")
_PRODUCT = re.compile(r"\s*mul\.f32\s+(%f\d+), (\S+), (\S+);")
Memory = dict[str, NDArray[np.uint8]]
Code = Callable[[str], str]
"""The machine code of a PTX text."""


def products(lines: Iterable[str]) -> dict[str, tuple[str, str]]:
    """The factors of each register that a `mul.f32` writes."""
    return {found[1]: (found[2], found[3]) for found in map(_PRODUCT.fullmatch, lines) if found}


def candidates(ptx: str) -> list[int]:
    """Lines that add or subtract what is a product somewhere; from 1."""
    lines = ptx.split("\n")
    made = products(lines)
    sums = ((number, _SUM.fullmatch(line)) for number, line in enumerate(lines, 1))
    return [number for number, found in sums if found and (found[3] in made or found[4] in made)]


def written_out(ptx: str, sums: Iterable[int]) -> str:
    """The text with an fma in place of these candidates. Of two products the first is not rounded."""
    lines = ptx.split("\n")
    made = products(lines)
    for number in sums:
        found = _SUM.fullmatch(lines[number - 1])
        assert found is not None, number
        operation, to, left, right = found.groups()
        minus = operation == "sub"
        if left in made:
            (a, b), c = made[left], right
            negated = f"\tneg.f32 \t{to}, {c};\n" if minus else ""
            fused = f"{a}, {b}, {to if minus else c}"
        else:
            (a, b), c = made[right], left
            negated = f"\tneg.f32 \t{to}, {a};\n" if minus else ""
            fused = f"{to if minus else a}, {b}, {c}"
        lines[number - 1] = f"{negated}\tfma.rn.f32 \t{to}, {fused};"
    return "\n".join(lines)


def contracted(ptx: str, code: Code) -> list[int]:
    """The candidates that become the same machine code when they are written out."""
    as_is = code(ptx)
    return [number for number in candidates(ptx) if code(written_out(ptx, [number])) == as_is]


def machine_code(ptx: str) -> str:
    """As ptxas makes it, listed."""
    with tempfile.TemporaryDirectory() as directory:
        text, cubin = Path(directory) / "kernel.ptx", Path(directory) / "kernel.cubin"
        text.write_text(ptx, encoding="utf-8")
        target = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
        assert target is not None
        subprocess.run([ptxas(), f"-arch={target[1]}", str(text), "-o", str(cubin)], check=True)
        return listed(cubin.read_bytes())


def listed(cubin: bytes) -> str:
    listing = disassemble(cubin)
    if listing is None:
        raise SystemExit("nvdisasm is needed: pip install nvidia-cuda-nvdisasm")
    return listing


def ptxas() -> str:
    """Of the release that NVRTC is of: pip install nvidia-cuda-nvcc==13.0.88."""
    return os.environ.get("PTXAS", "ptxas")


def left(schedule: Schedule, tokens: int, read: hardware.Read) -> Memory:
    """What a launch of so many tokens has left in global memory, of the caches and the output as far as it went."""
    found = {}
    for buffer in schedule.buffers:
        if buffer.space == "global" and buffer.role != "constant" and buffer.bytes <= LIMIT:
            held = np.ascontiguousarray(read(buffer)).view(np.uint8).reshape(-1)
            found[buffer.name] = written(schedule, tokens, buffer, held)
    return found


def written(schedule: Schedule, tokens: int, buffer: Buffer, held: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if buffer.name == "output":
        return held[: 4 * tokens]
    if buffer.name in ("k_cache", "v_cache"):
        row = schedule.model.head_dim * buffer.item_bytes
        return held.reshape(-1, schedule.kv.context, row)[:, :tokens].reshape(-1)
    return held


def record(path: Path) -> int:
    """Memory of a GPU, and what it says of the approximate instructions that the emulator comes to."""
    kept: dict[str, Any] = {"hardware": hardware.gpu_name(), "commit": commit(), "date": now()}
    engine = hardware.gpu_side(CASE)
    for tokens in range(1, hardware.TOKENS + 1):
        engine.reset()
        engine.request_batch(hardware.prompts_of(engine.schedule), (), hardware.sampling_of(CASE))
        engine.step(tokens)
        memory = left(engine.schedule, tokens, lambda b: engine.read(b.name, np.uint8, b.bytes))
        kept |= {f"{tokens} {name}": content for name, content in memory.items()}
    engine.free()
    start()
    hardware.emulated(CASE)
    for name in {key[0] for key in _TAKEN[0].said}:
        rows = sorted((a, b, said) for (of, a, b), said in _TAKEN[0].said.items() if of == name)
        kept[name] = np.array(rows, np.uint32).T
    np.savez_compressed(path, **kept)
    return 0


def start_from(path: Path) -> None:
    """In this process: approximate instructions have the results in the file; others are rounded once, and counted."""
    said = {}
    with np.load(path) as kept:
        for name in (key for key in kept.files if key.endswith(".f32")):
            said |= {(name, int(a), int(b)): int(c) for a, b, c in kept[name].T}
    start(lambda *key: said[key] if key in said else rounded_once(*key))
    _ASKED.update(said)


_ASKED: dict[tuple[str, int, int], int] = {}
"""What the GPU said."""


def beside(path: Path, ptx: str) -> dict[str, Any]:
    """This text emulated beside the GPU's memory: bytes that differ, by number of tokens and buffer."""
    schedule = hardware.schedule_of(CASE)
    apart: dict[str, dict[str, int]] = {}
    with np.load(path) as there:
        for tokens in range(1, hardware.TOKENS + 1):
            engine = hardware.emulated_side(CASE, ptx)
            outcome = engine.launch(tokens)
            assert outcome.ended and not outcome.faults, outcome.faults[:5]
            here = left(schedule, tokens, lambda b, e=engine: e.machine.read(b.name, np.uint8, b.bytes))  # type: ignore[misc]
            differ = {name: int((content != there[f"{tokens} {name}"]).sum()) for name, content in here.items()}
            apart[str(tokens)] = {name: bytes_ for name, bytes_ in differ.items() if bytes_}
            print(len(ptx), tokens, apart[str(tokens)], flush=True)
        equal = here["logits"].view(np.uint32) == there[f"{tokens} logits"].view(np.uint32)
    not_asked = Counter(key[0] for key in _TAKEN[0].said if key not in _ASKED)
    return {"other_bytes": apart, "logits": equal.size, "equal_bits": int(equal.sum()), "not_asked": dict(not_asked)}


def explain(path: Path, memory: Path) -> int:
    stored = json.loads(path.read_text(encoding="utf-8"))
    case = stored["cases"][CASE]
    compiled = build(hardware.schedule_of(CASE)).compiled
    assert hashlib.sha256(compiled.ptx.encode()).hexdigest() == case["ptx"], "another kernel than the record's"
    found = contracted(compiled.ptx, machine_code)
    whole = written_out(compiled.ptx, found)
    texts = {"as written": compiled.ptx, "contracted": whole}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn, initializer=start_from, initargs=(memory,)) as pool:
        runs = dict(zip(texts, pool.map(beside, [memory] * 2, texts.values()), strict=True))
    code = listed(compiled.cubin)
    lines = compiled.ptx.split("\n")
    with np.load(memory) as kept:
        measured = {name: str(kept[name]) for name in ("hardware", "commit", "date")}
    case["explained"] = {
        "run": {"commit": commit(), "date": now(), "hardware": "CPU"}
        | {"command": f"python -m tests.emulator.contraction explain {path.name} {memory.name}"},
        "memory": measured,
        "candidates": len(candidates(compiled.ptx)),
        "contracted": {str(number): " ".join(lines[number - 1].split()) for number in found},
        "same_machine_code": machine_code(whole) == machine_code(compiled.ptx) == code,
        "fma_in_ptx": {name: len(re.findall(r"\bfma\.rn\.f32\b", text)) for name, text in texts.items()},
        "fma_in_machine_code": len(re.findall(r"\bFFMA\b", code)),
        "emulated": runs,
    }
    path.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return 0 if runs["contracted"]["equal_bits"] == runs["contracted"]["logits"] else 1


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    sys.exit({"record": record, "explain": explain}[sys.argv[1]](*map(Path, sys.argv[2:])))
