"""The file `amk.flat/1`: a flat system as columns of integers (`amk/validator/system-format.md`, README.md here).

Reading is bounded and total: anything that is no such system is an `AmkError` with AMK00x and the line and column of
the entry that is wrong. What is written is read back as the same system.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from amk.report.diagnostic import AmkError, Diagnostic, Where
from amk.report.json_file import MAX_FILE, Positions, parse_json, read_bytes
from amk.report.schema import schema_error
from amk.schedule_ir.codec import located
from amk.systems.columns import Lifted, lifted, stand_ins
from amk.systems.flat_judge import (
    BOXES,
    COLUMNS,
    I64,
    MAX_AGENTS,
    MAX_AMOUNT,
    MAX_EVENTS,
    NAME_LISTS,
    MalformedSystem,
    System,
)
from amk.systems.flat_judge import FORMAT as COLUMNS_FORMAT
from amk.systems.flat_system import SCOPES, SYS, EdgeSystems, FlatSystem
from amk.systems.rules import HIGHEST, Rules, mixed

FORMAT: Final = "amk.flat/1"
MAX_SOURCES: Final = 1 << 20
Column = tuple[int, ...]
OPTIONAL: Final = frozenset(
    ["event_tag", "access_value", "access_delta"] + [f"{t}_{n}" for t in ("initial", "final") for n in BOXES]
)
"""Columns that may be left out: -1 or 0 for every row, or no rows."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Columns(_Frozen):
    """One system. Offsets (`*_first`) have one entry more than what they are of; all others one entry per row."""

    format: Literal["amk.system/1"]
    agent_first: Column = Field(description="agent w runs events agent_first[w] to agent_first[w + 1] - 1 in order")
    counter_init: Column = Field(description="value of each counter before the launch")
    wait_first: Column
    wait_counter: Column
    wait_threshold: Column = Field(description="the event starts when the counter is at least that")
    signal_first: Column
    signal_counter: Column
    signal_amount: Column = Field(description="added to the counter when the event is done")
    access_first: Column
    access_buffer: Column
    access_lo: Column = Field(description="first byte")
    access_hi: Column = Field(description="one past the last byte")
    access_kind: Column = Field(description="0 read, 1 write, 2 integer sum, 3 float sum")
    access_value: Column | None = Field(None, description="what the bytes mean; -1 or left out: nothing in particular")
    access_delta: Column | None = None
    event_tag: Column | None = None
    initial_buffer: Column = ()
    initial_lo: Column = ()
    initial_hi: Column = ()
    initial_value: Column = ()
    initial_delta: Column = ()
    final_buffer: Column = ()
    final_lo: Column = ()
    final_hi: Column = ()
    final_value: Column = ()
    final_delta: Column = ()
    agent_names: tuple[str, ...] = ()
    counter_names: tuple[str, ...] = ()
    buffer_names: tuple[str, ...] = ()


class Systems(_Frozen):
    """`word` and `fence` come together, and only where the file has no orders of its own."""

    block: Columns
    word: Columns | None = None
    fence: Columns | None = None


class Orders(_Frozen):
    """What the edges of `block` order; a column that is left out says the strongest for every row."""

    wait: Column | None = Field(None, description="per wait: 1 acquires, 0 relaxed")
    signal: Column | None = Field(None, description="per signal: 1 releases, 0 relaxed")
    scope: Column | None = Field(None, description="per counter: 0 cta, 1 cluster, 2 gpu, 3 sys")
    gpu: Column | None = Field(None, description="per agent: number of its GPU")
    cluster: Column | None = Field(None, description="per agent: number of its cluster on the GPU")
    cta: Column | None = Field(None, description="per agent: number of its CTA in the cluster")
    wait_rule: Column | None = Field(None, description="per wait: 0 at least, 1 parity, 2 equal, 3 next phase")
    signal_rule: Column | None = Field(
        None, description="per signal: 0 add, 1 store, 2 expect, 3 complete, 4 only expect"
    )
    phase: Column | None = Field(None, description="per counter: arrivals of one phase of a barrier, 0 if it is none")
    proxy: Column | None = Field(None, description="per event: 0 generic, 1 async, 2 fence.proxy.async")


class Sources(_Frozen):
    """Where events come from in the user's own files."""

    places: tuple[str, ...] = Field(description="FILE:LINE")
    event: Column = Field(description="per event of block: index into places, -1 for none")


class Document(_Frozen):
    """A flat system as a file."""

    format: Literal["amk.flat/1"]
    name: str = Field("system", max_length=256)
    systems: Systems
    orders: Orders | None = None
    sources: Sources | None = None
    tagged: Column = Field((), description="buffers whose words carry their own tag: fence says nothing about them")
    private: Column = Field((), description="buffers of one worker: fence says nothing about them")
    schedule: str | None = Field(None, description="what made the file, for its reader; no part of the system")
    pos: int | None = None
    tokens: int | None = None
    loops: tuple[Any, ...] | None = None
    steps: tuple[Any, ...] | None = None


