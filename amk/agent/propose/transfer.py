"""What paid in finished runs, tried in this one, whatever model and GPU they were of.

A lesson is the knobs and edits that came with a gain. It comes from one of three:

* the best of a run, beside its start;
* the fastest that had a paired test, which may have missed a keep over the best by little;
* a trial that was measured faster than its parent: than the start, or by more than another was behind the best of the
  time.

Knobs have names, and so have the places of edits in the schedules of all models. So a lesson is tried by making its
changes again to the best of this run. Left out are knobs that this space does not have or cannot plan, and edits whose
place is not there. All lessons together come first, then each by itself, the worthiest first, each once. This run
measures what they are worth, and the gate judges them like anything else.

A search from the fast plan begins with the planner's own. Where the default plan is one that a search found, that is
its first lesson. The table of lessons is JSON, so that it can be exported, read, merged by hand and given to another
run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from amk.agent.decide.feedback import fate
from amk.agent.decide.history import History
from amk.agent.gate.candidate import Candidate, Problem, Workshop
from amk.agent.gate.design import MAX_EDITS, Design, edit_of, read_edits, text_of
from amk.agent.journal.inbox import Suggestion, write_whole
from amk.agent.journal.state import START, State
from amk.agent.propose.archive import merged
from amk.agent.propose.base import Context
from amk.agent.propose.edit_history import beside_the_best
from amk.models.model import load_model
from amk.planner.champions import champion_of
from amk.planner.formats import formats, layered
from amk.planner.settings import FAST, Settings
from amk.planner.space import OutsideSpaceError, Space, Value, moved
from amk.report.diagnostic import AmkError, Diagnostic, Where
from amk.report.json_file import read_json
from amk.report.schema import schema_error
from amk.schedule_ir.edits.apply import apply
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target

PAYS: Final = 0.001
"""Log gain over its parent at which a trial is a lesson."""
MOST: Final = 64
"""Lessons of one table, the worthiest."""
MOST_BYTES: Final = 4 << 20
TOGETHER: Final = "all"
FILE: Final = "transfer.json"


class Lesson(BaseModel):
    """gain: log speed over the parent, on the card (or simulator) that the run was of."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    model: Annotated[str, Field(max_length=200)]
    gpu: Annotated[str, Field(max_length=200)]
    simulated: bool
    gain: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    knobs: Annotated[dict[str, Value], Field(max_length=64)] = {}
    edits: Annotated[tuple[Any, ...], Field(strict=False, max_length=MAX_EDITS)] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        return read_edits(self.edits)


