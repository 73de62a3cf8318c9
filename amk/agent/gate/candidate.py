"""A design made concrete: the schedule that its settings plan and its edits change, and what tells it from others."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol, Self

from amk.agent.gate.design import Design, same_problem
from amk.lowering.emit import emit
from amk.models.model import load_model
from amk.models.model_spec import ModelSpec
from amk.planner.decode import choose_workers, plan
from amk.planner.formats import BF16, Formats, formats, layered
from amk.planner.settings import STARTS, Settings
from amk.planner.space import Space
from amk.planner.tuned import tuned
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import canonical_json
from amk.schedule_ir.edits.apply import apply
from amk.schedule_ir.schedule import Schedule
from amk.simulator.constants import Constants
from amk.simulator.predict import Simulator
from amk.targets.target import Target, load_target
from amk.weights.weight_format import FormatName

KEPT_PROGRAMS = 48
"""Lowered programs remembered, so that a night of proposals holds its memory: each takes 200 KiB and more."""
KEPT_KEYS = 8192
"""Programs of which only the key is remembered, which is all that most questions need."""


@dataclass(frozen=True)
class Candidate:
    """`key` identifies what a GPU sees: two plans with one key are the same kernel and the same launch.

    An edited schedule may be one that cannot be lowered before it is judged. So it has no source, and its key is the
    content of the schedule. Once it is SAFE, the gate compares the key of its kernel (`kernel_key`) too. edits: in
    canonical JSON; repaired: what was mended after them, in words.
    """

    settings: Settings
    schedule: Schedule
    source: str
    key: str
    edits: tuple[str, ...] = ()
    repaired: tuple[str, ...] = ()

    @property
    def design(self) -> Design:
        return Design(self.settings, self.edits)

    def kernel_key(self) -> str:
        """The key of the kernel that the schedule lowers to. AmkError if it cannot be lowered."""
        return program_key(self.schedule, emit(self.schedule)) if self.edits else self.key


@dataclass(frozen=True)
class Impossible:
    """No schedule exists for the design; `codes` says why."""

    codes: tuple[str, ...]
    detail: str


class Problem(Protocol):
    """The problem of a run."""

    @property
    def model(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def context(self) -> int: ...
    @property
    def dtype(self) -> FormatName: ...
    @property
    def lm_head_dtype(self) -> FormatName | None: ...
    @property
    def batch(self) -> int: ...
    @property
    def constants(self) -> Constants | None: ...


def workshop_of(problem: Problem) -> Workshop:
    """What makes the candidates of a run."""
    model, target = load_model(problem.model), load_target(problem.target)
    stored = formats(problem.dtype, problem.lm_head_dtype)
    return Workshop(model, target, problem.context, stored, problem.batch, Simulator(problem.constants))


def program_key(schedule: Schedule, source: str) -> str:
    """sha256 over everything that the GPU sees: source, architecture and launch."""
    digest = hashlib.sha256()
    for part in (source, schedule.target.arch, schedule.launch.model_dump_json(), schedule.kv.model_dump_json()):
        data = part.encode()
        digest.update(f"{len(data)}:".encode() + data)
    return digest.hexdigest()


def content_key(schedule: Schedule) -> str:
    """sha256 of the canonical text of the schedule, whatever it is called."""
    return hashlib.sha256(canonical_json(schedule.model_copy(update={"name": "-", "plan": "search"}))).hexdigest()


class Workshop:
    """Design -> candidate, for one model on one target with one context; remembers recent results.

    formats: how each matrix is stored, batch: sequences decoded together; both are part of the problem and no choice of
    the search. simulator: whom everybody asks how long a candidate takes.
    """

    def __init__(
        self,
        model: ModelSpec,
        target: Target,
        context: int | None = None,
        formats: Formats | None = None,
        batch: int = 1,
        simulator: Simulator = Simulator(),  # noqa: B008  it cannot be changed
    ) -> None:
        self.model, self.target, self.context, self.batch = model, target, context, batch
        self.simulator = simulator
        self.formats = BF16 if formats is None else formats
        self._candidates: OrderedDict[Design, Candidate | Impossible] = OrderedDict()
        self._keys: OrderedDict[Settings, str | None] = OrderedDict()

    def __reduce__(self) -> tuple[type[Self], tuple[ModelSpec, Target, int | None, Formats, int, Simulator]]:
        """Another process makes its own programs. What it is started with must fit in a pipe: who starts a process that
        dies before it has read everything waits for ever otherwise."""
        return type(self), (self.model, self.target, self.context, self.formats, self.batch, self.simulator)

    def make(self, design: Design | Settings) -> Candidate | Impossible:
        """Plan the settings and make the edits; a plan without edits is lowered at once. The context is the run's, so
        no candidate wins by a smaller cache."""
        design = design if isinstance(design, Design) else Design(design)
        found = self._candidates.get(design)
        if found is None:
            found = self._edited(design) if design.edits else self._build(design.settings)
            self._candidates[design] = found
            if len(self._candidates) > KEPT_PROGRAMS:
                self._candidates.popitem(last=False)
        return found

    def key(self, settings: Settings) -> str | None:
        """The key of the program that `settings` lower to; None if they cannot be planned."""
        if settings not in self._keys:
            candidate = self.make(settings)
            self._keys[settings] = None if isinstance(candidate, Impossible) else candidate.key
            if len(self._keys) > KEPT_KEYS:
                self._keys.popitem(last=False)
        return self._keys[settings]

    def knows(self, settings: Settings) -> bool:
        """Whether `key` needs no plan to be made."""
        return settings in self._keys

    def remember(self, keys: Mapping[Settings, str]) -> None:
        """Keys that are known already: a journal has those of its proposals."""
        self._keys.update(keys)

    def numbers(self, settings: Settings) -> Settings:
        """A preset with what is best for this model, as users get it."""
        runs, count = layered(self.model, self.formats), choose_workers(self.model, self.target, self.batch)
        return tuned(replace(settings, batch=self.batch), self.model, self.target, runs, count, self.context)

    def space(self, start: str) -> Space:
        """The space of a search that starts from the plan of this name."""
        return Space.around(self.numbers(STARTS[start]))

    def _edited(self, design: Design) -> Candidate | Impossible:
        base = self.make(design.settings)
        if isinstance(base, Impossible):
            return base
        try:
            result = apply(base.schedule, design.parsed)
            same_problem(result.schedule, base.schedule)
        except AmkError as error:
            return Impossible(tuple(d.code for d in error.diagnostics), error.diagnostics[0].message)
        key = content_key(result.schedule)
        if key == content_key(base.schedule):
            return replace(base, edits=design.edits)
        return Candidate(design.settings, result.schedule, "", key, design.edits, result.repaired)

    def _build(self, settings: Settings) -> Candidate | Impossible:
        labelled = replace(self.numbers(settings), plan="search")
        try:
            schedule = plan(self.model, self.target, settings=labelled, formats=self.formats, max_context=self.context)
        except AmkError as error:
            return Impossible(tuple(d.code for d in error.diagnostics), error.diagnostics[0].message)
        source = emit(schedule)
        return Candidate(settings, schedule, source, program_key(schedule, source))
