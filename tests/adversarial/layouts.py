"""Other layouts of a plan: loops of layers unrolled, cut, rotated, in pairs; counters and buffers shared otherwise.

A plan has one loop of layers and one program. An analysis that looks at two turns of a loop, or at one of several equal
workers, is asked here about layers and workers that have steps, cells and buffers of their own, of 3 to 7 layers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

from amk.adversary.edits import Json
from amk.adversary.neighbourhood.bases import CONTEXT, SMALLEST, TAGGED
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import PHASED, Settings
from amk.targets.target import load_target
from amk.weights.weight_format import FormatName

FENCED = replace(PHASED, warps=2)
Nodes = list[Json]
HANDED_OVER = ("qkv", "split_partial", "split_scale", "h_mid", "act", "h_out")
FIELDS = ("out", "qkv", "split_partial", "split_scale", "h", "act")
"""Of ops that name those buffers."""
PER_LAYER = ("qkv", "attn", "h_mid", "act", "h_out")
"""Counters with a cell for each layer."""


def token_loop(program: Json) -> Json:
    return next(node for node in program["body"] if node.get("var") == "t")


def layer_loops(document: Json) -> Iterator[Json]:
    for program in document["programs"]:
        yield from (node for node in token_loop(program)["body"] if node.get("var") == "l")


def all_steps(nodes: Nodes) -> Iterator[Json]:
    for node in nodes:
        yield from all_steps(node["body"]) if "body" in node else [node]


def entries(document: Json, kind: str, counter: str) -> list[Json]:
    """The waits, or the signals, of that counter in textual order."""
    every = (step for program in document["programs"] for step in all_steps(program["body"]))
    return [entry for step in every for entry in step.get(kind, ()) if entry["counter"] == counter]


def _replaced(expr: Any, factor: int, constant: int) -> Any:
    """The expression with factor * l + constant for l."""
    if isinstance(expr, int) or "l" not in expr:
        return expr
    slope = expr["l"]
    out = {name: value for name, value in expr.items() if name != "l"} | {"l": slope * factor}
    out["1"] = out.get("1", 0) + slope * constant
    out = {name: value for name, value in out.items() if value}
    return out if set(out) - {"1"} else out.get("1", 0)


def at_layer(body: Nodes, factor: int, constant: int) -> Nodes:
    """A copy of a loop's steps, run for layer factor * l + constant."""
    copied = deepcopy(body)
    for step in copied:
        op = step["op"]
        op |= {name: _replaced(op[name], factor, constant) for name in ("layer", "index") if name in op}
        for entry in (*step.get("waits", ()), *step.get("signals", ())):
            entry["index"] = [_replaced(expr, factor, constant) for expr in entry["index"]]
            for name in ("at_least", "add"):
                if name in entry:
                    entry[name] = _replaced(entry[name], factor, constant)
    return copied


def _loops(document: Json, change: Callable[[Nodes, int], Nodes]) -> Json:
    """change: what stands for a loop with that body and number of layers."""
    document = deepcopy(document)
    for program in document["programs"]:
        loop = token_loop(program)
        nodes = ([node] if node.get("var") != "l" else change(node["body"], node["count"]) for node in loop["body"])
        loop["body"] = [node for found in nodes for node in found]
    return document


def _loop(count: int, body: Nodes) -> Json:
    return {"var": "l", "count": count, "body": body}


def unrolled(document: Json) -> Json:
    return _loops(document, lambda body, layers: [s for layer in range(layers) for s in at_layer(body, 0, layer)])


def ends_apart(document: Json) -> Json:
    """The first and the last layer unrolled, a loop of the others."""

    def change(body: Nodes, layers: int) -> Nodes:
        return [*at_layer(body, 0, 0), _loop(layers - 2, at_layer(body, 1, 1)), *at_layer(body, 0, layers - 1)]

    return _loops(document, change)


def two_loops(document: Json) -> Json:
    def change(body: Nodes, layers: int) -> Nodes:
        half = layers // 2
        return [_loop(half, body), _loop(layers - half, at_layer(body, 1, half))]

    return _loops(document, change)


