"""A file with loops made into systems with one open loop each, and the verdict on all of them.

One parameter stays open: the count of the loops that `open_loop` decides for every number of laps. Every other gets
each of its values in turn. Loops with a known count are unrolled.

Property: UNSAFE iff some values are, and the verdict names them. SAFE only if all values are. UNKNOWN (AMK205), with
the place and the parameter, where the open count is used in another way than `open_loop` knows and has too many values
to try, or where there are more than `MOST_CASES` cases.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice, product
from math import inf, prod
from time import perf_counter
from typing import Any, Final

from amk.report.diagnostic import AmkError
from amk.systems.affine import Index
from amk.systems.loop_agent import Array, LoopAgent, Named
from amk.systems.loop_document import (
    Access,
    Arrive,
    DeclaredCounter,
    Expect,
    Group,
    Load,
    Loop,
    LoopDocument,
    Meet,
    Parameter,
    Plain,
    Read,
    Signal,
    Statement,
    Store,
    Wait,
    WaitParity,
)
from amk.systems.loop_numbers import Number, Unknown, evaluated, names_in
from amk.systems.loop_proof.numbers import Refused
from amk.systems.loop_proof.program import Program as Checked
from amk.systems.loops import LoopSystem
from amk.systems.names import refuse
from amk.systems.open_loop import LoopVerdict, Proof, judged_loops
from amk.systems.verdict import Verdict, judged

MOST_CASES: Final = 32
"""Values, or combinations of them, that are tried one by one."""
FIRST_CASES: Final = 4
"""So many are looked at where there are more than can be tried: something may be wrong with them."""
MOST_STATEMENTS: Final = 1 << 16
"""Statements of all agents when loops with a known count are unrolled, and turns of such loops."""
DRAWN_LAPS: Final = 4
MOST_NAMES: Final = 8
Names = Mapping[str, Number]


class Outside(ValueError):
    """The open count is used in another way than is decided for every number of laps; the message says why."""


class Program:
    """The system of a document for given values of all parameters but `count`, which stays open."""

    def __init__(self, read: Read, values: Mapping[str, int], count: str | None) -> None:
        self.read, self.values, self.count, self.left = read, values, count, MOST_STATEMENTS
        bounds = read.document.parameters[count] if count is not None else Parameter(at_least=0, at_most=0)
        chosen = "".join(f", {name} = {value}" for name, value in values.items())
        self.system = LoopSystem(read.document.name + chosen, bounds.at_least, bounds.at_most, count or "laps")
        self.counters: dict[str, Named | Array] = {}
        self.buffers: dict[str, Named] = {}

    def built(self) -> LoopSystem:
        document = self.read.document
        for number, counter in enumerate(document.counters):
            at = f"/counters/{number}"
            init = self.constant(counter.init, f"{at}/init")
            with self.placed(at, "AMK007" if counter.name in self.counters else None):
                self.counters[counter.name] = self.declared(counter, at, init)
        for number, buffer in enumerate(document.buffers):
            at = f"/buffers/{number}"
            with self.placed(at, "AMK007" if buffer.name in self.buffers else None):
                self.buffers[buffer.name] = self.system.buffer(buffer.name, self.constant(buffer.size, f"{at}/size"))
        self.contents(document)
        for number, agent in enumerate(document.agents):
            at = f"/agents/{number}"
            cta, cluster, gpu = (self.constant(getattr(agent, key), f"{at}/{key}") for key in ("cta", "cluster", "gpu"))
            stream = self.system.agent(agent.name, cta, cluster, gpu)
            self.code(stream, agent.code, self.values, f"{at}/code")
        return self.system

    def declared(self, counter: DeclaredCounter, at: str, init: int) -> Named | Array:
        """A counter or barrier, or several."""
        size = None if counter.size is None else self.constant(counter.size, f"{at}/size")
        if counter.arrivals is None:
            if size is None:
                return self.system.counter(counter.name, counter.scope, init)
            return self.system.counters(counter.name, size, counter.scope, init)
        arrivals = self.constant(counter.arrivals, f"{at}/arrivals")
        if init:
            raise refuse("AMK005", "a barrier begins without arrivals")
        if size is None:
            return self.system.mbarrier(counter.name, arrivals, counter.scope)
        return self.system.mbarriers(counter.name, size, arrivals, counter.scope)

    def contents(self, document: LoopDocument) -> None:
        for number, content in enumerate(document.initial):
            at = f"/initial/{number}"
            lo, hi = self.constant(content.lo, f"{at}/lo"), self.constant(content.hi, f"{at}/hi")
            buffer = self.buffer(content.buffer, f"{at}/buffer")
            self.system.initial(buffer, lo, hi, self.value(content.value, self.values, f"{at}/value"))

    @contextmanager
    def placed(self, pointer: str, again: str | None) -> Iterator[None]:
        """Complaints of the builder are about what is at the pointer; again: the name is taken."""
        if again is not None:
            raise self.read.wrong(again, "there is another of this name already", pointer)
        try:
            yield
        except AmkError as error:
            first = error.diagnostics[0]
            raise self.read.wrong(first.code, first.message, pointer) from error

    def number(self, number: Any, names: Names, pointer: str) -> Number:
        try:
            return evaluated(number, names, self.laps_of(names))
        except Unknown as error:
            raise self.read.wrong("AMK009", str(error), pointer) from error
        except SyntaxError as error:
            raise self.read.wrong("AMK005", f"no number: {error.msg}", pointer) from error
        except (TypeError, ValueError) as error:
            raise Outside(f"{self.at(pointer)}: {error}") from error

    def laps_of(self, names: Names) -> tuple[int, int | None]:
        """The laps that a lap's name stands for, or the numbers of laps."""
        least, most = self.system.at_least, self.system.at_most
        if self.count is not None and self.count in names:
            return least, None if most is None else most + 1
        return 0, most

    def constant(self, number: Any, pointer: str) -> int:
        """A number that holds for the whole system."""
        if self.uses(number, pointer):
            raise Outside(f"{self.at(pointer)}: depends on {self.count}, which is open")
        found = self.number(number, self.values, pointer)
        assert isinstance(found, int)
        return found

    def uses(self, number: Any, pointer: str) -> bool:
        """Whether it depends on the open parameter."""
        try:
            return self.count is not None and self.count in names_in(number)
        except SyntaxError as error:
            raise self.read.wrong("AMK005", f"no number: {error.msg}", pointer) from error

    def at(self, pointer: str) -> str:
        return f"{self.read.file}:{self.read.positions.nearest(pointer)}"

    def code(self, stream: LoopAgent, statements: Iterable[Statement], names: Names, pointer: str) -> None:
        for number, statement in enumerate(statements):
            self.spend(pointer)
            at = f"{pointer}/{number}"
            if isinstance(statement, Loop):
                self.loop(stream, statement, names, at)
            else:
                with self.system.at(self.read.source(statement, at)):
                    self.statement(stream, statement, names, at)

    def spend(self, pointer: str, turns: int = 1) -> None:
        self.left -= turns
        if self.left < 0:
            message = f"loops with a known count make more than {MOST_STATEMENTS} statements"
            raise self.read.wrong("AMK002", message, pointer)

    def loop(self, stream: LoopAgent, loop: Loop, names: Names, at: str) -> None:
        if loop.index in names or loop.index in self.read.document.parameters:
            raise self.read.wrong("AMK007", f"{loop.index!r} means something else already", f"{at}/index")
        if self.uses(loop.count, f"{at}/count"):
            if stream.part != "before" or loop.count != self.count:
                reason = "is within or behind another open loop" if stream.part != "before" else "is no plain parameter"
                raise Outside(f"{self.at(at)}: the open count of loop {loop.index} {reason}")
            with stream.loop() as lap:
                self.code(stream, loop.code, {**names, loop.index: lap}, f"{at}/code")
            return
        turns = self.number(loop.count, names, f"{at}/count")
        if isinstance(turns, Index):
            raise Outside(f"{self.at(at)}: the count of loop {loop.index} depends on the lap of an open loop")
        self.spend(at, max(0, turns))
        for turn in range(turns):
            self.code(stream, loop.code, {**names, loop.index: turn}, f"{at}/code")

    def in_scope(self, stream: LoopAgent, numbers: dict[str, Any], names: Names, at: str) -> Names:
        """The names that these numbers may use; the open count stands for the number of laps behind the loop."""
        if not any(self.uses(number, f"{at}/{key}") for key, number in numbers.items()):
            return names
        if stream.part == "before":
            with stream.loop():
                pass
        if stream.part == "lap":
            raise Outside(f"{self.at(at)}: depends on {self.count}, which is open, within its loop")
        assert self.count is not None
        return {**names, self.count: LoopSystem.laps}

    def statement(self, stream: LoopAgent, one: Plain, names: Names, at: str) -> None:
        numbers = dict(_numbers_in(one))
        names = self.in_scope(stream, numbers, names, at)
        operands = {
            key: self.number(number, names, f"{at}/{key}") for key, number in numbers.items() if "value" not in key
        }
        of = self.counter(one.counter, operands.get("number"), at) if hasattr(one, "counter") else None
        value = self.value(one.value, names, f"{at}/value") if hasattr(one, "value") else None
        if of is not None and not isinstance(one, Load):
            self.at_counter(stream, one, of, operands)
            return
        match one:
            case Load() if of is not None:
                stream.load(self.box(one, "origin", operands, at), self.near(one, operands, at), of, value)
            case Store():
                stream.store(self.near(one, operands, at), self.box(one, "target", operands, at), value)
            case Access():
                getattr(stream, one.do)(*self.near(one, operands, at), value, one.proxy)
            case Group(do="commit"):
                stream.commit()
            case Group():
                stream.wait_group(one.most, one.read)
            case _:
                stream.fence_async()

    @staticmethod
    def at_counter(stream: LoopAgent, one: Plain, of: Named, operands: dict[str, Number]) -> None:
        match one:
            case Wait():
                stream.wait(of, operands["at_least"], one.order)
            case Signal():
                stream.signal(of, operands["amount"], one.order)
            case Arrive():
                stream.arrive(of, operands["count"], one.order)
            case WaitParity():
                stream.wait_parity(of, operands["parity"], one.order)
            case Expect():
                stream.expect(of, operands["bytes"], one.arrives)
            case Meet(do="sync"):
                stream.sync(of)
            case _:
                stream.wait_others(of)

    def near(self, one: Access | Load | Store, operands: dict[str, Number], at: str) -> tuple[Named, Number, Number]:
        return self.buffer(one.buffer, f"{at}/buffer"), operands["lo"], operands["hi"]

    def box(
        self, one: Load | Store, end: str, operands: dict[str, Number], at: str
    ) -> tuple[Named, Number, Number] | None:
        """The other end of a copy."""
        region = getattr(one, end)
        if region is None:
            return None
        return self.buffer(region.buffer, f"{at}/{end}/buffer"), operands[f"{end}/lo"], operands[f"{end}/hi"]

    def value(self, value: Any, names: Names, pointer: str) -> Any:
        if value is None:
            return None
        parts = value if isinstance(value, list | tuple) else [value]
        return tuple(self.number(p["number"], names, pointer) if isinstance(p, dict) else p for p in parts)

    def buffer(self, name: str, pointer: str) -> Named:
        if name not in self.buffers:
            raise self.read.wrong("AMK009", f"there is no buffer {name!r}{_there_are(self.buffers)}", pointer)
        return self.buffers[name]

    def counter(self, name: str, number: Number | None, at: str) -> Named:
        found = self.counters.get(name)
        if found is None:
            message = f"there is no counter {name!r}{_there_are(self.counters)}"
            raise self.read.wrong("AMK009", message, f"{at}/counter")
        if isinstance(found, Array) != (number is not None):
            message = f"{name!r} is {'several counters' if number is None else 'one counter'}, and `number` says which"
            raise self.read.wrong("AMK005", message, f"{at}/counter")
        return found[number] if isinstance(found, Array) and number is not None else Named(name)


