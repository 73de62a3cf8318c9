"""Slices of layers, judged as whole models are: hidden states instead of tokens go in, and hidden states or, with the
output head, logits come out.

A call is a launch for one token, at any position whose earlier rows are in the cache: forward, again, or back to an
earlier one; a position beyond the context is that of its last row. The output head alone has no positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from amk.judges.forward import Floats, Rows
from amk.judges.request import Request, Shown, hidden_state
from amk.judges.rounding import Rounded, allowed
from amk.schedule_ir.schedule import Schedule

HEAD_LAUNCHES = 12
"""Most calls of a request of the output head, which has no cache that would bound its context."""


def requests(schedule: Schedule) -> Iterator[tuple[Request, str]]:
    """(request, order) pairs, the most telling first. Of the output head alone positions only count launches."""
    context = schedule.kv.context if schedule.model.layers else HEAD_LAUNCHES
    block, last = min(schedule.kv.block, context), schedule.launch.workers - 1
    shapes = (
        ((0, 1, 2, 3), "priorities:1"),
        ((block - 1, block, block + 1, block), "priorities:2"),
        ((context - 2, context - 1, context, context + 7), "late-copies"),
        ((context // 2, 1, 2, 0), f"delay:{last}"),
        ((0, 0, 1, 1), "delay:0"),
        ((context - 1, -3, 1), f"favour:{last}"),
        (tuple(range(context)), "depth-first"),
        (tuple(range(context)), "random:1"),
    )
    for positions, order in shapes:
        yield called(tuple(min(p, context + 7) for p in positions)), order


def called(positions: tuple[int, ...]) -> Request:
    return Request(((),), (1,) * len(positions), max(positions[0], 0), calls=positions)


class Expected:
    """What a slice leaves behind each call, and what a machine's may be off by. rows: of each pass, of each layer."""

    def __init__(self, rounded: Rounded, schedule: Schedule, request: Request, least: float) -> None:
        self._rounded, self._hidden, self._context = rounded, schedule.model.hidden, schedule.kv.context
        self._model, self.least, self.logits = schedule.model, least, schedule.model.has_head
        self._rows: list[list[list[tuple[Floats, Floats]]]] = [
            [[] for _ in range(schedule.model.layers)] for _ in rounded.passes
        ]
        for place in range(min(request.start, self._context - 1)):
            self.call(place, -1 - place)

    @property
    def rows(self) -> list[list[tuple[Floats, Floats]]]:
        return self._rows[0]

    def before(self) -> list[Rows]:
        """The cache as a launch finds it, of the one sequence."""
        empty: Floats = np.zeros((0, self._model.kv_heads, self._model.head_dim))
        return [[_both(layer) if layer else (empty, empty) for layer in self.rows]]

    def call(self, position: int, number: int) -> tuple[Floats, float]:
        """(the hidden state behind the layers, or its logits; what it may be off by). The row at the position is the
        call's."""
        at, found = min(max(position, 0), self._context - 1), list[Floats]()
        for one, rows in zip(self._rounded.passes, self._rows, strict=True):
            one.resume([_both(layer[:at]) for layer in rows])
            stream = one.through(hidden_state(self._hidden, number).astype(np.float64))
            for layer, (keys, values) in zip(rows, one.cache(), strict=True):
                layer[at : at + 1] = [(keys[at], values[at])]
            found.append(one.logits_of(stream) if self.logits else stream)
        return found[0], allowed(found, self.least)


def _both(layer: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    return np.array([k for k, _ in layer]), np.array([v for _, v in layer])


def wrong(
    expected: Expected, request: Request, shown: Shown, differs: Callable[[Floats, Floats, float], str | None]
) -> tuple[str, str] | None:
    """(kind, what) of the first thing that is not the model's."""
    for number, position in enumerate(request.calls):
        if (off := differs(shown.hidden[number], *expected.call(position, number))) is not None:
            return "logits" if expected.logits else "hidden", f"call {number} at position {position}: {off}"
        if (epoch := shown.state[number]["epoch"]) != number + 1:
            return "state", f"epoch {epoch} behind call {number}"
    for place in (0, 1) if shown.caches is not None else ():
        assert shown.caches is not None
        kept = np.array([_both(layer)[place] for layer in expected.rows]).transpose(0, 2, 1, 3)
        if (off := differs(shown.caches[place][:, 0, :, : kept.shape[2]], kept, expected.least)) is not None:
            return "cache", f"{'kv'[place]}: {off}"
    return None
