"""How fast the offline proposers get to a good plan, at equal budgets.

    cd tests/records/search
    python -m tests.agent.time_to_best grid --record search-grid.json          # a table of simulated times
    python -m tests.agent.time_to_best run --record search-proposers.json      # continues what is there
    python -m tests.agent.time_to_best render --record search-proposers.json -o search-proposers.md

Problems: `simulator`, a small model on simulated machines whose constants differ by the seed, in the whole space; and
`grid`, a recorded table of every plan of a grid of knobs on another GPU, looked up instead of simulated. All begin at
the phased plan; no proposer knows the hand-tuned one. `local-repeating` is local search without a memory of what it
proposed, the reference; a proposal that was evaluated before costs it an evaluation again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from math import exp, log, prod
from pathlib import Path
from typing import Any

import numpy as np

from amk.agent.device.measure import Block, Job
from amk.agent.device.noise import Noise
from amk.agent.device.simulated import SimulatedBackend
from amk.agent.gate.candidate import Candidate, Impossible, Workshop
from amk.agent.gate.certify import Certifier
from amk.agent.gate.design import Design
from amk.agent.gate.gate import Ready
from amk.agent.journal.inbox import Suggestion, write_whole
from amk.agent.propose.base import Context, Proposer
from amk.agent.run.session import offline
from amk.bench.tools.provenance import commit
from amk.models.model import load_model
from amk.planner.settings import PHASED, Settings
from amk.planner.space import Knob, Space
from amk.report.chart import STYLE
from amk.simulator.constants import constants_for
from amk.simulator.predict import Simulator
from amk.targets.target import load_target
from tests.agent.compare import Perturbed, Problem, Result, run_one, speedups
from tests.agent.rules import fences_kept

GRID = Path(__file__).parents[1] / "records" / "search" / "search-grid.json"
GRID_KNOBS: dict[str, tuple[Any, ...]] = {
    "handoff": ("fenced", "tagged"), "run_ahead": (False, True), "wide_epilogue": (0, 64, 1024),
    "slots": (4, 8, 16, None), "chunk_bytes": (1024, 2048, 4096), "held_refills": (0.0, 2 / 3),
    "head_handoff": (False, True), "warps": (4, 8, 16),
}  # fmt: skip
GRID_POSITION = 512
GRID_SEED = 1234
"""The table is of a machine whose constants are not those that the beam knows."""

REFERENCE = "local-repeating"
PROPOSERS = ("random", "local", "evolution", "beam", "surrogate", "combine", "leap", "portfolio", REFERENCE)
SINGLE = tuple(name for name in PROPOSERS if name not in ("portfolio", REFERENCE))
SEEDS = 5
EVALS = 100
AT = (10, 25, 50, 100)
COLOURS = ("#4c78a8", "#72b7b2", "#54a24b", "#e45756", "#f2b134", "#b279a2", "#9d755d", "#e377c2", "#bab0ac")


@dataclass(frozen=True)
class Repeating:
    """A neighbour of the best, drawn without looking at what was proposed before."""

    name: str = REFERENCE

    def ask(self, context: Context) -> Sequence[Suggestion]:
        drawn = context.space.mutate(context.incumbent(), context.rng(self.name))
        return context.suggest(self.name, drawn, "neighbour of the best")


def proposer(name: str) -> Proposer:
    """`portfolio` is that of the proposers that turn knobs: structural search is compared elsewhere."""
    return Repeating() if name == REFERENCE else offline("knobs" if name == "portfolio" else name)


class Grid(Workshop):
    """A workshop that knows the points of the recorded table only."""

    def __init__(self, record: dict[str, Any]) -> None:
        super().__init__(load_model(record["model"]), load_target(record["target"]), record["context"])
        names, values = list(record["knobs"]), list(record["knobs"].values())
        self.space = Space(
            replace(PHASED, plan="search"), tuple(Knob(n, tuple(v)) for n, v in zip(names, values, strict=True))
        )
        self.ms: dict[Settings, float | None] = {}
        self.program: dict[Settings, int] = {}
        for point, ms, program in zip(itertools.product(*values), record["ms"], record["program"], strict=True):
            settings = replace(self.space.start, **dict(zip(names, point, strict=True)))
            self.ms[settings], self.program[settings] = ms, program
        candidate = super().make(self.space.start)
        assert isinstance(candidate, Candidate)
        self.any = candidate.schedule

    def make(self, design: Design | Settings) -> Candidate | Impossible:
        settings = design.settings if isinstance(design, Design) else design
        if self.ms.get(settings) is None:
            return Impossible(("AMK011",), "not in the table")
        return Candidate(settings, self.any, "", f"{self.program[settings]:064d}")


@dataclass
class Lookup(SimulatedBackend):
    """Times of the table, with noise."""

    grid: Grid | None = None

    def times(self, job: Job, ready: Ready) -> Block:
        assert self.grid is not None
        ms = self.grid.ms[ready.candidate.settings]
        assert ms is not None
        return (ms,)


@dataclass(frozen=True)
class Recorded:
    workshop: Grid
    certify: Certifier = fences_kept

    @property
    def space(self) -> Space:
        return self.workshop.space

    @property
    def positions(self) -> tuple[int, ...]:
        return (GRID_POSITION,)

    def backend(self, seed: int) -> SimulatedBackend:
        return Lookup(self.workshop.target.name, seed, noise=Noise("gaussian"), grid=self.workshop)


@cache
def problem(name: str) -> Problem:
    if name == "grid":
        return Recorded(Grid(json.loads(GRID.read_text())))
    workshop = Workshop(load_model("smollm2-135m"), load_target("h200"), 2048)
    return Perturbed(workshop, Space.around(PHASED), fences_kept, (128, 2047))


def solved(what: tuple[str, str, int]) -> dict[str, Any]:
    where, name, seed = what
    found = run_one(lambda: proposer(name), problem(where), seed, EVALS)
    return {"problem": where, "proposer": name, "seed": seed, "curve": [round(v, 5) for v in found.curve]}


@cache
def grid_workshop() -> tuple[Workshop, Simulator]:
    workshop = Workshop(load_model("smollm2-135m"), load_target("l4"), 2048)
    constants = constants_for(workshop.target).perturbed(np.random.default_rng(GRID_SEED), 0.35)
    return workshop, Simulator(constants)


def grid_point(point: tuple[Any, ...]) -> tuple[str, float] | None:
    """(key of the program, ms) of one point; None if it cannot be planned."""
    workshop, model = grid_workshop()
    candidate = workshop.make(replace(PHASED, **dict(zip(GRID_KNOBS, point, strict=True))))
    if isinstance(candidate, Impossible):
        return None
    return candidate.key, round(model.step_ms(candidate.schedule, GRID_POSITION), 5)


def measured_grid(record: Path, jobs: int) -> None:
    """Every point of the grid by the simulator."""
    workshop, _ = grid_workshop()
    with ProcessPoolExecutor(jobs) as pool:
        found = list(pool.map(grid_point, itertools.product(*GRID_KNOBS.values()), chunksize=16))
    programs: dict[str, int] = {}
    program = [-1 if f is None else programs.setdefault(f[0], len(programs)) for f in found]
    ms = [None if f is None else f[1] for f in found]
    content = {
        "format": 1, "model": workshop.model.name, "target": workshop.target.name, "context": workshop.context,
        "position": GRID_POSITION, "simulated": True, "constants": f"perturbed by seed {GRID_SEED}",
        "knobs": {k: list(v) for k, v in GRID_KNOBS.items()}, "run": provenance(), "ms": ms, "program": program,
    }  # fmt: skip
    assert len(ms) == prod(map(len, GRID_KNOBS.values()))
    record.write_text(json.dumps(content) + "\n")


def provenance() -> dict[str, str]:
    return {
        "command": "python -m tests.agent.time_to_best " + " ".join(w for w in sys.argv[1:] if "/" not in w),
        "commit": commit(), "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"{os.cpu_count()} cores, no GPU",
    }  # fmt: skip


def run(record: Path, jobs: int, only: Sequence[str], problems: Sequence[str]) -> None:
    """All that the record lacks, written down as soon as it is there: what was cut short is continued."""
    rows: list[dict[str, Any]] = json.loads(record.read_text())["rows"] if record.exists() else []
    done = {(r["problem"], r["proposer"], r["seed"]) for r in rows}
    wanted = [(w, n, s) for s in range(SEEDS) for w in problems for n in only if (w, n, s) not in done]
    with ProcessPoolExecutor(jobs) as pool:
        for found in as_completed([pool.submit(solved, each) for each in wanted]):
            row = found.result()
            rows.append(row)
            print(row["problem"], row["proposer"], row["seed"], f"{exp(-row['curve'][-1]):.4f}", flush=True)
            rows.sort(key=lambda r: (r["problem"], r["proposer"], r["seed"]))
            content = {"format": 1, "evals": EVALS, "seeds": SEEDS, "run": provenance(), "rows": rows}
            write_whole(record, json.dumps(content) + "\n")


def results(record: Path, where: str) -> list[Result]:
    rows = json.loads(record.read_text())["rows"]
    return [Result(r["proposer"], r["seed"], tuple(r["curve"])) for r in rows if r["problem"] == where]


def claims(results: Sequence[Result]) -> dict[str, float]:
    """Log gain of the portfolio over the best single proposer, and over local search, at the end (mean over seeds)."""
    ends = speedups(results, EVALS)
    best = max((name for name in SINGLE if name in ends), key=lambda name: ends[name])
    return {
        f"over the best single one ({best})": log(ends["portfolio"] / ends[best]),
        "over local": log(ends["portfolio"] / ends["local"]),
    }


def rendered(record: Path, drawing: str) -> str:
    """The record as Markdown; `drawing` is the name of the SVG beside it."""
    lines = ["# Time to best", "", "Speed relative to the phased plan after n evaluations, geometric mean of "
             f"{SEEDS} seeds, noise free. Written by `python -m tests.agent.time_to_best render`.", ""]  # fmt: skip
    for where in ("simulator", "grid"):
        found = results(record, where)
        if not found:
            continue
        columns = [speedups(found, n) for n in AT]
        lines += [f"## {where}", "", f"![{where}]({drawing.format(where)})", "",
                  "| proposer | " + " | ".join(f"{n}" for n in AT) + " |", "|---|" + "---|" * len(AT)]  # fmt: skip
        for name in sorted(columns[-1], key=lambda n: -columns[-1][n]):
            lines.append(f"| {name} | " + " | ".join(f"{c[name]:.3f}" for c in columns) + " |")
        gains = "; ".join(f"{who}: {100 * (exp(gain) - 1):+.2f}%" for who, gain in claims(found).items())
        lines += ["", f"The portfolio after {EVALS} evaluations, {gains}.", ""]
    return "\n".join(lines)


def curves(results: Sequence[Result]) -> str:
    """Mean curves as SVG."""
    means = {
        name: [speedups(results, n)[name] for n in range(EVALS + 1)] for name in sorted({r.proposer for r in results})
    }
    top = max(max(m) for m in means.values()) * 1.01
    parts = [f'<style>{STYLE}</style><rect class="paper" width="100%" height="100%"/>']
    for number, (name, mean) in enumerate(means.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{50 + 6 * n},{280 - 250 * (v - 1) / (top - 1):.1f}" for n, v in enumerate(mean))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="670" y="{40 + 18 * number}" style="fill:{colour}" font-size="13">{name}</text>')
    for share in range(5):
        value, y = 1 + (top - 1) * share / 4, 280 - 62.5 * share
        parts.append(f'<text x="4" y="{y + 4:.0f}" font-size="12">{value:.2f}x</text>')
        parts.append(f'<line x1="50" x2="650" y1="{y:.0f}" y2="{y:.0f}" class="grid"/>')
    parts.append(f'<text x="560" y="298" font-size="12">{EVALS} evaluations</text>')
    body = "".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 300" font-family="sans-serif">{body}</svg>\n'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("grid", "run", "render"))
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=PROPOSERS, default=list(PROPOSERS))
    parser.add_argument("--problems", nargs="+", choices=("simulator", "grid"), default=["simulator", "grid"])
    options = parser.parse_args()
    steps: dict[str, Callable[[], object]] = {
        "grid": lambda: measured_grid(options.record, options.jobs),
        "run": lambda: run(options.record, options.jobs, options.only, options.problems),
        "render": lambda: write(options.record, options.output),
    }
    steps[options.what]()
    return 0


def write(record: Path, output: Path) -> None:
    name = output.stem + "-{}.svg"
    output.write_text(rendered(record, name))
    for where in ("simulator", "grid"):
        if found := results(record, where):
            (output.parent / name.format(where)).write_text(curves(found))


if __name__ == "__main__":
    sys.exit(main())
