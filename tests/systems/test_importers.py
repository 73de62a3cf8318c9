"""Files of other projects: what they mean, where they are wrong, and recorded runs against the machine's own order."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from amk.cli import main
from amk.report.diagnostic import AmkError
from amk.report.render import render
from amk.systems import System
from amk.systems.flat_system import FlatSystem
from amk.systems.importers.instruction_queues import instruction_queues
from amk.systems.importers.recorded import recorded, trace_line
from amk.systems.importers.task_graph import NO_EVENT, task_graph
from amk.systems.machine import ran
from amk.systems.verdict import judged
from tests.validator.random_systems import random_systems

SHAPE = {
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "hidden_size": 64,
    "intermediate_size": 128, "vocab_size": 64,
}  # fmt: skip


def queues(sms: int = 3) -> dict[str, Any]:
    """A step of a small model as their scheduler lays it out, dealt in turn; blocks of 16 columns."""
    work: list[list[int]] = []
    for layer in range(2):
        work += [[1, layer, n, n + 1] for n in range(8)]
        work += [[2, layer, n, 1, 0] for n in range(2)]
        work += [[4, layer, n, n + 1, 0] for n in range(4)]
        work += [[5, layer, 2, n, n + 4] for n in range(4)]
        work += [[6, layer, n, n + 1, part] for part in range(2) for n in range(4)]
    work += [[7, n, n + 1] for n in range(4)]
    return {"config": SHAPE, "instructions": [work[n::sms] for n in range(sms)]}


def finding(system: System) -> tuple[str, str]:
    """Code, and what is said; nothing is looked for that would mend it."""
    found = judged(system.flat()).finding
    assert found is not None
    return found.diagnostic.code, render([found.diagnostic])


def test_queues_are_safe_if_memory_is_ordered_where_counters_are() -> None:
    """One SM does all up-projections before its down-projections, so no counter has to say that they have read."""
    assert finding(instruction_queues(queues(1), "one"))[0] == "AMK302"
    assert judged(instruction_queues(queues(1), "one", fenced=True).flat()).safe


def test_a_down_projection_may_overtake_an_up_projection_of_another_part() -> None:
    """Their counters are per part: an SM whose up-projection has no block of part 0 may read the sum too late."""
    dealt = queues(3)
    for words in (words for queue in dealt["instructions"] for words in queue if words[0] == 5):
        words[3:] = [2 * words[3], 2 * words[3] + 1]
    code, said = finding(instruction_queues(dealt, "queues", fenced=True))
    assert code == "AMK302" and "hidden" in said and "loads" in said


def test_an_instruction_that_is_left_out_is_a_deadlock() -> None:
    broken = queues(1)
    del broken["instructions"][0][3]
    code, said = finding(instruction_queues(broken, "queues", fenced=True))
    assert code == "AMK202" and "Bar[0][0]" in said


@pytest.mark.parametrize(
    ("words", "code"),
    [([9, 0], "AMK205"), ([1, 0], "AMK005"), ([1, 5, 0, 1], "AMK005"), ([2, 0, 0, 3, 0], "AMK205"),
     ([5, 0, 9], "AMK005"), ([7, 0, 99], "AMK005")],
)  # fmt: skip
def test_what_queues_cannot_mean_is_refused_at_its_place(words: list[int], code: str) -> None:
    broken = queues(1)
    broken["instructions"][0].insert(2, words)
    with pytest.raises(AmkError) as error:
        instruction_queues(broken, "queues.json")
    (found,) = error.value.diagnostics
    assert found.code == code and found.where is not None and found.where.path == "/instructions/0/2"


def tensor(name: str, row: int, rows: int = 1, columns: int = 8) -> dict[str, Any]:
    return {
        "base_ptr": name, "offset": row * columns * 2, "data_type": 941, "dims": [rows, columns],
        "strides": [columns, 1],
    }  # fmt: skip


def graph(wait: int = 2, again: bool = False) -> dict[str, Any]:
    """Two tasks write a row each of x, one reads both; again: it is written once more, by a task without a wait."""
    tasks = [
        {"task_type": 101, "dependent_event": NO_EVENT, "trigger_event": 0, "inputs": [], "outputs": [tensor("x", n)]}
        for n in range(2)
    ]
    reads = {"task_type": 102, "dependent_event": 0, "trigger_event": 1, "inputs": [tensor("x", 0, 2)], "outputs": None}
    last = {"task_type": 103, "dependent_event": NO_EVENT if again else 1, "trigger_event": NO_EVENT, "inputs": []}
    tasks += [reads, last | {"outputs": [tensor("x", 1)]}]
    events = [{"event_type": 900, "first_task_id": 2, "last_task_id": 3, "num_triggers": wait}]
    return {"all_tasks": tasks, "all_events": [*events, events[0] | {"num_triggers": 1}], "first_tasks": [0]}


def test_task_graphs_are_judged_for_every_assignment() -> None:
    assert judged(task_graph(graph(), "g").flat()).safe
    code, said = finding(task_graph(graph(wait=1), "g"))
    assert code == "AMK302" and "task 2 (type 102)" in said and "x[" in said
    assert finding(task_graph(graph(wait=3), "g"))[0] == "AMK202"
    assert finding(task_graph(graph(again=True), "g"))[0] in ("AMK301", "AMK302")


def test_tensors_that_no_task_writes_are_left_out() -> None:
    """Weights, a cache in pages of which a task reads some bytes of each, and inputs that are not given."""
    full = graph()
    cache = {"base_ptr": "cache", "offset": 0, "data_type": 941, "dims": [16, 4096, 8], "strides": [65536, 16, 1]}
    nothing = {"base_ptr": "nullptr", "offset": 0, "data_type": 999, "dims": [], "strides": []}
    for task in full["all_tasks"]:
        task["inputs"] = [*(task["inputs"] or ()), cache, nothing, tensor("weight", 0)]
    system = task_graph(full, "g").flat()
    assert judged(system).safe and not {"cache", "nullptr", "weight"} & set(system.block.buffer_names)
    full["all_tasks"][-1]["outputs"] = [cache]
    with pytest.raises(AmkError, match="4096 runs"):
        task_graph(full, "g.json")


def test_sums_and_rows_of_requests_are_said_by_whom_the_file_does_not_say_them() -> None:
    """Two tasks of type 101 touch the same box: sums, or rows of two requests; their reader waits for one of them."""
    both = graph()
    for request, task in enumerate(both["all_tasks"][:2]):
        task |= {"outputs": [tensor("x", 0)], "request_id": request}
    assert finding(task_graph(both, "g"))[0] == "AMK301"
    for said in ({"adds": [101]}, {"per_request": [101]}):
        assert judged(task_graph(both, "g", **said).flat()).safe, said
        both["all_events"][0]["num_triggers"] = 1
        code, message = finding(task_graph(both, "g", **said))
        assert code == "AMK302" and "type 102" in message
        both["all_events"][0]["num_triggers"] = 2


def test_task_graphs_outside_of_the_class_are_unknown_by_name() -> None:
    for path, value, code in (
        ("dependent_event", 1 << 40, "AMK205"), ("dependent_event", 9, "AMK009"), ("dependent_event", 1, "AMK205"),
        ("outputs", [tensor("x", 0) | {"data_type": 777}], "AMK205"),
        ("outputs", [tensor("x", 0) | {"strides": [1]}], "AMK005"), ("outputs", [{"base_ptr": "x"}], "AMK005"),
    ):  # fmt: skip
        broken = graph()
        broken["all_tasks"][1][path] = value
        with pytest.raises(AmkError) as error:
            task_graph(broken, "g.json")
        found = error.value.diagnostics[0]
        assert found.code == code and found.where is not None and "/all_tasks/1" in (found.where.path or ""), value


def recording(system: FlatSystem, order: list[int]) -> list[str]:
    """The run as a trace."""
    block, lines = system.block, []
    kinds = ("read", "write", "add", "add")
    for event in order:
        agent = f"a{block.agent_of[event]}"
        for row in range(*block.wait_first[event : event + 2].tolist()):
            lines.append(trace_line(agent=agent, do="acquire", on=f"c{block.wait_counter[row]}"))
        for row in range(*block.access_first[event : event + 2].tolist()):
            lines.append(
                trace_line(
                    agent=agent, do=kinds[int(block.access_kind[row])], lo=int(block.access_lo[row]),
                    hi=int(block.access_hi[row]), at=f"k.cu:{event + 1}", **{"in": f"b{block.access_buffer[row]}"},
                )
            )  # fmt: skip
        for row in range(*block.signal_first[event : event + 2].tolist()):
            lines.append(trace_line(agent=agent, do="release", on=f"c{block.signal_counter[row]}"))
    return lines


def test_recorded_runs_have_the_races_that_the_machine_sees() -> None:
    """Two programs for happens-before, on the same runs of random systems."""
    rng, counts = Random(4), [0, 0]
    for system in random_systems(150, seed=83):
        block = FlatSystem.plain(system)
        if {2, 3} <= set(system.access_kind.tolist()):
            continue  # a trace has one kind of sum
        machine, trouble = ran(block, Random(rng.random()).choice)
        race = trouble is not None and trouble.kind == "race"
        if trouble is not None and trouble.kind in ("stale", "uninitialised"):
            continue  # the machine stops there, and later races are not seen
        found = recorded(recording(block, machine.order), "trace.jsonl")
        assert bool(found) == race, trouble
        counts[race] += 1
    assert min(counts) > 10, counts


def test_a_trace_is_checked_and_its_places_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        trace_line(agent="p", do="write", lo=0, hi=16, at="ring.cu:31", **{"in": "slot"}),
        trace_line(agent="p", do="release", on="full"),
        trace_line(agent="c", do="acquire", on="full"),
        trace_line(agent="c", do="read", lo=0, hi=16, at="ring.cu:40", **{"in": "slot"}),
    ]
    file = tmp_path / "run.jsonl"
    file.write_text("\n".join(lines))
    assert main(["import", "trace", str(file)]) == 0
    file.write_text("\n".join([lines[0], lines[3]]))
    assert main(["import", "trace", str(file)]) == 1
    shown = "".join(capsys.readouterr())
    assert "ring.cu:40" in shown and "p at ring.cu:31 (line 1): writes slot[0:16]" in shown
    file.write_text(lines[0] + "\n" + lines[1].replace("release", "leave"))
    assert main(["import", "trace", str(file)]) == 2


def test_the_command_writes_what_verify_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, system = tmp_path / "g.json", tmp_path / "s.json"
    source.write_text(json.dumps(graph(wait=1)))
    assert main(["import", "task-graph", str(source), "-o", str(system)]) == 0
    assert main(["verify", str(system)]) == 1
    source.write_text(json.dumps(queues(1)))
    assert main(["import", "instruction-queues", str(source), "--fenced", "-o", str(system)]) == 0
    assert main(["verify", str(system), "--certificate", str(tmp_path / "c.json")]) == 0
    assert main(["check-certificate", str(system), str(tmp_path / "c.json")]) == 0
    assert "SAFE" in capsys.readouterr().out
