"""`amk autoresearch`: search for a faster certified schedule until a budget ends."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amk.agent.journal.store import Journal, read_state
from amk.agent.report.stored_report import REPORT
from amk.agent.run.interrupt import Interrupts
from amk.commands.autoresearch_resume import (
    DEFAULT_EVALS,
    NEWEST,
    check_read,
    chosen,
    limits_of,
    moved,
    over,
    same_kind,
    unread,
    why_over,
)
from amk.commands.format_arguments import natural
from amk.commands.planning import add_batch_choice, add_constants_choice
from amk.planner.settings import STARTS
from amk.report.diagnostic import AmkError, Diagnostic, Exit, printable
from amk.simulator.constants import given_constants
from amk.targets.target import load_target
from amk.weights.weight_format import FORMATS

if TYPE_CHECKING:
    from amk.agent.journal.events import Limits
    from amk.agent.journal.state import State
    from amk.agent.propose.transfer import Lessons
    from amk.agent.report.live import View
    from amk.agent.report.results import Results
    from amk.agent.run.runs import Plan

PROPOSERS = (
    "portfolio", "knobs", "structure", "random", "local", "evolution", "beam", "surrogate", "llm", "replay"
)  # fmt: skip
MOST_SHOWN = 5
PROGRAM, PROGRAM_BYTES = "program.md", 16_384


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, help="model name or path")
    parser.add_argument("--gpu", required=True, help="target name; without that GPU here, everything is simulated")
    parser.add_argument("--gpus", type=int, metavar="N", help="use N such GPUs at once (default: 1; with --ray all)")
    parser.add_argument("--ray", metavar="ADDRESS", help="measure on a Ray cluster; local starts one on this machine")
    parser.add_argument("--dtype", choices=FORMATS, default="bf16", help="format of the weights (default: bf16)")
    parser.add_argument("--lm-head-dtype", choices=FORMATS, help="format of lm_head (default: that of --dtype)")
    add_batch_choice(parser)
    parser.add_argument("--start", choices=STARTS, default="fast", help="plan to start from (default: fast)")
    parser.add_argument("--compare", choices=STARTS, help="at the end, measure the best found against this plan")
    parser.add_argument("--max-context", type=int, default=8192, help="cache positions (default: 8192)")
    parser.add_argument("--proposer", choices=PROPOSERS, default="portfolio", help="who proposes (default: portfolio)")
    parser.add_argument(
        "--no-prior", action="store_true", help="nobody proposes by the simulator, which was fitted to measured plans"
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="processes that prove and compile (default: cores - 2; simulated: 1)"
    )
    add_constants_choice(parser)
    tables = "tables of `amk export RUN --transfer FILE`: what paid in those runs, of whatever model and GPU, is tried"
    parser.add_argument("--transfer", type=Path, nargs="+", metavar="FILE", help=tables)
    parser.add_argument("--replay-run", help="run whose proposals --proposer replay repeats")
    parser.add_argument("--llm-model", help="language model for --proposer llm")
    parser.add_argument("--llm-price", metavar="IN/OUT", help="its price in dollars per million tokens")
    record = "answer from the record of RUN only, never call; with --resume from that of the run itself"
    parser.add_argument("--llm-replay", nargs="?", const=NEWEST, metavar="RUN", help=record)
    parser.add_argument("--llm-turns", type=int, default=24, metavar="N", help="turns of a conversation (default: 24)")
    parser.add_argument("--llm-talks", type=int, default=2, metavar="N", help="conversations at once (default: 2)")
    parser.add_argument(
        "--program",
        type=Path,
        metavar="FILE",
        help="aims and restrictions, told to the model (default: program.md here, else what the run was given before)",
    )
    parser.add_argument("--max-dollars", type=float, help="limit for the language model (default: 0)")
    parser.add_argument("--max-tokens", type=int, help="limit of its tokens")
    parser.add_argument("--max-calls", type=int, help="limit of its calls")
    parser.add_argument("--minutes", type=float, help="limit of work over all sessions")
    parser.add_argument("--evals", type=int, help=f"limit of evaluations (default: {DEFAULT_EVALS} without --minutes)")
    parser.add_argument("--seed", type=natural, default=0, help="seed of the proposers (default: 0)")
    parser.add_argument(
        "--resume", nargs="?", const=NEWEST, metavar="RUN", help="continue RUN, or the newest unfinished like this"
    )


def run(arguments: argparse.Namespace) -> int:
    with Interrupts() as interrupts:
        try:
            return _run(arguments, interrupts)
        except KeyboardInterrupt:  # before there was a session, or when it was over
            with interrupts.hold(), contextlib.suppress(OSError):  # a terminal that has gone
                if not interrupts.begun:
                    print("interrupted: nothing was begun", file=sys.stderr)
            return interrupts.code


def _run(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    from amk.agent.propose import transfer

    _check_counts(arguments)
    limits = limits_of(arguments, None)
    lessons = _lessons(arguments)
    folder = chosen(arguments)
    if folder is None:
        check_read(arguments, arguments.proposer)
        _check_llm(arguments, limits)
    arguments.advice, tape = _program(arguments.program), _tape(arguments)
    source, again = folder, None if folder is None else moved(arguments, folder)
    if again is not None:
        folder, limits = None, again.limits
    plan = again or _plan(arguments, limits)
    if folder is None and again is None:
        lessons = _with_defaults(plan, lessons)
    with _opened(folder, plan, interrupts) as journal:
        try:
            with _reported(journal, interrupts):
                interrupts.check()
                if lessons:
                    transfer.keep(journal.folder, lessons)
                if tape is not None:
                    shutil.copyfile(tape, journal.folder / tape.name)
                if again is not None and source is not None:
                    _to_measure(source, journal, arguments.llm_replay is not None)
                _go_on(arguments, journal, plan, limits, interrupts)
        except KeyboardInterrupt:
            if journal.state.run is None:
                raise
            words = ["--model", arguments.model, "--gpu", arguments.gpu, "--resume", journal.folder.name]
            with interrupts.hold(), contextlib.suppress(OSError):  # a terminal that has gone
                print(f"interrupted; go on with: amk autoresearch {printable(shlex.join(words))}", file=sys.stderr)
                if journal.state.calibrations:
                    _say_best(journal)
                    sys.stdout.flush()
            return interrupts.code
        _say_best(journal)
    return int(Exit.SAFE)


@contextlib.contextmanager
def _opened(folder: Path | None, plan: Plan, interrupts: Interrupts) -> Iterator[Journal]:
    """The journal of the run to go on with, or of a new one. Of a new run nothing stays if it is interrupted before its
    first event."""
    from amk.agent.run import runs

    with contextlib.ExitStack() as opening:
        opening.enter_context(interrupts.hold())
        journal = runs.create(plan) if folder is None else Journal(folder)
        try:
            with journal:
                opening.close()
                yield journal
        except KeyboardInterrupt:
            if folder is None and journal.state.run is None:
                shutil.rmtree(journal.folder, ignore_errors=True)
            raise


def _go_on(arguments: argparse.Namespace, journal: Journal, plan: Plan, limits: Limits, interrupts: Interrupts) -> None:
    """A session, unless the run is finished."""
    if journal.state.run is not None:
        limits = limits_of(arguments, journal.state.limits)
    if over(journal, limits):
        _say(journal, journal.repairs)
        print(printable(why_over(journal, limits), 400))
    else:
        _session(arguments, journal, plan, limits, interrupts)


@contextlib.contextmanager
def _reported(journal: Journal, interrupts: Interrupts) -> Iterator[None]:
    """Leaves a report of what was written, whatever ends it."""
    before, there = journal.state.events, (journal.folder / REPORT).exists()
    try:
        yield
    except BaseException:
        if journal.state.run is not None and (not there or journal.state.events > before):
            with interrupts.hold():
                from amk.agent.run import reports

                reports.write_report(journal.folder, journal.state, whole=False)
        raise


def _session(
    arguments: argparse.Namespace, journal: Journal, plan: Plan, limits: Limits, interrupts: Interrupts
) -> None:
    """One session, with its report where nothing ends it before."""
    from amk.agent.gate.pool import jobs_of
    from amk.agent.report.live import View
    from amk.agent.report.results import FILE, Results
    from amk.agent.run import reports, runs, session

    run = journal.state.run
    target, seed = load_target(arguments.gpu), arguments.seed if run is None else run.seed
    constants = plan.constants if run is None else run.constants
    with session.opened(target, seed, journal.folder, arguments.gpus, arguments.ray, constants) as backends:
        with interrupts.hold():
            if run is None:
                runs.start(journal, plan, backends)
            else:
                same_kind(run.simulated, backends[0].simulated)
                runs.begin(journal, backends, limits)
            interrupts.begun = True
        interrupts.check()
        assert journal.state.run is not None
        name = journal.state.run.proposer
        model = arguments.llm_model or journal.state.run.llm_model
        advice = _advice(journal.folder, arguments.advice) if name == "llm" else ""
        options = session.LlmOptions(
            model, arguments.llm_price, arguments.llm_replay is not None, advice, arguments.llm_turns,
            arguments.llm_talks,
        )  # fmt: skip
        proposer = session.proposer_for(name, journal, options, _recorded(arguments))
        jobs = arguments.jobs or (1 if backends[0].simulated else jobs_of(os.cpu_count()))
        loop = session.loop_of(journal, backends, proposer, jobs)
        loop.reference = STARTS[arguments.compare] if arguments.compare else None
        many = f", {len(backends)} devices" if len(backends) > 1 else ""
        print(f"run {journal.folder.name} on {backends[0].label}{many}", file=sys.stderr)
        begun = journal.state.session
        _say(journal, (*journal.repairs, *(begun.changed if begun is not None else ())))
        if ignored := unread(arguments, name, arguments.advice is not None):
            _say(journal, [f"no language model proposes (--proposer llm), so {', '.join(ignored)} is not used"])
        with View(sys.stderr) as view:
            view.go_on(journal.state)
            loop.watch, loop.asks = partial(_watch, view, Results(journal.folder / FILE)), view.asks
            loop.run()
        reports.write_report(journal.folder, journal.state, whole=False)
        if reports.takes_changes_out(journal.state):
            label = "simulated  " if journal.state.run.simulated else ""
            print(f"{label}report: each change of the best is taken out by itself", file=sys.stderr)
        reports.write_report(journal.folder, journal.state, workshop=loop.gate.workshop, note=journal.append)


def _say(journal: Journal, lines: Iterable[str]) -> None:
    for words in lines:
        print(printable(f"{journal.folder.name}: {words}", 400), file=sys.stderr)


def _watch(view: View, results: Results, state: State) -> None:
    """Show what became of a step, and write it to the table."""
    view.show(state)
    results.show(state)


def _program(path: Path | None) -> str | None:
    """The person's advice to the language model, cut at what a prompt can hold, if there is any; AMK005 if it cannot be
    read."""
    place = path or Path(PROGRAM)
    if path is None and not place.is_file():
        return None
    try:
        text = place.read_bytes()[:PROGRAM_BYTES].decode("utf-8", "replace")
    except OSError as error:
        message = f"{place} cannot be read: {error.strerror or error}"
        raise AmkError(Diagnostic("AMK005", message)) from error
    return "\n".join(printable(line) for line in text.splitlines())


def _check_counts(arguments: argparse.Namespace) -> None:
    """AMK005 for a number that is given and below one."""
    for option in ("gpus", "jobs", "llm_turns", "llm_talks"):
        number = getattr(arguments, option)
        if number is not None and number < 1:
            raise AmkError(Diagnostic("AMK005", f"--{option.replace('_', '-')} {number}: at least one is needed"))


def _check_llm(arguments: argparse.Namespace, limits: Limits) -> None:
    """AMK706 before anything is written, if the language model cannot be used as asked."""
    from amk.agent.propose.prices import price_of

    if arguments.proposer != "llm":
        return
    if arguments.llm_model is None or (limits.dollars <= 0 and arguments.llm_replay is None):
        raise AmkError(Diagnostic("AMK706", "the proposer llm needs --llm-model and --max-dollars"))
    price_of(arguments.llm_model, arguments.llm_price)


def _to_measure(folder: Path, journal: Journal, replay: bool) -> None:
    """What the new run has of the simulated one: its candidates, which go before all that the new one proposes, the
    lessons and the advice that it was given, its notes, and its conversations if they are to be replayed."""
    from amk.agent.decide.headroom import candidates
    from amk.agent.journal.inbox import INBOX, SIMULATED, Inbox
    from amk.agent.propose import transfer
    from amk.agent.run import session

    inbox, state = Inbox(journal.folder / INBOX), read_state(folder)
    best = candidates(state)
    for worth in best:
        why = f"#{worth.trial.index} of {folder.name}: {100 * math.expm1(worth.gain):+.2f}% simulated"
        inbox.put(worth.trial.proposed.settings, why, SIMULATED, list(map(json.loads, worth.trial.proposed.edits)))
    for note in state.notes:
        inbox.put_note(note.text, note.author)
    for name in (transfer.FILE, PROGRAM, *((session.CASSETTE,) if replay else ())):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, journal.folder / name)
    print(
        f"{folder.name} was simulated: its {len(best)} best candidates are measured first, in a new run",
        file=sys.stderr,
    )


def _advice(folder: Path, text: str | None) -> str:
    """What the language model is told: what is given now, else what the run was given last. Says where it stands."""
    from amk.agent.journal.inbox import write_whole

    path = folder / PROGRAM
    if text is not None:
        write_whole(path, f"{text}\n" if text else "")
    advice = (_program(path) if path.is_file() else None) or ""
    if advice:
        lines = len(advice.splitlines())
        print(printable(f"{folder.name}: {lines} lines of advice to the language model, {path}", 400), file=sys.stderr)
    return advice


def _plan(arguments: argparse.Namespace, limits: Limits) -> Plan:
    from amk.agent.run.runs import Plan, model_named
    from amk.models.model import load_model

    model, target = load_model(arguments.model), load_target(arguments.gpu)
    if arguments.max_context < 2:
        raise AmkError(Diagnostic("AMK005", "--max-context: at least 2 positions are needed"))
    of_head = None if arguments.lm_head_dtype == arguments.dtype else arguments.lm_head_dtype
    return Plan(
        model=model_named(arguments.model), target=target.name, start=arguments.start,
        seed=arguments.seed, context=min(arguments.max_context, model.max_context), proposer=arguments.proposer,
        llm_model=arguments.llm_model, limits=limits, dtype=arguments.dtype, lm_head_dtype=of_head,
        prior=not arguments.no_prior,
        batch=arguments.batch, constants=given_constants(arguments.constants, target),
    )  # fmt: skip


def _lessons(arguments: argparse.Namespace) -> Lessons | None:
    """The tables that a new run is given, as one. AMK005 where nobody would look at them."""
    if arguments.transfer is None:
        return None
    if arguments.resume is not None or arguments.proposer not in ("portfolio", "llm"):
        message = "--transfer is for a new run whose proposer is portfolio or llm; a resumed run has what it was given"
        raise AmkError(Diagnostic("AMK005", message))
    from amk.agent.propose.transfer import read

    return read(arguments.transfer)


def _with_defaults(plan: Plan, lessons: Lessons | None) -> Lessons | None:
    """The lessons of a new run: those that it is given, and what the default plan differs in from where it begins."""
    from amk.agent.propose.transfer import MOST, Lessons, default_lessons

    if plan.start != "fast" or plan.proposer not in ("portfolio", "llm"):
        return lessons
    every = (*default_lessons(plan).lessons, *(lessons.lessons if lessons else ()))
    return Lessons(lessons=every[:MOST]) if every else None


def _tape(arguments: argparse.Namespace) -> Path | None:
    """The record that a new run answers from. AMK005 if the run that is named has none."""
    if not arguments.llm_replay:
        return None
    from amk.agent.run import runs, session

    tape = runs.find(arguments.llm_replay) / session.CASSETTE
    if not tape.is_file():
        raise AmkError(Diagnostic("AMK005", f"no language model answered in run {tape.parent.name}"))
    return tape


def _recorded(arguments: argparse.Namespace) -> tuple[dict[str, Any], ...]:
    if arguments.replay_run is None:
        return ()
    from amk.agent.run import runs, session

    return session.recorded_points(read_state(runs.find(arguments.replay_run)))


def _say_best(journal: Journal) -> None:
    from amk.agent.decide.feedback import fate
    from amk.agent.decide.headroom import candidates, known_error_of
    from amk.agent.decide.keep import compared
    from amk.agent.report.results import metrics

    state = journal.state
    label = "simulated: " if state.run is not None and state.run.simulated else ""
    print(f"{label}{math.exp(-state.best_score):.3f}x the start after {state.evals} evaluations")
    if state.finished is not None:
        print(printable(f"{label}ended: {state.finished}"))
    if state.references:
        print(printable(f"{label}{compared(state.references[-1])}"))
    for worth in candidates(state)[:MOST_SHOWN] if state.run is not None and state.run.simulated else ():
        outcome = fate(state, worth.trial)
        gain, value = 100 * math.expm1(worth.gain), 100 * worth.value
        print(printable(f"to measure: {gain:+.2f}% simulated, worth {value:.2f}%: {outcome.text}", 200))
    for line in metrics(state):
        print(line)
    if state.run is not None and state.run.simulated:
        print(f"error of such predictions: {known_error_of(state.run)}")
    print(f"report: {journal.folder / 'report.html'}")
    print(f"export: amk export {journal.folder.name} -o best.schedule.json")
