"""The verdict on a flat system as a timeline: the run that shows what is wrong, or some complete run of a SAFE one.

The axis counts events. Every agent is a track, in its CTA's group. An arrow leads from the last signal of a counter to
the wait that found it; between two racing accesses there is none. What the finding is about is marked.
"""

from __future__ import annotations

from typing import Final

from amk.report.timeline import Arrow, Kind, Span, Timeline, Track
from amk.systems.flat_judge import System, greedy
from amk.systems.flat_system import FlatSystem
from amk.systems.rules_verdict import event_text
from amk.systems.verdict import Verdict

MOST: Final = 4000
"""Events that are shown, the last ones."""


def of_system(verdict: Verdict) -> Timeline:
    """Of every size: of long runs the end."""
    order, marked = run_of(verdict)
    system = verdict.system
    shown = order[-MOST:]
    agents = list(dict.fromkeys([_agent(system, e) for e in shown] + [_agent(system, e) for e in marked]))
    tracks = {agent: number for number, agent in enumerate(agents)}
    spans = [_span(system, tracks, event, step, step + 1, event in marked) for step, event in enumerate(shown)]
    taken = set(order)
    waiting = [event for event in marked if event not in taken]
    end = len(shown)
    stays = max(1.0, end * 0.06)
    spans += [_span(system, tracks, event, end, end + stays, True, _head(verdict)) for event in waiting]
    notes = [f"{verdict.verdict}: {system.name}, {system.block.agents} agents, {system.block.events:,} events"]
    notes += [diagnostic.message for diagnostic in verdict.diagnostics]
    if len(order) > MOST:
        notes.append(f"the last {MOST:,} events of a run of {len(order):,}")
    groups = tuple(_track(system, agent) for agent in agents)
    title = f"{system.name}: {'a run' if verdict.safe else 'the witness'}"
    arrows = _arrows(system.block, [*shown, *waiting])
    return Timeline(title, "events", groups, tuple(spans), arrows, notes=tuple(notes), mark="what the finding is about")


def run_of(verdict: Verdict) -> tuple[list[int], tuple[int, ...]]:
    """Events in order, and those that the finding is about."""
    finding = verdict.finding
    if finding is not None and finding.run is not None:
        trouble, order = finding.run
        return list(order), tuple(event for event in trouble.events if event >= 0)
    if finding is not None and finding.witness is not None and finding.system is not None:
        at = finding.system.agent_first[:-1].tolist()
        events: list[int] = []
        for agent, count in finding.witness.order:
            events += range(at[agent], at[agent] + count)
            at[agent] += count
        return events, tuple(event for event in finding.witness.events if event >= 0)
    return greedy(verdict.system.block).order.tolist(), ()


def _head(verdict: Verdict) -> Kind:
    """What an event that the run does not reach is: a wait that never ends, or an access that could come now."""
    assert verdict.finding is not None
    return "blocked" if verdict.finding.diagnostic.code in ("AMK201", "AMK202") else "compute"


def _agent(system: FlatSystem, event: int) -> int:
    return int(system.block.agent_of[event])


def _track(system: FlatSystem, agent: int) -> Track:
    gpu, cluster, cta = system.place[agent].tolist()
    return Track(f"gpu {gpu}, cluster {cluster}, cta {cta}", system.block.agent_name(agent))


def _span(
    system: FlatSystem,
    tracks: dict[int, int],
    event: int,
    start: float,
    end: float,
    mark: bool,
    kind: Kind | None = None,
) -> Span:
    source = system.source_of(event)
    name = event_text(system, event)
    detail = f"event {int(system.block.index_of[event])}{f' at {source}' if source else ''}"
    return Span(tracks[_agent(system, event)], start, end, name, kind or _kind(system.block, event), detail, mark)


def _kind(block: System, event: int) -> Kind:
    if block.access_first[event + 1] > block.access_first[event]:
        return "compute"
    return "wait" if block.wait_first[event + 1] > block.wait_first[event] else "signal"


def _arrows(block: System, events: list[int]) -> tuple[Arrow, ...]:
    last: dict[int, int] = {}
    arrows = []
    for number, event in enumerate(events):
        for row in range(*block.wait_first[event : event + 2].tolist()):
            counter = int(block.wait_counter[row])
            if counter in last:
                arrows.append(Arrow(last[counter], number, block.counter_name(counter)))
        for row in range(*block.signal_first[event : event + 2].tolist()):
            last[int(block.signal_counter[row])] = number
    return tuple(arrows)
