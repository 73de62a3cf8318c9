"""A judge of schedules that shares nothing with the analysis: it runs them, and compares with a plain forward pass.

Property: `refuted` means that a run of the schedule hung, did what no correct schedule does, or showed tokens, logits,
launch state or cached keys and values other than the model's. It can only refute: that nothing was found says nothing
about other interleavings, positions or lengths.

Assumptions: the machine is the device's (numpy_run.py says where it is not). Tolerances: logits and cache agree to
`Tolerance` of their largest magnitude, tokens exactly where the forward pass leaves no doubt about them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from amk.judges import sliced
from amk.judges.choice import GREEDY, Drawing, chosen
from amk.judges.forward import Floats, Rows, as_it_is
from amk.judges.numpy_run import run
from amk.judges.request import Broken, Refused, Request, Shown
from amk.judges.rounding import Rounded, allowed
from amk.judges.weights import RandomWeights, kept_in_fp8
from amk.models.matrices import MatrixName
from amk.models.model_spec import ModelSpec
from amk.schedule_ir.ops.gemv import GemvOp
from amk.schedule_ir.schedule import Schedule, mode_of, steps_of
from amk.weights.weight_format import FormatName

FP8_TOLERANCE = 6e-2
"""With a cache of fp8, where a sum added in another order may round to the neighbour."""


@dataclass(frozen=True)
class Tolerance:
    """What a machine's numbers may be off by, relative to the largest: `least`, and where it rounds numbers to `unit`
    of themselves, what that makes of these answers (`rounding`)."""

    least: float
    unit: float = 0.0

    def floor(self, fp8_cache: bool) -> float:
        return FP8_TOLERANCE if fp8_cache and not self.unit else self.least


TOLERANCE = Tolerance(2e-3)
DEVICE_TOLERANCE = Tolerance(2e-3, 2.0**-8)
"""Of a machine that keeps activations in bf16, and codes' operands in blocks of no fewer bits, as the kernel does."""
NONE = -1
"""What is shown in place of a token behind a row that was no right guess."""
MATRIX_OF: dict[str, MatrixName] = {
    "wq": "qkv", "wk": "qkv", "wv": "qkv", "wo": "o", "w_gate": "gate_up", "w_up": "gate_up", "w_down": "down",
}  # fmt: skip
FormOf = tuple[tuple[str, FormatName], ...]


MOST_READ = 1024
"""Tokens that the forward pass reads before a request begins."""


@dataclass(frozen=True)
class Ruling:
    """refuted: kind is hang, poison, bounds, chunk, registers, fault, tokens, logits, hidden, state, cache or the name
    of an error.
    unrun: the machine could not run it; why says what."""

    status: Literal["refuted", "not refuted", "unrun"]
    kind: str = ""
    why: str = ""


NOT_REFUTED = Ruling("not refuted")


class Text:
    """The model's logits, keys and values after any tokens, and what a machine's may be off by; each prefix is computed
    once."""

    def __init__(self, model: ModelSpec, forms: FormOf, fp8_cache: bool, tolerance: Tolerance) -> None:
        tensors = RandomWeights(model).stored(dict(forms).__getitem__)
        self._rounded = Rounded(model, tensors, kept_in_fp8 if fp8_cache else as_it_is, tolerance.unit)
        self.least = tolerance.floor(fp8_cache)
        empty: Floats = np.zeros((0, model.kv_heads, model.head_dim))
        nothing = np.zeros(model.vocab), [(empty, empty)] * model.layers
        self._known: dict[tuple[int, ...], list[tuple[Floats, Rows]]] = {(): [nothing] * len(self._rounded.passes)}

    def after(self, tokens: tuple[int, ...]) -> tuple[Floats, Rows]:
        """(logits, cache) once all of `tokens` have been read."""
        return self._after(tokens)[0]

    def slack(self, tokens: tuple[int, ...]) -> float:
        """What the logits may be off by, relative to the largest."""
        return allowed([logits for logits, _ in self._after(tokens)], self.least)

    def _after(self, tokens: tuple[int, ...]) -> list[tuple[Floats, Rows]]:
        known = next(n for n in range(len(tokens), -1, -1) if tokens[:n] in self._known)
        for n in range(known, len(tokens)):
            before, found = self._known[tokens[:n]], list[tuple[Floats, Rows]]()
            for one, (_, rows) in zip(self._rounded.passes, before, strict=True):
                one.resume(rows)
                found.append((one.feed(tokens[n]), one.cache()))
            self._known[tokens[: n + 1]] = found
        return self._known[tokens]


