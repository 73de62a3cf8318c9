"""A recorded table with edits: every plan of a closed set of knobs and edits, each measured once, and searches on it.

    cd tests/records/search
    python -m tests.agent.edits_table make --record edits-tables.json --jobs 2   # the tables that the record lacks
    python -m tests.agent.edits_table run --record edits-tables.json --jobs 2    # the searches that it lacks
    python -m tests.agent.edits_table show --record edits-tables.json

The set: knobs and edits that the best plans of `structural-search.json` have most often, knobs those of the searches
of knobs alone, edits those of searches with both; a plan has some of the edits, in the order of the table. So both
searches have their best known changes before them, and the question is whether edits are worth the evaluations that
they take from knobs. The times are of a machine whose constants are not those that the searches' simulator knows, and
the runs are told that a device measures, with noise.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np

from amk.agent.device.measure import Block, Job
from amk.agent.device.noise import Noise
from amk.agent.device.simulated import SimulatedBackend
from amk.agent.gate.candidate import Candidate, Impossible, Workshop, content_key
from amk.agent.gate.certify import Certifier, Judgement, installed
from amk.agent.gate.design import Design, edit_of
from amk.agent.gate.gate import Ready
from amk.agent.journal.inbox import write_whole
from amk.agent.journal.store import Journal
from amk.agent.propose import structure
from amk.agent.run.session import offline
from amk.bench.tools.provenance import commit
from amk.models.model import load_model
from amk.planner.formats import formats
from amk.planner.settings import Settings
from amk.planner.space import Knob, Space
from amk.schedule_ir.edits.directed import Edits, Hot
from amk.schedule_ir.schedule import Schedule
from amk.simulator.constants import constants_for
from amk.simulator.predict import Simulator
from amk.targets.target import load_target
from tests.agent.compare import begun, true_curve
from tests.agent.structural_search import CONTEXT, POSITIONS, PROBLEMS, SEARCHES, STARTS

FOUND = Path(__file__).parents[1] / "records" / "search" / "structural-search.json"
SHORT = 16
"""Characters of a content's hash."""
KNOBS, EDITS = 4, 5
SEED, PERTURBATION = 1234, 0.1
"""Of the constants of the machine that the table is of. Constants of a GPU that is known are off by less."""
AFTER = (24, 32, 48)
SEEDS = 5


def closed_set(problem: tuple[str, ...], start: str) -> tuple[dict[str, Any], list[str]]:
    """(knob -> value, edits) that the best plans have most often, of edits those that are SAFE alone where all of the
    knobs are turned."""
    runs = json.loads(FOUND.read_text())["runs"]
    name = " ".join(problem)
    values: Counter[tuple[str, str]] = Counter()
    edits: Counter[str] = Counter()
    for seed in range(SEEDS):
        knobs, both = (runs[f"{name} {start} {search} {seed}"]["best"] for search in ("knobs", "portfolio"))
        values.update((knob, json.dumps(value)) for knob, value in knobs["settings"].items())
        edits.update(both["edits"])
    chosen: dict[str, Any] = {}
    for (knob, value), _ in values.most_common():
        if len(chosen) < KNOBS and knob not in chosen:
            chosen[knob] = json.loads(value)
    turned = replace(workshop_for(problem).space(start).start, **chosen)
    holding = (
        text for text, _ in edits.most_common() if measured(problem, Design(turned, (text,)))["verdict"] == "SAFE"
    )
    return chosen, list(itertools.islice(holding, EDITS))


def workshop_for(problem: Sequence[str]) -> Workshop:
    model, gpu, dtype = problem
    return Workshop(load_model(model), load_target(gpu), CONTEXT, formats(dtype))


@cache
def machine(gpu: str) -> Simulator:
    return Simulator(constants_for(load_target(gpu)).perturbed(np.random.default_rng(SEED), PERTURBATION))


