"""`amk simulate`: the time of a token by the simulator, and how well the simulator agrees with measured runs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from math import expm1
from pathlib import Path
from typing import Any

from amk.commands.format_arguments import positive
from amk.commands.measured_runs import measured_runs
from amk.commands.output import add_format, print_json, print_table
from amk.commands.planning import add_constants_choice, add_plan_arguments, given_or_planned
from amk.commands.trace import output, write
from amk.planner.settings import PRESETS
from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.report.timeline_html import html
from amk.report.timeline_perfetto import perfetto
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.simulator.agreement import Agreement, agreement
from amk.simulator.calibrate import Run, fit, fit_few
from amk.simulator.constants import Constants, constants_for, given_constants, save_constants
from amk.simulator.engine import PARTS
from amk.simulator.held_out import FOLDS, held_out
from amk.simulator.kinds import KindError, errors_of, known_error, read_errors, saved
from amk.simulator.picture import timeline_text
from amk.simulator.predict import Phase, Prediction, predict, step_ms
from amk.simulator.scatter import scatter
from amk.simulator.timeline import step_name, timeline_of
from amk.targets.target import Target
from amk.validator.verify import verify


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("schedule", nargs="?", help="schedule file; instead: --model and --gpu")
    add_plan_arguments(parser, required=False)
    parser.add_argument("--plan", choices=tuple(PRESETS), default="fast", help="plan of --model (default: fast)")
    parser.add_argument("--pos", type=int, default=128, help="position of the token (default: 128)")
    add_constants_choice(parser)
    parser.add_argument(
        "--timeline", action="append", default=[], type=output, metavar="FILE",
        help="X.html: a page that needs nothing else; X.json: for https://ui.perfetto.dev; may be given twice",
    )  # fmt: skip
    parser.add_argument("--calibrate", nargs="+", metavar="RUN", help="fit the constants to recorded runs or searches")
    parser.add_argument("--against", nargs="+", metavar="RUN", help="compare predictions with recorded runs")
    parser.add_argument(
        "--held-out", choices=("models", "kernels"), nargs="?", const="models",
        help="--against: predict each model by constants fitted to the others; or each fold of the kernels likewise",
    )  # fmt: skip
    parser.add_argument(
        "--errors",
        type=Path,
        metavar="FILE",
        help="--against: write the errors by kind of plan, which predictions name; other targets in FILE stay",
    )
    parser.add_argument("--folds", type=positive, default=FOLDS, help=f"of --held-out kernels (default: {FOLDS})")
    jobs = os.cpu_count() or 1
    parser.add_argument("--jobs", type=positive, default=jobs, help="processes of --held-out kernels (default: cores)")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write what --calibrate or --against found; X.svg: a plot"
    )
    add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.calibrate is not None:
        return _calibrate(arguments)
    if arguments.against is not None:
        return _compare(arguments)
    schedule = given_or_planned(arguments)
    if not 0 <= arguments.pos < schedule.kv.context:
        message = f"--pos {arguments.pos}: the cache has positions 0 to {schedule.kv.context - 1:,}"
        raise AmkError(Diagnostic("AMK005", message))
    if arguments.schedule is not None:
        _require_safe(schedule)
    constants = given_constants(arguments.constants, schedule.target)
    prediction = predict(schedule, arguments.pos, constants)
    error = known_error(schedule, arguments.pos, constants=constants)
    for path in arguments.timeline:
        timeline = timeline_of(prediction)
        write(path, html(timeline) if path.suffix == ".html" else json.dumps(perfetto(timeline)) + "\n")
    if arguments.format == "json":
        print_json(as_data(prediction, error))
    else:
        _print(prediction, error)
    return int(Exit.SAFE)


def _require_safe(schedule: Schedule) -> None:
    """Only a schedule that runs has a time; the verdict's own diagnostics and exit code otherwise."""
    verdict = verify(schedule)
    if not verdict.safe:
        exit_code = Exit.UNSAFE if verdict.status == "UNSAFE" else Exit.UNKNOWN
        raise AmkError(verdict.diagnostics, exit_code)


def _constants(arguments: argparse.Namespace, target: Target) -> Constants:
    """AMK005 if the file is about another target."""
    return given_constants(arguments.constants, target) or constants_for(target)


