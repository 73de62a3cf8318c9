"""The task graph that Mirage's persistent kernels (MPK) dump: tasks, events that count their triggers, tensors.

A task starts when the event it depends on has been triggered as often as it counts. It reads its inputs, writes its
outputs, and triggers its event once. Which worker runs a task is decided at run time, so every task is an agent of its
own. SAFE is then safe for every assignment in which no worker blocks on a task that is queued behind another. Tasks
that depend on later tasks are refused by name. Tensors that no task writes, such as weights, are left out: nothing can
race with their readers.

The caller may say what the file does not. `adds`: types of tasks whose outputs are sums, added atomically.
`per_request`: types of tasks that write only the tokens of their own request, which are known at run time. Such a
tensor is one buffer for each request, and all other tasks touch all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from amk.report.diagnostic import AmkError, Diagnostic, Where
from amk.report.schema import schema_error
from amk.systems.agent import Agent
from amk.systems.builder import System
from amk.systems.names import Buffer, Counter

NO_EVENT: Final = 0x7FFFFFFFFFFFFFFE
NO_TENSOR: Final = "nullptr"
LOCAL: Final = 1 << 32
"""Event numbers from here on are of another GPU, or of NVSHMEM."""
BYTES: Final = {93: 1, 94: 2, 95: 4, 96: 8}
"""Of a data type, by the type's number without its last digit."""
MOST_BOXES: Final = 4096
Box = tuple[int, int]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class Tensor(_Model):
    base_ptr: str
    offset: int = Field(ge=0)
    data_type: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]


class Task(_Model):
    task_type: int
    dependent_event: int
    trigger_event: int
    request_id: int = 0
    inputs: tuple[Tensor, ...] | None = ()
    outputs: tuple[Tensor, ...] | None = ()


class Event(_Model):
    num_triggers: int = Field(ge=0)


class TaskGraph(_Model):
    all_tasks: tuple[Task, ...]
    all_events: tuple[Event, ...]


def task_graph(value: object, file: str, adds: Collection[int] = (), per_request: Collection[int] = ()) -> System:
    """value: the JSON of the dump; file: what diagnostics call it; adds, per_request: types of tasks, see above."""
    try:
        graph = TaskGraph.model_validate_json(_text(value))
    except ValidationError as error:
        raise schema_error(error, file) from error
    return _Reader(graph, file, frozenset(adds), frozenset(per_request)).system()


def _text(value: object) -> str:
    import json

    return json.dumps(value)


class _Reader:
    def __init__(self, graph: TaskGraph, file: str, adds: frozenset[int], per_request: frozenset[int]) -> None:
        self.graph, self.file, self.adds, self.per_request = graph, file, adds, per_request
        self.sys = System(file)
        self.buffers: dict[str, Buffer] = {}
        self.written = {tensor.base_ptr for task in graph.all_tasks for tensor in task.outputs or ()} - {NO_TENSOR}
        self.requests: dict[str, set[int]] = defaultdict(set)
        """Of tensors that are written by request: by which."""
        for task in graph.all_tasks:
            for tensor in task.outputs if task.outputs and task.task_type in per_request else ():
                self.requests[tensor.base_ptr].add(task.request_id)
        self.sizes = self._sizes()

    def _sizes(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for number, task in enumerate(self.graph.all_tasks):
            for tensor, _, path in self.touched(task, f"/all_tasks/{number}"):
                sizes[tensor.base_ptr] = max(sizes.get(tensor.base_ptr, 1), *(hi for _, hi in self.boxes(tensor, path)))
        return sizes

    def refuse(self, code: str, message: str, path: str) -> AmkError:
        return AmkError(Diagnostic(code, message, where=Where(file=self.file, path=path)))

    def boxes(self, tensor: Tensor, path: str) -> list[Box]:
        """Bytes [lo, hi) of each contiguous run."""
        item = BYTES.get(tensor.data_type // 10)
        if item is None:
            raise self.refuse("AMK205", f"data type {tensor.data_type} has no size here", path)
        if len(tensor.dims) != len(tensor.strides) or min((*tensor.dims, 1)) < 1 or min((*tensor.strides, 0)) < 0:
            raise self.refuse("AMK005", "a tensor has positive dims, and as many strides", path)
        run, outer = item, list(zip(tensor.dims, tensor.strides, strict=True))
        while outer and outer[-1][1] * item == run:
            run *= outer.pop()[0]
        starts = [tensor.offset]
        for size, stride in outer:
            starts = [start + k * stride * item for start in starts for k in range(size)]
            if len(starts) > MOST_BOXES:
                raise self.refuse("AMK205", f"a tensor of more than {MOST_BOXES} runs of bytes", path)
        return [(start, start + run) for start in starts]

    def system(self) -> System:
        events = [self.sys.counter(f"event {n}") for n in range(len(self.graph.all_events))]
        first: dict[int, int] = {}
        for number, task in enumerate(self.graph.all_tasks):
            first.setdefault(task.trigger_event, number)
        for number, task in enumerate(self.graph.all_tasks):
            agent = self.sys.agent(f"task {number} (type {task.task_type})", cta=number)
            with self.sys.at((f"{self.file}:all_tasks", number)):
                self.task(agent, number, task, events, first)
        return self.sys

    def task(self, agent: Agent, number: int, task: Task, events: list[Counter], first: dict[int, int]) -> None:
        path = f"/all_tasks/{number}"
        waited = self.event(task.dependent_event, f"{path}/dependent_event")
        if waited is not None and self.graph.all_events[waited].num_triggers:
            if first.get(task.dependent_event, -1) > number:
                message = "the task depends on tasks behind it; whether a worker blocks on it is not decided here"
                raise self.refuse("AMK205", message, path)
            agent.wait(events[waited], self.graph.all_events[waited].num_triggers)
        for tensor, write, at in self.touched(task, path):
            does = agent.read if not write else agent.add if task.task_type in self.adds else agent.write
            mine = write and task.task_type in self.per_request
            for buffer in self.copies(tensor.base_ptr, task.request_id if mine else None):
                for lo, hi in self.boxes(tensor, at):
                    does(buffer, lo, hi)
        triggered = self.event(task.trigger_event, f"{path}/trigger_event")
        if triggered is not None:
            agent.signal(events[triggered])

    def touched(self, task: Task, path: str) -> Iterator[tuple[Tensor, bool, str]]:
        """Tensors, whether they are written, and where the file says so."""
        for kind in ("inputs", "outputs"):
            for k, tensor in enumerate(getattr(task, kind) or ()):
                if tensor.base_ptr in self.written:
                    yield tensor, kind == "outputs", f"{path}/{kind}/{k}"

    def copies(self, name: str, request: int | None) -> list[Buffer]:
        """What stands for the tensor; request: whose tokens are touched, None: anybody's."""
        among = self.requests.get(name)
        if among is None:
            return [self.buffer(name, self.sizes[name])]
        chosen = sorted(among) if request is None else [request]
        return [self.buffer(f"{name} of request {one}", self.sizes[name]) for one in chosen]

    def buffer(self, name: str, size: int) -> Buffer:
        if name not in self.buffers:
            self.buffers[name] = self.sys.buffer(name, size)
            self.sys.initial(self.buffers[name], 0, size)
        return self.buffers[name]

    def event(self, number: int, path: str) -> int | None:
        if number in (NO_EVENT, -1):
            return None
        if number >= LOCAL:
            raise self.refuse("AMK205", "an event of another GPU or of NVSHMEM", path)
        if not 0 <= number < len(self.graph.all_events):
            raise self.refuse("AMK009", f"there is no event {number}", path)
        return number
