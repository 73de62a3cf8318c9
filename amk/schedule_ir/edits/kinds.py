"""The kinds of edit. Every edit names its place by a name of the tree (`tree.py`), never by a position in a list.

A list of edits is made in order. Names are those of the schedule that the list is made to, and stay with their nodes
while it is made; what an edit adds carries the name that the edit gives it, which begins with "+". So an edit means the
same whatever other edits of the list are left out, as long as it names nothing that they add.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, JsonValue, StringConstraints

from amk.schedule_ir.expr import Expr
from amk.schedule_ir.memory import Buffer, Counter, Frozen, Name, Stream
from amk.schedule_ir.schedule import Node, Program, Role, Signal, Step, Wait

FORMAT: Final = "amk.edits/1"
MAX_EDITS: Final = 4096

Label = Annotated[str, StringConstraints(min_length=1, max_length=400)]
"""Name of a step or loop: `program/t/l/gemv.qkv`."""
NewLabel = Annotated[str, StringConstraints(min_length=2, max_length=400, pattern=r"^\+")]
"""Name of what an edit adds."""
Nth = Annotated[int, Field(ge=0, le=63)]
"""Of the waits (signals) of a step on one counter."""


class Place(Frozen):
    """Beside a step or loop, or at one end of the body of a loop or program."""

    at: Literal["before", "after", "first", "last"]
    of: Label


class Move(Frozen):
    """A step or loop goes elsewhere, also into another body."""

    do: Literal["move"] = "move"
    node: Label
    to: Place


class Swap(Frozen):
    """Two steps or loops change places."""

    do: Literal["swap"] = "swap"
    node: Label
    other: Label


class Add(Frozen):
    """A new step (a barrier, a wait, work) or loop."""

    do: Literal["add"] = "add"
    name: NewLabel
    node: Node
    to: Place


class Remove(Frozen):
    """A step, or a loop with all in it, goes."""

    do: Literal["remove"] = "remove"
    node: Label


class Replace(Frozen):
    """Another step stands in the place of a step, under its name."""

    do: Literal["replace"] = "replace"
    node: Label
    step: Step


class SetOp(Frozen):
    """A field of a step's op: who runs it (`role`), what it reads, how fine it is."""

    do: Literal["set_op"] = "set_op"
    node: Label
    field: Name
    value: JsonValue


class SplitWaits(Frozen):
    """The waits of a step become a `wait` step of the same role before it."""

    do: Literal["split_waits"] = "split_waits"
    node: Label
    name: NewLabel


class SplitSignals(Frozen):
    """The signals of a step become a `signal` step of the same role behind it."""

    do: Literal["split_signals"] = "split_signals"
    node: Label
    name: NewLabel


class Fuse(Frozen):
    """A `wait` or `signal` step is merged into another step, whose role gives or awaits its hand-offs from then on."""

    do: Literal["fuse"] = "fuse"
    node: Label
    into: Label


class SplitLoop(Frozen):
    """A loop of n becomes loops of `count` and n - count; the second, and what is in it, is called `name` and on.

    In the second, indices and thresholds count on from `count`; tags of words do not, so words that cross are refused.
    """

    do: Literal["split_loop"] = "split_loop"
    node: Label
    count: int = Field(ge=1, le=100_000)
    name: NewLabel


class SetLoop(Frozen):
    """How often a loop runs; None is the number of tokens."""

    do: Literal["set_loop"] = "set_loop"
    node: Label
    count: Annotated[int, Field(ge=1, le=100_000)] | None


class AddWait(Frozen):
    """A step waits for one thing more."""

    do: Literal["add_wait"] = "add_wait"
    node: Label
    wait: Wait


class DropWait(Frozen):
    """A step no longer waits for a counter."""

    do: Literal["drop_wait"] = "drop_wait"
    node: Label
    counter: Name
    nth: Nth = 0


class SetWait(Frozen):
    """A wait gets another threshold, order or index; what is None stays."""

    do: Literal["set_wait"] = "set_wait"
    node: Label
    counter: Name
    nth: Nth = 0
    at_least: Expr | None = None
    order: Literal["acquire", "relaxed"] | None = None
    index: tuple[Expr, ...] | None = None


class AddSignal(Frozen):
    """A step signals one thing more."""

    do: Literal["add_signal"] = "add_signal"
    node: Label
    signal: Signal


class DropSignal(Frozen):
    """A step no longer signals a counter."""

    do: Literal["drop_signal"] = "drop_signal"
    node: Label
    counter: Name
    nth: Nth = 0


class SetSignal(Frozen):
    """A signal adds another number, in another order or elsewhere; what is None stays."""

    do: Literal["set_signal"] = "set_signal"
    node: Label
    counter: Name
    nth: Nth = 0
    add: Expr | None = None
    order: Literal["release", "relaxed"] | None = None
    index: tuple[Expr, ...] | None = None


class SetEntry(Frozen):
    """A field of a named part: where a buffer lies, slots of a ring, what a counter orders, size of a role."""

    do: Literal["set"] = "set"
    of: Literal["buffer", "counter", "stream", "role", "program"]
    name: Name
    field: Name
    value: JsonValue


class AddEntry(Frozen):
    """A new buffer, counter, stream, role or program; `after` names its neighbour of the same kind, None: the first."""

    do: Literal["declare"] = "declare"
    entry: Buffer | Counter | Stream | Role | Program
    after: Name | None = None


class RemoveEntry(Frozen):
    """A buffer, counter, stream, role or program goes."""

    do: Literal["withdraw"] = "withdraw"
    of: Literal["buffer", "counter", "stream", "role", "program"]
    name: Name


class SetHeader(Frozen):
    """A field of the launch or of the layout of the cache, or the schedule's own name."""

    do: Literal["set_header"] = "set_header"
    of: Literal["launch", "kv", "schedule"]
    field: Name
    value: JsonValue


class SetTable(Frozen):
    """Entries of a table by worker; `column` is all of it, None takes the table away."""

    do: Literal["set_table"] = "set_table"
    name: Name
    entries: dict[Annotated[str, StringConstraints(pattern=r"^[0-9]{1,4}$")], int] = Field(default_factory=dict)
    column: tuple[int, ...] | None = None
    remove: bool = False


class Share(Frozen):
    """`groups` groups of rows of a matrix go from a worker to the next one (fewer than 0: the other way)."""

    do: Literal["share"] = "share"
    matrix: Literal["qkv", "hidden", "gate_up", "lm_head"]
    worker: int = Field(ge=0, le=4095)
    groups: int = Field(ge=-(2**20), le=2**20)


class Knobs(Frozen):
    """Settings of the planner: a plan with them, for the model, target, formats and context of the schedule, takes its
    place. start: the preset that they change. Only the first edit of a list can do that."""

    do: Literal["knobs"] = "knobs"
    start: Literal["fast", "naive"] = "fast"
    settings: dict[Name, JsonValue]


Edit = Annotated[
    Move
    | Swap
    | Add
    | Remove
    | Replace
    | SetOp
    | SplitWaits
    | SplitSignals
    | Fuse
    | SplitLoop
    | SetLoop
    | AddWait
    | DropWait
    | SetWait
    | AddSignal
    | DropSignal
    | SetSignal
    | SetEntry
    | AddEntry
    | RemoveEntry
    | SetHeader
    | SetTable
    | Share
    | Knobs,
    Field(discriminator="do"),
]


class EditList(Frozen):
    """What a file of edits holds. repair: whether what the edits break is mended where there is one way to."""

    format: Literal["amk.edits/1"] = FORMAT
    repair: bool = True
    edits: tuple[Edit, ...] = Field(max_length=MAX_EDITS)