class Lessons(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    format: Literal[1] = 1
    lessons: Annotated[tuple[Lesson, ...], Field(strict=False, max_length=MOST)] = ()


def learned(state: State, space: Space) -> Lessons:
    """The lessons of a run, the worthiest first."""
    assert state.run is not None
    history, start = History(space), Design(space.start)
    history.update(state)
    tests = [(score, t.index) for t in state.trials if "paired test" in t.measured and (score := t.score) is not None]
    whole = {index: score for score, index in sorted(tests)[:1]} | {state.best: state.best_score}
    changes = [(-score, start, history.designs[index]) for index, score in whole.items() if index != START]
    for trial in state.trials:
        parent = trial.proposed.parent
        gain = fate(state, trial).gain if parent == START else beside_the_best(state, trial)
        if gain is not None and gain > PAYS:
            changes.append((gain, start if parent == START else history.designs[parent], history.designs[trial.index]))
    found: dict[str, Lesson] = {}
    for gain, before, here in sorted(changes, key=lambda change: -change[0]):
        came = [text for text in here.edits if text not in before.edits]
        knobs = space.changes(here.settings, before.settings)
        if knobs or came:
            lesson = Lesson(
                model=state.run.model, gpu=state.run.target, simulated=state.run.simulated, gain=round(gain, 6),
                knobs=knobs, edits=tuple(map(json.loads, came)),
            )  # fmt: skip
            found.setdefault(json.dumps([knobs, came], sort_keys=True), lesson)
    return Lessons(lessons=tuple(found.values())[:MOST])


def read(paths: Sequence[Path]) -> Lessons:
    """The lessons of some tables, the worthiest first. AMK001, AMK002; AMK005 for an edit that is none."""
    found: list[Lesson] = []
    for path in paths:
        try:
            found += Lessons.model_validate(read_json(path, MOST_BYTES)).lessons
            for lesson in found:
                read_edits(lesson.edits)
        except ValidationError as error:
            raise schema_error(error, str(path)) from error
        except ValueError as error:
            raise AmkError(Diagnostic("AMK005", str(error), where=Where(file=str(path)))) from error
    return Lessons(lessons=tuple(sorted(found, key=lambda lesson: -lesson.gain)[:MOST]))


def default_lessons(problem: Problem) -> Lessons:
    """What makes the planner's plan of this problem the default one, where a search had found that (champions.py)."""
    model, target = load_model(problem.model), load_target(problem.target)
    runs = layered(model, formats(problem.dtype, problem.lm_head_dtype))
    champion = champion_of(model, target, runs, replace(FAST, batch=problem.batch))
    if champion is None:
        return Lessons()
    lesson = Lesson(
        model=champion.model, gpu=champion.target, simulated=False, gain=champion.gain, knobs=dict(champion.settings),
        edits=tuple(json.loads(text_of(edit)) for edit in champion.edits),
    )  # fmt: skip
    return Lessons(lessons=(lesson,))


def write(path: Path, lessons: Lessons) -> None:
    write_whole(path, lessons.model_dump_json(indent=1) + "\n")


def keep(folder: Path, lessons: Lessons) -> None:
    """Beside the journal of the run that they are given to, so that it goes on with them."""
    write(folder / FILE, lessons)


def lessons_of(folder: Path) -> tuple[Lesson, ...]:
    """What `keep` wrote, if anything."""
    return read([folder / FILE]).lessons if (folder / FILE).exists() else ()


@dataclass(frozen=True)
class Transfer:
    lessons: tuple[Lesson, ...]
    name: str = "transfer"

    def ask(self, context: Context) -> Sequence[Suggestion]:
        tried = {trial.proposed.operator for trial in context.trials_of(self.name)}
        for number in (TOGETHER, *map(str, range(len(self.lessons)))):
            if number not in tried and (design := self._design(context, number)) is not None:
                return [self._suggestion(context, number, design)]
        return []

    def _design(self, context: Context, number: str) -> Design | None:
        """The best of this run with one lesson, or with all; None if that is nothing new."""
        best = context.design(context.state.best)
        design = best
        for lesson in self.lessons if number == TOGETHER else self.lessons[int(number) : int(number) + 1]:
            # The worthiest has its way: what a later one says of the same knob or place is left out.
            turned = context.space.changes(design.settings, best.settings)
            new = {k: v for k, v in of_space(context.space, lesson.knobs).items() if k not in turned}
            design = Design(planned(context.workshop, design.settings, new), merged(design.edits, lesson.texts))
        base = context.workshop.make(design.settings)
        if design == best or not isinstance(base, Candidate):
            return None
        design = Design(design.settings, applicable(base.schedule, best.edits, design.edits))
        candidate = context.workshop.make(design)
        if (
            not isinstance(candidate, Candidate)
            or candidate.key in context.state.by_key
            or candidate.key == context.start_key()
        ):
            return None
        return design

    def _suggestion(self, context: Context, number: str, design: Design) -> Suggestion:
        why = f"all {len(self.lessons)} lessons of finished runs together"
        if number != TOGETHER:
            lesson = self.lessons[int(number)]
            kind = "simulated" if lesson.simulated else "measured"
            why = f"{100 * lesson.gain:.2f}% faster, {kind}, in a run of {lesson.model} on {lesson.gpu}"
        settings, edits = dict(context.space.point(design.settings)), tuple(map(json.loads, design.edits))
        return Suggestion(self.name, settings, why, parent=context.state.best, edits=edits, operator=number)


def of_space(space: Space, knobs: dict[str, Value]) -> dict[str, Value]:
    """Those knobs and values that the space has."""
    found = {}
    for knob in space.knobs:
        if knob.name in knobs:
            try:
                found[knob.name] = knob.values[knob.place(knobs[knob.name])]
            except OutsideSpaceError:
                continue
    return found


def planned(workshop: Workshop, settings: Settings, knobs: dict[str, Value]) -> Settings:
    """`settings` with these values; where that cannot be planned, one by one, without those that cannot."""
    if workshop.key(whole := moved(settings, knobs)) is not None:
        return whole
    for name, value in knobs.items():
        if workshop.key(turned := moved(settings, {name: value})) is not None:
            settings = turned
    return settings


def applicable(plan: Schedule, own: Sequence[str], edits: Sequence[str]) -> tuple[str, ...]:
    """`own` edits, and of the others those that can be made to the plan after them, in their order."""
    kept = list(own)
    for text in edits[len(own) :]:
        try:
            apply(plan, [edit_of(each) for each in (*kept, text)])
        except (AmkError, LookupError, ValueError):
            continue
        kept.append(text)
    return tuple(kept[:MAX_EDITS])
