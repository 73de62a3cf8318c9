"""Byte footprints of steps, evaluated once per distinct environment.

Evaluations (`evaluator`) are kept under the op's text and the geometry that it may read. That makes 132 nearly
identical workers cost little more than one, and a schedule cost little that differs from an earlier one in a few steps.

Rows are (buffer, kind, lo, hi, value, delta): global buffers are numbered as in the schedule, shared memory is buffer
-1 and addressed by absolute byte, so that overlapping shared buffers are seen to overlap. value packs (family, index);
`with_token` adds the token. delta = logical offset - byte address.

Cache rows keep one value for all tokens: what a token appends is what later tokens read. A read without a value of a
`constant` buffer is dropped: nothing may write it (`memory_model`), and `owners` says which constant it is. A read of a
constant where the op needs what a step computes stays, and finds that no step wrote it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from amk.schedule_ir.memory import Buffer
from amk.schedule_ir.ops import Access, Geometry, Op
from amk.schedule_ir.schedule import Schedule
from amk.validator.program.aliases import Clash, Meeting, aliased
from amk.validator.program.evaluation import Footprint, Rows
from amk.validator.program.evaluator import Evaluations, Evaluator, Unplaced
from amk.validator.program.step_evaluation import Asked, grouped
from amk.validator.program.step_rows import StepRows
from amk.validator.program.system import I64
from amk.validator.program.tables import Tables
from amk.validator.program.trace import Item


@dataclass(frozen=True, eq=False)
class _Seen:
    """What an op can see of a schedule. key: all of it as text, the number of each buffer included, but not `starts`:
    where the shared buffers of the geometry lie. meeting: those with bytes in common."""

    key: tuple[object, ...]
    geometry: Geometry
    starts: tuple[int, ...]
    meeting: list[Meeting]


def _anywhere(buffer: Buffer) -> Buffer:
    """The buffer without where it lies, if it is shared memory."""
    return buffer.model_copy(update={"offset": None}) if buffer.space == "shared" else buffer


class _Parts:
    """What an op can see of a schedule: the buffers and streams that it names, without where a ring ends."""

    def __init__(self, schedule: Schedule) -> None:
        self.whole = schedule.geometry()
        self.streams = {n: s.model_copy(update={"slots": 1}) for n, s in self.whole.streams.items()}
        self.buffers = {n: _anywhere(b) for n, b in self.whole.buffers.items()}
        parts = (self.buffers, self.streams)
        self.texts = {n: (i, part.model_dump_json()) for group in parts for i, (n, part) in enumerate(group.items())}
        whole = self.whole
        sizes = (
            whole.batch,
            whole.live,
            whole.rows_each,
            whole.workers,
            whole.kv_block,
            whole.kv_splits,
            *whole.role_size.items(),
        )
        self.common = (self.whole.model.model_dump_json(), sizes)

    def of(self, op: Op) -> _Seen:
        fields = {value for _, value in op if isinstance(value, str)}
        buffers = {name: b for name, b in self.buffers.items() if name in fields}
        lying = {name: self.whole.buffers[name] for name in buffers}
        starts = tuple(b.offset or 0 for b in lying.values() if b.space == "shared")
        streams = {name: s for name, s in self.streams.items() if name in fields}
        text = (type(op).__name__, op.model_dump_json(), *((n, self.texts[n]) for n in (*buffers, *streams)))
        geometry = replace(self.whole, buffers=buffers, streams=streams)
        return _Seen((text, self.common), geometry, starts, aliased(lying))


class Footprints:
    """Footprints of one schedule, in the schedule's numbers of buffers and families."""

    def __init__(self, schedule: Schedule, evaluations: Evaluations | None = None) -> None:
        self.schedule = schedule
        self.number = {b.name: i for i, b in enumerate(schedule.buffers)}
        self.written_constants: set[str] = set()
        self.outside: dict[tuple[str | int, ...], str] = {}
        self.clashes: dict[tuple[str | int, ...], Clash] = {}
        self._evaluations = evaluations or Evaluations()
        self._evaluations.trim()
        self._tables = Tables(schedule)
        self.tables = self._tables.arrays
        self._parts = _Parts(schedule)
        self._evaluators: dict[tuple[int, int, int, tuple[str, ...]], Evaluator] = {}
        self._seen: dict[tuple[int, int], _Seen] = {}

    def trim(self, room: int) -> None:
        """Forget earlier rows but for this many bytes."""
        self._evaluations.trim(room)
        self._evaluators.clear()

    def of(self, item: Item, worker: int, agent: int, pos: int) -> I64:
        """[n, 6] what agent `agent` (index in the step's role) of `worker` touches in `item` at position `pos`."""
        found = self._evaluator(item, agent).one(item.loops, worker, pos, self._tables)
        if found.beyond is not None:
            self._note(item, worker, found.beyond)
        self._gather(item, found)
        return found.rows

    def of_workers(self, item: Item, agent: int, workers: range, pos: Sequence[int]) -> tuple[I64, tuple[int, ...]]:
        """`of` for consecutive workers, `pos` giving each one's position: their rows in turn, and how many each has."""
        if len(workers) == 1:
            rows = self.of(item, workers[0], agent, pos[0])
            return rows, (len(rows),)
        found = self._rows(item, agent, workers, pos)
        if found.beyond is not None:
            self._note(item, *found.beyond)
        self._gather(item, found)
        return found.rows, found.counts

    def positional(self, item: Item, worker: int, agent: int, pos: int) -> bool:
        """Would `of` say something else elsewhere, as far as is known here?"""
        return "pos" in self._evaluator(item, agent).one(item.loops, worker, pos, self._tables).names

    def warp_group(self, item: Item, agents: int, asked: Asked) -> StepRows:
        """All agents of a step on consecutive workers."""
        found = grouped(lambda agent: self._evaluator(item, agent), agents, item.loops, asked, self._tables)
        if found.beyond is not None:
            self._note(item, *found.beyond)
        self._gather(item, found)
        return found

    def _rows(self, item: Item, agent: int, workers: range, pos: Sequence[int]) -> Rows:
        return self._evaluator(item, agent).rows(item.loops, workers, pos, self._tables)

    def _evaluator(self, item: Item, agent: int) -> Evaluator:
        key = item.site.number, int(item.site.path[1]), agent, tuple(item.loops)
        found = self._evaluators.get(key)
        if found is None:
            site = key[:2]
            if site not in self._seen:
                self._seen[site] = self._parts.of(item.step.op)
            seen, op = self._seen[site], item.step.op
            number = {name: self.number[name] for name in seen.geometry.buffers}
            found = self._evaluations.evaluator(
                (seen.key, agent, key[3]), seen.starts, seen.meeting, lambda: Unplaced(op, seen.geometry, number, agent)
            )
            self._evaluators[key] = found
        return found

    def _gather(self, item: Item, found: Footprint | Rows | StepRows) -> None:
        self.written_constants |= found.constants
        if found.clash is not None:
            self.clashes.setdefault((*item.site.path, "op"), found.clash)

    def _note(self, item: Item, worker: int, access: Access) -> None:
        """Remember an access outside its buffer, by step."""
        message = (
            f"{item.step.op.op} of worker {worker} touches bytes {access.lo:,}..{access.hi - 1:,} of "
            f"'{access.buffer}', which has {self.schedule.buffers[self.number[access.buffer]].bytes:,}"
        )
        self.outside.setdefault((*item.site.path, "op"), message)
