"""Building a flat system from unsorted rows in bulk.

Property: events keep the order in which they were added to their agent; rows of one event keep their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from amk.validator.program.system import BOXES, CSR, I64, MalformedSystem, System


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
