"""Flag words as counters: who waits for whose writes.

A read of flag words re-reads until every word carries the reader's tag. Words of one buffer written by one worker
are one single-owner counter: it counts the worker's steps that write the buffer, and tag v is the k-th of them. This
reading (`>=` in place of `==`) is right if no word is overwritten while a reader may still look for its old tag; that
is the write-after-read check on the buffer, which `compose` makes with these edges and those of hints.

Conditions, AMK513 otherwise: tags are in scope, positive, and grow from one writing step of a worker to the next, so
that no tag repeats and the zeroed memory of a first launch matches none; a word has one writing worker.

A *need* says: warp group `item` of `worker` reads words of a buffer owned by certain writers, with a certain tag.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from amk.report.diagnostic import Diagnostic, Where, because
from amk.report.schema import finding, json_pointer
from amk.schedule_ir.expr import Env, Expr
from amk.schedule_ir.memory import Buffer
from amk.schedule_ir.schedule import Schedule
from amk.validator.program.ranked_flag_words import RankedFlagWords, ranked_words
from amk.validator.program.system import I64
from amk.validator.program.trace import Item


@dataclass(frozen=True, eq=False)
class FlagWords:
    """writes: (group, worker, item, counter) rows, one per writing step; join_nodes: writer counters of each
    distinct set.

    needs: (group, worker, item, join node, rank) rows, one per reading warp_group: its set of writers, and which of
    the targets of that join node it waits for. Rank r of a join node means: its writers have finished the steps in
    row r of its targets (k per writer counter). doubled: two warps of a step write one flag word.
    """

    writes: I64
    needs: I64
    counters: int
    join_nodes: list[I64]
    targets: list[I64]
    never: list[Diagnostic]
    doubled: bool = False

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
        return "flag words cross workers, this buffer is shared memory"
    if buffer.role != "scratch":
        return "flag words are scratch: what survives a launch would carry an old tag"
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
"""(buffer, what, ...): what `_explained` says."""


def words(schedule: Schedule, items: list[list[Item]], rows: I64) -> FlagWords:
    """Counters and needs from the global rows (group, worker, item, buffer, kind, lo, hi) on tagged buffers."""
    found = [FlagWords(np.zeros((0, 4), np.int64), np.zeros((0, 5), np.int64), 0, [], [], [])]
    rows = rows[np.argsort(rows[:, 3], kind="stable")]
    for mine in np.split(rows, np.flatnonzero(np.diff(rows[:, 3])) + 1) if len(rows) else ():
        buffer = int(mine[0, 3])
        steps, rank = np.unique(mine[:, 0] << 32 | mine[:, 2], return_inverse=True)
        places = np.stack((steps >> 32, steps & 0xFFFFFFFF), axis=1)
        tag = schedule.buffers[buffer].tag or 0
        tags = np.array([tag_of(tag, items[group][item]) for group, item in places.tolist()], np.int64)
        own = np.concatenate((mine[:, :2], rank.reshape(-1, 1), mine[:, 4:]), axis=1)
        made = ranked_words(own, tags)
        found.append(_numbered(made, places[:, 1]))
        found[-1].never.extend(_explained(schedule, items, places, (buffer, *trouble)) for trouble in made.troubles)
    return _together(found)


def _numbered(found: RankedFlagWords, item: I64) -> FlagWords:
    """item: that of each rank."""
    writes, needs = found.writes.copy(), found.needs.copy()
    writes[:, 2], needs[:, 2] = item[writes[:, 2]], item[needs[:, 2]]
    return FlagWords(writes, needs, found.counters, found.join_nodes, found.targets, [], found.doubled)


def _explained(schedule: Schedule, items: list[list[Item]], places: I64, trouble: tuple[Any, ...]) -> Diagnostic:
    buffer, what, *numbers = trouble
    name = schedule.buffers[buffer].name
    if what == "owners":
        message = f"workers {numbers[0]} and {numbers[1]} write the same words of '{name}'"
        return _finding(message, ("buffers", buffer), "a flag word has one owner")
    group, worker, rank, tag, *before = numbers
    path = items[group][int(places[rank, 1])].site.path
    if what == "order":
        held = f"words that tag {before[0]} was written to" if before[0] else "memory that begins as zeros"
        message = f"'{name}' gets tag {tag} over {held}: tags must grow"
        return _finding(message, path, "a reader could take an old word for the one it waits for")
    message = f"worker {worker} waits for words of '{name}' with tag {tag} that no step writes"
    return finding("AMK202", message, path)


def _together(parts: list[FlagWords]) -> FlagWords:
    """The words of several buffers, counters and join nodes numbered through."""
    writes, needs = [], []
    counters = join_nodes = 0
    for part in parts:
        writes.append(part.writes + np.array([0, 0, 0, counters]))
        needs.append(part.needs + np.array([0, 0, 0, join_nodes, 0]))
        counters, join_nodes = counters + part.counters, join_nodes + len(part.join_nodes)
    first = np.cumsum([0, *(part.counters for part in parts)]).tolist()
    members = [join_node + base for base, part in zip(first, parts, strict=False) for join_node in part.join_nodes]
    targets = [target for part in parts for target in part.targets]
    never = [finding for part in parts for finding in part.never]
    doubled = any(part.doubled for part in parts)
    return FlagWords(np.concatenate(writes), np.concatenate(needs), counters, members, targets, never, doubled)
