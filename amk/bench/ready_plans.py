"""Makes the shipped decisions: `python -m amk.bench.ready_plans [--expansions N] [--jobs N] [--only MODEL ...]`.

One search per model and target that fits, with the default context; every result is verified SAFE, compiled, and has a
certificate that the checker accepts. The file is written after every search, and searches whose result it has are not
made again (`--again` does): the command goes on where it was stopped, and after a change of the planner or of the
simulator makes what is stale. With `--time-limit` no search begins later than that; those under way are finished, which
takes a minute or two.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import as_completed
from math import prod
from pathlib import Path

from amk.engine.admission.admission import why_not_admitted
from amk.models.model import load_model, shipped_models
from amk.planner.decisions import SHIPPED, Decisions, decisions_of, ready_key, shipped
from amk.planner.search import Problem, search
from amk.processes import process_pool
from amk.report.diagnostic import AmkError
from amk.simulator.kinds import errors_on
from amk.targets.target import load_target, targets

SEED = 0
EXPANSIONS = 80
DTYPE = "bf16"
FASTER, MUCH = 1.001, 1.3
"""Gains that are counted: over the default plan, over the naive one."""


def main() -> int:
    parser = argparse.ArgumentParser(description="search a plan for every model and target, and store the decisions")
    parser.add_argument("--expansions", type=int, default=EXPANSIONS, help=f"plans of a search (default: {EXPANSIONS})")
    parser.add_argument("--only", nargs="+", metavar="MODEL", default=shipped_models(), help="these models only")
    parser.add_argument("--gpus", nargs="+", metavar="TARGET", help="these targets only")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that search")
    parser.add_argument("--time-limit", type=float, metavar="S", help="seconds after which no search begins")
    parser.add_argument("--again", action="store_true", help="also those that are there")
    parser.add_argument("-o", "--output", type=Path, default=SHIPPED, help="another file than the shipped one")
    parser.add_argument("--table", metavar="MODEL", help="print what was gained for this model, search nothing")
    parser.add_argument("--summary", action="store_true", help="print what was gained by all, search nothing")
    arguments = parser.parse_args()
    if arguments.summary:
        print(summary(shipped(arguments.output)))
        return 0
    if arguments.table:
        print(table(arguments.table, shipped(arguments.output)))
        return 0
    plans = {(d.model, d.target, d.dtype): d for d in shipped(arguments.output)}
    pairs = [(m, g) for g in arguments.gpus or [t.name for t in targets()] for m in arguments.only]
    stale = [p for p in pairs if arguments.again or not current(plans, *p)]
    for pair, result in results(stale, arguments):
        if result is None:
            continue
        stale.remove(pair)
        if isinstance(result, str):
            plans.pop((*pair, DTYPE), None)
            print(f"{pair[0]} on {pair[1]}: {result}", flush=True)
        else:
            plans[result.model, result.target, result.dtype] = result
            gain = result.default_ms[0] / result.ms[0] if result.default_ms else 1.0
            print(f"{pair[0]} on {pair[1]}: {result.ms[0]:.4f} ms simulated, {gain:.3f}x the default plan", flush=True)
        write(arguments.output, plans)
    if stale:
        print(f"the time is up, {len(stale)} are left; the same command goes on", flush=True)
    return 0


def current(plans: dict[tuple[str, str, str], Decisions], model: str, gpu: str) -> bool:
    found = plans.get((model, gpu, DTYPE))
    return found is not None and found.key == ready_key(load_model(model), load_target(gpu), DTYPE)


def results(
    pairs: list[tuple[str, str]], arguments: argparse.Namespace
) -> Iterator[tuple[tuple[str, str], Decisions | str | None]]:
    """Each pair with its decisions, why there are none, or None for want of time, as they come."""
    limit = None if arguments.time_limit is None else time.time() + arguments.time_limit
    with process_pool(arguments.jobs) as pool:
        futures = {pool.submit(searched, *pair, arguments.expansions, limit): pair for pair in pairs}
        for future in as_completed(futures):
            yield futures[future], future.result()


def searched(model: str, gpu: str, expansions: int, limit: float | None = None) -> Decisions | str | None:
    """The message of the refusal where nothing fits; None after the `limit` (time.time())."""
    if limit is not None and time.time() > limit:
        return None
    problem = Problem(load_model(model), load_target(gpu))
    try:
        found = search(problem, seed=SEED, expansions=expansions, why_not=why_not_admitted)
    except AmkError as error:
        return error.diagnostics[0].message
    return decisions_of(problem, found, SEED)


def table(model: str, plans: tuple[Decisions, ...]) -> str:
    """Simulated times of the ready-made plans of a model, and how many times faster they are than the presets."""
    lines = ["| target | simulated ms at 128, 2047 | to default | to naive | decided |", "|---|---|---|---|---|"]
    for d in plans:
        if d.model == model:
            ratios = [f"{_gain(d, other):.3f}x" if other else "-" for other in (d.default_ms, d.naive_ms)]
            decided = ", ".join(f"{k} {v}" for k, v in sorted(d.changes.items())) or "the default"
            lines.append(f"| {d.target} | {', '.join(f'{t:.3f}' for t in d.ms)} | {' | '.join(ratios)} | {decided} |")
    return "\n".join([*lines, "", errors_on(d.target for d in plans if d.model == model)])


def summary(plans: tuple[Decisions, ...]) -> str:
    """How many times faster than the naive plan each is, by model and target, and how many are faster by how much."""
    gpus = sorted({d.target for d in plans}, key=lambda name: (load_target(name).capability, name))
    found = {(d.model, d.target): d for d in plans}
    lines = ["| naive to ready-made | " + " | ".join(gpus) + " |", "|---" * (len(gpus) + 1) + "|"]
    for model in sorted({d.model for d in plans}, key=lambda name: (load_model(name).params, name)):
        cells = [_gain(found[model, g], found[model, g].naive_ms) if (model, g) in found else None for g in gpus]
        lines.append(f"| {model} | " + " | ".join("-" if cell is None else f"{cell:.2f}" for cell in cells) + " |")
    faster = [d for d in plans if _gain(d, d.default_ms) > FASTER]
    much = sum(_gain(d, d.naive_ms) >= MUCH for d in plans)
    slower = [d for d in plans if any(a > b for a, b in zip(d.ms, d.default_ms, strict=False))]
    counts = [f"{g} {sum(d.target == g for d in faster)} of {sum(d.target == g for d in plans)}" for g in gpus]
    return "\n".join(
        (
            *lines, "", "All times are simulated.", errors_on(gpus),
            f"{len(plans)} plans, at least {MUCH} times as fast as naive: {much}",
            f"slower than the default at a position: {len(slower)}",
            f"more than {FASTER - 1:.1%} faster than the default: {len(faster)} ({', '.join(counts)})",
        )
    )  # fmt: skip


def _gain(decisions: Decisions, other: tuple[float, ...]) -> float:
    """Geometric mean over the positions; 1 where there is no other plan."""
    return 1.0 if not other else float((prod(other) / prod(decisions.ms)) ** (1 / len(other)))


def write(path: Path, plans: dict[tuple[str, str, str], Decisions]) -> None:
    """All of them in order of their names, the file replaced as a whole."""
    entries = [json.dumps(plans[k].model_dump(mode="json"), sort_keys=True) for k in sorted(plans)]
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text("[\n" + ",\n".join(entries) + "\n]\n", encoding="utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    raise SystemExit(main())
