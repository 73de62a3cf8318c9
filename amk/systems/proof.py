"""Certificates of flat systems: evidence for SAFE, and its check without the judge.

Property: `check` accepts only if every counter's scope reaches all who use it, and the flat checker
(`amk/judges/flat_checker.py`) accepts the evidence for each system that the file stands for: `block`, `word`, `fence`
without what it says nothing about. It derives these from the file's own JSON by itself; of the judge it uses nothing.

Accepting `fence` proves more than the verdict needs (reads before writes too), so a SAFE file that gives one may have
no certificate. Cost: that of the flat checker, at most three times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from amk.judges.flat_checker import Verdict
from amk.judges.flat_checker import check as check_flat
from amk.systems.rule_proof import extended
from amk.systems.rule_reading import Refused

FORMAT: Final = "amk.flat-certificate/1"
Json = dict[str, Any]
RULES: Final = ("wait_rule", "signal_rule", "phase", "proxy")
BOXES: Final = ("buffer", "lo", "hi", "value", "delta")


def check(document: Json, evidence: object) -> Verdict:
    """document: the file's JSON, which `parse_system` has read; evidence: any JSON."""
    if not isinstance(evidence, dict) or evidence.get("format") != FORMAT:
        return Verdict(False, f"expected format {FORMAT}")
    systems = evidence.get("systems")
    if not isinstance(systems, dict):
        return Verdict(False, "systems: malformed")
    block, orders = filled(document["systems"]["block"]), document.get("orders") or {}
    if out_of_scope(block, orders):
        return Verdict(False, "a counter is used beyond its scope")
    try:
        ruled = any(any(orders.get(name) or ()) for name in RULES)
        wanted = {"block": extended(block, orders, evidence.get("rules"))} if ruled else {"block": block}
    except Refused as error:
        return Verdict(False, str(error))
    wanted |= {} if ruled else _others(document, block, orders)
    if set(systems) != set(wanted):
        return Verdict(False, f"evidence for {sorted(map(str, systems))}; the file stands for {sorted(wanted)}")
    deterministic = True
    for name, columns in wanted.items():
        verdict = check_flat(columns, systems[name])
        if not verdict.accepted:
            return Verdict(False, f"{name}: {verdict.reason}")
        deterministic = deterministic and verdict.deterministic
    return Verdict(True, "", deterministic)


def _others(document: Json, block: Json, orders: Json) -> dict[str, Json]:
    systems = document["systems"]
    if systems.get("word") is not None:
        unfenced = {*document.get("tagged", ()), *document.get("private", ())}
        return {"word": filled(systems["word"]), "fence": _unseen(filled(systems["fence"]), unfenced)}
    acquires, releases = orders.get("wait"), orders.get("signal")
    weak = 0 in (acquires or ()) or 0 in (releases or ())
    return {"word": _ordering(block, acquires, releases)} if weak else {}


def filled(columns: Json) -> Json:
    """With the columns that may be left out."""
    rows = len(columns["access_buffer"])
    default = {"access_value": [-1] * rows, "access_delta": [0] * rows}
    boxes: Json = {f"{table}_{name}": [] for table in ("initial", "final") for name in BOXES}
    return {**default, **boxes, **{name: column for name, column in columns.items() if column is not None}}


def _rows(columns: Json, table: str, names: tuple[str, ...]) -> Iterator[tuple[int, ...]]:
    """(event, row, entries) of a table, in turn."""
    first = columns[f"{table}_first"]
    for event in range(len(first) - 1):
        for row in range(first[event], first[event + 1]):
            yield event, row, *(columns[f"{table}_{name}"][row] for name in names)


def _table(columns: Json, table: str, rows: list[tuple[int, ...]], names: tuple[str, ...]) -> Json:
    """The table with these rows (event, row, entries)."""
    sizes = [0] * (len(columns[f"{table}_first"]) - 1)
    for event, *_ in rows:
        sizes[event] += 1
    first = [0]
    for size in sizes:
        first.append(first[-1] + size)
    return {f"{table}_first": first} | {f"{table}_{n}": [row[2 + k] for row in rows] for k, n in enumerate(names)}


def _ordering(block: Json, acquires: list[int] | None, releases: list[int] | None) -> Json:
    """Relaxed waits are gone; what relaxed signals add is there from the start."""
    waits, signals = ("counter", "threshold"), ("counter", "amount")
    kept = [row for row in _rows(block, "wait", waits) if acquires is None or acquires[row[1]]]
    sent, init = [], list(block["counter_init"])
    for row in _rows(block, "signal", signals):
        if releases is None or releases[row[1]]:
            sent.append(row)
        else:
            init[row[2]] += row[3]
    tables = _table(block, "wait", kept, waits) | _table(block, "signal", sent, signals)
    return {**block, **tables, "counter_init": init}


def _unseen(columns: Json, buffers: set[int]) -> Json:
    """Without these buffers."""
    names = (*BOXES, "kind")
    kept = [row for row in _rows(columns, "access", names) if row[2] not in buffers]
    found = {**columns, **_table(columns, "access", kept, names)}
    for table in ("initial", "final"):
        stays = [k for k, buffer in enumerate(columns[f"{table}_buffer"]) if buffer not in buffers]
        found |= {f"{table}_{name}": [columns[f"{table}_{name}"][k] for k in stays] for name in BOXES}
    return found


def out_of_scope(block: Json, orders: Json) -> bool:
    """Two agents use a counter whose scope does not reach from one to the other."""
    scope = orders.get("scope")
    if scope is None:
        return False
    agents = len(block["agent_first"]) - 1
    zero = [0] * agents
    gpu, cluster, cta = (orders.get(name) or zero for name in ("gpu", "cluster", "cta"))
    agent_of = [w for w in range(agents) for _ in range(block["agent_first"][w], block["agent_first"][w + 1])]
    seen: dict[int, tuple[int, ...]] = {}
    for table in ("wait", "signal"):
        for event, _, counter in _rows(block, table, ("counter",)):
            agent = agent_of[event]
            place = (gpu[agent], cluster[agent], cta[agent])[: 3 - scope[counter]]
            if seen.setdefault(counter, place) != place:
                return True
    return False
