"""Results of pure stages, kept for schedules that are alike.

Property: `Memo.__call__(stage, *parts)` returns what `stage(*parts)` returns. A kept result is only given for equal
parts: a stage is a function of this package that gets nothing but its parts, and its result is kept under the sha256
of its own name and of all of them. Parts are frozen typed objects, numbers, texts, arrays, tuples of these, and results
of other stages, which stand for the parts that they were made from. Nothing else can be a part (`TypeError`).

Results are read-only: their arrays cannot be written to. `Evaluations` (footprints by what was read for them) may be a
part too and counts for nothing, because results do not depend on what it holds. A stage may keep results of its own
(`within`).

Errors of a stage are not kept. A memo belongs to one thread at a time.

Cost: hashing of the parts, 1 ms for a megabyte of arrays. Results beyond `room` bytes are forgotten, least recently
used ones first.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from amk.validator.crews import Crewed
from amk.validator.evaluator import Evaluations, Evaluator
from amk.validator.footprint import Footprints
from amk.validator.trace import Item

T = TypeVar("T")
ROOM: Final = 384 << 20
PLAIN: Final = frozenset({int, str, bool, float, bytes, type(None)})
OVERHEAD: Final = 4096
"""Bytes that a result is taken to fill besides its arrays."""


@dataclass(frozen=True, eq=False)
class Keyed(Generic[T]):
    """A value and the digest of everything that it follows from."""

    value: T
    key: bytes


class Memo:
    """Kept results of stages, and the footprints that they share.

    orders: by number of tokens, a complete run of an earlier quotient, as labels and positions of its events. Whether
    there is one like it is found out each time, so these change what a verdict costs only.
    """

    def __init__(self, room: int = ROOM) -> None:
        self.room, self.filled = room, 0
        self.hits, self.misses = 0, 0
        self.evaluations = Evaluations()
        self.orders: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        self._frozen: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._kept: OrderedDict[bytes, tuple[Keyed[Any], int]] = OrderedDict()

    def __call__(self, stage: Callable[..., T], *parts: Any) -> Keyed[T]:
        """The result of the stage, made or kept."""
        return self._known(stage, stage, parts)

    def within(self, stage: Callable[..., T], *parts: Any) -> Keyed[T]:
        """As a call, for a stage that gets this memo first and keeps the results of its own stages there."""
        return self._known(stage, partial(stage, self), parts)

    def each(
        self, stage: Callable[..., list[T]], common: tuple[Any, ...], several: Sequence[tuple[Any, ...]]
    ) -> list[Keyed[T]]:
        """One result for each of several, for a stage that makes those that are not known in one go: it gets this memo,
        the common parts and a list of the others'. A result must follow from the common parts and its own alone.
        """
        shared = given(common)
        keys = [_digest(stage.__module__, stage.__qualname__, shared, *own) for own in several]
        found = [self._found(key) for key in keys]
        new = [n for n, one in enumerate(found) if one is None]
        if new:
            made = stage(self, *_values(common), [_values(several[n]) for n in new])
            for n, value in zip(new, made, strict=True):
                found[n] = self._keep(Keyed(value, keys[n]))
        return [one for one in found if one is not None]

    def _known(self, stage: Callable[..., T], make: Callable[..., T], parts: tuple[Any, ...]) -> Keyed[T]:
        key = _digest(stage.__module__, stage.__qualname__, *parts)
        return self._found(key) or self._keep(Keyed(make(*_values(parts)), key))

    def _found(self, key: bytes) -> Keyed[Any] | None:
        kept = self._kept.get(key)
        if kept is None:
            self.misses += 1
            return None
        self.hits += 1
        self._kept.move_to_end(key)
        return kept[0]

    def _keep(self, made: Keyed[T]) -> Keyed[T]:
        size = OVERHEAD + _freeze(made.value, self._frozen, set())
        if hasattr(made.value, "__dict__"):
            self._frozen[id(made.value)] = made.value
        self._kept[made.key] = made, size
        self.filled += size
        while self.filled > self.room:
            self.filled -= self._kept.popitem(last=False)[1][1]
        return made

    def kept(self) -> Iterator[Any]:
        """All results that are kept."""
        return (made.value for made, _ in self._kept.values())


def given(value: T) -> Keyed[T]:
    """A part that is used more than once, hashed once."""
    return Keyed(value, _digest(value))


def _values(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(part.value if isinstance(part, Keyed) else part for part in parts)


def _digest(*parts: Any) -> bytes:
    texts: list[bytes | memoryview] = []
    for part in parts:
        _tell(part, texts)
    state = sha256(struct.pack(f"<{1 + len(texts)}q", len(texts), *map(len, texts)))
    for text in texts:
        state.update(text)
    return state.digest()


def _tell(part: Any, texts: list[bytes | memoryview]) -> None:
    """Append byte strings that tell unequal parts apart."""
    if type(part) in PLAIN and type(part) is not float:
        texts.append(f"{type(part).__name__} {part!r}".encode())
    elif isinstance(part, Keyed):
        texts += (b"result", part.key)
    elif isinstance(part, np.ndarray):
        texts += (f"{part.dtype.str} {part.shape}".encode(), np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
    elif isinstance(part, tuple):
        texts.append(f"tuple {len(part)}".encode())
        for entry in part:
            _tell(entry, texts)
    elif isinstance(part, BaseModel) and part.model_config.get("frozen"):
        texts += (type(part).__qualname__.encode(), part.model_dump_json().encode())
    elif isinstance(part, Evaluations):
        texts.append(b"evaluations")
    else:
        raise TypeError(f"a {type(part).__qualname__} cannot be a part of a stage")


def _freeze(value: Any, known: Collection[int], seen: set[int]) -> int:
    """Make every array inside read-only; their bytes. known: ids of results that have been through this.

    What evaluations keep and footprints have is read-only from the start, and items have no arrays.
    """
    if CLOSED[type(value)] or id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        value.setflags(write=False)
        return int(value.nbytes) if value.base is None else _freeze(value.base, known, seen)
    if id(value) in known:
        return 0
    return sum([_freeze(entry, known, seen) for entry in _inside(value) if not CLOSED[type(entry)]])


class _Closed(dict[type, bool]):
    """By type: is there nothing inside that could be written to?"""

    def __missing__(self, kind: type) -> bool:
        closed = kind in PLAIN or issubclass(kind, BaseModel | Evaluator | Evaluations | Footprints | Crewed | Item)
        self[kind] = closed
        return closed


CLOSED: Final = _Closed()


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset):
        return value
    fields: dict[str, Any] = getattr(value, "__dict__", {})
    return fields.values()