@lru_cache(maxsize=16)
def _text(model: ModelSpec, forms: FormOf, fp8_cache: bool, tolerance: Tolerance = TOLERANCE) -> Text:
    return Text(model, forms, fp8_cache, tolerance)


@lru_cache(maxsize=16)
def _weights(model: ModelSpec) -> RandomWeights:
    return RandomWeights(model)


class Machine(Protocol):
    """Something that runs a schedule: see `numpy_run.run`. Raises Broken or Refused."""

    def __call__(
        self, schedule: Schedule, weights: RandomWeights, request: Request, order: str, before: Sequence[Rows] | None
    ) -> Shown: ...


def judged(
    schedule: Schedule, request: Request, order: str, machine: Machine = run, tolerance: Tolerance = TOLERANCE
) -> Ruling:
    """One request, in one order. tolerance: of the machine's logits."""
    if schedule.model.slice is not None:
        return _judged_slice(schedule, request, order, machine, tolerance)
    behind = max(request.first(s) for s in range(len(request.texts)))
    if behind > MOST_READ:
        return Ruling("unrun", why=f"begins behind {behind:,} tokens, at most {MOST_READ:,} are read")
    try:
        text = _text(schedule.model, _forms(schedule), schedule.kv.dtype == "fp8", tolerance)
        weights = _weights(schedule.model)
        begun = any(request.starts) or request.start
        before = [text.after(t[: request.first(s)])[1] for s, t in enumerate(request.texts)] if begun else None
    except (ValueError, KeyError, IndexError, MemoryError) as error:
        return Ruling("unrun", why=f"no forward pass: {error}")
    try:
        shown = machine(schedule, weights, request, order, before)
    except Refused as refused:
        return Ruling("unrun", why=str(refused))
    except Broken as broken:
        return Ruling("refuted", broken.kind, f"{order}, {request.launches}: {broken.message}")
    if request.parents:
        return _compared_tree(text, request, order, shown, schedule.rows)
    last = schedule.kv.context - 1 if schedule.headless else None
    return _compared(text, request, order, shown, schedule.rows, schedule.accepts, last)


def _judged_slice(schedule: Schedule, request: Request, order: str, machine: Machine, tolerance: Tolerance) -> Ruling:
    """The same for layers, or an output head, that are called with a hidden state."""
    try:
        tensors = _weights(schedule.model).stored(dict(_forms(schedule)).__getitem__)
        fp8_cache = schedule.kv.dtype == "fp8"
        rounded = Rounded(schedule.model, tensors, kept_in_fp8 if fp8_cache else as_it_is, tolerance.unit)
        expected = sliced.Expected(rounded, schedule, request, tolerance.floor(fp8_cache))
    except (ValueError, KeyError, IndexError, MemoryError) as error:
        return Ruling("unrun", why=f"no forward pass: {error}")
    before = expected.before() if request.start and schedule.model.layers else None
    try:
        shown = machine(schedule, _weights(schedule.model), request, order, before)
    except Refused as refused:
        return Ruling("unrun", why=str(refused))
    except Broken as broken:
        return Ruling("refuted", broken.kind, f"{order}, {request.calls}: {broken.message}")
    found = sliced.wrong(expected, request, shown, _differs)
    return NOT_REFUTED if found is None else Ruling("refuted", found[0], f"{order}, {found[1]}")


