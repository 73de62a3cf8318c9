"""The flat system: agents, events, counters and byte accesses as columns; made from JSON or from unsorted rows.

Property: none; this is the object that every check of the validator reads.

A system is what a schedule becomes once workers, rings and loops are expanded (or composed). Events are numbered
agent by agent in program order: agent ``w`` owns ``agent_first[w] .. agent_first[w+1]-1`` and the index of event ``e``
inside its agent is ``e - agent_first[w]``. An event runs in three steps: all its waits hold, then its accesses happen
(its reads see memory as it was before the event, then its writes land, then its accumulations), then its signals land.
A task that signals before its last access is several events.

Columns are int64. CSR tables (waits, signals, accesses) are indexed by event through ``*_first`` of length events+1.
``initial`` lists bytes with a known content before the first event, ``final`` lists what must be there at the end.

Errors: `MalformedSystem` for anything inconsistent or out of the stated bounds; untrusted JSON raises nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
Counts = npt.NDArray[np.signedinteger[Any]]
"""Of 32 bits, or of fewer if there are no large ones."""
Bools = npt.NDArray[np.bool_]

READ: Final = 0
WRITE: Final = 1
ACCUMULATE_INT: Final = 2
ACCUMULATE_FLOAT: Final = 3
KIND_NAMES: Final = ("read", "write", "accumulate_int", "accumulate_float")
DONT_CARE: Final = -1

FORMAT: Final = "amk.system/1"
MAX_EVENTS: Final = 1 << 24
MAX_ENTRIES: Final = 1 << 26
MAX_AGENTS: Final = 1 << 20
MAX_BUFFERS: Final = 1 << 18
MAX_BYTES: Final = 1 << 44
MAX_AMOUNT: Final = 1 << 32
MAX_THRESHOLD: Final = 1 << 60
MAX_NAME: Final = 256
PIECE: Final = 1 << 16
"""Numbers that are written at once."""

NAME_LISTS: Final = ("agent_names", "counter_names", "buffer_names")
CSR: Final = {
    "wait": ("counter", "threshold"),
    "signal": ("counter", "amount"),
    "access": ("buffer", "lo", "hi", "kind", "value", "delta"),
}
BOXES: Final = ("buffer", "lo", "hi", "value", "delta")


class MalformedSystem(ValueError):
    """The columns do not describe a system; the message says which column and why."""


def _empty() -> I64:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class System:
    """Columns of one flat system; see the module docstring. Made by `assemble` or `from_json`."""

    agent_first: I64
    event_tag: I64
    counter_init: I64
    wait_first: I64
    wait_counter: I64
    wait_threshold: I64
    signal_first: I64
    signal_counter: I64
    signal_amount: I64
    access_first: I64
    access_buffer: I64
    access_lo: I64
    access_hi: I64
    access_kind: I64
    access_value: I64
    access_delta: I64
    initial_buffer: I64 = field(default_factory=_empty)
    initial_lo: I64 = field(default_factory=_empty)
    initial_hi: I64 = field(default_factory=_empty)
    initial_value: I64 = field(default_factory=_empty)
    initial_delta: I64 = field(default_factory=_empty)
    final_buffer: I64 = field(default_factory=_empty)
    final_lo: I64 = field(default_factory=_empty)
    final_hi: I64 = field(default_factory=_empty)
    final_value: I64 = field(default_factory=_empty)
    final_delta: I64 = field(default_factory=_empty)
    agent_names: tuple[str, ...] = ()
    counter_names: tuple[str, ...] = ()
    buffer_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_ranges(self)
        _check_shapes(self)

    @property
    def agents(self) -> int:
        return len(self.agent_first) - 1

    @property
    def events(self) -> int:
        return int(self.agent_first[-1])

    @property
    def counters(self) -> int:
        return len(self.counter_init)

    @cached_property
    def agent_size(self) -> I64:
        """[agents] number of events of each agent."""
        return np.diff(self.agent_first)

    @property
    def fitting(self) -> type[np.int16] | type[np.int32]:
        """What numbers of events of one agent fit in."""
        return np.int16 if int(self.agent_size.max(initial=0)) <= np.iinfo(np.int16).max else np.int32

    @cached_property
    def agent_of(self) -> I64:
        """[events] agent of each event."""
        return np.repeat(np.arange(self.agents), self.agent_size)

    @cached_property
    def index_of(self) -> I64:
        """[events] index of each event inside its agent."""
        return np.arange(self.events) - np.repeat(self.agent_first[:-1], self.agent_size)

    @cached_property
    def wait_event(self) -> I64:
        """[waits] event of each wait."""
        return np.repeat(np.arange(self.events), np.diff(self.wait_first))

    @cached_property
    def signal_event(self) -> I64:
        """[signals] event of each signal."""
        return np.repeat(np.arange(self.events), np.diff(self.signal_first))

    @cached_property
    def access_event(self) -> I64:
        """[accesses] event of each access."""
        return np.repeat(np.arange(self.events), np.diff(self.access_first))

    def agent_name(self, agent: int) -> str:
        return self.agent_names[agent] if self.agent_names else f"agent {agent}"

    def counter_name(self, counter: int) -> str:
        return self.counter_names[counter] if self.counter_names else f"counter {counter}"

    def buffer_name(self, buffer: int) -> str:
        return self.buffer_names[buffer] if buffer < len(self.buffer_names) else f"buffer {buffer}"

    def event_name(self, event: int) -> str:
        return f"{self.agent_name(int(self.agent_of[event]))}[{int(self.index_of[event])}]"

    def to_json(self) -> dict[str, Any]:
        """Plain lists and strings; `from_json` inverts it."""
        columns: dict[str, Any] = {name: getattr(self, name).tolist() for name in COLUMNS}
        names = {name: list(getattr(self, name)) for name in NAME_LISTS}
        return {"format": FORMAT, **columns, **names}

    def json_parts(self) -> Iterator[str]:
        """The text of `to_json`, piece by piece: a large system is never there as a list of numbers."""
        yield f'{{"format": {json.dumps(FORMAT)}'
        for name in COLUMNS:
            yield f', "{name}": ['
            column = getattr(self, name)
            for start in range(0, len(column), PIECE):
                yield (", " if start else "") + ", ".join(map(str, column[start : start + PIECE].tolist()))
            yield "]"
        for name in NAME_LISTS:
            yield f', "{name}": {json.dumps(list(getattr(self, name)))}'
        yield "}"

    @cached_property
    def digest(self) -> str:
        """sha256 over the columns (names and tags excluded: they do not change what is proved)."""
        state = hashlib.sha256(FORMAT.encode())
        for name in sorted(COLUMNS):
            if name != "event_tag":
                column = np.ascontiguousarray(getattr(self, name), dtype="<i8")
                state.update(f"{name}:{len(column)}:".encode())
                state.update(column.tobytes())
        return state.hexdigest()


BOUNDS: Final = {
    "agent_first": (0, MAX_EVENTS + 1),
    "event_tag": (-1, 1 << 62),
    "counter_init": (0, MAX_AMOUNT),
    "first": (0, MAX_ENTRIES + 1),
    "counter": (0, MAX_ENTRIES),
    "threshold": (0, MAX_THRESHOLD),
    "amount": (1, MAX_AMOUNT),
    "buffer": (0, MAX_BUFFERS),
    "lo": (0, MAX_BYTES),
    "hi": (1, MAX_BYTES + 1),
    "kind": (READ, ACCUMULATE_FLOAT + 1),
    "value": (DONT_CARE, 1 << 62),
    "delta": (-MAX_BYTES, MAX_BYTES),
}
"""(smallest, one past the largest) legal entry of the columns with this name, or with this end of theirs."""
COLUMNS: Final = {
    f.name: BOUNDS.get(f.name) or BOUNDS[f.name.partition("_")[2]] for f in fields(System) if f.name not in NAME_LISTS
}


def _check_ranges(system: System) -> None:
    for name, (low, high) in COLUMNS.items():
        column = getattr(system, name)
        if column.ndim != 1 or column.dtype != np.int64:
            raise MalformedSystem(f"{name}: expected a flat int64 column")
        if len(column) > MAX_ENTRIES:
            raise MalformedSystem(f"{name}: {len(column)} entries, at most {MAX_ENTRIES}")
        if len(column) and (int(column.min()) < low or int(column.max()) >= high):
            raise MalformedSystem(f"{name}: entries must lie in [{low}, {high})")


def _check_offsets(name: str, offsets: I64, rows: int | None, entries: int) -> None:
    if len(offsets) < 1 or (rows is not None and len(offsets) != rows + 1):
        expected = "at least 1" if rows is None else str(rows + 1)
        raise MalformedSystem(f"{name}: expected {expected} offsets, got {len(offsets)}")
    if offsets[0] != 0 or offsets[-1] != entries or bool((offsets[1:] < offsets[:-1]).any()):
        raise MalformedSystem(f"{name}: offsets must rise from 0 to {entries}")


def _check_shapes(system: System) -> None:
    _check_offsets("agent_first", system.agent_first, None, len(system.event_tag))
    if system.agents > MAX_AGENTS or system.events > MAX_EVENTS:
        raise MalformedSystem(f"agent_first: {system.agents} agents, {system.events} events exceed the bounds")
    for table, names in CSR.items():
        entries = len(getattr(system, f"{table}_{names[0]}"))
        _check_offsets(f"{table}_first", getattr(system, f"{table}_first"), system.events, entries)
        _check_lengths(system, table, names, entries)
    for table in ("initial", "final"):
        _check_lengths(system, table, BOXES, len(getattr(system, f"{table}_buffer")))
    for table in ("wait", "signal"):
        counter = getattr(system, f"{table}_counter")
        if len(counter) and int(counter.max()) >= system.counters:
            raise MalformedSystem(f"{table}_counter: names a counter beyond the {system.counters} declared")
    for table in ("access", "initial", "final"):
        if bool((getattr(system, f"{table}_lo") >= getattr(system, f"{table}_hi")).any()):
            raise MalformedSystem(f"{table}: empty byte interval (lo >= hi)")
    for names, count in ((system.agent_names, system.agents), (system.counter_names, system.counters)):
        if names and len(names) != count:
            raise MalformedSystem(f"names: expected {count} or none, got {len(names)}")


def _check_lengths(system: System, table: str, fields: Sequence[str], entries: int) -> None:
    for name in fields:
        if len(getattr(system, f"{table}_{name}")) != entries:
            raise MalformedSystem(f"{table}_{name}: expected {entries} entries like the rest of the table")


def _json_column(name: str, raw: object) -> I64:
    if not isinstance(raw, list) or len(raw) > MAX_ENTRIES:
        raise MalformedSystem(f"{name}: expected a list of at most {MAX_ENTRIES} integers")
    if any(type(entry) is not int for entry in raw):
        raise MalformedSystem(f"{name}: every entry must be an integer")
    try:
        return np.array(raw, dtype=np.int64)
    except OverflowError as error:
        raise MalformedSystem(f"{name}: entry outside 64 bits") from error


def _json_names(name: str, raw: object) -> tuple[str, ...]:
    if not isinstance(raw, list) or len(raw) > MAX_ENTRIES:
        raise MalformedSystem(f"{name}: expected a list of strings")
    if any(not isinstance(entry, str) or len(entry) > MAX_NAME for entry in raw):
        raise MalformedSystem(f"{name}: every entry must be a string of at most {MAX_NAME} characters")
    return tuple(raw)


def from_json(raw: object) -> System:
    """System from decoded JSON of any origin; raises `MalformedSystem` and nothing else."""
    if not isinstance(raw, Mapping) or raw.get("format") != FORMAT:
        raise MalformedSystem(f"expected an object with format {FORMAT!r}")
    unknown = set(raw) - set(COLUMNS) - set(NAME_LISTS) - {"format"}
    missing = set(COLUMNS) - set(raw)
    if unknown or missing:
        raise MalformedSystem(f"unknown keys {sorted(map(str, unknown))}, missing keys {sorted(missing)}")
    columns: dict[str, Any] = {name: _json_column(name, raw[name]) for name in COLUMNS}
    columns |= {name: _json_names(name, raw.get(name, [])) for name in NAME_LISTS}
    return System(**columns)


def by_event(event_count: int, event: I64, *columns: I64) -> tuple[I64, ...]:
    """Where the rows of each event begin, and the columns with the rows of events in turn."""
    order = np.argsort(event, kind="stable")
    first = np.zeros(event_count + 1, dtype=np.int64)
    np.cumsum(np.bincount(event, minlength=event_count), out=first[1:])
    return first, *(column[order] for column in columns)


def _csr(event_count: int, event: I64, fields: Mapping[str, I64], table: str) -> dict[str, I64]:
    names = (f"{table}_{name}" for name in ("first", *fields))
    return dict(zip(names, by_event(event_count, event, *fields.values()), strict=True))


def _table(rows: object, names: Sequence[str]) -> dict[str, I64]:
    matrix = np.asarray(rows, dtype=np.int64).reshape(-1, len(names))
    return {name: np.ascontiguousarray(matrix[:, i]) for i, name in enumerate(names)}


def assemble(
    agents: int,
    event_agent: npt.ArrayLike,
    counter_init: npt.ArrayLike,
    waits: npt.ArrayLike,
    signals: npt.ArrayLike,
    accesses: npt.ArrayLike,
    initial: npt.ArrayLike = (),
    final: npt.ArrayLike = (),
    event_tag: npt.ArrayLike | None = None,
    names: Mapping[str, tuple[str, ...]] | None = None,
) -> tuple[System, I64]:
    """System from unsorted rows, and the map from the caller's event numbers to event ids.

    ``event_agent`` [events] gives each event's agent; events of one agent run in the order they are listed. ``waits``
    [n, 3] = (event, counter, threshold), ``signals`` [n, 3] = (event, counter, amount), ``accesses`` [n, 7] =
    (event, buffer, lo, hi, kind, value, delta), ``initial`` and ``final`` [n, 5] = (buffer, lo, hi, value, delta).
    """
    agent = np.asarray(event_agent, dtype=np.int64).reshape(-1)
    if len(agent) and (int(agent.min()) < 0 or int(agent.max()) >= agents):
        raise MalformedSystem(f"event_agent: names an agent outside the {agents} declared")
    order = np.argsort(agent, kind="stable")
    ids = np.empty(len(agent), dtype=np.int64)
    ids[order] = np.arange(len(agent))
    first = np.zeros(agents + 1, dtype=np.int64)
    np.cumsum(np.bincount(agent, minlength=agents), out=first[1:])
    tag = np.full(len(agent), -1, dtype=np.int64) if event_tag is None else np.asarray(event_tag, dtype=np.int64)[order]
    columns: dict[str, Any] = {}
    for table, rows in (("wait", waits), ("signal", signals), ("access", accesses)):
        parts = _table(rows, ("event", *CSR[table]))
        event = parts.pop("event")
        if len(event) and (int(event.min()) < 0 or int(event.max()) >= len(agent)):
            raise MalformedSystem(f"{table}: names an event that does not exist")
        columns |= _csr(len(agent), ids[event], parts, table)
    for table, rows in (("initial", initial), ("final", final)):
        columns |= {f"{table}_{name}": column for name, column in _table(rows, BOXES).items()}
    init = np.asarray(counter_init, dtype=np.int64).reshape(-1)
    columns |= names or {}
    return System(agent_first=first, event_tag=tag, counter_init=init, **columns), ids
