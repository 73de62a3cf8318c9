"""Structural search against the knobs alone, at equal evaluations on the simulator.

    cd tests/records/search
    python -m tests.agent.structural_search run --record structural-search.json --jobs 16 --seconds 2400  # continues
    python -m tests.agent.structural_search merge OTHER... --record structural-search.json
    python -m tests.agent.structural_search show --record structural-search.json

Runs are spread over processes, and the record is written after each; what is under way when the time is over is lost. A
record goes on with the runs that it has not: after a change of the search begin another file.

`portfolio` is the default, in which structural search and the knobs share the evaluations; `knobs` is the portfolio of
those that turn knobs. Both may ask the simulator, whose noise-free times are the truth here: what is compared is the
search, and says nothing of a GPU. Verdicts are the validator's. Verdicts and times are kept beside the record
(`--kept`), by content of the schedule, because runs of several seeds come to the same plans.

What is recorded of every run: the noise-free log time of the best after each evaluation, and the best design. A plan
outside the planner's space counts as better when it is faster than the fastest plan without edits of all runs of its
problem by more than the simulator's error (`headroom.ERROR`).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from math import exp
from pathlib import Path
from statistics import median
from typing import Any

from amk.agent.decide.headroom import ERROR
from amk.agent.device.measure import Block, Job
from amk.agent.device.simulated import SimulatedBackend
from amk.agent.gate.candidate import Candidate, Workshop, content_key
from amk.agent.gate.certify import Certifier, Judgement, glancing, installed
from amk.agent.gate.design import in_words
from amk.agent.gate.gate import Ready
from amk.agent.journal.inbox import write_whole
from amk.agent.journal.state import START
from amk.agent.journal.store import Journal
from amk.agent.run.loop import Loop
from amk.agent.run.session import offline
from amk.bench.tools.provenance import commit
from amk.models.model import load_model
from amk.planner.formats import formats
from amk.planner.space import Space
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from tests.agent.compare import begun, true_curve

PROBLEMS = (
    ("smollm2-135m", "l4", "bf16"), ("llama3.2-1b", "h200", "int8"), ("llama3-8b", "h200", "bf16"),
    ("llama3-8b", "a100", "bf16"),
)  # fmt: skip
STARTS = ("fast", "naive")
SEARCHES = ("knobs", "portfolio")
AFTER = (24, 32, 48)
"""Evaluations after which the searches are compared."""
POSITIONS = (128, 2048)
CONTEXT = 8192


@dataclass
class Kept:
    """Verdicts and times by content, in a file of JSON lines that is read at the start and appended to."""

    path: Path
    verdicts: dict[str, Judgement] = field(default_factory=dict)
    times: dict[str, Block] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            record = json.loads(line)
            if "ms" in record:
                self.times[record["key"]] = tuple(record["ms"])
            else:
                self.verdicts[record["key"]] = Judgement(record["outcome"], tuple(record["codes"]), record["detail"])

    def add(self, record: dict[str, Any]) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


@dataclass
class Known(SimulatedBackend):
    kept: Kept | None = None

    def times(self, job: Job, ready: Ready) -> Block:
        assert self.kept is not None
        key = ready.candidate.key
        if key not in self.kept.times:
            self.kept.times[key] = super().times(job, ready)
            self.kept.add({"key": key, "ms": self.kept.times[key]})
        return self.kept.times[key]


@dataclass
class Problem:
    """`certify` is the validator, asked once for each content."""

    workshop: Workshop
    space: Space
    kept: Kept
    start: str
    positions: tuple[int, ...] = POSITIONS
    verifier: Certifier = field(default_factory=installed)
    quick: Certifier = field(default_factory=glancing)

    def glance(self, schedule: Schedule) -> Judgement:
        """What is known, else what the validator says soon; what it cannot is asked again if it is proposed."""
        found = self.kept.verdicts.get(content_key(schedule)) or self.quick(schedule)
        return found if found.outcome == "UNKNOWN" else self.certify(schedule, lambda _: found)

    def certify(self, schedule: Schedule, verifier: Certifier | None = None) -> Judgement:
        key = content_key(schedule)
        if key not in self.kept.verdicts:
            found = self.kept.verdicts[key] = (verifier or self.verifier)(schedule)
            self.kept.add({"key": key, "outcome": found.outcome, "codes": found.codes, "detail": found.detail[:300]})
        return self.kept.verdicts[key]

    def backend(self, seed: int) -> SimulatedBackend:
        return Known(self.workshop.target.name, seed, kept=self.kept)


def problem_of(model: str, gpu: str, dtype: Any, start: str, results: Kept) -> Problem:
    workshop = Workshop(load_model(model), load_target(gpu), CONTEXT, formats(dtype))
    return Problem(workshop, workshop.space(start), results, start)


Case = tuple[tuple[str, str, str], str, str, int]
"""(problem, start, search, seed)."""


def cases(seeds: int) -> Iterator[Case]:
    """One seed of everything before the next, the longest first."""
    for seed in range(seeds):
        for start in reversed(STARTS):
            for problem in PROBLEMS:
                for search in SEARCHES:
                    yield problem, start, search, seed


def name_of(problem: tuple[str, str, str], start: str, search: str, seed: int) -> str:
    return " ".join((*problem, start, search, str(seed)))


def searched(problem: Problem, search: str, seed: int, evals: int) -> dict[str, Any]:
    begin = time.monotonic()
    backend = problem.backend(seed)
    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder)) as journal:
        loop = begun(journal, offline(search), problem, backend, seed, evals, problem.start)
        loop.gate.glance = problem.glance
        ended = loop.run()
        state = loop.state
        found = {
            "curve": [round(value, 6) for value in true_curve(loop, backend, evals)],
            "best": best_of(loop, backend),
            "fastest_plan": fastest_plan(loop, backend),
            "evaluations": state.evals,
            "proposals": len(state.trials),
            "refused": refusals(loop),
            "edited": sum(trial.edited for trial in state.trials),
            "ended": ended[:120],
        }
    return found | {"seconds": round(time.monotonic() - begin)}


def refusals(loop: Loop) -> dict[str, int]:
    """Edited designs by what the gate said of them."""
    found: dict[str, int] = {}
    for trial in loop.state.trials:
        if trial.edited and trial.gated is not None:
            word = " ".join((trial.gated.verdict, *trial.gated.codes[:1]))
            found[word] = found.get(word, 0) + 1
    return dict(sorted(found.items()))


def best_of(loop: Loop, backend: SimulatedBackend) -> dict[str, Any]:
    design = loop.design_of(loop.state.best)
    changes = loop.space.changes(design.settings, loop.space.start)
    return {"ms": times_of(loop, backend, loop.state.best), "settings": changes, "edits": list(design.edits),
            "in_words": in_words(design.edits)}  # fmt: skip


def fastest_plan(loop: Loop, backend: SimulatedBackend) -> dict[str, Any]:
    """Of all plans without edits that passed the gate, the start among them, the fastest without noise."""
    plain = [t.index for t in loop.state.trials if not t.edited and t.evaluated]
    times = {index: times_of(loop, backend, index) for index in (START, *plain)}
    index = min(times, key=lambda i: sum(times[i]))
    return {"ms": times[index], "settings": loop.space.changes(loop.design_of(index).settings, loop.space.start)}


def times_of(loop: Loop, backend: SimulatedBackend, index: int) -> Block:
    candidate = loop.gate.workshop.make(loop.design_of(index))
    assert isinstance(candidate, Candidate)
    return backend.times(Job(0, "pilot", 1, 0, 0, POSITIONS, 0), Ready(candidate, b"", Judgement("SAFE")))


def run(options: argparse.Namespace) -> int:
    """Every case that the record has not, in processes; those under way at the end of the time are killed."""
    record = read(options.record)
    if record["runs"] and record["evals"] != options.evals:
        print(f"{options.record} has runs of {record['evals']} evaluations", file=sys.stderr)
        return 2
    left = [case for case in cases(options.seeds) if name_of(*case) not in record["runs"]]
    left = [case for case in left if not options.only or options.only in name_of(*case)]
    until = time.monotonic() + options.seconds
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=1) as pool:
        found = pool.imap_unordered(partial(one, folder=options.kept, evals=options.evals), left)
        for _ in left:
            try:
                name, result = found.next(timeout=max(0.0, until - time.monotonic()))
            except multiprocessing.TimeoutError:
                break
            record["runs"][name] = result
            record["run"] = provenance(options.evals)
            write(options.record, record | {"evals": options.evals, "positions": POSITIONS, "error": ERROR})
            print(f"{name}: {100 * (exp(-result['curve'][-1]) - 1):+.2f}% in {result['seconds']} s", flush=True)
    return 0


def one(case: Case, folder: Path, evals: int) -> tuple[str, dict[str, Any]]:
    problem, start, search, seed = case
    result = searched(problem_of(*problem, start, Kept(folder)), search, seed, evals)
    return name_of(*case), result | {"commit": commit()}


def merge(options: argparse.Namespace) -> int:
    """The runs of other records that this one has not. Numbers of evaluations, commits and so on have to agree."""
    record = read(options.record)
    for path in options.others:
        other = read(path)
        same = ("evals", "positions", "error")
        if record["runs"] and any(record[each] != other[each] for each in same):
            print(f"{path} was made otherwise", file=sys.stderr)
            return 2
        record = other | {"runs": other["runs"] | record["runs"]}
    write(options.record, record)
    return 0


def write(path: Path, record: dict[str, Any]) -> None:
    record["summary"] = summary(record)
    write_whole(path, json.dumps(record, indent=1) + "\n")


def provenance(evals: int) -> dict[str, str]:
    command = f"python -m tests.agent.structural_search run --evals {evals}"
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"command": command, "commit": commit(), "date": date, "hardware": f"{os.cpu_count()} cores, simulated GPUs"}


def read(path: Path) -> dict[str, Any]:
    empty: dict[str, Any] = {"format": 1, "name": "structural-search", "runs": {}}
    return json.loads(path.read_text()) if path.exists() else empty


def summary(record: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for every problem and start: medians over the seeds that both searches have, and the best plans."""
    rows, runs = [], record["runs"]
    for problem in PROBLEMS:
        plain = [each["fastest_plan"]["ms"] for name, each in runs.items() if name.startswith(" ".join(problem))]
        for start in STARTS:
            both = [record["runs"][name_of(problem, start, search, seed)] for seed in range(100) for search in SEARCHES
                    if all(name_of(problem, start, s, seed) in record["runs"] for s in SEARCHES)]  # fmt: skip
            if both:
                rows.append({"problem": " ".join(problem), "start": start, "seeds": len(both) // 2, **row(both, plain)})
    return rows


def row(both: list[dict[str, Any]], plain: list[list[float]]) -> dict[str, Any]:
    """`both`: runs of the knobs and of the portfolio in turn."""
    knobs, found = ([exp(-each["curve"][-1]) for each in both[side::2]] for side in (0, 1))
    best = min((each["best"]["ms"] for each in both[1::2] if each["best"]["edits"]), key=sum, default=None)
    planned = min(plain, key=sum)
    return {
        "knobs_speedup": [round(value, 4) for value in knobs],
        "portfolio_speedup": [round(value, 4) for value in found],
        "medians_after": {str(after): medians(both, after) for after in AFTER if after <= len(both[0]["curve"]) - 1},
        "planners_best_ms": planned, "best_edited_ms": best,
        "edited_is_faster_by": None if best is None else round(gain(planned, best), 4),
        "by_more_than_the_simulators_error": best is not None and gain(planned, best) > ERROR,
    }  # fmt: skip


def medians(both: list[dict[str, Any]], after: int) -> dict[str, Any]:
    """Median speed-ups of both searches after so many evaluations."""
    knobs, found = (median(exp(-each["curve"][after]) for each in both[side::2]) for side in (0, 1))
    return {"knobs": round(knobs, 5), "portfolio": round(found, 5), "portfolio_is_ahead": found > knobs}


def gain(planned: list[float], edited: list[float]) -> float:
    """Mean over positions of the relative time saved."""
    return sum(a / b - 1 for a, b in zip(planned, edited, strict=True)) / len(planned)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "merge", "show"))
    parser.add_argument("others", type=Path, nargs="*", help="records to merge into this one")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--kept", type=Path, default=Path(tempfile.gettempdir()) / "amk-structural-search.jsonl")
    parser.add_argument("--evals", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="no run goes on after this")
    parser.add_argument("--only", help="cases whose name has this in it")
    options = parser.parse_args()
    if options.what == "show":
        print(json.dumps(summary(read(options.record)), indent=1))
        return 0
    return merge(options) if options.what == "merge" else run(options)


if __name__ == "__main__":
    sys.exit(main())
