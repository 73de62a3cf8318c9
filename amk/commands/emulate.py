"""`amk emulate`: a schedule's kernel as PTX on the CPU; its tokens and logits beside the interpreter's."""

from __future__ import annotations

import argparse
import importlib.util
import re
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from amk.commands.format_arguments import positive
from amk.commands.output import add_format, print_json, write_file
from amk.commands.schedule_file import read_schedule
from amk.commands.witness_file import MAX_BYTES, read_witness
from amk.engine.backends.request import first_state, request_buffers, sampling_buffer
from amk.engine.checkpoints.open_checkpoint import open_checkpoint
from amk.engine.checkpoints.random_checkpoint import RandomCheckpoint
from amk.engine.load import check_model
from amk.interpreter.fault import Fault
from amk.interpreter.interpret import Machine
from amk.lowering.abi import COUNTER_STRIDE, counter_names
from amk.lowering.compile import DEFAULT_OPTIONS, compile_ptx
from amk.lowering.emit import emit
from amk.lowering.stamp import stamped
from amk.models.row_groups import TensorSource
from amk.quantize.search import searched
from amk.report.diagnostic import AmkError, Diagnostic, Exit, Where, shown
from amk.report.json_file import read_json
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.sampling import GREEDY
from amk.schedule_ir.schedule import Schedule
from amk.weights.bfloat import to_bf16_bits

if TYPE_CHECKING:
    from amk.emulator.decode import Result
    from amk.emulator.footprints import Mismatch
    from amk.emulator.machine.machine import Order
    from amk.emulator.machine.report import Fault as EmulatedFault
    from amk.emulator.synchronisation import Difference

ROUNDING = 2.0**-7
"""Largest difference of logits, relative to the largest logit, that counts as rounding: one step of bf16. A sum that
differs from numpy's in its last bit may round to another bf16 activation."""
SEED = 20
MOST_FAULTS = 20
MOST_DIGITS = 18


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("schedule", type=Path, metavar="FILE", help="a schedule; it need not be SAFE")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--ptx", type=Path, metavar="FILE", help="run this PTX instead of compiling the schedule")
    what.add_argument(
        "--footprints",
        action="store_true",
        help="compare what each step touches with what its op declares, and how it synchronises with the schedule",
    )
    parser.add_argument(
        "--emit-ptx", type=Path, metavar="FILE", help="write the PTX that runs, whose lines faults name"
    )
    parser.add_argument(
        "--position", type=int, default=0, metavar="P", help="of the first token, the cache being random"
    )
    parser.add_argument("--tokens", type=positive, default=1, metavar="N", help="tokens of the launch (default: 1)")
    parser.add_argument(
        "--order", default="round-robin", metavar="ORDER",
        help="of the warps: round-robin, seed:N, or a JSON file: a witness of `amk verify`, or a list of [worker, warp]"
        " that run first, each until it waits",
    )  # fmt: skip
    parser.add_argument(
        "--model-weights", default="random", metavar="DIR", help="a checkpoint, or random (default: random)"
    )
    parser.add_argument(
        "--instructions", type=positive, metavar="N", help="limit, of all warps (default: 2,000,000,000)"
    )
    parser.add_argument("--seconds", type=positive, metavar="N", help="limit (default: 600)")
    parser.add_argument(
        "--no-races", dest="races", action="store_false", help="do not look for accesses that nothing orders"
    )
    add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    if importlib.util.find_spec("numba") is None:
        raise AmkError(Diagnostic("AMK806", "numba is not installed"), Exit.INPUT)
    from amk.emulator.decode import run as emulated
    from amk.emulator.machine.machine import Limits
    from amk.emulator.steps import LINE_INFO

    schedule = read_schedule(arguments.schedule)[0]
    rows = arguments.tokens * schedule.rows
    if schedule.model.slice is not None and arguments.footprints and arguments.tokens > 1:
        message = "a launch of a slice is for one token, and footprints are those of one launch"
        raise AmkError(Diagnostic("AMK005", message), Exit.INPUT)
    if not 0 <= arguments.position <= schedule.kv.context - rows:
        message = f"{rows} tokens from position {arguments.position} are not within {schedule.kv.context} positions"
        help_ = "Give an earlier position or fewer tokens, or plan again with a larger `--max-context`."
        raise AmkError(Diagnostic("AMK014", message, help=help_), Exit.INPUT)
    limits = Limits(
        instructions=arguments.instructions or Limits.instructions, seconds=arguments.seconds or Limits.seconds
    )
    _check_memory(schedule, limits.megabytes)
    source = weights(schedule, arguments.model_weights)
    text = stamped(emit(schedule), schedule)
    ptx = _read(arguments.ptx) if arguments.ptx else _ptx(schedule, text, *([LINE_INFO] * arguments.footprints))
    if arguments.emit_ptx is not None:
        write_file(arguments.emit_ptx, ptx.encode())
    order, compared = named_order(arguments.order, schedule), text if arguments.footprints else None
    cache = random_cache(schedule) if schedule.model.layers else []
    again: Callable[[], tuple[NDArray[np.int32], NDArray[np.float32]]]
    if schedule.model.slice is not None:
        from amk.commands.emulate_slice import emulated_slice, interpreted_slice

        result = emulated_slice(schedule, source, ptx, arguments, cache, order, limits, compared)
        again = partial(interpreted_slice, schedule, source, arguments, cache)
    else:
        prompts = [[(1 + s) % schedule.model.vocab] for s in range(schedule.batch)]
        result = emulated(
            schedule, source, ptx, prompts=prompts, position=arguments.position, cache=(cache[0][1], cache[1][1]),
            tokens=arguments.tokens, order=order, limits=limits, races=arguments.races, text=compared,
            quantise=searched,
        )  # fmt: skip
        values = cache[0][0], cache[1][0]
        again = partial(interpreted, schedule, source, prompts, arguments.position, values, arguments.tokens)
    if not result.ended or result.faults or beyond(result):
        raise _wrong(result, schedule)
    try:
        tokens, logits = again()
    except Fault as fault:
        message = f"tokens {result.tokens.reshape(-1).tolist()}, the interpreter meets a fault: {fault}"
        raise AmkError(Diagnostic("AMK805", message), Exit.UNSAFE) from fault
    difference = float(np.abs(logits - result.logits).max() / max(float(np.abs(logits).max()), 1e-30))
    what = "keys and values" if schedule.headless else "logits" if schedule.model.has_head else "hidden states"
    _print(arguments.format, result, difference, what, arguments.footprints)
    if tokens.tolist() != result.tokens.reshape(-1).tolist() or not difference <= ROUNDING:
        message = f"tokens {result.tokens.reshape(-1).tolist()}, the interpreter's are {tokens.tolist()}"
        facts = (shown(f"{what} differ by {difference:.2e} of the largest, {ROUNDING:.0e} counts as rounding"),)
        raise AmkError(Diagnostic("AMK805", message, facts=facts), Exit.UNSAFE)
    return Exit.SAFE


