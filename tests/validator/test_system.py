"""The flat system: numbering, JSON, and rejection of everything malformed."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amk.adversary.system_builder import SystemBuilder
from amk.validator.program.system import COLUMNS, MalformedSystem, System, assemble, from_json
from tests.validator.random_systems import random_system, random_systems


def test_events_are_numbered_by_agent_in_the_order_added() -> None:
    build = SystemBuilder()
    left, right = build.agent("left"), build.agent("right")
    handles = [build.event(right, 10), build.event(left, 11), build.event(right, 12)]
    counter = build.counter(3, "c")
    build.signal(handles[2], counter, 5)
    build.wait(handles[0], counter, 1)
    build.read(handles[1], 0, 4, 8, 7, 2)
    system, ids = build.assemble()
    assert ids.tolist() == [1, 0, 2]
    assert system.event_tag.tolist() == [11, 10, 12]
    assert system.agent_of.tolist() == [0, 1, 1] and system.index_of.tolist() == [0, 0, 1]
    assert system.wait_event.tolist() == [1] and system.signal_event.tolist() == [2]
    assert system.access_event.tolist() == [0] and system.access_delta.tolist() == [2]
    assert system.event_name(2) == "right[1]" and system.counter_name(0) == "c"


def test_an_edge_uses_one_counter_per_source() -> None:
    build = SystemBuilder()
    events = [build.event(build.agent()) for _ in range(3)]
    build.edge(events[0], events[1])
    build.edge(events[0], events[2])
    system = build.build()
    assert system.counters == 1
    assert system.wait_threshold.tolist() == [1, 1] and system.signal_amount.tolist() == [1]


def test_json_round_trip_keeps_columns_names_and_digest() -> None:
    for system in random_systems(50, seed=5):
        again = from_json(json.loads(json.dumps(system.to_json())))
        assert "".join(system.json_parts()) == json.dumps(system.to_json())
        assert all(np.array_equal(getattr(system, name), getattr(again, name)) for name in COLUMNS)
        assert again.agent_names == system.agent_names and again.digest == system.digest


def test_digest_depends_on_every_proved_column() -> None:
    system = random_system(Random(7))
    raw = system.to_json()
    for name in COLUMNS:
        if name == "event_tag" or not raw[name] or name.endswith("_first"):
            continue
        changed = {**raw, name: [*raw[name][:-1], raw[name][-1] + 1]}
        try:
            assert from_json(changed).digest != system.digest, name
        except MalformedSystem:
            continue


def _base() -> dict[str, Any]:
    build = SystemBuilder()
    first, second = build.event(build.agent()), build.event(build.agent())
    counter = build.counter()
    build.signal(first, counter)
    build.wait(second, counter, 1)
    build.write(first, 0, 0, 4)
    build.initial(0, 0, 4)
    return build.build().to_json()


@pytest.mark.parametrize(
    "change",
    [
        {"format": "amk.system/2"},
        {"extra": []},
        {"counter_init": None},
        {"counter_init": [True]},
        {"counter_init": [0.0]},
        {"counter_init": [1 << 80]},
        {"counter_init": [-1]},
        {"agent_first": []},
        {"agent_first": [0, 2, 1]},
        {"agent_first": [0, 1, 3]},
        {"agent_first": [1, 1, 2]},
        {"wait_counter": [1]},
        {"wait_counter": [0, 0]},
        {"wait_threshold": []},
        {"wait_first": [0, 1]},
        {"signal_amount": [0]},
        {"signal_amount": [-1]},
        {"access_kind": [4]},
        {"access_lo": [4]},
        {"access_hi": [1 << 50]},
        {"access_value": [-2]},
        {"initial_lo": [4]},
        {"initial_hi": []},
        {"agent_names": ["only one"]},
        {"agent_names": [1, 2]},
        {"agent_names": "xy"},
        {"buffer_names": ["x" * 1000]},
    ],
)
def test_malformed_json_is_rejected(change: dict[str, Any]) -> None:
    assert isinstance(from_json(_base()), System)
    with pytest.raises(MalformedSystem):
        from_json(_base() | change)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3), st.lists, max_leaves=6), st.data())
def test_no_column_value_escapes_the_diagnostic(junk: object, data: st.DataObject) -> None:
    raw = _base()
    raw[data.draw(st.sampled_from(sorted(raw)))] = junk
    try:
        assert isinstance(from_json(raw), System)
    except MalformedSystem as error:
        assert str(error)


def test_assemble_rejects_unknown_events_and_agents() -> None:
    with pytest.raises(MalformedSystem, match="agent"):
        assemble(1, [1], [], [], [], [])
    with pytest.raises(MalformedSystem, match="event"):
        assemble(1, [0], [0], [(1, 0, 1)], [], [])
