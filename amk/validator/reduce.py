"""Few layers stand for many.

Property: if the conditions below hold, the schedule with `layers` layers has a deadlock, a race, a stale read or an
unseparated epoch iff the one with `KEPT` layers has.

Conditions, in every program:
  (L1) there is one layer loop, its count is the model's number of layers, and it lies directly in the token loop;
  (L2) inside it, every counter index has exactly one dimension {l: 1} plus a constant that is the same at all uses of
       that counter, and the other dimensions, thresholds and amounts do not mention l; such counters are used nowhere
       outside the loop, and counters used outside are not used inside;
  (L3) the op of every step inside it has layer {l: 1} (norm index {l: 2} plus a constant), outside it none has `l`.

Argument. By L2 a wait of iteration l can only be satisfied by signals of iteration l of the same token (other tokens
are the business of `epochs`). Dependences therefore never lead from an iteration to an earlier one, so
  - every dependence cycle lies inside one iteration, and all iterations are equal up to renaming counters: liveness is
    decided by one;
  - an order between an event of iteration l and one of l' >= l uses only iterations l..l'. By L3 all iterations touch
    the same bytes, or bytes of their own layer, so in the order of one run two neighbouring touches of a byte are at
    most one iteration apart, or lie between the first or last iteration and the rest of the token. Pairs (l, l+1) are
    equal up to renaming for all l, so three iterations show every neighbourhood: first with second, second with
    third, last with what follows.
Race freedom of neighbouring touches is race freedom of all (must-happen-before is transitive).
"""

from __future__ import annotations

from typing import Any, Final

from amk.schedule_ir.expr import Expr, coefficient
from amk.schedule_ir.schedule import Loop, Node, Program, Schedule, Signal, Step, Wait
from amk.validator.trace import Site, sites

KEPT: Final = 3
_LAYER_FIELD: Final = {"layer": 1, "index": 2}


def reduce_layers(schedule: Schedule) -> Schedule:
    """The equivalent schedule with `KEPT` layers, or the schedule itself if there are fewer or a condition fails."""
    layers = schedule.model.layers
    if layers <= KEPT or not _reducible(schedule):
        return schedule
    model = schedule.model.model_copy(update={"layers": KEPT})
    programs = tuple(p.model_copy(update={"body": _shortened(p.body)}) for p in schedule.programs)
    return schedule.model_copy(update={"model": model, "programs": programs})


def _shortened(body: tuple[Node, ...]) -> tuple[Node, ...]:
    return tuple(
        node if isinstance(node, Step) else node.model_copy(update={"body": _shortened(node.body)} | _count(node))
        for node in body
    )


def _count(loop: Loop) -> dict[str, Any]:
    return {"count": KEPT} if loop.var == "l" else {}


def _reducible(schedule: Schedule) -> bool:
    uses: dict[str, set[tuple[Any, ...]]] = {}
    for number, program in enumerate(schedule.programs):
        if not _one_layer_loop(program, schedule.model.layers):
            return False
        for site in sites(program, number):
            if not _layer_fields_ok(site) or not _collect_uses(site, uses):
                return False
    return all(len(shapes) == 1 for shapes in uses.values())


def _one_layer_loop(program: Program, layers: int) -> bool:
    """L1."""
    tokens = [n for n in program.body if isinstance(n, Loop)]
    inner = [n for t in tokens for n in t.body if isinstance(n, Loop)]
    nested = [n for loop in inner for n in loop.body if isinstance(n, Loop)]
    return [t.var for t in tokens] == ["t"] and [n.count for n in inner] == [layers] and not nested


def _inside(site: Site) -> bool:
    return any(loop.var == "l" for loop in site.around)


def _layer_fields_ok(site: Site) -> bool:
    """L3."""
    for name, factor in _LAYER_FIELD.items():
        expr: Expr | None = getattr(site.step.op, name, None)
        if expr is not None and coefficient(expr, "l") != (factor if _inside(site) else 0):
            return False
        if expr is not None and isinstance(expr, dict) and set(expr) - {"1", "l"}:
            return False
    return True


def _collect_uses(site: Site, uses: dict[str, set[tuple[Any, ...]]]) -> bool:
    """L2; `uses` gathers the layer part of each counter's index."""
    inside = _inside(site)
    entries: list[Wait | Signal] = [*site.step.waits, *site.step.signals]
    for entry in entries:
        amount = entry.at_least if isinstance(entry, Wait) else entry.add
        factors = tuple(coefficient(e, "l") for e in entry.index)
        if coefficient(amount, "l") or sorted(factors) != [0] * (len(factors) - inside) + [1] * inside:
            return False
        constants = tuple(coefficient(e, "1") for e, f in zip(entry.index, factors, strict=True) if f)
        uses.setdefault(entry.counter, set()).add((factors, constants))
    return True
