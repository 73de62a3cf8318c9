"""A weight ring with every copy as an event of its own, for the judges."""

from __future__ import annotations

from amk.adversary.system_builder import SystemBuilder
from amk.validator.program.system import System


def ring_system(slots: int, chunks: int, *, drain_first: bool = True) -> System:
    """One owner and `chunks` copies through `slots` slots, each copy an agent of one event.

    The first `slots` copies are free; later ones are issued by the drain of the chunk `slots` before. With
    drain_first=False the issue comes one event early, before the slot is read: the classic race.
    """
    build = SystemBuilder()
    owner = build.agent("owner")
    full = [build.counter(name=f"full {s}") for s in range(slots)]
    issue = [build.counter(init=int(j < slots), name=f"issue {j}") for j in range(chunks)]
    for j in range(chunks):
        waited = build.event(owner, tag=j)
        build.wait(waited, full[j % slots], j // slots + 1)
        drained = build.event(owner, tag=j)
        build.read(drained, 0, j % slots, j % slots + 1, value=j)
        if j + slots < chunks:
            build.signal(drained if drain_first else waited, issue[j + slots])
    for j in range(chunks):
        copy = build.event(build.agent(f"copy {j}"), tag=j)
        build.wait(copy, issue[j], 1)
        build.write(copy, 0, j % slots, j % slots + 1, value=j)
        build.signal(copy, full[j % slots])
    return build.build()