def _forms(schedule: Schedule) -> FormOf:
    """The format of every streamed matrix, as the stream of its product declares it."""
    streams = {s.name: s for s in schedule.streams}
    ops = [step.op for program in schedule.programs for step in steps_of(program.body)]
    used = {op.matrix: streams[op.stream] for op in reversed(ops) if isinstance(op, GemvOp)}
    forms = [("lm_head", used.get("lm_head", schedule.streams[0]).chunk("lm_head", 0).format)]
    for layer in range(schedule.model.layers):
        for part, name in MATRIX_OF.items():
            stream = used.get(name, schedule.streams[0])
            forms.append((f"l{layer}.{part}", stream.chunk(name, layer).format))
    return tuple(sorted(forms))


def _compared(
    text: Text,
    request: Request,
    order: str,
    shown: Shown,
    rows: int = 1,
    accepts: bool = False,
    last: int | None = None,
) -> Ruling:
    """rows: consecutive tokens of a sequence that a step reads. accepts: up to the first that is no right guess. last:
    of the places of the prompt, where nothing is chosen and there are no logits."""
    for sequence in range(len(request.texts)):
        follower = _Follower(text, request, sequence, accepts, last)
        own = slice(sequence * rows, (sequence + 1) * rows)
        for launch, tokens in enumerate(shown.tokens):
            if (wrong := follower.follow(tokens[:, own])) is not None:
                return _refuted("tokens", order, launch, sequence, wrong)
            logits = () if last is not None else zip(shown.logits[launch][own], follower.rows, strict=True)
            for found, read in logits:
                if (wrong := _differs(found, text.after(read)[0], text.slack(read))) is not None:
                    return _refuted("logits", order, launch, sequence, wrong)
            if (wrong := follower.state(shown.state[launch])) is not None:
                return _refuted("state", order, launch, sequence, wrong)
        for place in (0, 1) if shown.caches is not None else ():
            assert shown.caches is not None
            kept = np.array([layer[place] for layer in text.after(tuple(follower.read))[1]]).transpose(0, 2, 1, 3)
            found = shown.caches[place][:, sequence, :, : kept.shape[2]]
            if (wrong := _differs(found, kept, text.least)) is not None:
                return _refuted("cache", order, len(shown.tokens) - 1, sequence, f"{'kv'[place]}: {wrong}")
    return NOT_REFUTED


def _compared_tree(text: Text, request: Request, order: str, shown: Shown, rows: int) -> Ruling:
    """One step whose rows are nodes: each shows what the model says behind the tokens on the way to it, and its own key
    and value are those of the last of these."""
    start, tokens = request.start, request.written[0]
    ways = [tokens[: start + 1]]
    for row in range(1, rows):
        before = request.parents[row - 1] if row <= len(request.parents) else row - 1
        ways.append((*ways[before], tokens[start + row] if start + row < len(tokens) else 0))
    (behind,) = shown.tokens[0].tolist()
    for row, (way, token) in enumerate(zip(ways, behind, strict=True)):
        logits, kept = text.after(way)
        if (wrong := _differs(shown.logits[0][row], logits, text.slack(way))) is not None:
            return _refuted("logits", order, 0, 0, f"row {row}: {wrong}")
        expected, sure = chosen(logits, len(way) - 1, GREEDY, text.slack(way))
        if token != expected and (sure or not 0 <= token < len(logits)):
            return _refuted("tokens", order, 0, 0, f"token {token} behind row {row}, not {expected}")
        for place in (0, 1) if shown.caches is not None else ():
            assert shown.caches is not None
            own = np.array([layer[place][-1] for layer in kept])
            if (wrong := _differs(shown.caches[place][:, 0, :, start + row], own, text.least)) is not None:
                return _refuted("cache", order, 0, 0, f"{'kv'[place]} of row {row}: {wrong}")
    wanted, words = (behind[-1], start + rows, 1, 0), shown.state[0]
    found = (words["token"], words["position"], words["epoch"], words["done"])
    if found != wanted:
        return _refuted("state", order, 0, 0, f"token, position, epoch, done are {found}, not {wanted}")
    return NOT_REFUTED


def _refuted(kind: str, order: str, launch: int, sequence: int, what: str) -> Ruling:
    return Ruling("refuted", kind, f"{order}, launch {launch}, sequence {sequence}: {what}")


