"""A witness as a timeline: its interleaving one step after the other, with what goes wrong marked at the end.

The axis counts the steps of the interleaving that are shown. Agents that only stand for words take no step. Arrows
lead from the signal that met a wait to the step that waited. Between two racing steps there is none: that is the point.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amk.report.timeline import Arrow, Kind, Span, Timeline, Track
from amk.schedule_ir.schedule import Schedule
from amk.trace.from_schedule import WORKERS
from amk.trace.steps import Agents, Steps, kind_of
from amk.validator.evidence.witness import Witness
from amk.validator.induction.layers import reduce_layers
from amk.validator.memory.composition import TOKENS
from amk.validator.program.system import READ, System
from amk.validator.program.trace import trace

MANY = 16
STUCK_PART = 0.06
"""Length of a blocked wait, as a part of the interleaving."""


class NotOfThisSchedule(ValueError):
    """The system of the witness is not one that this schedule unrolls to."""


def of_witness(schedule: Schedule, system: System, witness: Witness, workers: Sequence[int] | None = None) -> Timeline:
    """Raises `NotOfThisSchedule`, also for a system that was tampered with.

    workers None: all that take part, or `WORKERS` of them if they are more than `MANY`, those with marked steps first.
    """
    reduced = reduce_layers(schedule)
    traces = [trace(reduced, number, TOKENS) for number in range(len(reduced.programs))]
    launch = reduced.launch
    if system.agents < launch.workers * launch.warps:
        raise NotOfThisSchedule(f"{system.agents} agents, the schedule has {launch.workers * launch.warps}")
    steps = Steps(reduced, system, traces)
    for agent in range(launch.workers * launch.warps):
        local = steps.trace(agent // launch.warps)
        events = slice(*system.agent_first[agent : agent + 2].tolist())
        tags = system.event_tag[events]
        # of a large schedule, only the events that matter
        if not np.isin(tags, np.flatnonzero(local.warp_of == agent % launch.warps)).all() or (np.diff(tags) <= 0).any():
            raise NotOfThisSchedule(f"agent {agent} runs other events than the schedule says")
    return _Drawing(schedule, steps, witness, workers).timeline()


class _Drawing:
    def __init__(self, schedule: Schedule, steps: Steps, witness: Witness, workers: Sequence[int] | None) -> None:
        self.workers = workers
        self.schedule, self.steps, self.system, self.witness = schedule, steps, steps.system, witness
        self.order = self._events()
        self.steps_taken = 0
        self.at: dict[int, int] = {}
        for event in self.order:
            if self._real(event):
                self.at[event] = len(self.at)
        self.span_of: dict[int, int] = {}
        self.spans: list[Span] = []
        self.tracks: dict[int, int] = {}

    def _real(self, event: int) -> bool:
        return self.steps.real(event) and int(self.system.agent_of[event]) < self._agents

    @property
    def _agents(self) -> int:
        launch = self.schedule.launch
        return launch.workers * launch.warps

    def _events(self) -> list[int]:
        at = self.system.agent_first[:-1].tolist()
        events: list[int] = []
        for agent, count in self.witness.order:
            events += range(at[agent], at[agent] + count)
            at[agent] += count
        if any(at[agent] > self.system.agent_first[agent + 1] for agent in range(self.system.agents)):
            raise NotOfThisSchedule("the interleaving runs an agent beyond its end")
        return events

    def timeline(self) -> Timeline:
        after = self._after()
        guilty = self._guilty()
        agents = self._shown([*after, *guilty])
        self.tracks = {agent: i for i, agent in enumerate(agents)}
        drawn = (event for event in self.at if int(self.system.agent_of[event]) in self.tracks)
        self.steps_taken, self.at = len(self.at), {event: i for i, event in enumerate(drawn)}
        end = float(len(self.at))
        for event, at in self.at.items():
            self._add(event, float(at), at + 1.0, kind_of(self.steps.step(event)[0]), event in guilty)
        blocked = self.witness.kind == "deadlock"
        for event in after:
            length = max(end * STUCK_PART, 1.0)
            self._add(event, end, end + length, "blocked" if blocked else kind_of(self.steps.step(event)[0]), True)
        label = Agents(self.steps.schedule).label
        tracks = tuple(Track(f"worker {a // self.steps.warps}", label(a % self.steps.warps, True)) for a in agents)
        return Timeline(
            f"{self.schedule.name}: witness of {self.witness.kind}", "steps of the interleaving", tracks,
            tuple(self.spans), tuple(self._arrows()), notes=self._notes(agents), mark="witness",
        )  # fmt: skip

    def _shown(self, marked: Sequence[int]) -> list[int]:
        """Agents that get a track."""
        taking = {int(self.system.agent_of[event]) for event in (*self.at, *marked)}
        workers = self.workers
        if workers is None:
            first = [int(self.system.agent_of[event]) // self.steps.warps for event in marked]
            every = list(dict.fromkeys([*first, *sorted(agent // self.steps.warps for agent in taking)]))
            workers = every if len(every) <= MANY else every[:WORKERS]
        return sorted(agent for agent in taking if agent // self.steps.warps in set(workers))

    def _after(self) -> list[int]:
        """Events shown where the interleaving ends: the racing pair, or the blocked heads of the wait cycle."""
        if self.witness.kind == "deadlock":
            events: Sequence[int] = [row[1] for row in self.witness.wait_cycle]
        else:
            events = self.witness.events if self.witness.kind in ("race", "unordered_sum") else ()
        return [event for event in events if self._real(event)]

    def _guilty(self) -> set[int]:
        """The faulty event and the steps before it that write the byte."""
        if self.witness.kind in ("race", "unordered_sum", "deadlock"):
            return set()
        buffer, byte = self.witness.buffer, self.witness.byte
        system = self.system
        assert byte is not None, "only a deadlock has no byte"
        there = (system.access_buffer == buffer) & (system.access_lo <= byte) & (system.access_hi > byte)
        writers = set(system.access_event[np.flatnonzero(there & (system.access_kind != READ))].tolist())
        return set(self.witness.events) | (writers & set(self.at))

    def _add(self, event: int, start: float, end: float, kind: Kind, marked: bool) -> None:
        track = self.tracks.get(int(self.system.agent_of[event]))
        if track is None:
            return
        text = self.steps.detail(event) + self._accesses(event, marked)
        self.span_of[event] = len(self.spans)
        self.spans.append(Span(track, start, end, self.steps.name(event), kind, text, marked))

    def _accesses(self, event: int, marked: bool) -> str:
        if not marked or self.witness.buffer is None:
            return ""
        span = range(*self.system.access_first[event : event + 2].tolist())
        kinds = {int(self.system.access_kind[k]) for k in span if self._there(k)}
        verbs = " and ".join("reads" if kind == READ else "writes" for kind in sorted(kinds))
        name = self.system.buffer_name(self.witness.buffer)
        return f"; {verbs} byte {self.witness.byte} of {name}" if verbs else ""

    def _there(self, access: int) -> bool:
        system, byte = self.system, self.witness.byte
        inside = bool(byte is not None and system.access_lo[access] <= byte < system.access_hi[access])
        return inside and int(system.access_buffer[access]) == self.witness.buffer

    def _arrows(self) -> list[Arrow]:
        """For every step that waited, the signal that met the wait last, if it came from another warp."""
        value = dict(enumerate(self.system.counter_init.tolist()))
        giver: dict[int, list[tuple[int, int]]] = {}
        cause: dict[int, int] = {}
        arrows = []
        for event in [*self.order, *self._after()]:
            late = max((self._last_signal(k, value, giver, cause) for k in self._span("wait", event)), default=-1)
            if self._real(event):
                cause[event] = event
                if (
                    late >= 0
                    and self.system.agent_of[late] != self.system.agent_of[event]
                    and {event, late} <= self.span_of.keys()
                ):
                    arrows.append(Arrow(self.span_of[late], self.span_of[event], "signal"))
            else:
                cause[event] = late
            for k in self._span("signal", event):
                counter = int(self.system.signal_counter[k])
                value[counter] += int(self.system.signal_amount[k])
                giver.setdefault(counter, []).append((value[counter], event))
        return arrows

    def _last_signal(
        self, wait: int, value: dict[int, int], giver: dict[int, list[tuple[int, int]]], cause: dict[int, int]
    ) -> int:
        """The real event that brought the counter to the threshold, -1 if none did."""
        counter, threshold = int(self.system.wait_counter[wait]), int(self.system.wait_threshold[wait])
        if value[counter] < threshold:
            return -1
        return next((cause[event] for reached, event in giver.get(counter, ()) if reached >= threshold), -1)

    def _span(self, table: str, event: int) -> range:
        return range(*getattr(self.system, f"{table}_first")[event : event + 2].tolist())

    def _notes(self, agents: Sequence[int]) -> tuple[str, ...]:
        where = "the same byte"
        if self.witness.byte is not None and self.witness.buffer is not None:
            where = f"byte {self.witness.byte:,} of {self.system.buffer_name(self.witness.buffer)}"
        ends = {
            "deadlock": "Each marked agent waits at the end for increments that come after the waits of the others.",
            "race": f"The two marked steps can both run next: nothing orders them, and they touch {where}.",
            "unordered_sum": "The two marked steps can both run next, so the order of this sum is open.",
            "final": f"After the marked writes {where} holds the wrong content for good.",
        }  # fmt: skip
        end = ends.get(
            self.witness.kind, f"The marked steps wrote {where}, and the last marked one touches it wrongly."
        )
        return (
            f"{self.steps_taken:,} of {self.system.events:,} events: what does not take part is left out. "
            f"{len({agent // self.steps.warps for agent in agents})} workers are shown.",
            end,
            "One interleaving of many, as `amk replay` runs it; the axis is no time.",
        )
