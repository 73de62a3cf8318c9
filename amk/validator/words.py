"""Tagged words as counters: who waits for whose writes.

A read of tagged words re-reads until every word carries the reader's tag. Words of one buffer written by one worker
are one single-owner counter: it counts the worker's steps that write the buffer, and tag v is the k-th of them. This
reading (`>=` in place of `==`) is right if no word is overwritten while a reader may still look for its old tag; that
is the write-after-read check on the buffer, which `compose` makes with these edges and those of hints.

Conditions, AMK513 otherwise: tags are in scope, positive, and grow from one writing step of a worker to the next, so
that no tag repeats and the zeroed memory of a first launch matches none; a word has one writing worker.

A *need* says: crew `item` of `worker` reads words of `buffer` owned by `writers`, with `tag`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from amk.report.diagnostic import Diagnostic, Where, because
from amk.report.schema import json_pointer
from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Buffer
from amk.schedule_ir.schedule import Schedule
from amk.validator.system import I64, WRITE
from amk.validator.trace import Item


@dataclass(frozen=True)
class Need:
    """A reading crew; joint: number of its set of writers, rank: which of the joint's targets it waits for."""

    group: int
    worker: int
    item: int
    joint: int
    rank: int


@dataclass(frozen=True, eq=False)
class Words:
    """writes: (group, worker, item, counter) rows, one per writing step; joints: writer counters of each distinct set.

    Rank r of a joint means: its writers have finished the steps in `targets[joint][r]` (k per writer counter).
    """

    writes: I64
    needs: list[Need]
    counters: int
    joints: list[tuple[int, ...]]
    targets: list[list[tuple[int, ...]]]
    never: list[Diagnostic]

    @cached_property
    def empty(self) -> bool:
        return not len(self.writes) and not self.needs


def tag_of(tag: Expr, item: Item) -> int:
    return Env(loops=item.loops, worker=0).eval_int(tag)


def check_tags(schedule: Schedule, items: list[list[Item]]) -> Iterator[Diagnostic]:
    """M13 conditions that do not depend on the worker."""
    layers = max((item.loops.get("l", 0) + 1 for group in items for item in group), default=1)
    for number, buffer in enumerate(schedule.buffers):
        if problem := _tag_problem(buffer, layers):
            yield _finding(problem, ("buffers", number), f"a token has {layers} layers")
    tags = {b.name: {"t", *(b.tag if isinstance(b.tag, dict) else ())} - {"1"} for b in schedule.buffers if b.tagged}
    for group in items:
        for item in group:
            names = {v for f, v in item.step.op if isinstance(v, str) and v in tags and f != "op"}
            if any(tags[name] - set(item.loops) for name in names):
                yield _finding("a tagged buffer is used where its tag has no value", (*item.site.path, "op"))


def _tag_problem(buffer: Buffer, layers: int) -> str | None:
    """Why the buffer's tags cannot work, whoever uses them."""
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
    return None


def _finding(message: str, path: tuple[str | int, ...], *reasons: str) -> Diagnostic:
    return Diagnostic("AMK513", message, where=Where(path=json_pointer(path)), facts=tuple(because(r) for r in reasons))


def words(schedule: Schedule, items: list[list[Item]], rows: I64) -> Words:
    """Counters and needs from the global rows (group, worker, item, buffer, kind, lo, hi) on tagged buffers."""
    maker = _Maker(schedule, items)
    for buffer in np.unique(rows[:, 3]).tolist():
        maker.add(buffer, rows[rows[:, 3] == buffer])
    return maker.result()