def _check_memory(schedule: Schedule, megabytes: int) -> None:
    """AMK803 where buffers alone are too large, before weights are made for them. The emulator keeps of every byte
    whether it is defined, and refuses what registers and shared memory add."""
    needed = 2 * sum(buffer.bytes for buffer in schedule.buffers if buffer.space == "global") / 1e6
    if needed > megabytes:
        message = f"buffers of {needed / 2:,.0f} MB need {needed:,.0f} MB, the limit is {megabytes:,}"
        raise AmkError(
            Diagnostic("AMK803", message, help="emulate a smaller model, or a shorter context"), Exit.UNKNOWN
        )


def compiled(schedule: Schedule) -> str:
    """The PTX of any schedule that the lowering can print, SAFE or not."""
    return _ptx(schedule, stamped(emit(schedule), schedule))


def _ptx(schedule: Schedule, text: str, *options: str) -> str:
    return compile_ptx(text, schedule.target.arch, options=(*DEFAULT_OPTIONS, *options))


def beyond(result: Result) -> list[Mismatch | Difference]:
    """What a step touched and does not declare, or declares to write and did not; a read may be left out. Then how it
    synchronised otherwise than the schedule says."""
    return [*(mismatch for mismatch in result.mismatches if mismatch.kind != "unread"), *result.differences]


def weights(schedule: Schedule, where: str) -> TensorSource:
    """Random weights of the schedule's model, or a checkpoint's; AMK013 if that is of another model."""
    if where == "random":
        return RandomCheckpoint(schedule.model, SEED)
    checkpoint = open_checkpoint(where)
    check_model(schedule.model, checkpoint)
    return checkpoint


def named_order(name: str, schedule: Schedule) -> Order:
    """round-robin, seed:N, or the order in a file, which may be a witness; AMK005 for anything else."""
    from amk.emulator.machine.machine import Order

    kind, _, number = name.partition(":")
    if name == "round-robin":
        return Order()
    if kind == "seed":
        if not number.isdecimal() or len(number) > MOST_DIGITS:
            raise AmkError(Diagnostic("AMK005", f"{name}: a seed is a number of at most {MOST_DIGITS} digits"))
        return Order(seed=int(number))
    path = Path(name)
    if not path.exists():
        message = f"{name}: an order is round-robin, seed:N or a JSON file, and there is no such file"
        raise AmkError(Diagnostic("AMK005", message))
    listed = read_json(path, MAX_BYTES)
    if isinstance(listed, dict):
        return Order(first=_of_witness(path, schedule))
    launch = schedule.launch
    if not isinstance(listed, list) or not all(map(_is_pair, listed)):
        message = "neither a witness nor a list of [worker, warp]"
    elif any(worker >= launch.workers or warp >= launch.warps for worker, warp in listed):
        message = f"the schedule has {launch.workers} workers of {launch.warps} warps, counted from 0"
    else:
        return Order(first=tuple((worker, warp) for worker, warp in listed))
    raise AmkError(Diagnostic("AMK005", message, where=Where(file=name)))


def _is_pair(entry: object) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and all(type(number) is int and number >= 0 for number in entry)


