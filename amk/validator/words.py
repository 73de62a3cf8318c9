"""Tagged words as counters: who waits for whose writes.

A read of tagged words re-reads until every word carries the reader's tag. Words of one buffer written by one worker
are one single-owner counter: it counts the worker's steps that write the buffer, and tag v is the k-th of them. This
reading (`>=` in place of `==`) is right if no word is overwritten while a reader may still look for its old tag; that
is the write-after-read check on the buffer, which `compose` makes with these edges and those of hints.

Conditions, AMK513 otherwise: tags are in scope, positive, and grow from one writing step of a worker to the next, so
that no tag repeats and the zeroed memory of a first launch matches none; a word has one writing worker.

A *need* says: crew `item` of `worker` reads words of a buffer owned by certain writers, with a certain tag.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from amk.report.diagnostic import Diagnostic, Where, because
from amk.report.schema import json_pointer
from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Buffer
from amk.schedule_ir.schedule import Schedule
from amk.validator.memo import Memo, given
from amk.validator.ranked_words import RankedWords, ranked_words
from amk.validator.system import I64
from amk.validator.trace import Item


@dataclass(frozen=True, eq=False)
class Words:
    """writes: (group, worker, item, counter) rows, one per writing step; joints: writer counters of each distinct set.

    needs: (group, worker, item, joint, rank) rows, one per reading crew: its set of writers, and which of the targets
    of that joint it waits for. Rank r of a joint means: its writers have finished the steps in row r of its targets (k
    per writer counter).
    """

    writes: I64
    needs: I64
    counters: int
    joints: list[I64]
    targets: list[I64]
    never: list[Diagnostic]

    @cached_property
    def empty(self) -> bool:
        return not len(self.writes) and not len(self.needs)


def tag_of(tag: Expr, item: Item) -> int:
    return Env(loops=item.loops, worker=0).eval_int(tag)


def check_tags(schedule: Schedule, items: list[list[Item]]) -> Iterator[Diagnostic]:
    """M13 conditions that do not depend on the worker, of every buffer that a step uses."""
    layers = max((item.loops.get("l", 0) + 1 for group in items for item in group), default=1)
    tagged = {b.name for b in schedule.buffers if b.tagged or b.tag is not None}
    found = {id(item.site): item for group in items for item in group}
    named = {
        key: {v for f, v in item.step.op if isinstance(v, str) and v in tagged and f != "op"}
        for key, item in found.items()
    }
    uses = [(item, named[id(item.site)]) for group in items for item in group if named[id(item.site)]]
    used = {name for _, names in uses for name in names}
    for number, buffer in enumerate(schedule.buffers):
        if buffer.name in used and (problem := _tag_problem(buffer, layers, schedule.launch.max_tokens)):
            yield _finding(problem, ("buffers", number), f"a token has {layers} layers")
    tags = {b.name: {"t", *(b.tag if isinstance(b.tag, dict) else ())} - {"1"} for b in schedule.buffers if b.tagged}
    for item, names in uses:
        if any(tags[name] - set(item.loops) for name in names if name in tags):
            yield _finding("a tagged buffer is used where its tag has no value", (*item.site.path, "op"))


def _tag_problem(buffer: Buffer, layers: int, tokens: int) -> str | None:
    """Why the buffer's tags cannot work in a launch of so many tokens, whoever uses them."""
    if buffer.tagged != (buffer.tag is not None):
        return "a tagged buffer has a tag, others have none"
    if buffer.tag is None:
        return None
    if buffer.space == "shared":
        return "tagged words cross workers, this buffer is shared memory"
    if buffer.role != "scratch":
        return "tagged words are scratch: what survives a launch would carry an old tag"
    if not isinstance(buffer.tag, dict) or set(buffer.tag) - {"t", "l", "1"} or buffer.tag.get("t", 0) <= 0:
        return "the tag must grow with the token t and name nothing but t and l"
    if not 0 <= buffer.tag.get("l", 0) * (layers - 1) < buffer.tag["t"]:
        return "tags of one token reach into those of the next"
    least = buffer.tag.get("1", 0)
    if not (least > 0 and least + buffer.tag["t"] * tokens <= POISON):
        return f"the tags of {tokens:,} tokens do not all lie in 1..2^32 - 2, but a word has 32 bits for its tag"
    return None


