"""The live view: a table that is redrawn on a terminal, a line per decision elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from math import exp
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from amk.agent.decide.feedback import name
from amk.agent.decide.feedback import outcome as verdict
from amk.agent.decide.headroom import foretold, share_above_floor
from amk.agent.journal.events import Asked
from amk.agent.journal.state import START, State
from amk.agent.report.standing import HEADER, standings
from amk.report.diagnostic import printable

LATEST = 8
REFRESH = 4.0
THINKS = 2.0
"""Seconds after which a proposer that was asked is worth a line."""
CURVE, BLOCKS = 72, "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"


@dataclass
class View:
    """Shows a run on `stream` (standard error); every line of a simulated run says so."""

    stream: TextIO
    _live: Live | None = None
    _trials: int = 0
    _conversations: int = 0
    _foretold: bool = False
    _drawn: float = 0.0
    _since: float | None = None
    _state: State | None = None
    _console: Console = field(init=False)

    def __post_init__(self) -> None:
        self._console = Console(file=self.stream, highlight=False, markup=False, emoji=False)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=REFRESH, transient=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def go_on(self, state: State) -> None:
        """What an earlier session has shown is not shown again; one line says how far it came."""
        self._conversations = len(state.conversations)
        self._trials = next((t.index for t in state.trials if not t.closed), len(state.trials))
        if state.trials:
            words = f"goes on after {state.evals} evaluations, best {exp(-state.best_score):.3f}x the start"
            label = "simulated  " if state.run is not None and state.run.simulated else ""
            self._console.print(Text(label + words), soft_wrap=True)

    def asks(self, begins: bool) -> None:
        """That a proposer is asked, or has answered. What was written down lately is drawn first: it may stand there
        for a minute."""
        self._since = time.monotonic() if begins else None
        if begins and self._state is not None:
            self._draw(self._state)

    def _draw(self, state: State) -> None:
        if self._live is not None:
            self._drawn = time.monotonic()
            self._live.update(Group(board(state), self))

    def __rich__(self) -> Text:
        """The line that changes while nothing is written down: drawn again with every refresh."""
        since = self._since
        seconds = 0.0 if since is None else time.monotonic() - since
        return Text(f"a proposal is looked for, for {seconds:.0f} s" if seconds >= THINKS else "")

    def show(self, state: State) -> None:
        if not self._foretold and state.calibrations:
            self._foretold = True
            for words in foretold(state):
                self._console.print(Text(printable(f"simulated  {words}", 400)), soft_wrap=True)
        if self._live is not None:
            if time.monotonic() - self._drawn >= 1 / REFRESH or state.finished:
                self._draw(state)
            self._state = state
            return
        for asked in state.conversations[self._conversations :]:
            self._conversations += 1
            self._console.print(Text(asked_line(state, asked)), soft_wrap=True)
        for trial in state.trials[self._trials :]:
            if not trial.closed:
                break
            self._trials += 1
            if trial.decided is not None:
                self._console.print(Text(line(state, trial.index)), soft_wrap=True)


def line(state: State, index: int) -> str:
    """One decision in words, or why the gate refused."""
    trial = state.trials[index]
    label = "simulated  " if state.run is not None and state.run.simulated else ""
    refused = " ".join(filter(None, (*trial.gated.codes, trial.gated.detail))) if trial.gated is not None else ""
    reason = trial.decided.reason if trial.decided else refused
    return printable(f"{label}#{index} {trial.proposed.proposer}: {verdict(trial)}: {reason}", 300)


def asked_line(state: State, request: Asked) -> str:
    """What a proposer that may fail answered."""
    label = "simulated  " if state.run is not None and state.run.simulated else ""
    what = f"{request.proposals} proposals in {request.turns} turns: {request.outcome} {request.detail}".rstrip()
    again = ", not asked again in this session" if request.wait is None else ""
    faults = f"; failed: {', '.join(request.faults)}" if request.faults else ""
    return printable(f"{label}{request.proposer}: {what}{again}; ${state.dollars:.4f} spent{faults}", 400)


def board(state: State) -> Group:
    run = state.run
    assert run is not None
    above = share_above_floor(state)
    share = "" if above is None else f", {100 * (1 - above):.1f}% of the speed of light"
    what = f"{run.model} on {run.target}" + (" (simulated)" if run.simulated else "")
    lines = [f"{what}: best {exp(-state.best_score):.3f}x the start{share}", progress(state)]
    head = Group(*(Text(printable(each, 200)) for each in (*lines, curve(state)) if each))
    grid = Table(box=None, show_header=False)
    closed = [t.index for t in state.trials if t.closed][-LATEST:]
    for index in closed:
        grid.add_row(Text(line(state, index)))
    people = Table(*HEADER, box=None, title="", show_edge=False)
    for each in standings(state):
        people.add_row(*(Text(printable(cell, 120)) for cell in each.cells))
    return Group(head, grid, people)


def progress(state: State) -> str:
    """How much of the run's limits is used, and what the devices are at."""
    limits = state.limits
    evals = f"{state.evals}" if limits.evals is None else f"{state.evals} of {limits.evals}"
    minutes = (
        f"{state.elapsed / 60:.1f}" if limits.minutes is None else f"{state.elapsed / 60:.1f} of {limits.minutes:g}"
    )
    now = ", ".join(f"{lease.phase} of {name(lease.index)}" for lease in state.leases.values() if lease.index >= START)
    spent = f", ${state.dollars:.2f} of ${state.limits.dollars:.2f}" if state.limits.dollars else ""
    words = f"{evals} evaluations, {minutes} minutes{spent}, {len(state.trials)} proposals"
    return f"{words}; now: {now}" if now else words


def curve(state: State) -> str:
    """The best so far after each evaluation, from the start to the best; "" before anything was kept."""
    best, scores = 0.0, list[float]()
    for trial in state.trials:
        if trial.evaluated and trial.closed:
            if trial.decided is not None and trial.decided.outcome == "kept" and trial.score is not None:
                best = max(best, -trial.score)
            scores.append(best)
    if not best:
        return ""
    shown = [scores[at * len(scores) // min(CURVE, len(scores))] for at in range(min(CURVE, len(scores)))]
    shown[-1] = scores[-1]
    return "".join(BLOCKS[round((len(BLOCKS) - 1) * score / best)] for score in shown)