def load_system(path: Path) -> FlatSystem:
    """AMK0xx as an AmkError (exit 2) for anything that is not a flat system."""
    return parse_system(read_bytes(path, MAX_FILE), str(path))


def parse_system(content: bytes, file: str) -> FlatSystem:
    """The system in `content`; `file` names the place in diagnostics."""
    positions = Positions(content)
    text, value, columns = _parsed(content, file)
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        message = f"the file says another format; this program reads {FORMAT}"
        raise AmkError(located(Diagnostic("AMK004", message, where=Where(path="/format")), file, positions))
    try:
        document = Document.model_validate_json(text.removeprefix(b"\xef\xbb\xbf"))
        return _Reader(document, columns).system()
    except ValidationError as error:
        raise AmkError([located(d, file, positions) for d in schema_error(error, file).diagnostics]) from error
    except _Wrong as error:
        raise AmkError(located(error.diagnostic, file, positions)) from error


def _parsed(content: bytes, file: str) -> tuple[bytes, Any, Lifted]:
    """The text, its value and what numbers in both stand for; the whole text where something is wrong with it."""
    text, columns = lifted(content)
    if columns:
        try:
            value = parse_json(text, file)
            if stand_ins(value) == len(columns):
                return text, value, columns
        except AmkError:
            pass
    return content, parse_json(content, file), {}


class _Wrong(ValueError):
    def __init__(self, pointer: str, message: str) -> None:
        super().__init__(message)
        self.diagnostic = Diagnostic("AMK005", message, where=Where(path=pointer))


def _column(pointer: str, raw: Column | I64, low: int, high: int, length: int | None = None) -> I64:
    """The entries, all within [low, high); `length` is how many there must be."""
    if length is not None and len(raw) != length:
        raise _Wrong(pointer, f"{len(raw)} entries; there must be {length}")
    try:
        found = np.array(raw, dtype=np.int64)
        bad = np.flatnonzero((found < low) | (found >= high))
        at = int(bad[0]) if len(bad) else None
    except OverflowError:
        found, at = np.zeros(0, dtype=np.int64), next(i for i, entry in enumerate(raw) if not low <= entry < high)
    if at is not None:
        shown = str(raw[at]) if abs(raw[at]) < 1 << 64 else "a number beyond 64 bits"
        raise _Wrong(f"{pointer}/{at}", f"{shown}: entries of this column must be from {low} to {high - 1}")
    return found