def designs(start: Settings, knobs: Mapping[str, Any], edits: Sequence[str]) -> list[Design]:
    """All of the set: knobs in the order of `knobs`, the start's value first, then subsets of the edits."""
    plans = [
        replace(start, **{name: value for (name, value), turned in zip(knobs.items(), turns, strict=True) if turned})
        for turns in itertools.product((False, True), repeat=len(knobs))
    ]
    subsets = [
        tuple(text for text, has in zip(edits, mask, strict=True) if has)
        for mask in itertools.product((False, True), repeat=len(edits))
    ]
    return [Design(plan, subset) for plan in plans for subset in subsets]


def measured(problem: tuple[str, ...], design: Design) -> dict[str, Any]:
    """What the gate says of a design, and its times."""
    candidate = workshop_for(problem).make(design)
    if isinstance(candidate, Impossible):
        return {"verdict": " ".join(("impossible", *candidate.codes))}
    judgement, content = installed()(candidate.schedule), content_key(candidate.schedule)[:SHORT]
    if judgement.outcome != "SAFE":
        return {"content": content, "verdict": " ".join((judgement.outcome, *judgement.codes[:1]))}
    ms = [round(machine(problem[1]).step_ms(candidate.schedule, pos), 6) for pos in POSITIONS]
    return {"content": content, "key": candidate.key[:SHORT], "verdict": "SAFE", "ms": ms}


def table_of(problem: tuple[str, ...], start: str, pool: ProcessPoolExecutor) -> dict[str, Any]:
    knobs, edits = closed_set(problem, start)
    every = designs(workshop_for(problem).space(start).start, knobs, edits)
    rows = list(pool.map(measured, [problem] * len(every), every, chunksize=8))
    return {
        "problem": problem, "start": start, "positions": POSITIONS, "knobs": knobs, "edits": edits, "simulated": True,
        "constants": f"perturbed by {PERTURBATION}, seed {SEED}", "rows": rows,
    }  # fmt: skip


def make(options: argparse.Namespace) -> int:
    """All tables that the record lacks, written down as soon as each is there."""
    record = read(options.record)
    with ProcessPoolExecutor(options.jobs) as pool:
        for problem, start in itertools.product(PROBLEMS, STARTS):
            if (name := " ".join((*problem, start))) not in record["tables"]:
                table = record["tables"][name] = table_of(problem, start, pool) | {"run": provenance()}
                write(options.record, record)
                print(name, dict(Counter(row["verdict"] for row in table["rows"])), flush=True)
    return 0


def read(path: Path) -> dict[str, Any]:
    empty: dict[str, Any] = {"format": 1, "tables": {}, "runs": {}}
    return json.loads(path.read_text()) if path.exists() else empty


def write(path: Path, record: dict[str, Any]) -> None:
    record |= {"run": provenance(), "summary": summary(record)}
    write_whole(path, json.dumps(record) + "\n")


class TableWorkshop(Workshop):
    """Knows the designs of the table only; edits are made in its order."""

    def __init__(self, table: dict[str, Any]) -> None:
        model, gpu, dtype = table["problem"]
        super().__init__(load_model(model), load_target(gpu), CONTEXT, formats(dtype))
        start = self.space(table["start"]).start
        self.edits: list[str] = table["edits"]
        knobs = (Knob(name, (getattr(start, name), value)) for name, value in table["knobs"].items())
        self.table = Space(start, tuple(knobs))
        self.rows = dict(zip(designs(start, table["knobs"], self.edits), table["rows"], strict=True))
        self.times = {row["key"]: tuple(row["ms"]) for row in table["rows"] if "ms" in row}
        self.verdicts = {row["content"]: row["verdict"].split() for row in table["rows"] if "content" in row}

    def make(self, design: Design | Settings) -> Candidate | Impossible:
        design = design if isinstance(design, Design) else Design(design)
        design = Design(design.settings, tuple(text for text in self.edits if text in design.edits))
        if design not in self.rows:
            return Impossible(("AMK011",), "not in the table")
        return super().make(design)

    def certify(self, schedule: Schedule) -> Judgement:
        outcome, *codes = self.verdicts[content_key(schedule)[:SHORT]]
        return Judgement(outcome, tuple(codes))

    def drawn(self, hot: Hot, kind: str) -> Edits:
        """One of the table's edits: `directed` where a run is on the table."""
        return [edit_of(self.edits[int(hot.rng.integers(len(self.edits)))])]


