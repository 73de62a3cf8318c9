"""A schedule as a timeline in logical order: one run in which steps take as long as they have work.

The x axis is no time: it shows what can be ahead of what, and which signal ends which wait. `of_schedule` shows some
workers and one warp for each set of roles; the run itself is of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from amk.report.timeline import Arrow, Span, Timeline, Track
from amk.schedule_ir.ops import BarrierOp
from amk.schedule_ir.schedule import Schedule
from amk.trace.logical import NEVER, LogicalRun, logical_run
from amk.trace.steps import MEANING, UNIT, Agents, Steps, kind_of
from amk.validator.evidence.flat_system import expand
from amk.validator.induction.layers import reduce_layers

WORKERS = 8


@dataclass(frozen=True)
class Choice:
    """What to show. workers None: those of the longest chain, up to `WORKERS`. whole: all layers instead of two."""

    workers: tuple[int, ...] | None = None
    every_warp: bool = False
    whole: bool = False
    pos: int = 0
    tokens: int = 1


def of_schedule(schedule: Schedule, choice: Choice) -> Timeline:
    """Raises `TooLarge` if the flat system of all workers is."""
    reduced = schedule if choice.whole else reduce_layers(schedule)
    flat = expand(reduced, choice.pos, choice.tokens, "block", touching=())
    steps = Steps(reduced, flat.system, flat.traces)
    run = logical_run(flat.system, steps.lengths())
    chain = longest_chain(steps, run)
    workers = choice.workers or chosen_workers(steps, chain)
    return _Drawing(steps, run, chain, choice.every_warp).timeline(schedule, workers, choice)


def longest_chain(steps: Steps, run: LogicalRun) -> list[int]:
    """Events from the last one to end back to the start: each was let go by, or came right after, the next."""
    system = steps.system
    happened = np.flatnonzero(run.end < NEVER)
    if not len(happened):
        return []
    event = int(happened[np.argmax(run.end[happened])])
    chain = [event]
    while True:
        late = int(run.release[event])
        if late >= 0 and run.begin[event] > run.ready[event]:
            event = late
        elif system.index_of[event]:
            event -= 1
        else:
            return chain
        chain.append(event)


def chosen_workers(steps: Steps, chain: Sequence[int]) -> tuple[int, ...]:
    """Workers of the chain, then the first ones, `WORKERS` in all."""
    workers = dict.fromkeys(steps.place(event)[0] for event in chain if steps.real(event))
    workers |= dict.fromkeys(range(steps.schedule.launch.workers))
    return tuple(sorted(list(workers)[:WORKERS]))


class _Drawing:
    """Spans of the shown agents; span_of[event] is where an arrow begins, wait_of[event] where one ends."""

    def __init__(self, steps: Steps, run: LogicalRun, chain: Sequence[int], every_warp: bool) -> None:
        self.steps, self.run, self.every_warp = steps, run, every_warp
        self.chain = set(chain)
        self.agents = Agents(steps.schedule)
        self.tracks: list[Track] = []
        self.spans: list[Span] = []
        self.span_of: dict[int, int] = {}
        self.wait_of: dict[int, int] = {}
        self.last = float(run.end[run.end < NEVER].max(initial=1.0))

    def timeline(self, schedule: Schedule, workers: Sequence[int], choice: Choice) -> Timeline:
        launch = schedule.launch
        warps = range(launch.warps) if self.every_warp else self.agents.representatives()
        for worker in workers:
            for warp in warps:
                self.tracks.append(Track(f"worker {worker}", self.agents.label(warp, self.every_warp)))
                self._track(worker * launch.warps + warp)
        layers, shown = schedule.model.layers, self.steps.schedule.model.layers
        notes = [
            f"No time is measured or predicted here: the axis counts work, in one of many possible orders. {MEANING}",
            f"{len(workers)} of {launch.workers} workers, {len(warps)} of {launch.warps} warps each; all of them ran.",
        ]
        if shown < layers:
            notes.append(f"{shown} layers stand for all {layers}: first and last.")
        stuck = int(((self.run.ready < NEVER) & (self.run.begin == NEVER)).sum())
        if stuck:
            notes.append(f"The run gets stuck: {stuck} agents wait for ever.")
        title = f"{schedule.name}: logical order, position {choice.pos}, {choice.tokens} token(s)"
        return Timeline(
            title, UNIT, tuple(self.tracks), tuple(self.spans), tuple(self._arrows()), notes=tuple(notes),
            mark="blocked" if stuck else "longest chain",
        )  # fmt: skip

    def _track(self, agent: int) -> None:
        first, last = self.steps.system.agent_first[agent : agent + 2].tolist()
        for event in range(first, last):
            if self.run.ready[event] == NEVER:
                return
            if isinstance(self.steps.step(event)[0].op, BarrierOp):
                self._barrier(event)
            else:
                self._event(event)

    def _event(self, event: int) -> None:
        steps, run = self.steps, self.run
        step, _, _, _ = steps.step(event)
        if run.begin[event] == NEVER:
            self._blocked(event)
            return
        detail = steps.detail(event)
        if run.begin[event] > run.ready[event]:
            late = self._releaser(event)
            reason = f"waited for {steps.wait_text(int(run.wait[event]))}"
            why = f"{reason}, given by {steps.who(late)} ({steps.name(late)})" if late is not None else reason
            self.wait_of[event] = self._span(event, run.ready[event], run.begin[event], "wait", f"{why}; {detail}")
            if kind_of(step) == "wait":
                self.span_of[event] = self.wait_of[event]
                self._span(event, run.begin[event], run.end[event], "wait", detail)
                return
        self.span_of[event] = self._span(event, run.begin[event], run.end[event], kind_of(step), detail)

    def _barrier(self, event: int) -> None:
        """The leaving half draws both: a barrier is over when the last warp has come."""
        run, leaving = self.run, self.steps.step(event)[3]
        if run.begin[event] == NEVER:
            self._blocked(event)
        elif leaving:
            late = self._releaser(event)
            came = f"last to come: {self.steps.who(late)}; " if late is not None else ""
            start = run.begin[event - 1]
            self.span_of[event] = self._span(event, start, run.end[event], "barrier", came + self.steps.detail(event))

    def _blocked(self, event: int) -> None:
        wait = self.steps.wait_text(int(self.run.wait[event]))
        detail = f"waits for {wait}, which never comes; {self.steps.detail(event)}"
        end = self.last * 1.04
        self._span(event, self.run.ready[event], end, "blocked", detail, marked=True)

    def _span(self, event: int, start: float, end: float, kind: str, detail: str, marked: bool = False) -> int:
        span = Span(len(self.tracks) - 1, float(start), float(end), self.steps.name(event), kind, detail, marked)  # type: ignore[arg-type]
        self.spans.append(span)
        return len(self.spans) - 1

    def _releaser(self, event: int) -> int | None:
        """The real event whose signal ended the wait."""
        late = int(self.run.release[event])
        while late >= 0 and not self.steps.real(late):
            late = int(self.run.release[late])
        return late if late >= 0 else None

    def _arrows(self) -> list[Arrow]:
        """To each wait on a counter, from the signal that met it, or the last one before it that is shown."""
        arrows = []
        for event, target in {**self.span_of, **self.wait_of}.items():
            for k in self.steps.counter_waits(event):
                system = self.steps.system
                givers = self.run.givers(int(system.wait_counter[k]), int(system.wait_threshold[k]))
                shown = next((giver for giver in givers if giver in self.span_of), None)
                if shown is not None and self.steps.place(shown)[0] != self.steps.place(event)[0]:
                    on_chain = event in self.chain and shown == givers[0] and shown in self.chain
                    arrows.append(Arrow(self.span_of[shown], target, self.steps.wait_text(k), on_chain))
        return arrows
