"""A system with an open loop, said in Python, as the document of its file.

Property: the file says the same events from the same places; numbers are in the one form that `loop_numbers` gives
them, so that systems that do the same have the same text, whatever their Python.

Errors: AMK005 for a value that no file can hold (anything but texts, integers and numbers of laps).
"""

from __future__ import annotations

from typing import Any, Final

from amk.systems.affine import Index
from amk.systems.loop_agent import LoopAgent, Named, Operation, Part
from amk.systems.loop_document import FORMAT, LoopDocument, canonical
from amk.systems.loop_numbers import written
from amk.systems.loop_recorder import LoopRecorder
from amk.systems.names import refuse, short

INDEX: Final = "k"
"""What the lap of every loop is called."""
Json = dict[str, Any]


def text_of(system: LoopRecorder) -> str:
    """The canonical text of its file."""
    return canonical(document_of(system))


def document_of(system: LoopRecorder) -> LoopDocument:
    return LoopDocument.model_validate(_document(system), strict=False)


def _document(system: LoopRecorder) -> Json:
    return {
        "format": FORMAT,
        "name": system.name,
        "parameters": {system.count: {"at_least": system.at_least, "at_most": system.at_most}},
        "counters": [
            {"name": c.name, "scope": c.scope, "init": c.init, "size": c.size, "arrivals": c.arrivals}
            for c in system.declared
        ],
        "buffers": [{"name": name, "size": size} for name, size in system.sizes],
        "initial": [
            {"buffer": name, "lo": lo, "hi": hi, "value": _value(value, INDEX)}
            for name, lo, hi, value in system.contents
        ],
        "agents": [{"name": agent.name, **agent.place, "code": _code(agent, system.count)} for agent in system.agents],
    }


def _code(agent: LoopAgent, count: str) -> list[Json]:
    before, lap, behind = (_statements(agent, part, name) for part, name in _named(count))
    loop: Json = {"do": "loop", "index": INDEX, "count": count, "code": lap}
    return [*before, *([loop] if lap else []), *behind]


def _named(count: str) -> tuple[tuple[Part, str], ...]:
    """What a number stands for in each part of a program."""
    return ("before", INDEX), ("lap", INDEX), ("behind", count)


def _statements(agent: LoopAgent, part: Part, name: str) -> list[Json]:
    return [_statement(operation, name) for operation in agent.code[part]]


def _statement(operation: Operation, name: str) -> Json:
    (file, line), verb = operation.source, operation.verb
    numbers = [written(number, name) for number in operation.numbers]
    said: Json = {"do": verb, "source": f"{short(file)}:{line}"}
    if verb in ("read", "write", "add"):
        value = _value(operation.value, name)
        return said | _box(operation.of, numbers) | {"value": value, "proxy": operation.proxy}
    if verb in ("load", "store"):
        far = operation.other
        end = None if far is None else _box(far[0], [written(number, name) for number in far[1:]])
        to = {} if operation.barrier is None else _chosen(operation.barrier, name)
        said |= _box(operation.of, numbers) | {"value": _value(operation.value, name)} | to
        return said | {"origin" if verb == "load" else "target": end}
    if verb in ("commit", "fence_async"):
        return said
    if verb == "wait_group":
        return said | {"most": numbers[0], "read": operation.flag}
    said |= _chosen(operation.of, name)
    if verb in ("sync", "wait_others"):
        return said
    if verb == "expect":
        return said | {"bytes": numbers[0], "arrives": operation.flag}
    return said | {NUMBERS[verb]: numbers[0], "order": operation.order}


NUMBERS: Final = {"wait": "at_least", "signal": "amount", "arrive": "count", "wait_parity": "parity"}
"""What the number of a statement is called."""


def _chosen(of: Named, name: str) -> Json:
    return {"counter": of.name} | ({} if of.number is None else {"number": written(of.number, name)})


def _box(of: Named, numbers: list[Any]) -> Json:
    return {"buffer": of.name, "lo": numbers[0], "hi": numbers[1]}


def _value(value: Any, name: str) -> Any:
    if value is None:
        return None
    return [_part(part, name) for part in (value if isinstance(value, tuple) else (value,))]


def _part(part: Any, name: str) -> Any:
    if isinstance(part, Index):
        return {"number": written(part, name)}
    if type(part) is int or isinstance(part, str):
        return part
    raise refuse("AMK005", f"{str(part)[:40]!r} is a value that a file cannot hold: take texts, integers, laps")