def _there_are(names: Iterable[str]) -> str:
    """What could be meant instead."""
    found = list(islice(names, MOST_NAMES))
    return f"; declared: {', '.join(found)}" if found else "; none is declared"


def _numbers_in(one: Plain) -> Iterator[tuple[str, Any]]:
    """Where a statement has numbers, and these."""
    for key in ("number", "at_least", "amount", "count", "bytes", "parity", "lo", "hi"):
        if getattr(one, key, None) is not None:
            yield key, getattr(one, key)
    for end in ("origin", "target"):
        if getattr(one, end, None) is not None:
            yield from ((f"{end}/{key}", getattr(getattr(one, end), key)) for key in ("lo", "hi"))
    value = getattr(one, "value", None)
    parts = value if isinstance(value, list | tuple) else [value]
    yield from ((f"value/{k}", part["number"]) for k, part in enumerate(parts) if isinstance(part, dict))


def judged_program(read: Read) -> LoopVerdict:
    """Decide."""
    start, count = perf_counter(), _open(read.document)
    try:
        verdict = _judged(read, count)
    except Outside as error:
        verdict = _judged(read, None)
        verdict = replace(verdict, unproved=str(error) if _left_out(read.document, None) else verdict.unproved)
    return replace(verdict, seconds=perf_counter() - start, title=_title(read.document))