def in_pairs(document: Json) -> Json:
    """Two layers a turn; of an odd number the first one unrolled."""

    def change(body: Nodes, layers: int) -> Nodes:
        odd = layers % 2
        both = [*at_layer(body, 2, odd), *at_layer(body, 2, odd + 1)]
        return [*(at_layer(body, 0, 0) if odd else ()), _loop(layers // 2, both)]

    return _loops(document, change)


def rotated(document: Json, begin: int) -> Json:
    """A turn begins at step `begin` of a layer and ends in the next one."""

    def change(body: Nodes, layers: int) -> Nodes:
        turn = [*body[begin:], *at_layer(body[:begin], 1, 1)]
        return [*at_layer(body[:begin], 0, 0), _loop(layers - 1, turn), *at_layer(body[begin:], 0, layers - 1)]

    return _loops(document, change)


def one_cell(document: Json) -> Json:
    """One cell for all layers: thresholds grow with the layer. Of a plan with one loop of layers."""
    document, layers = deepcopy(document), document["model"]["layers"]
    for counter in document["counters"]:
        if counter["name"] in PER_LAYER:
            counter["shape"][0] = 1
    for name in PER_LAYER:
        for wait in entries(document, "waits", name):
            each, at_least = wait["at_least"]["t"], wait["at_least"]["1"]
            wait["index"][0], wait["at_least"] = 0, {"t": each * layers, "l": each, "1": at_least}
        for signal in entries(document, "signals", name):
            signal["index"][0] = 0
    return document


def own_programs(document: Json) -> Json:
    """A program for every worker."""
    document = deepcopy(document)
    document["programs"] = [
        deepcopy(program) | {"name": f"{program['name']}{worker}", "first": worker, "count": 1}
        for program in document["programs"]
        for worker in range(program["first"], program["first"] + program["count"])
    ]
    return document


def _own_set(document: Json, steps: Nodes, number: int) -> None:
    """These steps hand over in buffers of their own."""
    new = {b["name"]: b | {"name": f"{b['name']}.{number}"} for b in document["buffers"] if b["name"] in HANDED_OVER}
    document["buffers"] += deepcopy(list(new.values()))
    for step in steps:
        op = step["op"]
        op |= {field: new[name]["name"] for field, name in op.items() if field in FIELDS and name in new}


def two_sets(document: Json) -> Json:
    """The second layer of every turn of a layout in pairs has buffers of its own."""
    document = deepcopy(document)
    bodies = [loop["body"] for loop in layer_loops(document)]
    _own_set(document, [step for body in bodies for step in body[len(body) // 2 :]], 2)
    return document


def own_sets(document: Json) -> Json:
    """Every layer has buffers of its own, but the first; unrolled."""
    ((body, layers),) = [(loop["body"], loop["count"]) for loop in layer_loops(document)]
    before = [node.get("var") for node in token_loop(document["programs"][0])["body"]].index("l")
    document = unrolled(document)
    nodes = token_loop(document["programs"][0])["body"]
    for layer in range(1, layers):
        first = before + layer * len(body)
        _own_set(document, nodes[first : first + len(body)], layer + 1)
    return document


def planned(settings: Settings, layers: int, workers: int = 2, form: FormatName = "bf16", **model: Any) -> Json:
    """A plan of the smallest model with so many layers, as a document; form: of its weights."""
    settings = replace(settings, kv_block=CONTEXT // 3, max_tokens=CONTEXT, max_ring_bytes=16384)
    spec = SMALLEST.model_copy(update={"layers": layers} | model)
    wanted = formats(form)
    schedule = plan(spec, load_target("h200"), settings=settings, formats=wanted, workers=workers, max_context=CONTEXT)
    return json.loads(schedule.model_dump_json())


HELD = replace(FENCED, run_ahead=True, slots=3, held_refills=1.0, first_refills=0.5)
LIVE = replace(FENCED, batch=3, live=True)
LAYOUTS: dict[str, Callable[[], Json]] = {
    "unrolled": lambda: unrolled(planned(FENCED, 4)),
    "ends apart": lambda: ends_apart(planned(FENCED, 5)),
    "two loops": lambda: two_loops(planned(FENCED, 6)),
    "five layers, tagged": lambda: planned(TAGGED, 5),
    "in pairs": lambda: in_pairs(planned(FENCED, 7)),
    "rotated in attention": lambda: rotated(planned(FENCED, 4), 16),
    "rotated behind the product of gate and up": lambda: rotated(planned(FENCED, 5), 29),
    "one cell": lambda: one_cell(planned(FENCED, 4)),
    "one cell, tagged": lambda: one_cell(planned(TAGGED, 4)),
    "one cell, in pairs": lambda: in_pairs(one_cell(planned(FENCED, 7))),
    "a set of buffers for each layer": lambda: own_sets(planned(FENCED, 3)),
    "two sets of buffers": lambda: two_sets(in_pairs(planned(FENCED, 4))),
    "two sets of buffers, one cell": lambda: two_sets(in_pairs(one_cell(planned(FENCED, 7)))),
    "own programs, ends apart": lambda: own_programs(ends_apart(planned(FENCED, 4))),
    "own programs, tagged": lambda: own_programs(planned(TAGGED, 3)),
    "own programs, live": lambda: own_programs(planned(LIVE, 2, workers=4)),
    "refills held back, ends apart": lambda: ends_apart(planned(HELD, 4)),
}
