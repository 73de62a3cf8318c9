"""What the search may change: the fields of `Settings`, each with its allowed values, in one table.

A point of the space is a `Settings`. Booleans and literals are knobs by their type; every other field stands in
`ALLOWED` or in `FIXED`, and a test refuses a field that stands in neither.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from amk.planner.settings import Settings

Value = int | float | bool | str | None

ALLOWED: dict[str, tuple[Value, ...]] = {
    "warps": (2, 4, 6, 8, 10, 12, 14, 16),
    "slots": (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, None),
    "max_ring_bytes": tuple(n * 1024 for n in (32, 64, 96, 128, 160, 192, 216)),
    "chunk_bytes": (1024, 2048, 4096, 8192, 16384, None),
    "kv_block": (16, 32, 64, 128, 256, None),
    "wide_epilogue": (0, 16, 32, 64, 128, 256, 1024),
    "ctas_per_sm": (1, 2),
    "workers": (16, 24, 32, 48, 64, 80, 96, 112, 128, None),
    "kv_splits": (1, 2, 4, 6, 8, 10, 12, 16, 24, 28, 32, 48, None),
    "hint_slack": (0, 2, 4, 8, 16, 32),
    "act_slack": (0, 1, 2, 4, 8, None),
    "held_refills": (0.0, 1 / 3, 1 / 2, 2 / 3, 1.0),
    "first_refills": (1 / 4, 1 / 2, 3 / 4, 1.0, None),
    "carried": (1 / 6, 1 / 3, 1 / 2, 2 / 3, None),
    "act_parts": (1, 2, 4),
    "k_parts": (1, 2, 4, None),
    "x_parts": (1, 2, 4, 8),
    "k_splits": (1, 2, 4),
    "reduce_from": (2, 4, 8, 16, None),
}
"""Values in order of size; None, which leaves the choice to the planner, comes last."""

FIXED = ("plan", "max_tokens", "sampling", "kv_dtype", "batch", "live", "rows", "accepts", "tree", "headless")
"""The label of the plan, the length of a launch, how tokens are chosen, what the cache holds, and how many sequences
there are and whether they are live, are no choices of the search.
"""

OF_BATCHES = ("head_sums", "k_splits", "x_parts", "row_groups")
"""Choices where a step reads several tokens: for one there is nothing to gain."""


class OutsideSpaceError(ValueError):
    """A proposal names a knob or a value that the table does not have."""


@dataclass(frozen=True)
class Knob:
    name: str
    values: tuple[Value, ...]

    @property
    def ordered(self) -> bool:
        return all(isinstance(v, int) and not isinstance(v, bool) for v in self.values if v is not None)

    @property
    def switch(self) -> bool:
        """Whether no value is a number."""
        return all(v is None or isinstance(v, bool | str) for v in self.values)

    def place(self, value: Value) -> int:
        """Index of `value`; OutsideSpaceError if it is not allowed. True is not 1 here."""
        for index, known in enumerate(self.values):
            if known == value and type(known) is type(value):
                return index
        raise OutsideSpaceError(f"{self.name} cannot be {str(value)[:60]!r}; it is one of {list(self.values)}")


def moved(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """`settings` with other values; the caller took them from the table."""
    return replace(settings, **values)


def values_of(name: str, annotation: Any) -> tuple[Value, ...]:
    """Allowed values of a field: the table's, else all values of a bool or literal; empty if there is no telling."""
    if name in ALLOWED:
        return ALLOWED[name]
    if annotation is bool:
        return (False, True)
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [values_of(name, part) for part in get_args(annotation) if part is not type(None)]
        return (*(v for part in inner for v in part), None) if all(inner) else ()
    return ()


def knobs_of(start: Settings) -> tuple[Knob, ...]:
    """Knobs of the space around `start`, whose own values are always allowed."""
    hints = get_type_hints(Settings)
    found = []
    for field in fields(Settings):
        if field.name in FIXED or (start.vectors == 1 and field.name in OF_BATCHES):
            continue
        values = values_of(field.name, hints[field.name])
        own = getattr(start, field.name)
        if values and own not in values:
            values = tuple(sorted({*values, own}, key=lambda v: (v is None, v)))
        if len(values) > 1:
            found.append(Knob(field.name, values))
    return tuple(found)