def drawn(read: Read) -> Verdict:
    """The verdict on the smallest case that is wrong; where none is, on one of few laps."""
    found = judged_program(read)
    if found.unsafe is not None:
        return found.unsafe
    system = found.system
    most = DRAWN_LAPS if system.at_most is None else min(DRAWN_LAPS, system.at_most)
    return judged(system.unrolled(max(system.at_least, most)).flat())


def _judged(read: Read, count: str | None) -> LoopVerdict:
    """count stays open, the other parameters have each of their values. `Outside` where count cannot stay open."""
    names = [name for name in read.document.parameters if name != count]
    ranges = [_tried(read.document.parameters[name]) for name in names]
    left_out = _left_out(read.document, count)
    laps, undecided, verdict = 0, None, None
    proofs: tuple[Proof, ...] = ()
    for values in islice(product(*ranges), FIRST_CASES if left_out else MOST_CASES):
        chosen = dict(zip(names, values, strict=True))
        verdict = judged_loops(Program(read, chosen, count).built(), _checked(read, chosen, count))
        proofs += verdict.proofs
        if verdict.verdict == "UNSAFE":
            return verdict
        laps = max(laps, verdict.laps)
        if undecided is None and not verdict.safe:
            undecided = verdict
    found = undecided or verdict
    assert found is not None
    return replace(found, laps=laps, unproved=found.unproved or left_out, proofs=proofs)


