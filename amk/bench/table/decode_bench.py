"""One position of one model: correctness against fp64, reproducibility, and time beside torch in the same process."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from amk.bench.baselines.compile_baseline import compiled
from amk.bench.baselines.format_baseline import fp8_compiled, int4_compiled
from amk.bench.baselines.graph_baseline import cublas_graph
from amk.bench.baselines.phase_graph import pdl_graph
from amk.bench.table.row import Key, Row
from amk.bench.tools.accuracy import kl_divergence, relative_error, within_tolerance
from amk.bench.tools.ceiling import read_ceiling
from amk.bench.tools.power import Meter, loaded
from amk.bench.tools.subject import Subject
from amk.bench.tools.times import Power
from amk.bench.tools.timing import Contestant, WrongBaseline, take_turns
from amk.models.matrices import MATRICES, matrix
from amk.report.diagnostic import AmkError
from amk.schedule_ir.memory import ITEM_BYTES
from amk.schedule_ir.schedule import Schedule

OWN = "amk"


def bench_position(subject: Subject, key: Key) -> Row:
    """Correctness at the key's position, then the kernel (launches of its tokens) and the baselines in turn."""
    schedule, pos, tokens, baselines = subject.schedule, key.pos, key.tokens, key.baselines
    subject.load_cache()
    token = 1000 % schedule.model.vocab
    first, second = subject.logits(token, pos), subject.logits(token, pos)
    reference = subject.torch_logits(token, pos, torch.float64)
    error = relative_error(first, reference)
    torch_error = relative_error(subject.torch_logits(token, pos, torch.bfloat16), reference)
    ceiling = read_ceiling(subject.engine.device)
    with subject.preserved(pos):
        case = Case(subject, pos, tokens, token, torch_error, reference)
        tried = {name: _baseline(name, case) for name in baselines}
        others = [contestant for contestant in tried.values() if isinstance(contestant, Contestant)]
        times = take_turns([own(subject, pos, tokens), *others], key.steps)
        subject.engine.check()
        power = _powers(subject, key, others)
        for other in others:
            other.free()
    subject.engine.check()
    reproducible = torch.equal(first, second) and torch.equal(first, subject.logits(token, pos))
    return Row(
        key=key, times=times[OWN], baselines={other.name: times[other.name] for other in others},
        bytes=needed_bytes(schedule, pos), ceiling_gbps=ceiling, error=error, torch_error=torch_error,
        kl=kl_divergence(first, reference), argmax_agrees=torch.equal(first.argmax(-1), reference.argmax(-1)),
        reproducible=reproducible, correct=reproducible and within_tolerance(error, torch_error),
        left_out={name: why for name, why in tried.items() if isinstance(why, str)}, power=power,
        uuid=subject.engine.device.uuid(),
        variants={other.name: dict(other.variants) for other in others if other.variants},
        errors={other.name: other.error for other in others if other.error is not None},
    )  # fmt: skip


def _powers(subject: Subject, key: Key, others: Sequence[Contestant]) -> dict[str, Power]:
    """Of the kernel and of each baseline that is one replay a token; nothing where NVML cannot be asked."""
    meter = Meter.open(subject.engine.device)
    if meter is None:
        print("energy and clocks are not measured: no NVML (pip install nvidia-ml-py)", file=sys.stderr, flush=True)
        return {}
    repeatable = [sustained(subject, key.pos, key.tokens), *(other for other in others if other.repeats)]
    return {each.name: loaded(meter, each) for each in repeatable}


def own(subject: Subject, pos: int, tokens: int) -> Contestant:
    """One cooperative launch of `tokens` tokens from `pos`, each token fed back on the device."""
    engine = subject.engine
    stream = torch.cuda.ExternalStream(int(engine.stream.handle))
    start = subject.schedule.all_at(pos) | subject.schedule.none_ended
    return Contestant(
        OWN, tokens, stream, lambda: engine.enqueue(tokens), lambda: engine.set_state(**start), repeats=False
    )


def sustained(subject: Subject, pos: int, tokens: int) -> Contestant:
    """The same, repeatable while it runs: positions and `done` are put back on the stream itself behind each launch."""
    engine, start = subject.engine, own(subject, pos, tokens)
    start.prepare()
    names = subject.schedule.state_words
    kept = torch.from_numpy(engine.read("state", np.int32, len(names))).cuda()
    state, call = engine.buffers["state"].address, engine.device.driver.call

    def run() -> None:
        engine.enqueue(tokens)
        for word in map(names.index, (*subject.schedule.all_at(pos), *subject.schedule.none_ended)):
            call("cuMemcpyDtoDAsync", state + 4 * word, kept.data_ptr() + 4 * word, 4, engine.stream.handle)
        engine.stands_at(subject.schedule.all_at(pos))

    return replace(start, run=run, repeats=True)


@dataclass(frozen=True)
class Case:
    """What a baseline decodes: `tokens` tokens from `token` at `pos`, and what its logits are held to."""

    subject: Subject
    pos: int
    tokens: int
    token: int
    torch_error: float
    reference: Tensor


MAKERS: dict[str, Callable[[Case], Contestant]] = {
    "cublas-graph": lambda case: cublas_graph(case.subject, case.pos),
    "compile": lambda case: compiled(case.subject, case.pos, case.token, case.torch_error, case.reference),
    "int8": lambda case: _int8(case),
    "fp8": lambda case: fp8_compiled(case.subject, case.pos, case.token, case.torch_error, case.reference),
    "int4": lambda case: int4_compiled(case.subject, case.pos, case.token, case.torch_error, case.reference),
    "pdl-graph": lambda case: pdl_graph(
        case.subject, case.pos, case.tokens, case.token, case.torch_error, case.reference
    ),
}


def _int8(case: Case) -> Contestant:
    # Imported here: it needs Triton, which torch brings only where it can compile.
    from amk.bench.baselines.int8_baseline import int8_compiled

    return int8_compiled(case.subject, case.pos, case.token, case.torch_error, case.reference)


def _baseline(name: str, case: Case) -> Contestant | str:
    """The baseline; the reason, also on stderr, for one that computes something else, does not fit, or does not exist
    for this schedule.
    """
    try:
        return MAKERS[name](case)
    except WrongBaseline as error:
        reason = str(error)
    except AmkError as error:
        reason = error.diagnostics[0].message
    except torch.OutOfMemoryError:
        reason = "does not fit into the GPU's memory beside the model"
    gc.collect()
    torch.cuda.empty_cache()
    print(f"{name} is left out: {reason}", file=sys.stderr, flush=True)
    return reason


def needed_bytes(schedule: Schedule, pos: int) -> int:
    """Bytes that any decode step with these formats must read: every matrix once, scales included, and the cache of
    `pos` earlier positions, of every sequence.
    """
    model, (stream,) = schedule.model, schedule.streams
    weights = 0
    for shape in (matrix(model, name) for name in MATRICES):
        for layer in range(model.layers if shape.per_layer else 1):
            weights += stream.chunk(shape.name, layer).weights.needed_bytes(shape.rows, shape.k)
    item = ITEM_BYTES[schedule.kv.dtype]
    return weights + 2 * item * model.layers * schedule.caches * pos * model.head_dim
