"""Schedule -> CUDA C++: the synchronisation skeleton and one call per step.

Every step becomes a struct of constants and accessors, made from its op's fields, and a call of the device function of
the same name; nothing here knows what an op does. Waits, signals and barriers are printed where the schedule has them;
many parts of a product are one loop (`printed`).
"""

from __future__ import annotations

from collections.abc import Callable

from amk.lowering import refusal
from amk.lowering.abi import COUNTER_STRIDE, Abi, abi, flat_index, member
from amk.lowering.deferred_refills import carries
from amk.lowering.expression import expression
from amk.lowering.plan_constants import code_includes, codes_of, plan_struct, ring_type
from amk.lowering.printed import PartLoop, Printed, PrintedLoop, PrintedStep, printed
from amk.lowering.step_struct import step_struct
from amk.lowering.tables import array_text
from amk.schedule_ir.expr import Expr
from amk.schedule_ir.ops import BarrierOp, SignalOp, WaitOp
from amk.schedule_ir.schedule import Loop, Node, Schedule, Signal, Step, Wait

KERNEL = "amk_decode"

MOST_POSITIONS = 32
"""Of a block of the cache, scores that a lane keeps in registers; plans have one to four. Compilers take 96 s for twice
as many."""


def emit(schedule: Schedule, *, trace: bool = False) -> str:
    """The translation unit of `schedule`; compile it with amk.lowering.compile.

    trace: every agent records the SM's cycle counter after each of its steps, for amk.lowering.trace. AMK601 for what
    has no code.
    """
    _check_unrolled(schedule)
    printer = _Printer(schedule, abi(schedule), trace)
    bodies = [
        printer.program(program.first, program.count, nodes)
        for program, nodes in zip(schedule.programs, printed(schedule), strict=True)
    ]
    ops = sorted({name for name in printer.ops})
    includes = "".join(f'#include "amk/ops/{name}.cuh"\n' for name in ops)
    return (
        '#include "amk/context.cuh"\n#include "amk/cells.cuh"\n#include "amk/ring.cuh"\n'
        + code_includes(codes_of(schedule.streams[0]))
        + includes
        + "\nnamespace {\n\n"
        + array_text(schedule)
        + printer.layout.struct()
        + plan_struct(schedule)
        + ring_type(schedule, carries(schedule))
        + "using Ctx = amk::Context<Plan, Globals, Ring>;\n\n"
        + "".join(printer.structs)
        + "\n}  // namespace\n\n"
        + _kernel(schedule, "".join(bodies))
    )