class _Follower:
    """One sequence of a request, token by token; where the model leaves doubt, what was taken is right."""

    def __init__(self, text: Text, request: Request, sequence: int, accepts: bool, last: int | None) -> None:
        self._text, self._request, self._accepts, self._last = text, request, accepts, last
        self._sequence, self._prompt, self._steps = sequence, request.texts[sequence], 0
        start = request.first(sequence)
        self.read = list(self._prompt[:start])
        self._next = self._prompt[start]
        self._done = False
        self.rows: list[tuple[int, ...]] = []
        """Of the last step: what each row has read."""

    def follow(self, steps: NDArray[np.int64]) -> str | None:
        """steps [n, rows]: what they showed behind each of their rows."""
        for tokens in steps.tolist():
            self._steps += 1
            before = (*self.read, self._next)
            self.rows = [
                before + tuple(map(self._offered, range(len(before), len(before) + n))) for n in range(len(tokens))
            ]
            while tokens:
                token, *tokens = tokens
                if (wrong := self._token(token)) is not None:
                    return wrong
                if self._accepts and (self._done or token != self._offered(len(self.read))):
                    break
            if any(token != NONE for token in tokens):
                return f"tokens {tokens} behind rows that are no right guesses, at position {len(self.read)}"
        return None

    def _offered(self, place: int) -> int:
        """What the host wrote to that place of the prompt."""
        written = self._request.written[self._sequence]
        return written[place] if place < len(written) else 0

    def _token(self, token: int) -> str | None:
        self.read.append(self._next)
        expected, sure = self._expected()
        if token != expected and (sure or not 0 <= token < len(self._text.after(())[0])):
            return f"token {token} behind position {len(self.read) - 1}, not {expected}"
        self._done = self._done or (self._chooses and token in self._request.ends)
        self._next = token
        return None

    @property
    def _chooses(self) -> bool:
        """Whether what comes next is the model's, not the prompt's."""
        return self._last is None and len(self.read) >= len(self._prompt)

    def _expected(self) -> tuple[int, bool]:
        at = len(self.read)
        if self._last is not None:
            return self._offered(min(at, self._last)), True
        if at < len(self._prompt):
            return self._prompt[at], True
        if self._done:
            return self._next, True
        drawing, read = self._request.drawings[self._sequence], tuple(self.read)
        return chosen(self._text.after(read)[0], at - 1, drawing, self._text.slack(read))

    def state(self, words: dict[str, int]) -> str | None:
        """The launch state that these tokens leave behind."""
        sequence, of = self._sequence, f" {self._sequence}" if self._sequence else ""
        ends = words[f"done {sequence // 32}" if sequence >= 32 else "done"]
        at, mark = len(self.read), ends >> sequence % 32 & 1
        position = words[f"position{of}" if self._request.starts else "position"]
        wanted = (self._next, at, self._steps, int(self._done))
        found = (words[f"token{of}"], position, words["epoch"], mark)
        return None if found == wanted else f"token, position, epoch, done are {found}, not {wanted}"


def _differs(actual: Floats, expected: Floats, tolerance: float) -> str | None:
    if actual.shape != expected.shape:
        return f"shape {actual.shape}, not {expected.shape}"
    largest = max(float(np.abs(expected).max()), 1e-3)
    error = np.abs(actual - expected)
    if np.isfinite(actual).all() and float(error.max()) <= tolerance * largest:
        return None
    return f"off by {float(error.max()):.3g} where the largest magnitude is {largest:.3g}"


DRAWINGS = {
    "temperature": Drawing(0.8, seed=4), "top-k": Drawing(1.0, 9, seed=5), "top-p": Drawing(1.4, 0, 0.8, 6),
    "top-k-top-p": Drawing(1.1, 30, 0.9, 2**64 - 1),
}  # fmt: skip


