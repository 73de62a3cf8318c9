"""Results of pure stages, kept for schedules that are alike.

Property: `Memo.__call__(stage, *parts)` returns what `stage(*parts)` returns. A kept result is only given for equal
parts: a stage is a function of this package that gets nothing but its parts, and its result is kept under the sha256
of its own name and of all of them. Parts are frozen typed objects, numbers, texts, arrays, tuples of these, and results
of other stages, which stand for the parts that they were made from. Nothing else can be a part (`TypeError`).

Results are read-only: their arrays cannot be written to. `Evaluations` (footprints by what was read for them) may be a
part too and counts for nothing, because results do not depend on what it holds. A stage may keep results of its own
(`within`).

Errors of a stage are not kept. A memo belongs to one thread at a time.

Cost: hashing of the parts, 1 ms for a megabyte of arrays, a fifth of it where an equal array has been hashed before and
is still there (`Seen`). Results beyond `room` bytes are forgotten, least recently
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
from weakref import ReferenceType, WeakValueDictionary

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from amk.validator.crews import Crewed
from amk.validator.dataflow import Fault
from amk.validator.evaluator import Evaluations, Evaluator
from amk.validator.footprint import Footprints
from amk.validator.races import Race
from amk.validator.trace import Item

T = TypeVar("T")
ROOM: Final = 384 << 20
PLAIN: Final = frozenset({int, str, bool, float, bytes, type(None)})
MANY: Final = 1024
WIDE: Final = frozenset({np.dtype(np.int64), np.dtype(np.int32)})
SAMPLE: Final = 32
"""Rows of an array that it is looked up by, at most; see `Seen`."""
OVERHEAD: Final = 4096
"""Bytes that a result is taken to fill besides its arrays."""


@dataclass(frozen=True, eq=False)
class Keyed(Generic[T]):
    """A value and the digest of everything that it follows from."""

    value: T
    key: bytes


class Memo:
    """Kept results of stages, and the footprints that they share.

    orders: by number of tokens, a complete run of an earlier quotient, as labels and positions of its events. composed:
    numbers of tokens of the compositions so far. words: by buffer, rows of tagged words with what was made of them.
    Whether these are alike is found out each time, so they change what a verdict costs only.
    """

    def __init__(self, room: int = ROOM) -> None:
        self.room, self.filled = room, 0
        self.hits, self.misses = 0, 0
        self.evaluations = Evaluations()
        self.orders: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        self.composed: set[int] = set()
        self.words: dict[int, list[Any]] = {}
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
        known = {key: found for key in dict.fromkeys(keys) if (found := self._found(key)) is not None}
        new = {key: _values(own) for key, own in zip(keys, several, strict=True) if key not in known}
        if new:
            made = stage(self, *_values(common), [*new.values()])
            known |= {key: self._keep(Keyed(value, key)) for key, value in zip(new, made, strict=True)}
        return [known[key] for key in keys]

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
        size = OVERHEAD + _freeze(made.value, self._frozen)
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
    texts: list[bytes] = []
    for part in parts:
        _tell(part, texts)
    return sha256(struct.pack(f"<{1 + len(texts)}q", len(texts), *map(len, texts)) + b"".join(texts)).digest()


def _tell(part: Any, texts: list[bytes]) -> None:
    """Append byte strings that tell unequal parts apart."""
    kind = type(part)
    if kind is Keyed:
        texts += (b"result", part.key)
    elif kind is str:
        texts += (b"str", part.encode("utf-8", "surrogatepass"))
    elif kind is np.ndarray:
        long = part.size >= MANY
        texts += (f"{part.dtype.str} {part.shape}".encode(), SEEN.digest(part) if long else part.tobytes())
    elif kind in PLAIN and kind is not float:
        texts.append(f"{kind.__name__} {part!r}".encode())
    elif kind is tuple:
        texts.append(b"tuple %d" % len(part))
        for entry in part:
            _tell(entry, texts)
    elif isinstance(part, BaseModel) and part.model_config.get("frozen"):
        texts += (kind.__qualname__.encode(), part.model_dump_json().encode())
    elif kind is Evaluations:
        texts.append(b"evaluations")
    else:
        raise TypeError(f"a {kind.__qualname__} cannot be a part of a stage")


class Seen:
    """Digests of the long arrays that have been hashed and are still there. Such an array, and what it is a view of, is
    read-only from then on.

    An array is looked up by a few of its entries, and has the digest of another only if it equals it.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[ReferenceType[NDArray[Any]], bytes]] = {}

    def digest(self, array: NDArray[Any]) -> bytes:
        """Of type, shape and content."""
        sample = array[:: len(array) // SAMPLE + 1].tobytes()
        place = array.dtype.str, array.shape, sample
        other, digest = self._known.get(place, (None, b""))
        known = None if other is None else other()
        if known is not None and (known is array or np.array_equal(known, array)):
            return digest
        digest = _hashed(array)
        base: Any = array
        while isinstance(base, np.ndarray):
            base.setflags(write=False)
            base = base.base
        self._known[place] = ReferenceType(array, partial(self._forget, place)), digest
        return digest

    def _forget(self, place: tuple[Any, ...], gone: ReferenceType[NDArray[Any]]) -> None:
        if place in self._known and self._known[place][0] is gone:
            del self._known[place]


SEEN: Final = Seen()


def _hashed(array: NDArray[Any]) -> bytes:
    told = np.ascontiguousarray(_narrow(array))
    state = sha256(f"{array.dtype.str} {array.shape} as {told.dtype.str}:".encode())
    state.update(told.reshape(-1).view(np.uint8).data)
    return state.digest()


def _narrow(array: NDArray[Any]) -> NDArray[Any]:
    """The same numbers in fewer bytes, if there are many: hashing costs more than finding out what they need."""
    if array.dtype in WIDE and array.size >= MANY:
        low, high = array.min(), array.max()
        for kind in (np.int16, np.int32):
            if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
                return array.astype(kind)
    return array


def _freeze(value: Any, known: Collection[int]) -> int:
    """Make every array inside read-only; their bytes. known: ids of results that have been through this.

    What evaluations keep and footprints have is read-only from the start; items, faults and races have no arrays.
    """
    size, seen, left = 0, set[int](), [value]
    while left:
        one = left.pop()
        kind, number = type(one), id(one)
        if CLOSED[kind] or number in seen:
            continue
        seen.add(number)
        if kind is np.ndarray:
            one.setflags(write=False)
            if one.base is None:
                size += int(one.nbytes)
            else:
                left.append(one.base)
        elif number not in known:
            left += _inside(one)
    return size


WITHOUT: Final = (BaseModel, Evaluator, Evaluations, Footprints, Crewed, Item, Fault, Race)


class _Closed(dict[type, bool]):
    """By type: is there nothing inside that could be written to?"""

    def __missing__(self, kind: type) -> bool:
        closed = kind in PLAIN or issubclass(kind, WITHOUT)
        self[kind] = closed
        return closed


CLOSED: Final = _Closed()


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, list | tuple | set | frozenset):
        return value
    fields: dict[str, Any] = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return fields.values()