@dataclass
class Lookup(SimulatedBackend):
    """Times of the table, with noise."""

    table: TableWorkshop | None = None

    def times(self, job: Job, ready: Ready) -> Block:
        assert self.table is not None
        return self.table.times[ready.candidate.key[:SHORT]]


@dataclass(frozen=True)
class OnTable:
    """A `compare.Problem`."""

    workshop: TableWorkshop
    positions: tuple[int, ...] = POSITIONS

    @property
    def space(self) -> Space:
        return self.workshop.table

    @property
    def certify(self) -> Certifier:
        return self.workshop.certify

    def backend(self, seed: int) -> SimulatedBackend:
        return Lookup(self.workshop.target.name, seed, noise=Noise("gaussian"), table=self.workshop)


def searched(table: dict[str, Any], search: str, seed: int) -> dict[str, Any]:
    """A run on the table: the noise-free log time of its best after each evaluation."""
    workshop = TableWorkshop(table)
    problem = OnTable(workshop)
    backend = problem.backend(seed)
    drawn = patch.multiple(structure, directed=workshop.drawn, KINDS={"edit of the table": None})
    with drawn, tempfile.TemporaryDirectory() as folder, Journal(Path(folder)) as journal:
        loop = begun(journal, offline(search), problem, backend, seed, AFTER[-1], table["start"], simulated=False)
        loop.gate.glance = workshop.certify
        ended = loop.run()
        best = loop.design_of(loop.state.best)
        return {
            "curve": [round(value, 6) for value in true_curve(loop, backend, AFTER[-1])], "edits": len(best.edits),
            "evaluations": loop.state.evals, "ended": ended[:120], "commit": commit(),
        }  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """All searches that the record lacks, written down as soon as each is there."""
    record = read(options.record)
    with ProcessPoolExecutor(options.jobs) as pool:
        started = {
            pool.submit(searched, table, search, seed): f"{name} {search} {seed}"
            for seed in range(SEEDS)
            for name, table in record["tables"].items()
            for search in SEARCHES
            if f"{name} {search} {seed}" not in record["runs"]
        }
        for done in as_completed(started):
            record["runs"][started[done]] = done.result()
            write(options.record, record)
            print(started[done], f"{exp(-done.result()['curve'][-1]):.4f}", flush=True)
    return 0


def summary(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Medians over the seeds that both searches have, and the fastest of the table with edits and without."""
    rows, runs = [], record["runs"]
    for name, table in record["tables"].items():
        seeds = [seed for seed in range(SEEDS) if all(f"{name} {search} {seed}" in runs for search in SEARCHES)]
        curves = {search: [runs[f"{name} {search} {seed}"]["curve"] for seed in seeds] for search in SEARCHES}
        after = {
            str(n): {search: round(median(exp(-curve[n]) for curve in found), 5) for search, found in curves.items()}
            for n in (AFTER if seeds else ())
        }
        rows.append({"table": name, "seeds": len(seeds), "medians_after": after, **fastest(table)})
    return rows


def fastest(table: dict[str, Any]) -> dict[str, float]:
    """Speed over the start of the fastest of the table, with edits and without."""
    workshop = TableWorkshop(table)
    times = {design: sum(map(log, row["ms"])) / len(row["ms"]) for design, row in workshop.rows.items() if "ms" in row}
    start = times[Design(workshop.table.start)]
    plain = min(time for design, time in times.items() if not design.edits)
    return {"fastest": round(exp(start - min(times.values())), 5), "fastest_plan": round(exp(start - plain), 5)}


def provenance() -> dict[str, str]:
    return {
        "command": "python -m tests.agent.edits_table " + " ".join(w for w in sys.argv[1:] if "/" not in w),
        "commit": commit(), "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"{os.cpu_count()} cores, no GPU",
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "run", "show"))
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    if options.what == "show":
        print(json.dumps(read(options.record)["summary"], indent=1))
        return 0
    return make(options) if options.what == "make" else run(options)


if __name__ == "__main__":
    sys.exit(main())