def as_data(prediction: Prediction, error: str) -> dict[str, Any]:
    """What `--format json` prints; times in microseconds but for `ms_per_token` and `floor_ms`. A step of several rows
    reads as many tokens in `ms_per_token`. error: what is known of it."""
    return {
        "batch": prediction.schedule.batch,
        "rows": prediction.schedule.rows,
        "ms_per_token": prediction.ms,
        "simulated": True,
        "schedule": schedule_hash(prediction.schedule),
        "model": prediction.schedule.model.name,
        "target": prediction.schedule.target.name,
        "pos": prediction.pos,
        "floor_ms": prediction.floor_ms,
        "error": error,
        "tokens_per_second": 1e3 * prediction.schedule.vectors / prediction.ms,
        "layer_us": prediction.layer_us,
        "phases": [_phase(p) for p in prediction.phases],
        "timeline": [
            {
                "group": s.group,
                "step": step_name(prediction, s.group, s.item),
                "part": s.part,
                "start": s.start,
                "end": s.end,
            }
            for s in prediction.spans
        ],
        "groups": [{"workers": list(g.workers), "fast_sm": g.fast} for g in prediction.window.groups],
        "constants": prediction.constants.model_dump(mode="json"),
    }


def _phase(phase: Phase) -> dict[str, Any]:
    return {
        "phase": phase.name, "runs": phase.runs, "us": phase.us, "us_per_run": phase.us / phase.runs,
        "bottleneck": phase.bottleneck, "parts": phase.parts,
    }  # fmt: skip


def _print(prediction: Prediction, error: str) -> None:
    schedule = prediction.schedule
    step = "token" if schedule.rows == 1 else f"step of {schedule.rows} rows"
    print(f"{prediction.ms:.4f} ms per {step}, simulated: {schedule.name} at position {prediction.pos}")
    print(f"error of such predictions: {error}")
    share = 100 * prediction.floor_ms / prediction.ms
    print(f"floor {prediction.floor_ms:.4f} ms ({share:.0f}%), a layer takes {prediction.layer_us:.1f} us\n")
    rows = []
    for p in prediction.phases:
        parts = "  ".join(f"{n} {p.parts[n] / p.runs:.2f}" for n in PARTS if p.parts.get(n, 0) >= 0.01 * p.us)
        rows.append((p.name, str(p.runs), f"{p.us / p.runs:.2f}", p.bottleneck, parts))
    print_table(("phase", "runs", "us", "bottleneck", "where a worker's time goes, us"), rows)
    print(f"\n{timeline_text(prediction)}")


def _calibrate(arguments: argparse.Namespace) -> int:
    runs = measured_runs(arguments.calibrate)
    target = _one_target(runs)
    fitted = fit(runs, _constants(arguments, target), progress=_say)
    rows = [
        (r.name, f"{r.ms:.4f}", f"{100 * expm1(b):+.1f}%", f"{100 * expm1(a):+.1f}%")
        for r, b, a in zip(runs, fitted.before, fitted.after, strict=True)
    ]
    if arguments.output is not None:
        save_constants(fitted.constants, arguments.output)
    if arguments.format == "json":
        print_json(
            {"constants": fitted.constants.model_dump(mode="json"), "before": fitted.before, "after": fitted.after}
        )
    else:
        print_table(("run", "measured ms", "error before", "error after"), rows)
    return int(Exit.SAFE)


def _one_target(runs: list[Run]) -> Target:
    targets = {r.schedule.target.name: r.schedule.target for r in runs}
    if len(targets) != 1:
        raise AmkError(Diagnostic("AMK005", f"runs of {', '.join(sorted(targets))}: calibrate one target at a time"))
    return next(iter(targets.values()))