def _finding(message: str, path: tuple[str | int, ...], *reasons: str) -> Diagnostic:
    return Diagnostic("AMK513", message, where=Where(path=json_pointer(path)), facts=tuple(because(r) for r in reasons))


POISON: Final = 2**32 - 1
"""The tag that words have when the host has poisoned them; memory that is new has 0."""
Trouble = tuple[str | int, ...]
"""(buffer, what, ...): what `_told` explains."""
KNOWN: Final = 6
"""Of so many rows of a buffer, the latest, a memo knows the words."""


@dataclass(frozen=True, eq=False)
class Counted:
    """Words with the ranks of steps for items, and what is wrong with them. key: digest of the words' content.

    doubled: two warps of a step write one tagged word.
    """

    words: Words
    troubles: list[Trouble]
    doubled: bool

    @cached_property
    def key(self) -> bytes:
        found = self.words
        return given((found.writes, found.needs, found.counters, tuple(found.joints), tuple(found.targets))).key


def words(schedule: Schedule, items: list[list[Item]], rows: I64) -> Words:
    """Counters and needs from the global rows (group, worker, item, buffer, kind, lo, hi) on tagged buffers."""
    mine = rows.copy()
    places = ranked(mine)
    tags = tags_of(schedule, items, places, steps_of(mine))
    return told(schedule, items, places, counted(Memo(), tags, mine))


def ranked(*tables: I64) -> I64:
    """The steps [n, 2] (group, item) of rows (group, worker, item, ...) in order; the rows get ranks for items."""
    most = 1 + max(int(rows[:, 2].max(initial=0)) for rows in tables)
    steps = [rows[:, 0] * most + rows[:, 2] for rows in tables]
    there = np.bincount(np.concatenate(steps)) > 0
    rank = np.cumsum(there) - 1
    for rows, step in zip(tables, steps, strict=True):
        rows[:, 2] = rank[step]
    return np.stack(np.divmod(np.flatnonzero(there), most), axis=1)


def steps_of(*tables: I64) -> I64:
    """[n, 2] the buffers of ranked rows with the ranks of the steps that touch them, each once, in order."""
    size = 1 + max(int(rows[:, 2].max(initial=0)) for rows in tables)
    pairs = np.flatnonzero(np.bincount(np.concatenate([rows[:, 3] * size + rows[:, 2] for rows in tables])))
    return np.stack(np.divmod(pairs, size), axis=1)


def tags_of(schedule: Schedule, items: list[list[Item]], places: I64, steps: I64) -> I64:
    """(buffer, rank, tag) of the `steps_of` rows; `places`: as `ranked` found them."""
    buffer, rank = steps.T
    known: dict[tuple[object, ...], int] = {}
    tags = []
    for number, (group, at) in zip(buffer.tolist(), places[rank].tolist(), strict=True):
        item = items[group][at]
        key = (number, *item.loops.items())
        if key not in known:
            known[key] = tag_of(schedule.buffers[number].tag or 0, item)
        tags.append(known[key])
    return np.stack((buffer, rank, np.array(tags, np.int64)), axis=1)


def counted(memo: Memo, tags: I64, rows: I64) -> Counted:
    """Words of ranked rows; tags: see `tags_of`.

    memo: results for single buffers, which know of the order of their own steps only.
    """
    none, found = Words(np.zeros((0, 4), np.int64), np.zeros((0, 5), np.int64), 0, [], [], []), list[_OfBuffer]()
    # fewer than 2^10 buffers, and sorting numbers of 16 bits is linear
    rows = rows.take(np.argsort(rows[:, 3].astype(np.int16), kind="stable"), axis=0)
    starts = np.flatnonzero(np.diff(rows[:, 3], prepend=-1))
    for mine in np.split(rows, starts[1:]) if len(rows) else ():
        found.append(_of_buffer(memo, tags[tags[:, 0] == mine[0, 3]], mine))
    troubles = [trouble for one in found for trouble in one.troubles]
    return Counted(_together([none, *(one.words for one in found)]), troubles, any(one.doubled for one in found))


