"""What guesses bring on this GPU: `python -m amk.bench.guesses --model llama3-8b --gpu h200 --right 0 0.5 0.8 1`.

A text decoded by steps of one row, and by steps of several rows that verify guesses, of which a known share is right.
Whether a guess is right is drawn for every place of the text before, and a wrong one is another token than the right
one. Guesses are accepted by the host after every step (`host`), or in the launch, which then has several steps
(`--steps`). What is right is found first: the text that the same schedule gives without guesses. So a row's text must
be that one, and `same` says how many of its tokens are. Texts take turns, and the first round does not count. Random
weights; the time to the first token does not count either.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from amk.bench.end_to_end import Text, amk_text, in_turn, record, seal
from amk.engine.admission.admission import AdmittedKernel, started
from amk.engine.backends.room import Token
from amk.engine.backends.rows_backend import RowsBackend
from amk.engine.backends.schedule_backend import ScheduleBackend
from amk.engine.generation.speculation import Speculation
from amk.lowering.launch import Device
from amk.report.diagnostic import AmkError
from amk.schedule_ir.sampling import GREEDY, Sampling
from amk.schedule_ir.schedule import Schedule


class KnownAnswer:
    """Guesses of which a share is right. answer: what the prompt's text goes on with; right: the probability of each
    guess to be right, drawn by place."""

    def __init__(self, prompt: int, answer: Sequence[int], vocab: int, right: float, seed: int = 0) -> None:
        draw = random.Random(seed)
        self._prompt = prompt
        self._guesses = [token if draw.random() < right else (token + 1) % vocab for token in answer]

    def guess(self, tokens: Sequence[Token], count: int, sampling: Sampling = GREEDY) -> list[int]:
        at = len(tokens) - self._prompt
        return self._guesses[at : at + count]


class Guessed:
    """A greedy text whose guesses are known; counts its steps. Nothing of an earlier text is used."""

    def __init__(self, backend: RowsBackend, prompt: Sequence[int], new: int, answer: KnownAnswer) -> None:
        self._backend, self._prompt, self._new, self._answer = backend, list(prompt), new, answer
        self.steps = 0
        self.tokens: list[int] = []

    def __call__(self) -> Iterator[int]:
        self._backend.forget()
        speculation = Speculation(self._backend, self._answer, self._backend.rows - 1)
        self.steps, self.tokens = 0, []
        while (left := self._new - len(self.tokens)) > 0:
            text = [*self._prompt, *self.tokens]
            launched = speculation.launched(text, left, GREEDY, ())
            added = launched.tokens if launched else self._step(speculation, text, left)
            self.steps += len(added) - launched.accepted if launched else 1
            self.tokens += added
            yield from added

    def _step(self, speculation: Speculation, text: Sequence[Token], left: int) -> list[int]:
        guesses = speculation.guessed(text, left, GREEDY)
        chosen = self._backend.choices(guesses.text, len(text) - 1, GREEDY)
        return [token for token, _ in speculation.accepted(guesses, ((token, None) for token in chosen), ())]


@dataclass(frozen=True)
class Row:
    """Medians of the runs. rows: of a step; steps: of a launch, 0 where the host accepts; right: share of the guesses,
    None without any; a_step: tokens that a step adds; each_ms: of a token behind the first; faster: than one row."""

    rows: int
    steps: int
    right: float | None
    a_step: float
    each_ms: float
    faster: float
    same: int
    tokens: int


@dataclass(frozen=True)
class Case:
    """One backend with one share of right guesses. answer: its text without guesses."""

    backend: RowsBackend
    right: float
    answer: list[int]
    text: Guessed

    @property
    def name(self) -> str:
        return f"{self.backend.rows} rows, {_accepting(self.backend)} steps, {self.right}"

    def row(self, each_ms: float, alone: float) -> Row:
        """each_ms, alone: milliseconds of a token of this text, and by steps of one row."""
        same, new = sum(map(int.__eq__, self.text.tokens, self.answer)), len(self.answer)
        a_step = new / self.text.steps
        steps = _accepting(self.backend)
        return Row(self.backend.rows, steps, self.right, a_step, each_ms, alone / each_ms, same, new)


def rows_of(
    plain: ScheduleBackend,
    guessing: Sequence[RowsBackend],
    prompt: Sequence[int],
    new: int,
    shares: Sequence[float],
    runs: int,
) -> list[Row]:
    """One row a step, then every backend with every share of right guesses."""
    vocab = plain.engine.schedule.model.vocab
    cases = list[Case]()
    for backend in guessing:
        answer = list(Guessed(backend, prompt, new, KnownAnswer(len(prompt), (), vocab, 0.0))())
        known = {right: KnownAnswer(len(prompt), answer, vocab, right) for right in shares}
        cases += [Case(backend, right, answer, Guessed(backend, prompt, new, known[right])) for right in shares]
    texts: dict[str, Text] = {"one row": partial(amk_text, plain, prompt, new)}
    texts |= {case.name: case.text for case in cases}
    alone, *timed = in_turn(texts, len(prompt), runs)
    rows = [case.row(each.each_ms, alone.each_ms) for case, each in zip(cases, timed, strict=True)]
    return [Row(1, 0, None, 1.0, alone.each_ms, 1.0, new, new), *rows]


def _accepting(backend: RowsBackend) -> int:
    """Steps of a launch that accepts guesses by itself; 0 where the host does."""
    return backend.steps if backend.accepts(GREEDY) else 0


def measured(arguments: argparse.Namespace) -> list[Row]:
    """On this machine's GPU."""
    from amk.bench.tools.subject import Subject
    from amk.bench.tools.torch_model import TorchWeights
    from amk.models.model import load_model
    from amk.planner.decode import plan
    from amk.planner.formats import formats
    from amk.planner.settings import FAST
    from amk.targets.target import load_target

    model, gpu = load_model(arguments.model), load_target(arguments.gpu)
    length = arguments.prompt + arguments.new + max(arguments.rows) * max(*arguments.steps, 1)

    def planned(**changes: Any) -> Schedule:
        settings = replace(FAST, **changes)
        return plan(model, gpu, settings=settings, formats=formats(arguments.dtype), max_context=length)

    kinds = [(rows, steps) for rows in arguments.rows for steps in arguments.steps]
    schedules = [planned(), *(planned(rows=rows, accepts=steps > 0) for rows, steps in kinds)]
    seal(schedules)
    weights = TorchWeights.random(model, arguments.seed)

    def engine(kernel: AdmittedKernel) -> Any:
        return Subject.random(kernel, arguments.seed, weights).engine

    plain = ScheduleBackend(engine(started(schedules[0])))
    guessing = [
        RowsBackend(engine(started(schedule)), steps=max(steps, 1))
        for (_, steps), schedule in zip(kinds, schedules[1:], strict=True)
    ]
    prompt = [(17 * i + 5) % model.vocab for i in range(arguments.prompt)]
    return rows_of(plain, guessing, prompt, arguments.new, arguments.right, arguments.runs)