class _Maker:
    def __init__(self, schedule: Schedule, items: list[list[Item]]) -> None:
        self.schedule, self.items = schedule, items
        self.writes: list[tuple[int, int, int, int]] = []
        self.needs: list[Need] = []
        self.counter: dict[tuple[int, int], int] = {}
        self.ranks: dict[int, dict[int, int]] = {}
        self.joints: dict[tuple[int, ...], int] = {}
        self.targets: list[dict[int, tuple[int, ...]]] = []
        self.joint_of: dict[tuple[int, tuple[int, ...]], int] = {}
        self.tag_at: dict[tuple[int, int, int], int] = {}
        self.never: list[Diagnostic] = []
        self._wanted: list[tuple[int, int, int, int, int]] = []

    def result(self) -> Words:
        order = [sorted(by_tag) for by_tag in self.targets]
        rank = [{tag: i for i, tag in enumerate(tags)} for tags in order]
        needs = [Need(g, w, i, joint, rank[joint][tag]) for g, w, i, joint, tag in self._wanted]
        targets = [[by_tag[tag] for tag in tags] for by_tag, tags in zip(self.targets, order, strict=True)]
        writes = np.array(self.writes, np.int64).reshape(-1, 4)
        return Words(writes, needs, len(self.counter), list(self.joints), targets, self.never)

    def add(self, buffer: int, rows: I64) -> None:
        written = rows[rows[:, 4] == WRITE]
        self._count(buffer, written)
        start, end, owner = self._owners(buffer, written)
        known: dict[bytes, tuple[int, ...] | None] = {}
        reading = rows[rows[:, 4] != WRITE]
        key = reading[:, 0] << 50 | reading[:, 1] << 25 | reading[:, 2]
        order = np.argsort(key, kind="stable")
        reading = reading[order]
        bounds = np.flatnonzero(np.diff(key[order], prepend=-1, append=-1))
        for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            spans = reading[a:b, 5:7]
            print_ = spans.tobytes()
            if print_ not in known:
                known[print_] = _covering(start, end, owner, spans)
            group, worker, item = reading[a, :3].tolist()
            self._need(buffer, group, worker, item, known[print_])

    def _count(self, buffer: int, written: I64) -> None:
        """One counter per writing worker; its writing steps in program order, with growing tags."""
        for group, worker, item in np.unique(written[:, :3], axis=0).tolist():
            counter = self.counter.setdefault((buffer, worker), len(self.counter))
            ranks = self.ranks.setdefault(counter, {})
            value = self._tags(buffer, group, item)
            if value <= max(ranks, default=0):
                path = self.items[group][item].site.path
                message = (
                    f"the tag {value} of '{self.schedule.buffers[buffer].name}' does not follow {max(ranks, default=0)}"
                )
                self.never.append(_finding(message, path, "a reader could take an old word for the one it waits for"))
            ranks[value] = len(ranks) + 1
            self.writes.append((group, worker, item, counter))

    def _owners(self, buffer: int, written: I64) -> tuple[I64, I64, I64]:
        """Disjoint byte spans in order with their writing worker."""
        spans = np.unique(written[:, [5, 6, 1]], axis=0)
        overlap = np.flatnonzero((spans[1:, 0] < spans[:-1, 1]) & (spans[1:, 2] != spans[:-1, 2]))
        if len(overlap):
            one, two = spans[overlap[0], 2], spans[overlap[0] + 1, 2]
            name = self.schedule.buffers[buffer].name
            message = f"workers {one} and {two} write the same words of '{name}'"
            self.never.append(_finding(message, ("buffers", buffer), "a tagged word has one owner"))
        return spans[:, 0], np.maximum.accumulate(spans[:, 1]) if len(spans) else spans[:, 1], spans[:, 2]

    def _need(self, buffer: int, group: int, worker: int, item: int, owners: tuple[int, ...] | None) -> None:
        tag = self._tags(buffer, group, item)
        number = self.joint_of.get((buffer, owners)) if owners is not None else None
        if number is None or tag not in self.targets[number]:
            number = self._target(buffer, tag, owners)
        if number is None:
            path = json_pointer(self.items[group][item].site.path)
            name = self.schedule.buffers[buffer].name
            message = f"worker {worker} waits for words of '{name}' with tag {tag} that no step writes"
            self.never.append(Diagnostic("AMK202", message, where=Where(path=path)))
            return
        self._wanted.append((group, worker, item, number, tag))

    def _tags(self, buffer: int, group: int, item: int) -> int:
        key = buffer, group, item
        if key not in self.tag_at:
            self.tag_at[key] = tag_of(self.schedule.buffers[buffer].tag or 0, self.items[group][item])
        return self.tag_at[key]

    def _target(self, buffer: int, tag: int, owners: tuple[int, ...] | None) -> int | None:
        """The joint of these writers, with a target for the tag; None if one of them never writes it."""
        joint = tuple(self.counter[buffer, w] for w in owners or ())
        if owners is None or any(tag not in self.ranks[c] for c in joint):
            return None
        number = self.joints.setdefault(joint, len(self.joints))
        if number == len(self.targets):
            self.targets.append({})
        self.joint_of[buffer, owners] = number
        self.targets[number][tag] = tuple(self.ranks[c][tag] for c in joint)
        return number


def _covering(start: I64, end: I64, owner: I64, spans: I64) -> tuple[int, ...] | None:
    """Workers that own bytes of the spans; None if some byte has no owner."""
    found: set[int] = set()
    for lo, hi in spans.tolist():
        first, last = int(np.searchsorted(end, lo, side="right")), int(np.searchsorted(start, hi, side="left"))
        if (
            first >= last
            or start[first] > lo
            or end[last - 1] < hi
            or (start[first + 1 : last] > end[first : last - 1]).any()
        ):
            return None
        found |= set(owner[first:last].tolist())
    return tuple(sorted(found))