class _OfBuffer(NamedTuple):
    """tags and rows of a buffer, and what was made of them."""

    tags: I64
    rows: I64
    words: Words
    troubles: list[Trouble]
    doubled: bool


def _of_buffer(memo: Memo, tags: I64, mine: I64) -> _OfBuffer:
    buffer = int(mine[0, 3])
    known: list[_OfBuffer] = memo.words.setdefault(buffer, [])
    for one in reversed(known):
        if np.array_equal(one.rows, mine) and np.array_equal(one.tags, tags):
            return one
    there = np.bincount(mine[:, 2]) > 0
    place = np.flatnonzero(there)
    rank = (np.cumsum(there) - 1)[mine[:, 2]]
    own = np.concatenate((mine[:, :2], rank[:, None], mine[:, 4:]), axis=1)
    found = memo(ranked_words, own, tags[np.searchsorted(tags[:, 1], place), 2]).value
    troubles = [(buffer, *(t if t[0] == "owners" else (*t[:3], int(place[t[3]]), *t[4:]))) for t in found.troubles]
    made = _OfBuffer(tags, mine, _numbered(found, place), troubles, found.doubled)
    memo.words[buffer] = [*known[1 - KNOWN :], made]
    return made


def told(schedule: Schedule, items: list[list[Item]], places: I64, found: Counted) -> Words:
    """The words with items for ranks, and the findings on them."""
    named = _numbered(found.words, places[:, 1])
    named.never.extend(_told(schedule, items, places, trouble) for trouble in found.troubles)
    return named


def _numbered(found: RankedWords | Words, item: I64) -> Words:
    """item: that of each rank."""
    writes, needs = found.writes.copy(), found.needs.copy()
    writes[:, 2], needs[:, 2] = item[writes[:, 2]], item[needs[:, 2]]
    return Words(writes, needs, found.counters, found.joints, found.targets, [])


def _told(schedule: Schedule, items: list[list[Item]], places: I64, trouble: tuple[Any, ...]) -> Diagnostic:
    buffer, what, *numbers = trouble
    name = schedule.buffers[buffer].name
    if what == "owners":
        message = f"workers {numbers[0]} and {numbers[1]} write the same words of '{name}'"
        return _finding(message, ("buffers", buffer), "a tagged word has one owner")
    group, worker, rank, tag, *before = numbers
    path = items[group][int(places[rank, 1])].site.path
    if what == "order":
        held = f"words that tag {before[0]} was written to" if before[0] else "memory that begins as zeros"
        message = f"'{name}' gets tag {tag} over {held}: tags must grow"
        return _finding(message, path, "a reader could take an old word for the one it waits for")
    message = f"worker {worker} waits for words of '{name}' with tag {tag} that no step writes"
    return Diagnostic("AMK202", message, where=Where(path=json_pointer(path)))


def _together(parts: list[Words]) -> Words:
    """The words of several buffers, counters and joints numbered through."""
    writes, needs = [], []
    counters = joints = 0
    for part in parts:
        writes.append(part.writes + np.array([0, 0, 0, counters]))
        needs.append(part.needs + np.array([0, 0, 0, joints, 0]))
        counters, joints = counters + part.counters, joints + len(part.joints)
    first = np.cumsum([0, *(part.counters for part in parts)]).tolist()
    members = [joint + base for base, part in zip(first, parts, strict=False) for joint in part.joints]
    targets = [target for part in parts for target in part.targets]
    never = [finding for part in parts for finding in part.never]
    return Words(np.concatenate(writes), np.concatenate(needs), counters, members, targets, never)
