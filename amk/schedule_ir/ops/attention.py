"""Geometry shared by the attention ops: which worker owns which positions.

Cache positions are dealt in blocks of geo.kv_block, block b of every head to split b % geo.kv_splits. Worker tables
attn.head and attn.split name the (kv head, split) a worker serves; head -1 means none. In a batch every sequence has
kv heads of its own: head s * kv_heads + h is kv head h of sequence s (`Geometry.caches` in all). A split therefore owns
the same positions in every token, so cache rows never cross workers inside a launch.

A step that reads several rows of a sequence, at positions pos .. pos + rows - 1, has as many times the query vectors of
a kv head: query q is that of row q // group, query head q % group. It sees the positions up to its own row's. The
rows lie in one block or in two, so a worker appends none, some or all of them.

Rows may be the nodes of a tree. A launch is told which rows before it each row sees, as bits (`seen_before`). Besides
itself and the positions before the step a row sees those alone, and its queries and its key are rotated as at the
position behind them. Its key and value lie at pos + row, like those of a chain, so footprints are those of a chain.

In a live batch every sequence has a position of its own. A worker serves one head and so one sequence, and
the position that its ops see is that one's: what they touch depends on no other.

Where a batch has more KV heads than there are workers, a worker serves several, in kv.turns turns: in turn n head
attn.head + n * turn_heads, where there is one (`Geometry.turn_heads`, of which attn.head is one). Agents share out the
turns, and those of a turn are what all agents of the worker are elsewhere. Arrays of the worker have a part for each
turn. All sequences are then at one position, with one row each.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, cast

from amk.schedule_ir.expr import Env
from amk.schedule_ir.ops.base import Access, Geometry, Memory, ValueKey, split
from amk.schedule_ir.ops.precondition import TREE, Need, Site, Term, has

PARTIAL_EXTRA = 4
"""f32 words after the head_dim outputs of one partial: running maximum, sum of weights, two of padding."""


def place(env: Env) -> tuple[int, int]:
    """(kv head, split) of the worker; head is -1 when it takes no part."""
    return env.number("attn.head"), env.number("attn.split")


class Unit(NamedTuple):
    """What an agent does of one KV head of its worker. agent: its number among the `agents` that serve the head."""

    turn: int
    head: int
    split: int
    agent: int
    agents: int


def units(env: Env, geo: Geometry, agents: int) -> list[Unit]:
    """The KV heads that the agent serves, turn by turn; agents: those of the op's role."""
    head, part = place(env)
    if head < 0:
        return []
    if geo.kv_turns == 1:
        return [Unit(0, head, part, cast(int, env.agent), agents)]
    each = of_turn(agents, geo)
    first, mine = divmod(int(env.agent), each)
    turns = range(first, geo.kv_turns, agents // each) if first < min(geo.kv_turns, agents) else ()
    found = [Unit(turn, head + turn * geo.turn_heads, part, mine, each) for turn in turns]
    return [unit for unit in found if unit.head < geo.caches]


def of_turn(agents: int, geo: Geometry) -> int:
    """Agents that serve a turn, of those of a role; the others, if any are left over, serve none."""
    return agents // min(geo.kv_turns, agents)


QUERY_TILE = 8
"""Query vectors that a warp multiplies with the same keys at once."""


def last_row(pos: int, geo: Geometry) -> int:
    """The position of the step's last row."""
    return pos + geo.rows_each - 1


def active_splits(pos: int, geo: Geometry) -> int:
    """Number of splits that own a position that the step's last row sees; they are splits 0..n-1."""
    return min(geo.kv_splits, last_row(pos, geo) // geo.kv_block + 1)


def owns_position(pos: int, split_index: int, geo: Geometry) -> bool:
    return (pos // geo.kv_block) % geo.kv_splits == split_index


def agent_positions(pos: int, split_index: int, agent: int, agents: int, geo: Geometry) -> list[tuple[int, int]]:
    """Runs [lo, hi) of positions <= pos that `agent` reads: its contiguous share of every block of the split."""
    a0, a1 = split(geo.kv_block, agents, agent)
    runs = []
    for lap in range((pos // geo.kv_block - split_index) // geo.kv_splits + 1):
        first = (split_index + lap * geo.kv_splits) * geo.kv_block
        lo, hi = first + a0, min(first + a1, pos + 1)
        if lo < hi:
            runs.append((lo, hi))
    return runs


def group_size(geo: Geometry) -> int:
    """Query heads per kv head."""
    return geo.model.heads // geo.model.kv_heads


def queries(geo: Geometry) -> int:
    """Query vectors of a kv head in a step."""
    return geo.rows_each * group_size(geo)


def tile_columns(vectors: int, rows: int, agents: int) -> int:
    """Parts that a kv head's query vectors are dealt to; the agents of a part share the positions. One for one row."""
    return 1 if rows == 1 else min(-(-vectors // QUERY_TILE), agents)


def sharers(vectors: int, rows: int, agents: int) -> int:
    """Agents that share the positions of a split, and so partials of every query vector."""
    return agents // tile_columns(vectors, rows, agents)


def sharing(geo: Geometry, agents: int) -> int:
    """`sharers` of a schedule, of a role with so many agents."""
    return sharers(queries(geo), geo.rows_each, of_turn(agents, geo))


def attended(agent: int, agents: int, geo: Geometry) -> tuple[int, list[tuple[int, int]]]:
    """(share, [lo, hi) of the query vectors) of an agent of a turn: tiles in turn; none for one that is left over."""
    total = queries(geo)
    columns = tile_columns(total, geo.rows_each, agents)
    share = agent // columns
    if geo.rows_each == 1:
        return share, [(0, total)]
    some = share < sharers(total, geo.rows_each, agents)
    firsts = range(agent % columns * QUERY_TILE, total, columns * QUERY_TILE) if some else ()
    return share, [(first, min(first + QUERY_TILE, total)) for first in firsts]


def partial_width(geo: Geometry) -> int:
    return geo.model.head_dim + PARTIAL_EXTRA


def query_width(geo: Geometry, q: str) -> int:
    """Elements from one query vector to the next in buffer `q`."""
    return geo.buffers[q].shape[-1]


def query_rows(
    kind: Literal["read", "write"], q: str, vectors: tuple[int, int], layer: int, unit: Unit, geo: Geometry
) -> list[Access]:
    """The accesses to query vectors [q0, q1) of a kv head in buffer `q`."""
    (q0, q1), dim, width = vectors, geo.model.head_dim, query_width(geo, q)
    value: ValueKey = ("q", layer)
    first, at = (unit.head * queries(geo) + q0) * dim, (unit.turn * queries(geo) + q0) * width
    if width == dim or q1 == q0 + 1:
        return geo.span(kind, q, at, at + (q1 - 1 - q0) * width + dim, value, first)
    if geo.folded:
        size = geo.buffers[q].item_bytes
        found = geo.span(kind, q, at, at + dim, value, first)
        return [each._replace(times=q1 - q0, step=width * size, shift=dim * size) for each in found]
    rows = range(q1 - q0)
    return [a for n in rows for a in query_rows(kind, q, (q0 + n, q0 + n + 1), layer, unit, geo)]


def _wide_queries(site: Site) -> bool:
    buffer = site.buffer("q")
    return buffer is not None and buffer.shape[-1] >= site.geo.model.head_dim and buffer.shape[-1] % 4 == 0


QUERIES = Need("queries", Term(_wide_queries), "a query vector is whole and begins at 16 bytes")

TREE_WORDS = 2
"""32-bit words of a row's bits: enough for the rows of a step."""
TREE_OF_ROWS = Need(
    "tree", has("tree").equals(TREE), "rows are told which of them they see if and only if they are a tree"
)


def seen_before(mem: Memory, tree: str | None, row: int) -> list[int]:
    """The rows before `row` that it sees: all of them, or those whose bits are set in its words of buffer `tree`.

    Bits of the row itself and of those behind it mean nothing, so no content of the buffer leads out of the step.
    """
    if tree is None:
        return list(range(row))
    low, high = (int(word) & 0xFFFFFFFF for word in mem.read_int(tree, TREE_WORDS * row, TREE_WORDS * (row + 1)))
    bits = low | high << 32
    return [r for r in range(row) if bits >> r & 1]