def _compare(arguments: argparse.Namespace) -> int:
    """Agreement within each model: pooled over models, a correlation would only say that large models are slow."""
    models: dict[str, list[Run]] = {}
    for r in measured_runs(arguments.against):
        models.setdefault(r.schedule.model.name, []).append(r)
    pairs = _folded(arguments, models) if arguments.held_out == "kernels" else None
    pairs = pairs or {name: _pairs(arguments, name, models) for name in models}
    agreements = {name: agreement(pairs[name]) for name in models}
    data = {name: _agreement(a) for name, a in agreements.items()}
    kinds = _kinds(models, pairs)
    if arguments.errors is not None:
        known = read_errors(arguments.errors) if arguments.errors.exists() else None
        write(arguments.errors, saved(kinds, f"amk simulate --against {' '.join(arguments.against)}", known))
    if arguments.output is not None:
        drawn = arguments.output.suffix == ".svg"
        write(arguments.output, scatter(agreements) if drawn else json.dumps(data, indent=1) + "\n")
    if arguments.format == "json":
        print_json(data)
    else:
        header = ("model", "kernels", "Spearman", "median error", "worst", "top-5 recall", "within 15% of the best")
        print_table(header, [(name, *_cells(a)) for name, a in agreements.items()])
        print()
        if sum(len(a.pairs) for a in agreements.values()) <= MOST_LISTED:
            each = [
                (n, f"{m:.4f}", f"{p:.4f}", f"{100 * (p / m - 1):+.1f}%")
                for a in agreements.values()
                for n, m, p in a.pairs
            ]
            print_table(("run", "measured, ms", "simulated, ms", "off"), each)
            print()
        rows = [(target, kind, str(error)) for target, own in kinds.items() for kind, error in own.items()]
        print_table(("target", "kind of plan", "error"), rows)
    return int(Exit.SAFE)


def _kinds(models: Mapping[str, list[Run]], pairs: Mapping[str, Sequence[Pair]]) -> dict[str, dict[str, KindError]]:
    """Errors by target and kind of plan."""
    by_target: dict[str, list[tuple[Schedule, int, float, float]]] = {}
    for name, runs in models.items():
        for r, (_, measured, predicted) in zip(runs, pairs[name], strict=True):
            by_target.setdefault(r.schedule.target.name, []).append((r.schedule, r.pos, measured, predicted))
    return {target: errors_of(each) for target, each in by_target.items()}


Pair = tuple[str, float, float]
MOST_LISTED = 20
"""Runs that `--against` prints one by one."""


def _folded(arguments: argparse.Namespace, models: Mapping[str, list[Run]]) -> dict[str, list[Pair]]:
    """(run, measured, simulated) by model: each fold of the kernels by constants fitted to all others."""
    runs = [r for own in models.values() for r in own]
    start = _constants(arguments, _one_target(runs))
    try:
        times = held_out(runs, start, arguments.folds, jobs=arguments.jobs, progress=_say)
    except ValueError as error:
        raise AmkError(Diagnostic("AMK005", f"--held-out kernels: {error}")) from error
    pairs: dict[str, list[Pair]] = {name: [] for name in models}
    for r, ms in zip(runs, times, strict=True):
        pairs[r.schedule.model.name].append((r.name, r.ms, ms))
    return pairs


def _pairs(arguments: argparse.Namespace, name: str, models: Mapping[str, list[Run]]) -> list[Pair]:
    """(run, measured, simulated) of one model; with --held-out by constants fitted to the other models only."""
    own = models[name]
    constants = _constants(arguments, own[0].schedule.target)
    if arguments.held_out == "models":
        others = [r for other, runs in models.items() if other != name for r in runs]
        if not others:
            raise AmkError(Diagnostic("AMK005", "--held-out needs runs of at least two models"))
        _one_target([*own, *others])
        print(f"fitting without {name}", file=sys.stderr)
        constants = fit_few(others, constants, progress=_say).constants
    known: dict[tuple[int, int], float] = {}
    for r in own:  # runs of one kernel share its schedule
        if (at := (id(r.schedule), r.pos)) not in known:
            known[at] = step_ms(r.schedule, r.pos, constants)
    return [(r.name, r.ms, known[id(r.schedule), r.pos]) for r in own]


def _agreement(a: Agreement) -> dict[str, Any]:
    return {
        "kernels": len(a.pairs), "spearman": a.spearman, "median_error": a.median_error, "worst_error": a.worst_error,
        "top5_recall": a.recall, "within_15_percent": a.near,
        "pairs": [{"run": n, "measured_ms": m, "simulated_ms": round(p, 5)} for n, m, p in a.pairs],
    }  # fmt: skip


def _cells(a: Agreement) -> tuple[str, ...]:
    rank = "-" if a.spearman is None else f"{a.spearman:.3f}"
    shares = (f"{100 * share:.1f}%" for share in (a.median_error, a.worst_error))
    return str(len(a.pairs)), rank, *shares, f"{100 * a.recall:.0f}%", f"{100 * a.near:.0f}%"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
