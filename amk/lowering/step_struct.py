"""One step as a C++ struct: constants for integers, accessors for buffers and layer indices."""

from __future__ import annotations

from types import UnionType
from typing import Any, get_args, get_origin

from amk.lowering.abi import C_TYPES, member
from amk.lowering.expression import expression
from amk.lowering.plan_constants import camel, matrix_type
from amk.models.matrices import K_SPLIT, MatrixName
from amk.schedule_ir.expr import Env
from amk.schedule_ir.in_flight import blocks_together
from amk.schedule_ir.launch_needs import static_needs
from amk.schedule_ir.memory import Buffer
from amk.schedule_ir.ops import Op
from amk.schedule_ir.ops.attend import AttendOp
from amk.schedule_ir.ops.attention import sharing
from amk.schedule_ir.ops.base import multiplied, rows_held
from amk.schedule_ir.ops.precondition import Site
from amk.schedule_ir.ops.staging import Staging
from amk.schedule_ir.schedule import Schedule


def step_struct(
    name: str, op: Op, schedule: Schedule, slices: frozenset[str] = frozenset(), *, warps_met: bool = False,
    in_loop: bool = False,
) -> str:  # fmt: skip
    """Fields of `op` by kind: role, matrix, buffer, optional buffer, expression, integer. Streams have no accessor.

    slices: global buffers [workers, n] that the op takes for shared memory of the worker, beside partial sums. In a
    step of several tokens, k<Field>Row counts the elements from one row of a buffer to the next.
    warps_met: see `lanes`. in_loop: `op` is the first of the parts that a loop over parts runs.
    """
    buffers = {b.name: b for b in schedule.buffers}
    role = next(r for r in schedule.roles if r.name == op.role)
    lines = [f"  static constexpr int kFirst = {role.first}, kAgents = {role.count};"]
    if isinstance(op, AttendOp):
        share = sharing(schedule.geometry(), role.count)
        lines.append(f"  static constexpr int kTogether = {blocks_together(schedule, share)};")
    lines += _of_vector(op, warps_met, in_loop)
    if (name_of := multiplied(op)) is not None:
        lines.append(f"  using Matrix = Plan::{_matrix(op, name_of, schedule)};")
    for field, info in type(op).model_fields.items():
        value = getattr(op, field)
        if field in ("op", "role", "stream", "matrix"):
            continue
        if _optional(info.annotation):
            lines.append(f"  static constexpr bool kHas{camel(field)} = {str(value is not None).lower()};")
        if isinstance(value, str):
            each = buffers[value].elements // schedule.launch.workers
            sliced = value in slices or _sliced(field, buffers[value])
            lines.append(_buffer_accessor(field, buffers[value], each if sliced else None))
            if (held := rows_held(op, field, schedule.batch, schedule.vectors)) > 1:
                row = buffers[value].elements // held
                lines.append(f"  static constexpr int k{camel(field)}Row = {row};")
        elif _is_expression(info.annotation):
            lines.append(f"  static __device__ __forceinline__ int {field}(const Ctx& c) {{ return {_layer(value)}; }}")
        elif isinstance(value, int):
            lines.append(f"  static constexpr int k{camel(field)} = {int(value)};")
    lines += [f"  static constexpr int k{camel(name)} = {n};" for name, n in op.numbers(schedule.geometry()).items()]
    site = Site(op, Env(loops={"t": 0, "n": 0, "l": 0}, worker=0), schedule.geometry())
    lines += [f'  static_assert({need.holds.shown(site)}, "{need.message}");' for need in static_needs(op)]
    return f"struct {name} {{\n" + "\n".join(lines) + "\n};\n"


def _of_vector(op: Op, warps_met: bool, in_loop: bool) -> list[str]:
    """What steps have that stage a vector or multiply it. adds: whether earlier parts left sums that the step adds to.
    k_part: the part that it stages. kCut: parts of all columns, whichever worker has them."""
    lines = [f"  static constexpr bool kMet = {str(warps_met).lower()};"] if isinstance(op, Staging) else []
    first = getattr(op, "k_part", None)
    if "k_splits" in type(op).model_fields:
        cut = getattr(op, "k_splits") * getattr(op, "k_parts", 1)  # noqa: B009
        lines.append(f"  static constexpr int kCut = {cut};")
    if first is None:
        return lines
    part, adds = ("kKPart + c.p", "c.p > 0") if in_loop else ("kKPart", "false")
    adds = "true" if first else adds
    lines.append(f"  static __device__ __forceinline__ bool adds(const Ctx& c) {{ return {adds}; }}")
    if isinstance(op, Staging):
        if getattr(op, "k_splits", 1) > 1:
            part = f"{part} + c.shares.{K_SPLIT}_index * kKParts"
        lines.append(f"  static __device__ __forceinline__ int k_part(const Ctx& c) {{ return {part}; }}")
    return lines


def _sliced(field: str, buffer: Buffer) -> bool:
    """Whether these are partial sums of which every worker has a slice."""
    return field == "part" and buffer.space == "global"


def _matrix(op: Op, name: MatrixName, schedule: Schedule) -> str:
    """The matrix in the chunks of the op's layers, which are alike in all iterations of a loop (AMK405)."""
    stream = next(s for s in schedule.streams if s.name == getattr(op, "stream"))  # noqa: B009
    layer = Env(loops={"l": 0}, worker=0).eval_int(getattr(op, "layer", 0))
    splits = getattr(op, "k_splits", 1) if type(op).of_split else 1
    return matrix_type(stream, name, stream.chunk(name, layer), splits)


def _optional(annotation: Any) -> bool:
    return type(None) in get_args(annotation)


def _is_expression(annotation: Any) -> bool:
    return get_origin(annotation) is UnionType and int in get_args(annotation)


def _layer(value: int | dict[str, int]) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value.get('l', 0)} * c.l + {value.get('1', 0)}"


def _buffer_accessor(field: str, buffer: Buffer, each: int | None) -> str:
    """each: elements of a worker's slice, None where there are no slices."""
    c_type = C_TYPES[buffer.dtype]
    if each is not None:
        result, text = f"{c_type}*", f"c.globals.{member(buffer.name)} + c.worker * {each}"
    elif buffer.space == "shared":
        result, text = f"{c_type}*", f"reinterpret_cast<{c_type}*>(c.shared + {buffer.offset})"
    elif buffer.tagged:
        tag = expression(buffer.tag if buffer.tag is not None else 0)
        result = f"amk::Tagged<{c_type}>"
        text = f"{{c.globals.{member(buffer.name)}, static_cast<amk::u32>({tag})}}"
    else:
        result, text = f"amk::Plain<{c_type}>", f"{{c.globals.{member(buffer.name)}}}"
    return f"  static __device__ __forceinline__ {result} {field}(const Ctx& c) {{ return {text}; }}"
