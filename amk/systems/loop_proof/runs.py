"""Every interleaving of every number of periods ends: counters only grow, so one run of each that ends is enough.

The certificate gives three runs: `head` to where every agent with a loop is in it, `period`, in which each gets one
period further, and `tail` to the end; together they run m periods, and with `period` repeated, more. A wait that grows
no faster than its counter does in a period holds in every repetition, and behind it, if it holds in the first.
"""

from __future__ import annotations

from typing import Any

from amk.systems.loop_proof.numbers import need
from amk.systems.loop_proof.periods import Cut, Event

MOST_STEPS = 1 << 22


class Runner:
    """Where each agent is, in a system of so many periods, and what its counters hold."""

    def __init__(self, cut: Cut, periods: int) -> None:
        self.cut, self.periods = cut, periods
        self.at = [0] * len(cut.agents)
        self.ends = [len(p["before"]) + periods * len(p["lap"]) + len(p["behind"]) for p in cut.agents]
        self.value = [init for init, _, _ in cut.counters]

    def event(self, agent: int) -> tuple[Event, int]:
        """The agent's next event, and what its line is taken times."""
        parts, k = self.cut.agents[agent], self.at[agent]
        need(k < self.ends[agent], "a run goes on behind the end of an agent")
        if k < len(parts["before"]):
            return parts["before"][k], 0
        k -= len(parts["before"])
        inside = self.periods * len(parts["lap"])
        if k < inside:
            return parts["lap"][k % len(parts["lap"])], k // len(parts["lap"])
        return parts["behind"][k - inside], self.periods

    def step(self, agent: int, growth: list[int] | None, in_head: bool) -> None:
        """growth: what a period adds, where the step is repeated or comes behind that; in_head: it is of the head."""
        event, q = self.event(agent)
        if event.does == "wait":
            need(self.value[event.of] >= event.line[0] + event.line[1] * q, "a run goes on before a wait holds")
            if growth is not None:
                need(
                    event.part == "before" or event.line[1] <= growth[event.of], "a wait grows faster than its counter"
                )
            need(
                not in_head or event.part != "behind" or event.line[1] == 0,
                "the beginning depends on the number of laps",
            )
        elif event.does == "signal":
            self.value[event.of] += event.line[0]
        self.at[agent] += 1


def check(cut: Cut, periods: int, claims: Any) -> None:
    growth = [0] * len(cut.counters)
    for event in cut.events():
        if event.does == "signal" and event.part == "lap":
            growth[event.of] += event.line[0]
    need(isinstance(claims, dict), "runs: malformed")
    legs = {name: _legs(claims.get(name), len(cut.agents)) for name in ("head", "period", "tail")}
    runner = Runner(cut, periods)
    for agent, count in legs["head"]:
        for _ in range(count):
            looped = cut.length(agent) > 0
            need(
                not looped or runner.at[agent] < cut.ahead(agent) + (periods - 1) * cut.length(agent),
                "the beginning is long",
            )
            runner.step(agent, None, True)
    started = list(runner.at)
    for agent, count in legs["period"]:
        for _ in range(count):
            runner.step(agent, growth, False)
    for agent in range(len(cut.agents)):
        length = cut.length(agent)
        need(runner.at[agent] == started[agent] + length, "a period of the run is not one of every agent")
        need(not length or started[agent] >= cut.ahead(agent), "the beginning ends before a loop does begin")
        inside = cut.ahead(agent) + periods * length
        need(not length or runner.at[agent] <= inside, "a period of the run is not of the loops")
    for agent, count in legs["tail"]:
        for _ in range(count):
            runner.step(agent, growth, False)
    need(runner.at == runner.ends, "the run does not end")


def _legs(raw: Any, agents: int) -> list[tuple[int, int]]:
    good = isinstance(raw, list) and all(
        isinstance(leg, list) and len(leg) == 2 and all(type(n) is int and n >= 0 for n in leg) for leg in raw
    )
    need(good, "runs: malformed")
    need(all(leg[0] < agents for leg in raw) and sum(leg[1] for leg in raw) <= MOST_STEPS, "runs: malformed")
    return [(leg[0], leg[1]) for leg in raw]
