"""Many different kernels of one model, measured one after the other: what predictions are judged by."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from amk.bench.calibration.kernel_choice import Kernel
from amk.bench.table.decode_bench import own
from amk.bench.tools.accuracy import relative_error, within_tolerance
from amk.bench.tools.subject import Subject
from amk.bench.tools.timing import take_turns
from amk.bench.tools.torch_model import TorchWeights
from amk.planner.search import Problem
from amk.planner.settings import FAST
from amk.planner.space import Space

TOKENS = 4
"""Of a timed launch."""


def measure(
    problem: Problem, kernels: Iterator[Kernel], path: Path, run: dict[str, object], deadline: float, steps: int,
    report: Callable[[str], None],
) -> int:  # fmt: skip
    """Measures and records kernels until `deadline` (time.monotonic()); returns how many.

    Kernels that the file has are neither measured again nor dropped; a kernel is known by its settings.
    """
    entries, space = _recorded(path), Space.around(FAST)
    done = {_identity(e["row"]["key"]["model"], e["row"]["settings"], e["row"]["key"]["pos"]) for e in entries}
    weights: TorchWeights | None = None
    exact: dict[int, Exact] = {}
    count = 0
    for kernel in kernels:
        changes = space.changes(kernel.settings, FAST)
        missing = [p for p in problem.positions if _identity(problem.model.name, changes, p) not in done]
        if not missing:
            continue
        if time.monotonic() > deadline:
            report("the time is up; the same command goes on")
            break
        weights = weights or TorchWeights.random(problem.model, 0)
        subject = Subject.random(kernel.admitted, 0, weights)
        subject.load_cache()
        for pos in missing:
            exact[pos] = exact.get(pos) or Exact.of(subject, pos)
            row = _row(kernel, subject, pos, steps, exact[pos])
            entries.append({"row": row, "run": run})
            count += 1
            report(f"kernel {kernel.number} at {pos}: {row['times']['ms']:.4f} ms{'' if row['correct'] else ', WRONG'}")
        subject.free()
        del subject
        gc.collect()
        torch.cuda.empty_cache()
        _write(path, entries)
    return count


def _identity(model: str, changes: Mapping[str, Any], pos: int) -> str:
    return json.dumps([model, dict(changes), pos], sort_keys=True)


@dataclass(frozen=True, eq=False)
class Exact:
    """The logits of a token at a position in fp64, and how far torch's own bf16 forward is from them. All kernels of a
    model have the same weights and the same cache, so they share it.
    """

    token: int
    logits: torch.Tensor
    torch_error: float

    @classmethod
    def of(cls, subject: Subject, pos: int) -> Exact:
        token = 1000 % subject.schedule.model.vocab
        exact = subject.torch_logits(token, pos, torch.float64)
        rounded = subject.torch_logits(token, pos, torch.bfloat16)
        return cls(token, exact, relative_error(rounded, exact))


def _row(kernel: Kernel, subject: Subject, pos: int, steps: int, exact: Exact) -> dict[str, Any]:
    schedule, token = subject.schedule, exact.token
    first, second = subject.logits(token, pos), subject.logits(token, pos)
    error = relative_error(first, exact.logits)
    times = take_turns([own(subject, pos, TOKENS)], steps)["amk"]
    subject.engine.check()
    space = Space.around(FAST)
    key = {"model": schedule.model.name, "gpu": schedule.target.name, "dtype": "bf16", "pos": pos, "tokens": TOKENS}
    same = bool(torch.equal(first, second))
    return {
        "key": key, "kernel": kernel.number, "settings": space.changes(kernel.settings, FAST),
        "context": schedule.kv.context, "times": asdict(times), "error": error, "torch_error": exact.torch_error,
        "correct": same and within_tolerance(error, exact.torch_error),
    }  # fmt: skip


def _recorded(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text(encoding="utf-8"))["rows"]) if path.exists() else []


def _write(path: Path, entries: list[dict[str, Any]]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    lines = ",\n".join(json.dumps(e) for e in entries)
    temporary.write_text('{"format": 1, "rows": [\n' + lines + "\n]}\n", encoding="utf-8")
    os.replace(temporary, path)
