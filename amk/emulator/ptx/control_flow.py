"""An order of the instructions in which lanes of a warp meet again as soon as they can.

Property: of the lanes of a warp, those at the smallest place of the order run first. In the order every loop is
    contiguous and comes before what follows it. Both arms of a branch come before the point where they join. So lanes
    that parted at a branch are together again at its immediate postdominator at the latest.
Algorithm: strongly connected components in topological order. A component of several blocks is ordered in the same way
    without the edges back to its entry. Loops with several entries are ordered by one of them.
Cost: linear in blocks and edges for each depth of nesting.
"""

from __future__ import annotations

from collections.abc import Sequence

Graph = Sequence[Sequence[int]]


def layout(successors: Graph) -> list[int]:
    """Blocks in order; block 0 is the entry. Blocks that cannot be reached are left out."""
    return _ordered(successors, _reachable(successors), 0)


def _ordered(successors: Graph, blocks: set[int], entry: int) -> list[int]:
    order: list[int] = []
    for part in reversed(_components(successors, blocks, entry)):
        if len(part) == 1:
            order += part
        else:
            order += _ordered(successors, set(part), _entry_of(successors, part, blocks - set(part)))
    return order


def _entry_of(successors: Graph, part: Sequence[int], outside: set[int]) -> int:
    """A block of the component that an edge from elsewhere enters; the first by number if several are."""
    entered = {following for block in outside for following in successors[block]}
    return min((block for block in part if block in entered), default=min(part))


def _reachable(successors: Graph) -> set[int]:
    seen, stack = {0}, [0]
    while stack:
        for following in successors[stack.pop()]:
            if following not in seen:
                seen.add(following)
                stack.append(following)
    return seen


def _components(successors: Graph, blocks: set[int], entry: int) -> list[list[int]]:
    """Tarjan's components of `blocks` reachable from `entry`, edges into `entry` dropped, in reverse topological
    order."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    found: list[list[int]] = []
    work: list[tuple[int, int]] = [(entry, 0)]
    while work:
        block, at = work.pop()
        if at == 0:
            number[block] = low[block] = len(number)
            path.append(block)
            on_path.add(block)
        edges = [following for following in successors[block] if following in blocks and following != entry]
        if at > 0:
            low[block] = min(low[block], low[edges[at - 1]])
        descended = False
        for place in range(at, len(edges)):
            following = edges[place]
            if following not in number:
                work += [(block, place + 1), (following, 0)]
                descended = True
                break
            if following in on_path:
                low[block] = min(low[block], number[following])
        if descended or low[block] != number[block]:
            continue
        part: list[int] = []
        while not part or part[-1] != block:
            part.append(path.pop())
        on_path.difference_update(part)
        found.append(part)
    return found