def requests(schedule: Schedule) -> Iterator[tuple[Request, str]]:
    """(request, order) pairs, the most telling first: four tokens of two launches, each order and position by turns,
    a second drawing, ends, the last positions of the context."""
    if schedule.model.slice is not None:
        yield from sliced.requests(schedule)
        return
    if schedule.rows > 1:
        if schedule.tree:
            yield from _trees(schedule)
        yield from _guessed(schedule) if schedule.accepts else _given_rows(schedule)
        return
    if schedule.live:
        yield from _apart(schedule)
        return
    vocab, context, batch = schedule.model.vocab, schedule.kv.context, schedule.batch
    drawing = DRAWINGS.get(mode_of(schedule), GREEDY)
    texts = tuple(_prompt(vocab, 2 + s % 2, s) for s in range(batch))
    long = tuple(_prompt(vocab, max(2, context - 3 + s % 2), s) for s in range(batch))
    last = schedule.launch.workers - 1
    yield Request(texts, _fit((3, 1), schedule, 0), drawing=drawing), "priorities:1"
    middle = min(schedule.kv.block, max(context - 4, 0))
    yield Request(long, _fit((1, 3), schedule, middle), middle, drawing=drawing), "priorities:2"
    yield Request(texts, _fit((4,), schedule, 0)), "late-copies"
    yield Request(texts, _fit((1, 4), schedule, 0), drawing=drawing), f"delay:{last}"
    end = max(context - 4, 0)
    yield Request(long, _fit((4,), schedule, end), end), "delay:0"
    yield Request(texts, _fit((2, 2, 2), schedule, 0), ends=tuple(range(0, vocab, 3))[:4]), f"favour:{last}"
    for seed in range(3, 8):
        yield Request(texts, _fit((4, 2), schedule, 0), drawing=drawing), f"priorities:{seed}"
    whole = _fit((context,), schedule, 0)
    yield Request(texts, whole, drawing=drawing), "depth-first"
    yield Request(texts, whole), "random:1"


