"""The kernels of edited schedules that are SAFE, in the emulator, beside a plain forward pass.

The numpy machine shares the ops' `reference` with what is judged. Here a schedule is printed and compiled, and its PTX
runs: four tokens in two launches, or all that the judge asks. The processes of a run share what they compile and what
they run: equal text is compiled once, and equal PTX is run once for an equal request where the host prepares equal
bytes for it. What a run shows is compared with the forward pass of every schedule that it stands for. A kernel that
executes more than a run may is not refuted (blocks of 2^20 positions are looked through to their end).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from amk.adversary.neighbourhood.survey import EVERYTHING
from amk.judges.emulated_run import EmulatedKernel
from amk.judges.judge import DEVICE_TOLERANCE, Ruling, judged, requests
from amk.lowering import headers
from amk.lowering.emit import emit
from amk.report.diagnostic import AmkError
from amk.schedule_ir.schedule import Schedule
from tests.lowering.edits.judge import built
from tests.run_folder import Kept, claimed, given_up


class Kernels:
    """The PTX of schedules; equal texts are compiled once. compiled: by this process."""

    def __init__(self) -> None:
        self._known, self.compiled = Kept("ptx"), 0
        self._last: tuple[str, str | None] | None = None

    def ptx(self, schedule: Schedule) -> str | None:
        """None if it does not compile."""
        source = emit(schedule)
        files = headers.closure(source)
        key = "\0".join((schedule.target.arch, source, *(text for item in sorted(files.items()) for text in item)))
        if self._last is None or self._last[0] != key:
            if key not in self._known:
                self._known[key] = built(source, files, schedule.target.arch)
                self.compiled += 1
            self._last = key, self._known[key]
        return self._last[1]


@dataclass
class Emulated:
    """What was found of the schedules of a slice. by: its name, by which it claims fields."""

    by: str
    counts: Counter[str] = field(default_factory=Counter)
    rulings: Counter[str] = field(default_factory=Counter)
    run: Counter[str] = field(default_factory=Counter)
    everything: Counter[str] = field(default_factory=Counter)
    refutations: list[str] = field(default_factory=list)

    def judge(self, schedule: Schedule, name: str, of: str, drawn: bool) -> None:
        """name: of the edit. of: its field, of which the first edit that runs is judged by everything."""
        mine = not drawn and not self.everything[of] and claimed(of, self.by)
        most = EVERYTHING if drawn or mine else 1
        kernels, shared = Kernels(), Kept("shown")
        try:
            ptx = kernels.ptx(schedule)
            machine = EmulatedKernel(lambda _: ptx or "", shared)
            found, ran = (Ruling("refuted", "does not compile"), 0) if ptx is None else ruling(schedule, machine, most)
            self.counts.update({"runs": machine.runs, "runs shared": machine.shared})
            self.counts["edits that share every run"] += ran > 0 and not machine.runs
        except AmkError as error:
            found, ran = Ruling("unrun", why=f"not printed: {error.diagnostics[0].code}"), 0
        except Exception as error:  # noqa: BLE001  whatever it is, it is told and the others go on
            found, ran = Ruling("refuted", f"{type(error).__name__}: {error}"[:200]), 0
        if found.kind == "limit":
            found = Ruling("unrun", why="not ended within the limit of instructions")
        self.counts.update({"edits": 1, "kernels": kernels.compiled})
        self.rulings[f"unrun: {found.why[:60]}" if found.status == "unrun" else found.status] += 1
        self.run[of] += ran > 0
        self.everything[of] += most == EVERYTHING and ran > 1
        if mine and ran < 2:
            given_up(of)
        if found.status == "refuted":
            self.refutations.append(f"{name}: emulated: {found.kind}: {found.why}"[:600])

    def as_json(self) -> dict[str, Any]:
        return {
            **self.counts, "rulings": dict(self.rulings), "run": positive(self.run),
            "judged by everything": positive(self.everything),
        }  # fmt: skip


def positive(counts: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def ruling(schedule: Schedule, machine: EmulatedKernel, most: int) -> tuple[Ruling, int]:
    """(the first refutation, or whether any request ran; how many did). The first one runs once more with the last
    worker as late as it can be, so that what is overwritten before it has read it is missed."""
    found, ran = Ruling("unrun", why="nothing was asked"), 0
    for number, (request, order) in enumerate(requests(schedule)):
        if number == most:
            break
        late = (f"delay:{schedule.launch.workers - 1}",) if number == 0 else ()
        for each in (order, *late):
            one = judged(schedule, request, each, machine, DEVICE_TOLERANCE)
            if one.status == "refuted":
                return one, ran + 1
            found = one if found.status == "unrun" else found
        ran += one.status != "unrun"
    return found, ran
