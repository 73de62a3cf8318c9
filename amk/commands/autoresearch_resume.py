"""What `amk autoresearch --resume` goes on with: which run, whether it is about what was asked for, and its limits."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from amk.agent.journal.store import Journal, is_busy, read_state
from amk.report.diagnostic import AmkError, Diagnostic, printable
from amk.simulator.constants import given_constants
from amk.targets.target import load_target

if TYPE_CHECKING:
    from amk.agent.journal.events import Limits, RunStarted
    from amk.agent.journal.state import State
    from amk.agent.run.runs import Plan

DEFAULT_EVALS = 200
PROBLEM: dict[str, object] = {
    "model": None, "gpu": None, "dtype": "bf16", "lm_head_dtype": None, "batch": 1, "start": "fast",
    "max_context": 8192, "proposer": "portfolio", "seed": 0, "no_prior": False,
}  # fmt: skip
"""What a run is about, with what asks for nothing: a run that is resumed stays what it is."""
LIMITS = {
    "minutes": "minutes",
    "evals": "evals",
    "max_dollars": "dollars",
    "max_tokens": "tokens",
    "max_calls": "calls",
}
"""Options and the limits that they set."""
READERS = {"llm_model": "llm", "llm_price": "llm", "llm_replay": "llm", "program": "llm", "replay_run": "replay"}
"""Options that one proposer alone reads."""
NEWEST = ""


def check_read(arguments: argparse.Namespace, proposer: str) -> None:
    """AMK005 for what nobody would look at, and for a replay of nothing."""
    for option, reader in READERS.items():
        if getattr(arguments, option) is not None and proposer != reader:
            message = f"--{option.replace('_', '-')} is for --proposer {reader}, and {proposer} proposes"
            raise AmkError(Diagnostic("AMK005", message))
    if proposer == "replay" and arguments.replay_run is None:
        raise AmkError(Diagnostic("AMK005", "--proposer replay needs --replay-run RUN"))
    if arguments.llm_replay is not None and (arguments.llm_replay == NEWEST) is (arguments.resume is None):
        raise AmkError(Diagnostic("AMK005", "--llm-replay names a RUN in a new run, and none in one that is resumed"))


def limits_of(arguments: argparse.Namespace, old: Limits | None) -> Limits:
    """Those of a new run, or of one that is resumed: what is not given stays what it was. AMK005 out of range."""
    from pydantic import ValidationError

    from amk.agent.journal import budget
    from amk.agent.journal.events import Limits

    options = {name: getattr(arguments, option) for option, name in LIMITS.items()}
    if old is None and arguments.evals is None and arguments.minutes is None:
        options["evals"] = DEFAULT_EVALS
    try:
        return budget.merged(old or Limits(), options)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        option = next(option for option, name in LIMITS.items() if name == detail["loc"][0])
        raise AmkError(Diagnostic("AMK005", f"--{option.replace('_', '-')}: {detail['msg']}")) from error


def over(journal: Journal, limits: Limits) -> bool:
    """Whether a run is finished and is given nothing that lets it go on."""
    from amk.agent.journal import budget

    state = journal.state
    if state.finished is None:
        return False
    more = [new is None or (old is not None and new > old) for old, new in _pairs(state.limits, limits) if old != new]
    return not any(more) or budget.spent_out(limits, state, journal.elapsed) is not None


def why_over(journal: Journal, limits: Limits) -> str:
    """That a run is finished, which limits that were given it does not take, and what lets it go on."""
    from amk.agent.journal import budget

    state, words = journal.state, f"run {journal.folder.name} is finished"
    if changed := budget.changes(state.limits, limits):
        words += f", and keeps its limits ({', '.join(changed)} would not let it go on)"
    ways = []
    if limits.evals is not None and state.committed >= limits.evals:
        ways.append(f"--evals {state.committed + 1} or more")
    if budget.out_of_time(limits, journal.elapsed) is not None:
        ways.append(f"--minutes above {journal.elapsed / 60:.1f}")
    return f"{words}; it goes on with {' and '.join(ways)}" if ways else words


def unread(arguments: argparse.Namespace, proposer: str, program: bool) -> list[str]:
    """What is given and meant for a language model, where none proposes. program: whether advice lies here."""
    if proposer == "llm":
        return []
    limits = ("max_dollars", "max_tokens", "max_calls")
    found = [f"--{name.replace('_', '-')}" for name in limits if getattr(arguments, name) is not None]
    return [*found, *(["program.md"] if program else [])]


def _pairs(old: Limits, new: Limits) -> list[tuple[float | None, float | None]]:
    return [(getattr(old, name), getattr(new, name)) for name in LIMITS.values()]


def chosen(arguments: argparse.Namespace) -> Path | None:
    """The folder to resume, or None for a new run."""
    from amk.agent.run import runs
    from amk.models.model import load_model

    if arguments.resume is None:
        return None
    if arguments.resume != NEWEST:
        return runs.find(arguments.resume)
    load_model(arguments.model)
    return _newest(arguments)


def _newest(arguments: argparse.Namespace) -> Path:
    """What is resumed where no run is named, of those about what was asked for: the newest that is unfinished and of
    the kind that goes on here, which is measured where the card is and simulated elsewhere; else the newest. Without
    the card a measured one comes last, and one that another process has open always does. Says what it takes."""
    from amk.agent.run import runs, session

    target = load_target(arguments.gpu)
    every = runs.about(arguments.model, target.name)
    if not every:
        message = f"no run of {arguments.model} on {arguments.gpu} to resume"
        raise AmkError(Diagnostic("AMK701", message, help="`amk runs` lists the runs"))
    same = [(folder, state) for folder, state in every if _is_asked_for(arguments, folder, state)]
    if not same:
        return every[0][0]  # how it differs is said where it is opened
    measured = arguments.ray is not None or session.is_here(target)

    def rank(run: tuple[Path, State]) -> tuple[bool, int]:
        folder, state = run
        assert state.run is not None
        if state.run.simulated is not measured:
            return is_busy(folder), int(state.finished is not None)
        return is_busy(folder), 1 if measured else 2

    folder, state = min(same, key=rank)
    assert state.run is not None
    kind, going = ("measured", "simulated")[state.run.simulated], "measured" if measured else "simulated"
    if len(same) == 1:
        why = "the only one that fits"
    elif rank((folder, state))[1] == 0:
        why = f"the newest that is unfinished and {going}, of {len(same)} that fit"
    else:
        why = f"of {len(same)} that fit none is unfinished and {going}"
    words = f"{kind}, {runs.status(folder, state)}: {why}"
    print(printable(f"--resume takes {folder.name}, {words}"), file=sys.stderr)
    return folder


def _is_asked_for(arguments: argparse.Namespace, folder: Path, state: State) -> bool:
    assert state.run is not None
    try:
        _same_problem(arguments, folder.name, state.run)
    except AmkError:
        return False
    return True


def moved(arguments: argparse.Namespace, folder: Path) -> Plan | None:
    """What a simulated run that is resumed where the card is becomes: a run of its own, because simulated and measured
    times do not mix. AMK701 if the run is not about what was asked for."""
    from amk.agent.run import session
    from amk.agent.run.runs import Plan

    state = read_state(folder)
    run = state.run
    if run is None:
        return None
    _same_problem(arguments, folder.name, run)
    check_read(arguments, run.proposer)
    if not run.simulated or arguments.ray is not None or not session.is_here(load_target(run.target)):
        return None
    return Plan(
        model=run.model, target=run.target, context=run.context, start=run.start, seed=run.seed, proposer=run.proposer,
        llm_model=run.llm_model, limits=limits_of(arguments, state.limits), dtype=run.dtype,
        lm_head_dtype=run.lm_head_dtype, prior=run.prior,
        batch=run.batch, constants=run.constants,
    )  # fmt: skip


def _same_problem(arguments: argparse.Namespace, name: str, run: RunStarted) -> None:
    """AMK701 if a run is resumed that is not about what was asked for; what is left at its default asks for nothing."""
    from amk.agent.run.runs import model_named
    from amk.models.model import load_model

    constants = given_constants(arguments.constants, load_target(arguments.gpu))
    options = {option: getattr(arguments, option) for option in PROBLEM}
    most = load_model(run.model).max_context
    options |= {
        "model": model_named(arguments.model), "gpu": load_target(arguments.gpu).name,
        "max_context": min(arguments.max_context, most),
    }  # fmt: skip
    known = {option: getattr(run, option, None) for option in PROBLEM}
    known |= {
        "model": model_named(run.model), "gpu": run.target, "max_context": run.context, "no_prior": not run.prior,
    }  # fmt: skip
    for option, default in PROBLEM.items():
        if options[option] not in (default, known[option]):
            words = f"--{option.replace('_', '-')} {known[option]}, not {options[option]}"
            raise _another(f"run {name} is of {words}")
    if constants not in (None, run.constants):
        own = "of the target" if run.constants is None else f"that were given ({run.constants.origin})"
        raise _another(f"run {name} is of the constants {own}, not of those in {arguments.constants}")


def _another(message: str) -> AmkError:
    return AmkError(Diagnostic("AMK701", message, help="`amk runs` lists the runs; --resume RUN names one"))


def same_kind(then: bool, now: bool) -> None:
    if then != now:
        message = "the run was started " + ("on the simulator" if then else "on a GPU") + ", which is not what is here"
        raise AmkError(Diagnostic("AMK703", message, help="start a new run; simulated and measured times do not mix"))
