"""One position of one model: correctness against fp64, reproducibility, and time beside torch in the same process."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from amk.bench.accuracy import kl_divergence, relative_error, within_tolerance
from amk.bench.ceiling import read_ceiling
from amk.bench.compile_baseline import compiled
from amk.bench.graph_baseline import cublas_graph
from amk.bench.row import Key, Row
from amk.bench.subject import Subject
from amk.bench.timing import Contestant, race
from amk.schedule_ir.matrices import MATRICES, matrix
from amk.schedule_ir.memory import ITEM_BYTES
from amk.schedule_ir.schedule import Schedule

BASELINES = ("cublas-graph", "compile")
OWN = "amk"


def bench_position(
    subject: Subject, pos: int, *, steps: int = 50, tokens: int = 4, baselines: Sequence[str] = ("cublas-graph",)
) -> Row:
    """Correctness at `pos`, then the kernel (launches of `tokens` tokens from `pos`) and the baselines in turn."""
    schedule = subject.schedule
    tokens = max(1, min(tokens, schedule.kv.context - pos, schedule.launch.max_tokens))
    subject.load_cache()
    token = 1000 % schedule.model.vocab
    first, second = subject.logits(token, pos), subject.logits(token, pos)
    reference = subject.torch_logits(token, pos, torch.float64)
    error = relative_error(first, reference)
    torch_error = relative_error(subject.torch_logits(token, pos, torch.bfloat16), reference)
    ceiling = read_ceiling(subject.engine.device)
    with subject.preserved(pos):
        others = [_baseline(name, subject, pos, token, torch_error, reference) for name in baselines]
        times = race([own(subject, pos, tokens), *others], steps)
    subject.engine.check()
    reproducible = torch.equal(first, second) and torch.equal(first, subject.logits(token, pos))
    return Row(
        key=Key(
            schedule.model.name, schedule.target.name, schedule.weights_label, schedule.plan, pos, tokens, steps,
            tuple(baselines), schedule.batch,
        ),
        times=times[OWN], baselines={name: times[name] for name in baselines},
        bytes=needed_bytes(schedule, pos), ceiling_gbps=ceiling, error=error, torch_error=torch_error,
        kl=kl_divergence(first, reference), argmax_agrees=torch.equal(first.argmax(-1), reference.argmax(-1)),
        reproducible=reproducible, correct=reproducible and within_tolerance(error, torch_error),
    )  # fmt: skip


def own(subject: Subject, pos: int, tokens: int) -> Contestant:
    """One cooperative launch of `tokens` tokens from `pos`, each token fed back on the device."""
    engine = subject.engine
    stream = torch.cuda.ExternalStream(int(engine.stream.handle))
    return Contestant(OWN, tokens, stream, lambda: engine.enqueue(tokens), lambda: engine.set_state(pos=pos, done=0))


def _baseline(name: str, subject: Subject, pos: int, token: int, torch_error: float, reference: Tensor) -> Contestant:
    if name == "compile":
        return compiled(subject, pos, token, torch_error, reference)
    if name == "cublas-graph":
        return cublas_graph(subject, pos)
    raise ValueError(f"no baseline is called {name}")


def needed_bytes(schedule: Schedule, pos: int) -> int:
    """Bytes that any decode step with these formats must read: every matrix once, scales included, and the cache of
    `pos` earlier positions, of every sequence.
    """
    model, (stream,) = schedule.model, schedule.streams
    weights = 0
    for shape in (matrix(model, name) for name in MATRICES):
        each = stream.chunk(shape.name).weights.needed_bytes(shape.rows, shape.k)
        weights += each * (model.layers if shape.per_layer else 1)
    item = ITEM_BYTES[schedule.kv.dtype]
    return weights + 2 * item * model.layers * schedule.caches * pos * model.head_dim