@dataclass(frozen=True)
class Space:
    """All settings that differ from `start` in its knobs only."""

    start: Settings
    knobs: tuple[Knob, ...]

    @classmethod
    def around(cls, start: Settings) -> Space:
        base = replace(start, plan="search")
        return cls(base, knobs_of(base))

    @property
    def nominal_size(self) -> int:
        return prod(len(k.values) for k in self.knobs)

    def parse(self, changes: Mapping[str, Any], base: Settings | None = None) -> Settings:
        """`base` (the start) with `changes`; OutsideSpaceError for an unknown knob or value. The input is untrusted."""
        known = {k.name: k for k in self.knobs}
        for name, value in changes.items():
            if name not in known:
                raise OutsideSpaceError(f"{name[:60]!r} is not a knob; the knobs are {', '.join(known)}")
            known[name].place(value)
        return replace(base or self.start, **changes)

    def point(self, settings: Settings) -> dict[str, Value]:
        """The knob values of `settings`, JSON ready; `parse(point(s)) == s` for every s of the space."""
        return {k.name: getattr(settings, k.name) for k in self.knobs}

    def changes(self, settings: Settings, base: Settings) -> dict[str, Value]:
        """Knobs in which `settings` differs from `base`."""
        return {k.name: v for k in self.knobs if (v := getattr(settings, k.name)) != getattr(base, k.name)}

    def neighbours(self, settings: Settings) -> Iterator[Settings]:
        """All settings that differ in one knob, nearest values of ordered knobs first."""
        steps: list[tuple[int, Settings]] = []
        for knob in self.knobs:
            here = knob.place(getattr(settings, knob.name))
            for index, value in enumerate(knob.values):
                if index != here:
                    distance = abs(index - here) if knob.ordered else 1
                    steps.append((distance, moved(settings, {knob.name: value})))
        yield from (s for _, s in sorted(steps, key=lambda pair: pair[0]))

    def random(self, rng: np.random.Generator) -> Settings:
        return moved(self.start, {k.name: k.values[int(rng.integers(len(k.values)))] for k in self.knobs})

    def mutate(self, settings: Settings, rng: np.random.Generator, count: int = 1) -> Settings:
        """`count` distinct knobs moved: ordered ones mostly by one place."""
        for index in rng.permutation(len(self.knobs))[:count]:
            knob = self.knobs[int(index)]
            here = knob.place(getattr(settings, knob.name))
            others = [i for i in range(len(knob.values)) if i != here]
            near = [i for i in others if abs(i - here) == 1]
            pool = near if knob.ordered and rng.random() < 0.7 else others
            settings = moved(settings, {knob.name: knob.values[pool[int(rng.integers(len(pool)))]]})
        return settings

    def cross(self, a: Settings, b: Settings, rng: np.random.Generator) -> Settings:
        """Each knob from one of the two parents."""
        return moved(a, {k.name: getattr(b if rng.random() < 0.5 else a, k.name) for k in self.knobs})

    def encode(self, settings: Settings) -> NDArray[np.float64]:
        """One number in [0, 1] per ordered knob, a one-hot block per other knob."""
        columns: list[float] = []
        for knob in self.knobs:
            here = knob.place(getattr(settings, knob.name))
            if knob.ordered or len(knob.values) == 2:
                columns.append(here / (len(knob.values) - 1))
            else:
                columns += [float(i == here) for i in range(len(knob.values))]
        return np.array(columns)

    def columns(self) -> list[int]:
        """Of each number of `encode`, the place of its knob."""
        widths = (1 if k.ordered or len(k.values) == 2 else len(k.values) for k in self.knobs)
        return [place for place, width in enumerate(widths) for _ in range(width)]
