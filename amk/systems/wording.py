"""What events and findings are called: in the names of the system, at the lines of its sources."""

from __future__ import annotations

from amk.report.diagnostic import Where
from amk.systems.flat_judge import KIND_NAMES, BlockedHead, System
from amk.systems.flat_system import FlatSystem

VERBS = dict(zip(KIND_NAMES, ("reads", "writes", "adds to", "adds to"), strict=True))


def where(system: FlatSystem, event: int) -> Where:
    """The event's line in the user's own file; without one, its agent in the system's file."""
    source = system.source_of(event)
    if source is None:
        known = event < system.block.events
        return Where(path=f"/systems/block/agent_first/{int(system.block.agent_of[event]) if known else 0}")
    file, _, line = source.rpartition(":")
    return Where(file=file, line=int(line)) if file and line.isdecimal() and len(line) < 10 else Where(file=source)


def at(system: FlatSystem, event: int) -> str:
    source = system.source_of(event)
    return "" if source is None else f" at {source}"


def who(system: FlatSystem, event: int, edges: System | None = None) -> str:
    """`producer, event 3 at ring.cu:12`; edges: the system that the event is one of, if not `block`."""
    of = edges or system.block
    return f"{of.agent_name(int(of.agent_of[event]))}, event {int(of.index_of[event])}{at(system, event)}"


def does(system: System, event: int) -> str:
    """What the event waits for, touches and signals."""
    parts = []
    for k in range(*system.wait_first[event : event + 2].tolist()):
        parts.append(f"waits for {system.counter_name(int(system.wait_counter[k]))} >= {int(system.wait_threshold[k])}")
    parts += touches(system, event)
    for k in range(*system.signal_first[event : event + 2].tolist()):
        parts.append(f"adds {int(system.signal_amount[k])} to {system.counter_name(int(system.signal_counter[k]))}")
    return ", ".join(parts) or "does nothing"


def touches(system: System, event: int) -> list[str]:
    """Its accesses: `writes slots[0:16]`."""
    parts = []
    for k in range(*system.access_first[event : event + 2].tolist()):
        verb = VERBS[KIND_NAMES[int(system.access_kind[k])]]
        name, lo, hi = system.buffer_name(int(system.access_buffer[k])), system.access_lo[k], system.access_hi[k]
        parts.append(f"{verb} {name}[{int(lo)}:{int(hi)}]")
    return parts


def blocked(system: FlatSystem, head: BlockedHead) -> str:
    """Why a blocked event never starts, and who could still let it go on."""
    block = system.block
    name = block.counter_name(head.counter)
    missing = ", ".join(f"{block.agent_name(agent)} {amount}" for agent, amount in head.missing[:4])
    owed = f"still to come, if they went on: {missing}" if missing else "nothing adds to it any more"
    return f"{who(system, head.event)}: waits for {name} >= {head.threshold}, which is at {head.value}; {owed}"


def legs(system: System, order: tuple[tuple[int, int], ...], most: int = 8) -> str:
    """An interleaving in words: the last turns, each with how far its agent gets."""
    reached = [0] * system.agents
    turns = []
    for agent, count in order:
        reached[agent] += count
        turns.append(f"{system.agent_name(agent)} to event {reached[agent]}")
    left_out = f"... ({len(turns) - most} turns before), " if len(turns) > most else ""
    return left_out + ", then ".join(turns[-most:])
