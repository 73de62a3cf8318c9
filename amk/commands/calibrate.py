"""`amk calibrate`: what the simulator needs from this machine's GPU."""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import sys
import time
from pathlib import Path

from amk.bench.calibration import kernel_choice, sm_rates
from amk.bench.tools.provenance import commit
from amk.commands.bench import positions, usable_gpu
from amk.commands.format_arguments import natural, positive
from amk.commands.learned import learn
from amk.commands.measured_runs import recorded_settings
from amk.models.model import load_model
from amk.planner.search import Problem
from amk.planner.settings import Settings
from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.simulator.constants import constants_for, save_constants
from amk.targets.target import Target, load_target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpu", required=True, help="the target that this machine's GPU is")
    parser.add_argument("--micro", type=Path, metavar="FILE", help="measure micro-benchmarks, write the constants here")
    shares = "measure how fast each SM reads while all do, and what shares by speed could gain; write it here"
    parser.add_argument("--shares", type=Path, metavar="FILE", help=shares)
    parser.add_argument("--model", help="measure many kernels of this model")
    parser.add_argument("--kernels", type=positive, default=36, help="how many (default: 36)")
    parser.add_argument("--positions", type=positions, default=(128,), metavar="P,P,...", help="default: 128")
    parser.add_argument("--max-context", type=positive, default=4096, help="cache positions (default: 4096)")
    parser.add_argument("--seed", type=natural, default=0, help="of the choice of kernels (default: 0)")
    parser.add_argument("--steps", type=positive, default=30, help="measured launches of a kernel (default: 30)")
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, help="processes that verify and compile")
    parser.add_argument("--record", type=Path, metavar="FILE", help="add every kernel to this JSON file")
    plans = "measure the plans in this file; where there is none, choose them and write it, which needs no GPU"
    parser.add_argument("--plans", type=Path, metavar="FILE", help=plans)
    unseen = "choose no kernel of this model that these records have: for predictions by constants fitted to them"
    parser.add_argument("--unseen", type=Path, nargs="+", default=[], metavar="RECORD", help=unseen)
    parser.add_argument("--time-limit", type=positive, metavar="SECONDS", help="begin no kernel after this time")
    sent = "fit the constants to files of `amk bench --share`, which needs no GPU; -o names where they are written"
    parser.add_argument("--learn", type=Path, nargs="+", metavar="FILE", help=sent)
    parser.add_argument(
        "--signers", type=Path, metavar="FILE", help="with --learn: who must have signed, as ssh lists them"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="constants that --learn found")


def run(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    kernels = arguments.model is not None and (arguments.record is not None or arguments.plans is not None)
    if arguments.micro is None and arguments.shares is None and arguments.learn is None and not kernels:
        message = "give --micro FILE, --shares FILE, --learn FILE, or --model and --record FILE (or --plans FILE)"
        raise AmkError(Diagnostic("AMK005", message))
    target = load_target(arguments.gpu)
    if arguments.learn is not None:
        learn(arguments, target, _say)
    if arguments.micro is not None:
        device = usable_gpu()
        micro = importlib.import_module("amk.bench.calibration.micro")
        source = f"micro-benchmark on {device.name}, commit {commit()}, {time.strftime('%Y-%m-%d')}"
        save_constants(micro.measured_constants(device, constants_for(target), _say, source), arguments.micro)
    if arguments.shares is not None:
        _shares(arguments.shares)
    if kernels:
        _kernels(arguments, target, began + (arguments.time_limit or float("inf")))
    return int(Exit.SAFE)


def _shares(path: Path) -> None:
    """Rates of the SMs of this GPU, recorded and told."""
    device = usable_gpu()
    micro = importlib.import_module("amk.bench.calibration.micro")
    hardware = importlib.import_module("amk.bench.tools.hardware")
    rates = micro.measured_rates(device, hardware.provenance("amk " + shlex.join(sys.argv[1:]), device))
    sm_rates.save(rates, path)
    for line in sm_rates.lines(rates):
        _say(line)


def _kernels(arguments: argparse.Namespace, target: Target, deadline: float) -> None:
    """Choose plans of the model, and measure them if there is a record to write."""
    model = load_model(arguments.model)
    context = min(arguments.max_context, model.max_context)
    if max(arguments.positions) >= context:
        raise AmkError(Diagnostic("AMK011", f"--max-context {context} has no position {max(arguments.positions)}"))
    problem = Problem(model, target, context=context, positions=arguments.positions)
    device = usable_gpu() if arguments.record is not None else None
    plans = _plans(arguments, problem)
    if device is None:
        return
    kernel_set = importlib.import_module("amk.bench.calibration.kernel_set")
    hardware = importlib.import_module("amk.bench.tools.hardware")
    kernels = kernel_choice.kernels(problem, plans, arguments.kernels, arguments.jobs)
    run_info = hardware.provenance("amk " + shlex.join(sys.argv[1:]), device)
    kernel_set.measure(problem, kernels, arguments.record, run_info, deadline, arguments.steps, _say)


def _plans(arguments: argparse.Namespace, problem: Problem) -> list[Settings]:
    if arguments.plans is not None and arguments.plans.exists():
        return kernel_choice.read_plans(arguments.plans, problem)
    seen = recorded_settings(arguments.unseen, problem.model.name)
    states = kernel_choice.chosen(problem, arguments.kernels, arguments.seed, seen)
    if arguments.plans is not None:
        kernel_choice.write_plans(arguments.plans, problem, states)
        _say(f"{len(states)} plans in {arguments.plans}")
    return [s.settings for s in states]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