def _given_rows(schedule: Schedule) -> Iterator[tuple[Request, str]]:
    """Steps of several rows, all of which are given: from the first position on, across two blocks, to the last one."""
    rows, context, last = schedule.rows, schedule.kv.context, schedule.launch.workers - 1
    starts = (0, schedule.kv.block - 1, context - 2 * rows, context % rows)
    launches = ((2, 1), (1, 2), (2,), (context // rows,))
    orders = ("priorities:1", f"delay:{last}", "late-copies", "random:1")
    for wanted, counts, order in zip(starts, launches, orders, strict=True):
        start = max(0, min(wanted, context - rows))
        most = (context - start) // rows
        steps = _fit(counts, schedule, context - most)
        texts = tuple(_prompt(schedule.model.vocab, start + rows * sum(steps), s) for s in range(schedule.batch))
        yield Request(texts, steps, start, drawing=DRAWINGS.get(mode_of(schedule), GREEDY)), order


def _guessed(schedule: Schedule) -> Iterator[tuple[Request, str]]:
    """Steps of which the first row or two are given, and the others are guesses: the model's own tokens but for every
    third, or fourth; all right; all wrong; at the end of the context; with tokens that end the text."""
    rows, context, last, vocab = schedule.rows, schedule.kv.context, schedule.launch.workers - 1, schedule.model.vocab
    ends, drawing = tuple(range(0, vocab, 3))[:4], DRAWINGS.get(mode_of(schedule), GREEDY)
    shapes: tuple[tuple[int, int, tuple[int, ...], str, tuple[int, ...]], ...] = (
        (0, 3, (2, 1), "priorities:1", ()),
        (schedule.kv.block - 1, 0, (1, 2), f"delay:{last}", ()),
        (0, 4, (3, 3), "late-copies", ends),
        (context - 2 * rows, 0, (2,), f"favour:{last}", ()),
        (0, 1, (context // rows,), "random:1", ()),
        (1, 2, (context // rows,), "delay:0", ()),
    )
    for wanted, every, counts, order, stops in shapes:
        start = max(0, min(wanted, context - rows))
        steps = _fit(counts, schedule, context - (context - start) // rows)
        prompt = _prompt(vocab, start + 1 + every % 2, 0)
        right = _continued(schedule, prompt, start + rows * sum(steps), drawing)
        guesses = tuple((t + 1) % vocab if every and n % every == every - 1 else t for n, t in enumerate(right))
        yield Request((prompt,), steps, start, stops, drawing, guesses=guesses), order


def _trees(schedule: Schedule) -> Iterator[tuple[Request, str]]:
    """A step of nodes each: in pairs behind each other, all behind the root, in two chains that take turns, and behind
    every second one; in one block, in two, at the first position and the last ones."""
    rows, context, last = schedule.rows, schedule.kv.context, schedule.launch.workers - 1
    parents: tuple[tuple[tuple[int, ...], int, str], ...] = (
        (tuple((row - 1) // 2 for row in range(1, rows)), schedule.kv.block - 2, "priorities:1"),
        ((0,) * (rows - 1), 1, f"delay:{last}"),
        (tuple(max(row - 2, 0) for row in range(1, rows)), context - rows, "late-copies"),
        (tuple(row - 1 - row % 2 * (row > 1) for row in range(1, rows)), 0, "random:1"),
    )
    for each, wanted, order in parents:
        start = max(0, min(wanted, context - rows))
        prompt = _prompt(schedule.model.vocab, start + 1, 0)
        nodes = _prompt(schedule.model.vocab, rows - 1, 3)
        yield Request((prompt,), (1,), start, guesses=nodes, parents=each), order


def _continued(schedule: Schedule, prompt: tuple[int, ...], count: int, drawing: Drawing) -> tuple[int, ...]:
    """What the model says behind the given tokens, up to `count` in all; zeros where there is no forward pass."""
    read = prompt
    try:
        text = _text(schedule.model, _forms(schedule), schedule.kv.dtype == "fp8")
        while len(read) < count:
            read += (chosen(text.after(read)[0], len(read) - 1, drawing)[0],)
    except (ValueError, KeyError, IndexError, MemoryError):
        read += (0,) * (count - len(read))
    return read[len(prompt) :]


def _apart(schedule: Schedule) -> Iterator[tuple[Request, str]]:
    """Sequences at positions of their own: some begin while others are in the middle, or near the last position."""
    block, context, batch = schedule.kv.block, schedule.kv.context, schedule.batch
    ends, last = tuple(range(0, schedule.model.vocab, 3))[:4], schedule.launch.workers - 1
    shapes: tuple[tuple[tuple[int, ...], tuple[int, ...], str, tuple[int, ...]], ...] = (
        ((0, max(context - 4, 0)), (3, 1), "priorities:1", ()),
        ((max(context - 3, 0), 0), (2, 1), "priorities:2", ()),
        ((block - 1, 0, 1), (1, 3), "late-copies", ()),
        ((0, block, block - 1), (4,), f"delay:{last}", ends),
        ((0, 0), (2, 2, 2), f"favour:{last}", ends),
        ((1, context // 2), (4, 2), "random:1", ()),
    )
    drawing = DRAWINGS.get(mode_of(schedule), GREEDY)
    for firsts, launches, order, stops in shapes:
        starts = tuple(min(firsts[s % len(firsts)], max(context - 1, 0)) for s in range(batch))
        texts = tuple(_prompt(schedule.model.vocab, start + 1 + s % 2, s) for s, start in enumerate(starts))
        request = Request(texts, _fit(launches, schedule, max(starts)), ends=stops, drawing=drawing, starts=starts)
        yield request, order


def _fit(launches: Sequence[int], schedule: Schedule, start: int) -> tuple[int, ...]:
    """As many of these tokens as the context and the output hold."""
    left, out = schedule.kv.context - start, []
    for count in launches:
        now = min(count, left, schedule.launch.max_tokens)
        if now > 0:
            out.append(now)
            left -= now
    return tuple(out) or (1,)


def _prompt(vocab: int, count: int, sequence: int) -> tuple[int, ...]:
    return tuple((7 + 13 * i + 5 * sequence) % vocab for i in range(count))


def judge(schedule: Schedule, most: int = 2, machine: Machine = run) -> Ruling:
    """The first refutation among so many requests; whether any ran."""
    ran = Ruling("unrun", why="nothing was asked")
    for number, (request, order) in enumerate(requests(schedule)):
        if number == most:
            break
        ruling = judged(schedule, request, order, machine)
        if ruling.status == "refuted":
            return ruling
        if ran.status == "unrun":
            ran = ruling
    return ran