def _of_witness(path: Path, schedule: Schedule) -> tuple[tuple[int, int], ...]:
    """The warps that take turns in the interleaving; agents that only stand for words take none."""
    found, launch = read_witness(path), schedule.launch
    if found.schedule not in (None, schedule_hash(schedule)):
        raise AmkError(Diagnostic("AMK005", "the witness is of another schedule", where=Where(file=str(path))))
    agents = [agent for agent, _ in found.witness.order if agent < launch.workers * launch.warps]
    return tuple(divmod(agent, launch.warps) for agent in agents)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise AmkError(
            Diagnostic("AMK001", f"cannot read: {error}", where=Where(file=str(path))), Exit.INPUT
        ) from error


def random_cache(schedule: Schedule) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Keys and values as earlier tokens may have left them: as float32, and in the buffer's own type."""
    draw = np.random.default_rng(SEED)
    caches: list[tuple[NDArray[Any], NDArray[Any]]] = []
    for name in ("k_cache", "v_cache"):
        count = next(b for b in schedule.buffers if b.name == name).elements
        if schedule.kv.dtype == "fp8":
            sign, exponent, mantissa = (
                draw.integers(0, 2, count),
                draw.integers(4, 8, count),
                draw.integers(0, 8, count),
            )
            values = (1 - 2 * sign) * (8 + mantissa) * np.exp2(exponent - 10.0)
            caches.append((values.astype(np.float32), (sign << 7 | exponent << 3 | mantissa).astype(np.uint8)))
        else:
            bits = to_bf16_bits(draw.standard_normal(count).astype(np.float32))
            caches.append(((bits.astype(np.uint32) << 16).view(np.float32), bits))
    return caches


def interpreted(
    schedule: Schedule,
    source: TensorSource,
    prompts: list[list[int]],
    position: int,
    cache: tuple[NDArray[Any], NDArray[Any]],
    tokens: int,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Tokens and the last token's logits of the numpy interpreter, which rounds what it stores as the kernel does; keys
    and values in place of logits, where the schedule has no output head."""
    machine = Machine(schedule, source, numerics="device", quantise=searched)
    state = dict.fromkeys(schedule.state_words, 0) | first_state(prompts) | schedule.all_at(position)
    machine.set("state", np.array(list(state.values()), np.int32))
    for name, data in (request_buffers(schedule, prompts, ()) | sampling_buffer(schedule, GREEDY)).items():
        machine.set(name, data)
    for name, values in zip(("k_cache", "v_cache"), cache, strict=True):
        machine.set(name, values)
    machine.launch(tokens)
    output = machine.get("output")[: tokens * schedule.vectors]
    if schedule.headless:
        return output, np.stack([machine.get("k_cache"), machine.get("v_cache")])
    logits = machine.get("logits")
    return output, logits if schedule.vectors == 1 else logits.reshape(schedule.vectors, -1)


def _with_counters(text: str, schedule: Schedule) -> str:
    """Behind every place among the counters the name of the counter there."""
    names = counter_names(schedule)

    def named(place: re.Match[str]) -> str:
        number = int(place[1]) // (4 * COUNTER_STRIDE)
        return f"{place[0]} ({names[number]})" if number < len(names) else place[0]

    return re.sub(r"\bcounters \+ (\d+)", named, text)


def _wrong(result: Result, schedule: Schedule) -> AmkError:
    """AMK804 with the first faults, and the first that steps did otherwise than the schedule says; AMK803 if all that
    is wrong is that a limit was reached."""
    first = [*result.faults[:MOST_FAULTS], *beyond(result)[:MOST_FAULTS]]
    lines = tuple(shown(_with_counters(str(fault), schedule)) for fault in first)
    if result.faults and all(fault.kind == "limit" for fault in result.faults):
        return AmkError(Diagnostic("AMK803", result.faults[0].message), Exit.UNKNOWN)
    kinds: list[str] = list(dict.fromkeys([f.kind for f in result.faults] + [m.kind for m in beyond(result)]))
    message = f"{len(result.faults) + len(beyond(result))} faults: {', '.join(kinds)}"
    return AmkError(Diagnostic("AMK804", message, facts=lines), Exit.UNSAFE)


def _print(form: str, result: Result, difference: float, what: str, by_step: bool) -> None:
    if form == "json":
        faults: list[EmulatedFault] = result.faults
        print_json(
            {
                "tokens": result.tokens.tolist(),
                "instructions": result.instructions,
                "seconds": sum(outcome.seconds for outcome in result.outcomes),
                f"{what.replace(' ', '_')}_differ_by": difference,
                "faults": [asdict(fault) for fault in faults],
                "unread": [str(mismatch) for mismatch in result.mismatches],
                "synchronisation": [str(one) for one in result.differences],
            }
        )
        return
    seconds = sum(outcome.seconds for outcome in result.outcomes)
    if result.tokens.size:
        print(f"tokens {result.tokens.reshape(-1).tolist()}")
    print(f"{result.instructions:,} warp instructions in {seconds:.1f} s, no faults")
    print(f"{what} differ from the interpreter's by {difference:.2e} of the largest")
    if by_step:
        print("every step touches what its op declares, and synchronises as the schedule says")
