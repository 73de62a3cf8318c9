"""A system with an open loop, said in Python, as the document of its file.

Property: the file says the same events from the same places; numbers are in the one form that `loop_numbers` gives
them, so that systems that do the same have the same text, whatever their Python.

Errors: AMK005 for a value that no file can hold (anything but texts, integers and numbers of laps).
"""

from __future__ import annotations

from typing import Any, Final

from amk.systems.affine import Index
from amk.systems.loop_document import FORMAT, LoopDocument, canonical
from amk.systems.loop_numbers import written
from amk.systems.loop_recorder import LoopAgent, LoopRecorder, Operation, Part
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
        "counters": [{"name": c.name, "scope": c.scope, "init": c.init, "size": c.size} for c in system.declared],
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
    of, (file, line) = operation.of, operation.source
    numbers = [written(number, name) for number in operation.numbers]
    source = {"source": f"{short(file)}:{line}"}
    if operation.verb not in ("wait", "signal"):
        boxes = {"lo": numbers[0], "hi": numbers[1], "value": _value(operation.value, name)}
        return {"do": operation.verb, "buffer": of.name, **boxes, **source}
    chosen = {} if of.number is None else {"number": written(of.number, name)}
    amount = "at_least" if operation.verb == "wait" else "amount"
    return {"do": operation.verb, "counter": of.name, **chosen, amount: numbers[0], "order": operation.order, **source}


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