def _check_unrolled(schedule: Schedule) -> None:
    """AMK601 if a block of the cache has more positions than a compiler unrolls within a minute or two."""
    each = -(-schedule.kv.block // (32 * schedule.launch.warps))
    if each > MOST_POSITIONS:
        message = (
            f"no code is generated for {each:,} positions of a block of the cache in a lane, {MOST_POSITIONS} at most"
        )
        raise refusal.unsupported("AMK601", message)


def traced_steps(body: tuple[Node, ...], role_of_agent: Callable[[str], bool]) -> list[str]:
    """Labels of the steps that an agent runs in one token, in order, loops unrolled."""
    labels: list[str] = []
    for node in body:
        if isinstance(node, Step):
            if role_of_agent(node.op.role):
                matrix = getattr(node.op, "matrix", None)
                labels.append(f"{node.op.op} {matrix}" if matrix else node.op.op)
        else:
            labels += traced_steps(node.body, role_of_agent) * (node.count or 1)
    return labels


def trace_length(schedule: Schedule) -> int:
    """Marks of one agent per token: its start, then one per step; the same room for every agent."""
    loops = [n for p in schedule.programs for n in p.body if isinstance(n, Loop)]
    return 1 + max(len(traced_steps(loop.body, lambda role: True)) for loop in loops)


def _kernel(schedule: Schedule, body: str) -> str:
    stream = schedule.streams[0]
    offsets = {b.name: b.offset for b in schedule.buffers if b.space == "shared"}
    roles = {r.name: r for r in schedule.roles}
    role = roles[stream.role]
    full = "nullptr"
    if stream.full:
        full = f"reinterpret_cast<amk::u64*>(shared + {offsets[stream.full]}) + agent * {stream.slots}"
    threads = schedule.launch.warps * 32
    return f"""extern "C" __global__ void __launch_bounds__({threads}, {schedule.launch.ctas_per_sm})
{KERNEL}(const __grid_constant__ Globals globals) {{
  extern __shared__ __align__(128) char shared[];
  __shared__ amk::sync::Watchdog dog;
  if (threadIdx.x == 0) {{
    amk::sync::watchdog_start(dog, globals.watchdog_log, globals.abort_word, globals.stall_ns, blockIdx.x);
  }}
  amk::sync::cta_barrier<0, {threads}>();
  Ctx c{{globals, shared, dog, Ring{{}}, Plan::Shares::of(blockIdx.x), static_cast<int>(blockIdx.x),
        static_cast<int>(threadIdx.x / 32), static_cast<int>(threadIdx.x % 32)}};
  if ({_in_role(role.first, role.count)}) {{
    const int agent = c.warp - {role.first}, place = c.worker * {role.count} + agent;
    c.ring.start(shared + {offsets[stream.ring]} + agent * {stream.slots * stream.chunk_bytes},
                 {full},
                 amk::row_at<{stream.chunk_bytes}>(
                     reinterpret_cast<const char*>(globals.{member(stream.source)}), stream_base[place]),
                 stream_total[place], static_cast<int>(globals.tokens), c.lane);
  }}
{body}}}
"""


def _in_role(first: int, count: int) -> str:
    return f"c.warp >= {first} && c.warp < {first + count}"


class _Printer:
    """Prints programs and collects the step structs they need."""

    def __init__(self, schedule: Schedule, layout: Abi, trace: bool) -> None:
        self.schedule = schedule
        self.trace = trace
        self.tracing = False
        self.layout = layout
        self.structs: list[str] = []
        self.ops: set[str] = set()
        self.roles = {r.name: r for r in schedule.roles}
        self.counters = {c.name: c for c in schedule.counters}

    def program(self, first: int, count: int, body: tuple[Printed, ...]) -> str:
        inner = self.nodes(body, "  ")
        if count == self.schedule.launch.workers:
            return inner
        return f"  if (c.worker >= {first} && c.worker < {first + count}) {{\n{inner}  }}\n"

    def nodes(self, body: tuple[Printed, ...], pad: str) -> str:
        return "".join(self.node(node, pad) for node in body)

    def node(self, node: Printed, pad: str) -> str:
        match node:
            case PrintedStep():
                return self.step(node, pad)
            case PrintedLoop():
                return self.loop(node, pad)
            case PartLoop():
                inner = "".join(self.step(step, pad + "  ", in_loop=True) for step in node.body)
                head = f"for (c.p = 0; c.p < {node.count}; c.p = amk::held(c.p) + 1)"
                return f"{pad}#pragma unroll 1\n{pad}{head} {{\n{inner}{pad}}}\n"

    def loop(self, node: PrintedLoop, pad: str) -> str:
        loop, outside, self.tracing = node.loop, self.tracing, self.trace
        inner = self.nodes(node.body, pad + "  ")
        self.tracing = outside
        variable, bound = ("c.n", "static_cast<int>(globals.tokens)") if loop.var == "t" else ("c.l", str(loop.count))
        head = f"{pad}#pragma unroll 1\n{pad}for ({variable} = 0; {variable} < {bound}; ++{variable}) {{\n"
        if self.trace and loop.var == "t":
            head += f"{pad}  c.restart_trace({trace_length(self.schedule)});\n"
        return f"{head}{inner}{pad}}}\n"

    def step(self, node: PrintedStep, pad: str, in_loop: bool = False) -> str:
        step = node.step
        role = self.roles[step.op.role]
        lines = [self.wait(w) for w in step.waits]
        if node.lanes_meet:
            lines.append("amk::sync::warp_barrier();")
        lines += self.call(node, in_loop) + self.signals(step.signals)
        if self.tracing:
            lines.append("c.mark();")
        if role.count != self.schedule.launch.warps:
            inner = "".join(f"{pad}  {line}\n" for line in lines)
            return f"{pad}if ({_in_role(role.first, role.count)}) {{\n{inner}{pad}}}\n"
        return "".join(f"{pad}{line}\n" for line in lines)

    def call(self, node: PrintedStep, in_loop: bool) -> list[str]:
        op = node.step.op
        if isinstance(op, BarrierOp):
            return [f"amk::sync::cta_barrier<{op.id}, {op.agents * 32}>();"]
        if isinstance(op, WaitOp | SignalOp):
            return []
        name = f"S{len(self.structs)}"
        self.structs.append(step_struct(name, op, self.schedule, warps_met=node.warps_met, in_loop=in_loop))
        self.ops.add(op.op)
        return ["c.enter_step();", f"amk::ops::{op.op}<{name}>(c);"]

    def wait(self, wait: Wait) -> str:
        index = self.counter_index(wait.counter, wait.index)
        target = expression(wait.at_least)
        primitive = "wait_counter" if wait.order == "acquire" else "wait_hint"
        return (
            f"if (c.lane == 0) amk::sync::{primitive}(dog, c.warp, {index}, globals.counters + ({index}) * "
            f"{COUNTER_STRIDE}, {target}); amk::sync::warp_barrier();"
        )

    def signals(self, signals: tuple[Signal, ...]) -> list[str]:
        lines = ["amk::sync::warp_barrier();"] if signals else []
        for lane, signal in enumerate(signals):
            index = self.counter_index(signal.counter, signal.index)
            primitive = "signal_release" if signal.order == "release" else "signal_relaxed"
            amount = expression(signal.add)
            call = f"amk::sync::{primitive}(globals.counters + ({index}) * {COUNTER_STRIDE}, {amount});"
            guard = f"c.lane == {lane % 32}"
            if not isinstance(signal.add, int):
                guard += f" && {amount} != 0"
            lines.append(f"if ({guard}) {call}")
        return lines

    def counter_index(self, counter: str, index: tuple[Expr, ...]) -> str:
        flat = flat_index(self.counters[counter], index)
        return expression(flat | {"1": flat.get("1", 0) + self.layout.counter_base[counter]})