class _Reader:
    def __init__(self, document: Document, lifted: Lifted) -> None:
        self.document, self.lifted = document, lifted

    def _raw(self, column: Column) -> Column | I64:
        """The column, or the array that its only number stands for."""
        return self.lifted.get(column[0], column) if len(column) == 1 else column

    def system(self) -> FlatSystem:
        document, edges = self.document, None
        block = self._columns("block", document.systems.block)
        if document.systems.word is not None and document.systems.fence is not None:
            word, fence = (self._columns(n, getattr(document.systems, n)) for n in ("word", "fence"))
            edges = EdgeSystems(word, fence, (*self._numbers(document.tagged), *self._numbers(document.private)))
            if document.orders is not None or document.sources is not None:
                raise _Wrong("/systems", "a file with word and fence has neither orders nor sources")
        elif document.systems.word is not None or document.systems.fence is not None:
            raise _Wrong("/systems", "word and fence come together")
        plain = FlatSystem.plain(block, document.name, edges)
        return self._with_sources(self._with_orders(plain))

    def _numbers(self, column: Column) -> list[int]:
        return [int(number) for number in self._raw(column)]

    def _columns(self, which: str, columns: Columns) -> System:
        at = f"/systems/{which}"
        raw = {name: None if (column := getattr(columns, name)) is None else self._raw(column) for name in COLUMNS}
        agents, accesses = raw["agent_first"], raw["access_buffer"]
        assert agents is not None and accesses is not None
        fields: dict[str, Any] = {}
        for name, (low, high) in COLUMNS.items():
            column = raw[name]
            if column is None:
                rows = int(agents[-1] if len(agents) else 0) if name == "event_tag" else len(accesses)
                default = 0 if name == "access_delta" else -1
                fields[name] = np.full(rows if 0 <= rows <= MAX_EVENTS * 4 else 0, default, dtype=np.int64)
            else:
                fields[name] = _column(f"{at}/{name}", column, low, high)
        for name in ("wait_counter", "signal_counter"):
            _column(f"{at}/{name}", fields[name], 0, len(fields["counter_init"]))
        self._boxes(at, fields)
        if len(agents) - 1 > MAX_AGENTS:
            raise _Wrong(f"{at}/agent_first", f"{len(agents) - 1} agents; at most {MAX_AGENTS}")
        fields |= {name: getattr(columns, name) for name in NAME_LISTS}
        try:
            return System(**fields)
        except MalformedSystem as error:
            name = str(error).partition(":")[0]
            raise _Wrong(f"{at}/{name}" if name in COLUMNS else at, str(error)) from error

    @staticmethod
    def _boxes(at: str, fields: dict[str, Any]) -> None:
        for table in ("access", "initial", "final"):
            lo, hi = fields[f"{table}_lo"], fields[f"{table}_hi"]
            rows = min(len(lo), len(hi))
            if len(bad := np.flatnonzero(lo[:rows] >= hi[:rows])):
                k = int(bad[0])
                raise _Wrong(f"{at}/{table}_hi/{k}", f"bytes {lo[k]} to {hi[k]} (exclusive): the box is empty")

    def _with_orders(self, system: FlatSystem) -> FlatSystem:
        orders, block = self.document.orders, system.block
        if orders is None:
            return system
        rows = {"wait": len(block.wait_counter), "signal": len(block.signal_counter), "scope": block.counters}
        highest = {"wait": 2, "signal": 2, "scope": len(SCOPES)}
        read: dict[str, I64] = {}
        for name, strongest in (("wait", 1), ("signal", 1), ("scope", SYS), ("gpu", 0), ("cluster", 0), ("cta", 0)):
            raw, length = getattr(orders, name), rows.get(name, block.agents)
            read[name] = (
                np.full(length, strongest, dtype=np.int64)
                if raw is None
                else _column(f"/orders/{name}", self._raw(raw), 0, highest.get(name, 1 << 31), length)
            )
        place = np.stack((read["gpu"], read["cluster"], read["cta"]), axis=1)
        relaxed = read["signal"] == 0
        totals = np.bincount(block.signal_counter[relaxed], block.signal_amount[relaxed], minlength=block.counters)
        if block.counters and int((totals + block.counter_init).max()) >= MAX_AMOUNT:
            raise _Wrong("/orders/signal", f"relaxed signals add {MAX_AMOUNT} or more to one counter")
        rules = self._rules(orders, block)
        return replace(
            system, acquires=read["wait"] == 1, releases=~relaxed, scope=read["scope"], place=place, rules=rules
        )

    def _rules(self, orders: Orders, block: System) -> Rules | None:
        sizes = (len(block.wait_counter), len(block.signal_counter), block.counters, block.events)
        columns = []
        for (name, highest), length in zip(HIGHEST.items(), sizes, strict=True):
            raw = getattr(orders, name)
            values = np.zeros(length, dtype=np.int64) if raw is None else self._raw(raw)
            columns.append(_column(f"/orders/{name}", values, 0, highest, length))
        found = Rules(*columns)
        if found.silent:
            return None
        if (reason := mixed(block, found)) is not None:
            raise _Wrong("/orders", reason)
        return found

    def _with_sources(self, system: FlatSystem) -> FlatSystem:
        sources = self.document.sources
        if sources is None:
            return system
        if len(sources.places) > MAX_SOURCES:
            raise _Wrong("/sources/places", f"{len(sources.places)} places; at most {MAX_SOURCES}")
        event = _column("/sources/event", self._raw(sources.event), -1, len(sources.places), system.block.events)
        return replace(system, source=event, sources=sources.places)


def to_json(system: FlatSystem) -> dict[str, Any]:
    """Plain JSON; `parse_system` inverts it. Columns that say nothing are left out."""
    block = _written(system.block)
    systems = {"block": block}
    found: dict[str, Any] = {"format": FORMAT, "name": system.name, "systems": systems}
    if system.edge_systems is not None:
        systems |= {"word": _written(system.edge_systems.word), "fence": _written(system.edge_systems.fence)}
        return found | {"private": list(system.edge_systems.unfenced)}
    found["orders"] = {
        "wait": system.acquires.astype(int).tolist(),
        "signal": system.releases.astype(int).tolist(),
        "scope": system.scope.tolist(),
        **{name: system.place[:, k].tolist() for k, name in enumerate(("gpu", "cluster", "cta"))},
    }
    if (rules := system.rules) is not None:
        columns = (rules.wait, rules.signal, rules.phase, rules.proxy)
        found["orders"] |= {n: c.tolist() for n, c in zip(HIGHEST, columns, strict=True) if c.any()}
    if system.sources:
        found["sources"] = {"places": list(system.sources), "event": system.source.tolist()}
    return found


def _written(system: System) -> dict[str, Any]:
    columns = {n: getattr(system, n) for n in COLUMNS}
    silent = {n for n in OPTIONAL if not (columns[n] != (0 if n == "access_delta" else -1)).any()}
    for table in ("initial", "final"):
        rows = {f"{table}_{n}" for n in BOXES}
        silent = silent | rows if not len(columns[f"{table}_lo"]) else silent - rows
    kept = {n: column.tolist() for n, column in columns.items() if n not in silent}
    names = {n: list(getattr(system, n)) for n in NAME_LISTS if getattr(system, n)}
    return {"format": COLUMNS_FORMAT, **kept, **names}


def written(system: FlatSystem) -> str:
    """The text of `to_json`."""
    return json.dumps(to_json(system), separators=(",", ":"))


def schema() -> dict[str, Any]:
    """JSON Schema of the file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Document.model_json_schema()}
