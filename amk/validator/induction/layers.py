"""Few layers stand for many.

Property: if the conditions below hold, a schedule without a deadlock, a race, a stale read or an unseparated epoch in
at most `KEPT` iterations of each layer loop has none; with one layer loop what goes wrong within an iteration, between
neighbouring ones or next to the loop goes wrong in the schedule too.

Conditions, in every program:
  (L1) the layer loops lie directly in the token loop, the same in all programs, and have the model's number of layers
       between them; formats of weights change between two loops only;
  (L2) inside a loop, every counter index has exactly one dimension {l: 1} plus a constant that is the same at all uses
       of that counter, and nothing else: a table, worker or agent there would make layer l of one use layer l + 2 of
       another; the other dimensions, thresholds and amounts do not mention l; a counter that is used in a loop is used
       nowhere else;
  (L3) the op of every step inside a loop has layer {l: 1} (norm index {l: 2} plus a constant), outside one has layer 0
       or the number of the final norm, which becomes that of the short schedule: another number there would name
       something else among fewer layers;
       if there are several loops, the constant is the number of layers before the loop (norm index: twice that, plus 1
       or 2).

Argument, one loop. By L2 a wait of iteration l can only be satisfied by signals of iteration l of the same token (other
tokens are the business of `tokens`). Dependences therefore never lead from an iteration to an earlier one, so
  - every dependence cycle lies inside one iteration, and all iterations are equal up to renaming counters: liveness is
    decided by one;
  - an order between an event of iteration l and one of l' >= l uses only iterations l..l'. By L3 all iterations touch
    the same bytes, or bytes of their own layer, so in the order of one run two neighbouring touches of a byte are at
    most one iteration apart, or lie between the first or last iteration and the rest of the token. Pairs (l, l+1) are
    equal up to renaming for all l, so two iterations cover every adjacency: what precedes with the first, first with
    second, last with what follows. Bytes of one layer have their neighbours in the next token, behind the layers after.
Race freedom of neighbouring touches is race freedom of all (must-happen-before is transitive).

What lies between. Neighbouring touches of a byte may have iterations between them that do not touch it: all of a loop,
or those between the same layer of two tokens. Let M be the relation between the agents: agent a before an iteration
precedes agent b behind it. An agent precedes itself, so M contains the identity, and M^n grows with n: what is ordered
across few iterations is ordered across more. It need not be so the other way round, so of a schedule with several
loops, where much lies on both sides of one, only SAFE is taken from the short one (`verify`).

Several loops. Liveness as before, loop by loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from amk.schedule_ir.expr import Expr, coefficient, symbols
from amk.schedule_ir.memory import Stream
from amk.schedule_ir.schedule import Loop, Node, Schedule, Step, Wait
from amk.validator.program.trace import Site, sites

KEPT: Final = 2
_LAYER_FIELD: Final = {"layer": 1, "index": 2}
_OWN: Final = {"layer": (0,), "index": (1, 2)}


@dataclass(frozen=True)
class Span:
    """A layer loop: its first layer and their number, as written and as kept."""

    first: int
    count: int
    reduced_first: int
    reduced_count: int

    @property
    def moved(self) -> int:
        return self.first - self.reduced_first


def reduce_layers(schedule: Schedule) -> Schedule:
    """The schedule with `KEPT` iterations of each layer loop, or the schedule itself if there are no more, or if a
    condition fails."""
    spans = _spans(schedule)
    if spans is None or all(span.count == span.reduced_count for span in spans) or not _reducible(schedule, spans):
        return schedule
    layers = sum(span.reduced_count for span in spans)
    final = _LAYER_FIELD["index"] * schedule.model.layers, _LAYER_FIELD["index"] * layers
    programs = tuple(p.model_copy(update={"body": _with_fewer_layers(p.body, spans, final)}) for p in schedule.programs)
    streams = tuple(_moved_changes(stream, spans) for stream in schedule.streams)
    model = schedule.model.model_copy(update={"layers": layers})
    return schedule.model_copy(update={"model": model, "programs": programs, "streams": streams})


def layer_loops(schedule: Schedule) -> int:
    """The largest number of layer loops of a program."""
    return max(sum(isinstance(n, Loop) for t in _loops(p.body) for n in t.body) for p in schedule.programs)


def _loops(body: tuple[Node, ...]) -> list[Loop]:
    return [node for node in body if isinstance(node, Loop)]


def _spans(schedule: Schedule) -> list[Span] | None:
    """L1: the layer loops of all programs; None if the programs differ or have loops elsewhere."""
    shapes = set()
    for program in schedule.programs:
        tokens = _loops(program.body)
        inner = [n for t in tokens for n in _loops(t.body)]
        if [t.var for t in tokens] != ["t"] or any(_loops(loop.body) for loop in inner):
            return None
        shapes.add(tuple(loop.count or 0 for loop in inner))
    if len(shapes) != 1 or sum(counts := shapes.pop()) != schedule.model.layers:
        return None
    first = [sum(counts[:n]) for n in range(len(counts))]
    kept = [min(KEPT, count) for count in counts]
    spans = [Span(f, c, sum(kept[:n]), kept[n]) for n, (f, c) in enumerate(zip(first, counts, strict=True))]
    changes = {change.first for stream in schedule.streams for change in stream.later}
    return spans if changes <= set(first) else None


def _moved_changes(stream: Stream, spans: list[Span]) -> Stream:
    places = {span.first: span.reduced_first for span in spans}
    later = tuple(change.model_copy(update={"first": places[change.first]}) for change in stream.later)
    return stream.model_copy(update={"later": later}) if later else stream


def _with_fewer_layers(body: tuple[Node, ...], spans: list[Span], final: tuple[int, int]) -> tuple[Node, ...]:
    """Of a program: layer loops in their order are `spans`; the final norm is number final[0], and then final[1]."""
    left = iter(spans)
    out: list[Node] = []
    for node in body:
        inner = [
            _cut(n, next(left)) if isinstance(n, Loop) else _renumbered(n, final)
            for n in (node.body if isinstance(node, Loop) else ())
        ]
        out.append(node.model_copy(update={"body": tuple(inner)}) if isinstance(node, Loop) else node)
    return tuple(out)


def _cut(loop: Loop, span: Span) -> Loop:
    body = tuple(_moved(node, span.moved) if isinstance(node, Step) else node for node in loop.body)
    return loop.model_copy(update={"count": span.reduced_count, "body": body})


def _renumbered(step: Step, final: tuple[int, int]) -> Step:
    """The step with the number that the final norm has among fewer."""
    if vars(step.op).get("index") != final[0]:
        return step
    return step.model_copy(update={"op": step.op.model_copy(update={"index": final[1]})})


def _moved(step: Step, layers: int) -> Step:
    """The step for layers that lie so many before."""
    update = {}
    for name, factor in _LAYER_FIELD.items():
        expr: Expr | None = vars(step.op).get(name)
        if layers and isinstance(expr, dict):
            update[name] = expr | {"1": expr.get("1", 0) - factor * layers}
    return step.model_copy(update={"op": step.op.model_copy(update=update)}) if update else step


def _reducible(schedule: Schedule, spans: list[Span]) -> bool:
    uses: dict[str, set[tuple[Any, ...]]] = {}
    final = _LAYER_FIELD["index"] * schedule.model.layers
    for number, program in enumerate(schedule.programs):
        inner = [loop for token in _loops(program.body) for loop in _loops(token.body)]
        for site in sites(program, number):
            place = next((n for n, loop in enumerate(inner) if loop is site.around[-1]), None) if site.around else None
            span = None if place is None or len(spans) == 1 else spans[place]
            if not _layer_fields_ok(site, span, final) or not _collect_uses(site, place, uses):
                return False
    return all(len(shapes) == 1 for shapes in uses.values())


def _layer_fields_ok(site: Site, span: Span | None, final: int) -> bool:
    """L3; span: that of the loop if there are several."""
    for name, factor in _LAYER_FIELD.items():
        expr: Expr | None = vars(site.step.op).get(name)
        if expr is None:
            continue
        if site.layers is None and expr != {"layer": 0, "index": final}[name]:
            return False
        if site.layers is not None and coefficient(expr, "l") != factor:
            return False
        if isinstance(expr, dict) and set(expr) - {"1", "l"}:
            return False
        if span is not None and coefficient(expr, "1") - factor * span.first not in _OWN[name]:
            return False
    return True


def _collect_uses(site: Site, place: int | None, uses: dict[str, set[tuple[Any, ...]]]) -> bool:
    """L2; `uses` gathers the loop and the layer part of each counter's index."""
    inside = site.layers is not None
    for _, entry in site.uses:
        amount = entry.at_least if isinstance(entry, Wait) else entry.add
        factors = tuple(coefficient(e, "l") for e in entry.index)
        if coefficient(amount, "l") or sorted(factors) != [0] * (len(factors) - inside) + [1] * inside:
            return False
        moving = [e for e, factor in zip(entry.index, factors, strict=True) if factor]
        if any(symbols(e) - {"l"} for e in moving):
            return False
        constants = tuple(coefficient(e, "1") for e in moving)
        uses.setdefault(entry.counter, set()).add((place, factors, constants))
    return True