def _checked(read: Read, values: dict[str, int], count: str | None) -> Checked:
    try:
        return Checked(read.document.model_dump(mode="json"), values, count)
    except Refused as error:
        raise Outside(str(error)) from error


def _tried(parameter: Parameter) -> range:
    first, last = parameter.at_least, parameter.at_most
    return range(first, min(first + MOST_CASES - 1, first + MOST_CASES if last is None else last) + 1)


def _left_out(document: LoopDocument, count: str | None) -> str | None:
    """Which parameters have more values than are tried."""
    others = {name: parameter for name, parameter in document.parameters.items() if name != count}
    cases = prod(map(_values, others.values()))
    if cases <= MOST_CASES:
        return None
    many = "any number of" if cases == inf else f"{cases}"
    text = f"{', '.join(others)}: {many} cases, of which {FIRST_CASES} are tried"
    return f'{text}; a parameter of many values is the whole count of a loop, as in "count": "{next(iter(others))}"'


def _title(document: LoopDocument) -> str:
    """What the verdict is about."""
    said = [
        f"{name} from {one.at_least} {'on' if one.at_most is None else f'to {one.at_most}'}"
        for name, one in document.parameters.items()
    ]
    return ", ".join([f"{document.name}: {len(document.agents)} agents", *said])


def _open(document: LoopDocument) -> str | None:
    """The parameter that stays open, if not all can be tried: the one of most values of those that count a loop."""
    if prod(map(_values, document.parameters.values())) <= MOST_CASES:
        return None
    counts = {name for agent in document.agents for name in _counts(agent.code)} & set(document.parameters)
    return max(sorted(counts), key=lambda name: _values(document.parameters[name]), default=None)


def _counts(statements: Iterable[Statement]) -> Iterator[Any]:
    for statement in statements:
        if isinstance(statement, Loop):
            yield from (name for name in (statement.count,) if isinstance(name, str))
            yield from _counts(statement.code)


def _values(parameter: Parameter) -> float:
    return inf if parameter.at_most is None else parameter.at_most - parameter.at_least + 1
