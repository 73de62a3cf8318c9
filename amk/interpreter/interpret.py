"""A numpy machine that executes a schedule event by event, under any legal interleaving.

Agents are warps with a program counter. An event is one step of one agent: its waits hold, its op's reference runs, its
signals are made. The `Order` chooses the next of the enabled events. Unwritten memory is poison. Faults are a read of
poison, an access out of bounds, a ring slot with the wrong chunk, and a deadlock. They are reported with the agent.

Copies: 'whole' takes the tiles straight from the logical matrices. 'events' makes every chunk of the weight streams its
own copy into a ring slot and its own drain. The drains of a gemv are then separate events, and its reference runs with
the last of them on the bytes that were drained.

Cost: about 3 microseconds per event and 10 to 60 per op reference.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from amk.interpreter.agent import Agent, Drain
from amk.interpreter.constants import constants
from amk.interpreter.counters import Barrier, CounterFamily
from amk.interpreter.fault import Blocked, Deadlock, Fault, StaleRegisters
from amk.interpreter.memory import Numerics, Storage
from amk.interpreter.order import Order, RoundRobin
from amk.interpreter.packing import packed_arrays
from amk.interpreter.program import Entry, Flattener
from amk.interpreter.rings import Copy, Rings
from amk.interpreter.whole import LogicalWeights, gemv_share
from amk.models.row_groups import TensorSource
from amk.schedule_ir.expr import Env, IntArray
from amk.schedule_ir.layout import stream_layout
from amk.schedule_ir.ops.base import Op, owned_groups, owned_split
from amk.schedule_ir.ops.begin import STATE
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.ops.refill import RefillOp
from amk.schedule_ir.schedule import Schedule
from amk.weights.bfloat import Bits
from amk.weights.quantised import Quantiser, nearest

Copies = Literal["events", "whole"]
Event = Agent | Copy


class Machine:
    """Memory, counters and weights of a schedule; `launch` runs tokens, `set` and `get` are the host's access."""

    def __init__(
        self,
        schedule: Schedule,
        source: TensorSource,
        *,
        numerics: Numerics = "exact",
        copies: Copies = "whole",
        packed: Bits | None = None,
        quantise: Quantiser = nearest,
    ) -> None:
        """source: the tensors; packed: the packed buffer if the caller has it already (copies='events' only)."""
        self.schedule = schedule
        self._geometry = schedule.geometry()
        self._tables: dict[str, IntArray] = {n: np.array(t, np.int64) for n, t in schedule.tables.items()}
        streams = schedule.streams
        external = {b for s in streams for b in (s.source, s.ring, s.full) if b}
        self._storage = Storage(schedule, numerics, frozenset(external))
        for name, data in constants(schedule, source).items():
            self._storage.set(name, data)
        self._counters: dict[str, CounterFamily[Agent]] = {c.name: CounterFamily(c) for c in schedule.counters}
        self._tags = {b.name: b.tag for b in schedule.buffers if b.tagged and b.tag is not None}
        self._mentioned: dict[int, tuple[str, ...]] = {}
        self._weights = LogicalWeights(schedule.model, source, streams[0], quantise) if copies == "whole" else None
        self._rings: dict[str, Rings] = {}
        if copies == "events":
            chunks, scales = packed_arrays(schedule, source, quantise) if packed is None else (packed, {})
            for name, data in scales.items():
                self._storage.set(name, data)
            self._rings = {s.name: Rings(s, stream_layout(schedule, s), chunks, self._storage) for s in streams}
        self._barriers: dict[tuple[int, int], Barrier[Agent]] = {}
        self._order: Order[Event] = RoundRobin()
        self.events = 0

    def set(self, buffer: str, data: NDArray[Any]) -> None:
        """The host writes a whole global buffer between launches."""
        self._storage.set(buffer, data)

    def get(self, buffer: str) -> NDArray[Any]:
        """A copy of a global buffer, flat."""
        return self._storage.globals[buffer].copy()

    def memory(self, buffer: str) -> NDArray[Any]:
        """A global buffer itself, flat."""
        return self._storage.globals[buffer]

    def counter(self, name: str) -> list[int]:
        """Values of a counter family, flat."""
        return list(self._counters[name].values)

    def launch(self, tokens: int, order: Order[Event] | None = None) -> None:
        """Run `tokens` tokens from the state buffer on. Raises a Fault for what no correct schedule does."""
        self._order = RoundRobin() if order is None else order
        self._storage.forget_scratch()
        self._barriers.clear()
        state = dict(zip(STATE, self._state(), strict=True))
        agents = self._agents(tokens, state["epoch"], state["pos"])
        for rings in self._rings.values():
            for worker in rings.rings:
                for ring in worker:
                    ring.begin(tokens)
                    if rings.stream.run_ahead:
                        self._push(*ring.issue(rings.stream.slots))
        self._push(*(a for a in agents if not a.finished))
        self._run()
        stuck = tuple(self._blocked(a) for a in agents if not a.finished)
        if stuck:
            for family in self._counters.values():
                family.forget_waiters()
            for words in self._storage.tagged.values():
                words.forget_waiters()
            raise Deadlock(stuck)

    def _state(self) -> list[int]:
        """The state buffer; registers start from it, counters count epochs since it was zero."""
        host = Agent(self._storage, 0, 0, "host", [])
        return [int(v) for v in host.read_int("state", 0, len(STATE))]

    def _agents(self, tokens: int, epoch: int, pos: int) -> list[Agent]:
        agents = []
        sequence = self.schedule.sequences
        for program in self.schedule.programs:
            flattener = Flattener(self.schedule, program, tokens, epoch)
            lists: dict[tuple[int, ...], list[Entry]] = {}
            for warp in range(self.schedule.launch.warps):
                # Warps with the same number in every role run the same list.
                key = tuple(warp - r.first if r.first <= warp < r.first + r.count else -1 for r in self.schedule.roles)
                if key not in lists:
                    lists[key] = flattener.entries(warp)
                for worker in range(program.first, program.first + program.count):
                    agent = Agent(self._storage, worker, warp, program.name, lists[key])
                    agent.position, agent.sequence = pos, sequence[worker]
                    agents.append(agent)
        return agents

    def _push(self, *events: Event) -> None:
        for event in events:
            self._order.push(event)

    def _run(self) -> None:
        order, advance = self._order, self._advance
        while order:
            event = order.pop()
            self.events += 1
            if isinstance(event, Copy):
                if (waiter := self._rings[event.ring.stream.name].land(event)) is not None:
                    order.push(waiter)
                continue
            try:
                runnable = advance(event)
            except Fault as fault:
                fault.locate(event.worker, event.warp, event.entry.place(event.program))
                raise
            if runnable:
                order.push(event)

    def _advance(self, agent: Agent) -> bool:
        """One event of `agent`; False when it blocked or has finished."""
        entry = agent.entries[agent.pc]
        step = entry.step
        if entry.epoch is not None and agent.regs.get("epoch") != entry.epoch:
            raise StaleRegisters(f"its registers are of token {agent.regs.get('epoch', 'none')}, not {entry.epoch}")
        if step.waits and not self._waits_hold(agent, entry):
            return False
        if entry.barrier is not None:
            if not self._meet(agent, entry.barrier.id, entry.barrier.agents):
                return False
        elif entry.gemv is not None:
            if (progress := self._multiply(agent, entry.gemv)) != "done":
                return progress == "more"
        elif entry.refill is not None:
            self._refill(agent, entry.refill)
        elif not entry.silent and not self._execute(agent, entry):
            return False
        if step.signals:
            self._signal(agent, entry)
        agent.waits_held = 0
        agent.pc += 1
        return agent.pc < len(agent.entries)

    def _execute(self, agent: Agent, entry: Entry) -> bool:
        """Run the op's reference; False if a tagged word that it reads does not carry its tag yet."""
        op, env = entry.step.op, agent.env(self._tables)
        if self._tags and (names := self._tagged_names(op)):
            agent.tags = {name: env.eval_int(self._tags[name]) for name in names}
            if (word := self._missing_word(agent, op, env)) is not None:
                name, place = word
                self._storage.tagged[name].block(place, agent.tags[name], agent)
                return False
        op.reference(env, self._geometry, agent)
        if self._storage.woken:
            self._push(*self._storage.woken)
            self._storage.woken.clear()
        return True

    def _tagged_names(self, op: Op) -> tuple[str, ...]:
        """Tagged buffers that the op mentions."""
        names = self._mentioned.get(id(op))
        if names is None:
            fields = (getattr(op, field) for field in type(op).model_fields)
            names = tuple(dict.fromkeys(v for v in fields if isinstance(v, str) and v in self._tags))
            self._mentioned[id(op)] = names
        return names

    def _missing_word(self, agent: Agent, op: Op, env: Env) -> tuple[str, int] | None:
        """A tagged word that the op declares to read and that does not carry its tag, as (buffer, word)."""
        for access in op.accesses(env, self._geometry):
            if access.kind == "read" and access.buffer in agent.tags:
                words = self._storage.tagged[access.buffer]
                word = words.missing(access.lo, access.hi, agent.tags[access.buffer])
                if word is not None:
                    return access.buffer, word
        return None

    def _waits_hold(self, agent: Agent, entry: Entry) -> bool:
        """Conditions are monotone, so each wait is checked until it held once."""
        waits = entry.step.waits
        env = agent.env(self._tables)
        while agent.waits_held < len(waits):
            wait = waits[agent.waits_held]
            family = self._counters[wait.counter]
            flat = family.place(tuple(env.eval_int(i) for i in wait.index))
            least = env.eval_int(wait.at_least)
            if family.values[flat] < least:
                family.block(flat, least, agent)
                return False
            agent.waits_held += 1
        return True

    def _signal(self, agent: Agent, entry: Entry) -> None:
        env = agent.env(self._tables)
        for signal in entry.step.signals:
            amount = env.eval_int(signal.add)
            if amount:
                family = self._counters[signal.counter]
                self._push(*family.add(family.place(tuple(env.eval_int(i) for i in signal.index)), amount))

    def _meet(self, agent: Agent, number: int, agents: int) -> bool:
        """Barrier: arrive once, then leave when this agent's round is complete."""
        key = (agent.worker, number)
        barrier = self._barriers.get(key)
        if barrier is None:
            barrier = self._barriers[key] = Barrier()
        rounds = agent.rounds.get(number, 0)
        target = agents * (rounds + 1)
        if not agent.arrived:
            agent.arrived = True
            self._push(*barrier.arrive())
        if barrier.arrivals < target:
            barrier.block(target, agent)
            return False
        agent.arrived = False
        agent.rounds[number] = rounds + 1
        return True

    def _multiply(self, agent: Agent, op: GemvOp) -> Literal["blocked", "more", "done"]:
        """The whole share at once, or one chunk of it; the sums are written with the last."""
        if self._weights is not None:
            gemv_share(op, agent.env(self._tables), self._geometry, agent, self._weights)
            return "done"
        if agent.drain is None:
            agent.drain = self._begin_drain(agent, op)
        drain = agent.drain
        ring = drain.ring
        if drain.remaining:
            if not ring.ready():
                ring.waiter = agent
                return "blocked"
            more = drain.take()
            ring.hold(op.deferred - drain.remaining)
            ahead = ring.drained + ring.stream.slots
            self._push(*ring.issue(ahead if ring.stream.run_ahead else min(ahead, ring.drained + drain.remaining)))
            if more:
                return "more"
        op.reference(agent.env(self._tables), self._geometry, agent)
        agent.drain = None
        return "done"

    def _refill(self, agent: Agent, op: RefillOp) -> None:
        if self._rings:
            self._push(*self._rings[op.stream].rings[agent.worker][agent.entry.agent].refill(op.most))

    def _begin_drain(self, agent: Agent, op: GemvOp) -> Drain:
        env = agent.env(self._tables)
        lo, hi, k_chunks = op.share(env, self._geometry)
        ring = self._rings[op.stream].rings[agent.worker][agent.entry.agent]
        if not ring.stream.run_ahead:
            self._push(*ring.issue(ring.drained + hi - lo))
        first = owned_groups(env, op.matrix, op.k_splits)[0]
        part = owned_split(env, op.k_splits) * op.k_parts + op.k_part
        return Drain(ring, (op.matrix, env.eval_int(op.layer), op.k_part), lo, hi, k_chunks, first, part)

    def _blocked(self, agent: Agent) -> Blocked:
        entry = agent.entry
        return Blocked(agent.worker, agent.warp, entry.place(agent.program), self._waited_for(agent, entry))

    def _waited_for(self, agent: Agent, entry: Entry) -> str:
        if agent.waits_held < len(entry.step.waits):
            wait, env = entry.step.waits[agent.waits_held], agent.env(self._tables)
            index = [env.eval_int(i) for i in wait.index]
            family = self._counters[wait.counter]
            value = family.values[family.place(tuple(index))]
            return f"{wait.counter}{index} >= {env.eval_int(wait.at_least)}, it is {value}"
        if entry.barrier is not None:
            barrier = self._barriers[agent.worker, entry.barrier.id]
            target = entry.barrier.agents * (agent.rounds.get(entry.barrier.id, 0) + 1)
            return f"barrier {entry.barrier.id}, {barrier.arrivals} of {target} arrivals"
        if (word := self._missing_word(agent, entry.step.op, agent.env(self._tables))) is not None:
            name, place = word
            return (
                f"word {place} of {name} with tag {agent.tags[name]}, it has {self._storage.tagged[name].tags[place]}"
            )
        return "its next chunk, whose copy was not issued"
