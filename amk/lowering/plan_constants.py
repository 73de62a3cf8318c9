"""The compile-time side of a schedule: shapes, shares, ring type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from amk.models.matrices import K_SPLIT, MATRICES, Matrix, MatrixName, matrix, share_table
from amk.schedule_ir.layout import k_splits
from amk.schedule_ir.memory import Stream
from amk.schedule_ir.schedule import Schedule
from amk.weights.weight_format import Chunk

_ESCAPED = {".": "Zd", "-": "Zh", "Z": "ZZ"}


def identifier(name: str) -> str:
    """A schedule name as part of a C++ identifier; names that differ in one character differ there."""
    return "".join(_ESCAPED.get(letter, letter) for letter in name)


def camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def constant_array(name: str, values: Sequence[int]) -> str:
    return f"__constant__ int {name}[{len(values)}] = {{{', '.join(map(str, values))}}};\n"


def float_literal(value: float) -> str:
    return f"{value:.9e}f"


def plan_struct(schedule: Schedule) -> str:
    model, kv = schedule.model, schedule.kv
    stream = schedule.streams[0]
    agents = next(r.count for r in schedule.roles if r.name == stream.role)
    numbers = {
        "kHidden": model.hidden, "kFfn": model.ffn, "kHeads": model.heads, "kKvHeads": model.kv_heads,
        "kHeadDim": model.head_dim, "kLayers": model.layers, "kContext": kv.context, "kKvBlock": kv.block,
        "kKvSplits": kv.splits, "kStreamAgents": agents, "kBatch": schedule.vectors, "kCaches": schedule.caches,
        "kRows": schedule.rows,
    }  # fmt: skip
    lines = [f"  static constexpr int {name} = {value};" for name, value in numbers.items()]
    functions = {"turns": kv.turns, "turn_heads": schedule.turn_heads}
    inline = "static __device__ __forceinline__ constexpr int"
    lines += [f"  {inline} {name}() {{ return {value}; }}" for name, value in functions.items()]
    lines.append(f"  static constexpr bool kLive = {str(schedule.live).lower()};")
    lines.append(f"  static constexpr bool kAccepts = {str(schedule.accepts).lower()};")
    lines.append(f"  static constexpr float kRmsEps = {float_literal(model.rms_eps)};")
    lines.append(f"  static constexpr float kQueryScale = {float_literal(model.head_dim**-0.5)};")
    lines.append(f"  using Cache = amk::{kv.dtype};")
    splits = k_splits(schedule)
    lines.append(_shares_struct(schedule, bool(splits)))
    for name in MATRICES:
        for chunk in stream.kinds(name):
            weights = _weights_type(chunk, stream.row_groups)
            for each in dict.fromkeys((1, splits.get(name, 1))):
                kind, shares = matrix_type(stream, name, chunk, each), share_table(name, each)
                lines.append(_matrix_struct(kind, shares, matrix(model, name), chunk.columns, weights))
    lines.append("  using Hidden = O;")
    return "struct Plan {\n" + "\n".join(lines) + "\n};\n"


def matrix_type(stream: Stream, name: MatrixName, chunk: Chunk, k_splits: int = 1) -> str:
    """The name, within Plan, of the matrix in chunks of this kind, whose columns are divided among so many workers."""
    kind, divided = stream.kinds(name).index(chunk), "Split" if k_splits > 1 else ""
    return f"{camel(name)}{divided}{kind or ''}"


def _matrix_struct(name: str, shares: str, shape: Matrix, columns: int, weights: str) -> str:
    numbers = {"kRows": shape.rows, "kK": shape.k, "kColumns": columns, "kChunks": shape.k_chunks(columns)}
    constants = ", ".join(f"{constant} = {value}" for constant, value in numbers.items())
    inline = "template <class C> static __device__ __forceinline__ int"
    return (
        f"  struct {name} {{\n    static constexpr int {constants};\n    using Weights = {weights};\n"
        f"    {inline} first(const C& c) {{ return c.shares.{shares}_first; }}\n"
        f"    {inline} count(const C& c) {{ return c.shares.{shares}_count; }}\n"
        f"    {inline} first_row(const C& c) {{ return min(first(c) * 8, kRows); }}\n"
        f"    {inline} end_row(const C& c) {{ return min((first(c) + count(c)) * 8, kRows); }}\n  }};"
    )


def _weights_type(chunk: Chunk, row_groups: int) -> str:
    """The type of amk/codes that reads the matrix's chunks."""
    form = chunk.weights
    if form.plain:
        return code_type(form.codes, row_groups)
    return code_type(form.codes, form.group or chunk.columns, str(form.zeros).lower())


def code_type(codes: str, *arguments: int | str) -> str:
    """The type of a kind of code. arguments: row groups of a chunk of plain numbers; of others columns of a group, and
    whether zero points are stored."""
    return f"amk::{camel(codes)}<{', '.join(map(str, arguments))}>"


def code_includes(codes: Iterable[str]) -> str:
    """The headers of kinds of codes."""
    return "".join(f'#include "amk/codes/{name}.cuh"\n' for name in sorted(set(codes)))


def codes_of(stream: Stream) -> set[str]:
    """Kinds of codes of its chunks."""
    return {chunk.weights.codes for name in MATRICES for chunk in stream.kinds(name)}


SHARES = ("qkv", "hidden", "gate_up", "lm_head")
ATTENTION = ("attn.head", "attn.split")
GATES = frozenset({"attn.gate", "attn.serves"})
"""Tables that waits and signals of every layer read."""


def table_entry(name: str) -> str:
    """The worker's entry of a table."""
    return f"c.shares.{_share(name)}" if name in GATES else f"t_{identifier(name)}[c.worker]"


def _share(table: str) -> str:
    """The worker's entry of a table that every plan has, as device code calls it."""
    return table.replace(".", "_")


def _shares_struct(schedule: Schedule, divided: bool) -> str:
    """The worker's entries of tables, read once: a table look-up on the critical path costs a cache miss.

    divided: also those of products whose columns are divided among workers. hold() keeps them where they are: what
    comes from constant memory is read again wherever a register is short.
    """
    attention = (*ATTENTION, *sorted(GATES & schedule.tables.keys()))
    tables = [f"{s}.{f}" for s in SHARES for f in ("first", "count")] + list(attention)
    tables += [f"{K_SPLIT}.{f}" for f in ("first", "count", "index")] if divided else []
    names = [_share(table) for table in tables]
    loads = ", ".join(f"t_{identifier(table)}[w]" for table in tables)
    held = ", ".join(f"{n} = amk::held({n})" for n in names if not n.endswith("_first"))
    return (
        f"  struct Shares {{\n    int {', '.join(names)};\n"
        f"    static __device__ __forceinline__ Shares of(int w) {{ return {{{loads}}}; }}\n"
        f"    __device__ __forceinline__ void hold() {{ {held}; }}\n  }};"
    )


def ring_type(schedule: Schedule, carries: bool = False) -> str:
    """carries: see `owed`."""
    stream = schedule.streams[0]
    ahead = str(stream.run_ahead).lower()
    if stream.engine == "cp_async":
        return f"using Ring = amk::CopyRing<{stream.slots}, {stream.chunk_bytes}, {ahead}>;\n"
    fence = str(stream.refill_fence).lower()
    owes = str(carries).lower()
    return f"using Ring = amk::BulkRing<{stream.slots}, {stream.chunk_bytes}, {ahead}, {fence}, {owes}>;\n"