def _number(least: float, kind: Callable[[str], float], most: float = 1e9) -> Callable[[str], float]:
    def read(text: str) -> float:
        if not least <= (value := kind(text)) <= most:
            raise argparse.ArgumentTypeError(f"from {least} to {most:g}")
        return value

    return read


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m amk.bench.guesses", description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--rows", type=_number(2, int, 64), nargs="+", default=[8], help="of a step (default: 8)")
    parser.add_argument(
        "--steps",
        type=_number(0, int),
        nargs="+",
        default=[0],
        help="of a launch that accepts; 0: the host does",
    )
    parser.add_argument("--right", type=_number(0, float, 1), nargs="+", default=[0.0, 0.5, 0.8, 1.0])
    parser.add_argument("--prompt", type=_number(1, int), default=64, help="tokens (default: 64)")
    parser.add_argument("--new", type=_number(2, int), default=256, help="tokens (default: 256)")
    parser.add_argument("--runs", type=_number(1, int), default=5, help="that count (default: 5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the rows to this JSON file")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    arguments = parse(argv)
    try:
        device = Device.open()
        rows = measured(arguments)
    except AmkError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    print(f"{'rows':>4} {'accepted by':14} {'right':>5} {'tokens a step':>13} {'ms a token':>10} {'faster':>6}  same")
    for row in rows:
        by = "-" if row.right is None else f"{row.steps} steps" if row.steps else "host"
        right = "-" if row.right is None else f"{row.right:.2f}"
        print(
            f"{row.rows:4} {by:14} {right:>5} {row.a_step:13.2f} {row.each_ms:10.4f} {row.faster:6.2f}  "
            f"{row.same} of {row.tokens}"
        )
    if arguments.record:
        found = {"model": arguments.model, "dtype": arguments.dtype, "rows": [asdict(row) for row in rows]}
        record(arguments.record, found, "amk.bench.guesses", argv, device)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
