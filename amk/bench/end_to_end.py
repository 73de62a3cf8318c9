"""A text as a user times it: `python -m amk.bench.end_to_end --model llama3-8b --gpu h200 --prompt 512 --new 128`.

It takes wall time from the call to the last token, through what `amk.load` continues texts with, beside transformers in
the same process with the same random weights. A row has the time to the first token, the whole time, and new tokens a
second. The runs take turns, and the first round does not count. All choose greedily. A row also says how many tokens
they agree on from the start: with random weights two candidates may be closer than rounding.

`--prompt` may name several lengths. `--prefill` says what reads prompts: torch, steps of several rows (`rows`), the
kernel of one row. `--transformers compiled` is its static cache, whose decoding it compiles; without a word
transformers is left out. `--launched` adds the tokens of the first way in few long launches, to compare streaming with,
and what the GPU took for a token of these.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from queue import Queue
from statistics import median
from threading import Thread
from typing import TYPE_CHECKING, Any

from amk.engine.admission.admission import started
from amk.engine.backends.schedule_backend import PromptReader, ScheduleBackend
from amk.lowering.launch import Device
from amk.models.model_spec import ModelSpec
from amk.models.rope import rope_frequencies
from amk.processes import process_pool
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.sampling import GREEDY
from amk.schedule_ir.schedule import Schedule

if TYPE_CHECKING:
    from amk.prefill.reader import Prefill

Text = Callable[[], Iterable[int]]
"""Starts a text over; yields its new tokens as they are there."""


@dataclass(frozen=True)
class Generation:
    """Seconds from the call to the first new token and to the last; the tokens. kernel: seconds of the launches behind
    the first token, by the GPU's clock, where that was taken."""

    first: float
    total: float
    tokens: tuple[int, ...]
    kernel: float | None = None


@dataclass(frozen=True)
class Timed:
    """Medians of the runs, and the fastest and slowest whole; agrees: tokens in common with the first program.

    prompt: tokens. kernel_ms: of a token behind the first, by the GPU's clock.
    """

    program: str
    prompt: int
    first_ms: float
    total_ms: float
    least_ms: float
    most_ms: float
    tokens: int
    agrees: int
    kernel_ms: float | None = None

    @property
    def each_ms(self) -> float:
        """Milliseconds a token behind the first."""
        return (self.total_ms - self.first_ms) / max(self.tokens - 1, 1)

    @property
    def tokens_per_second(self) -> float:
        """New tokens over all of the time, that of the prompt included."""
        return 1e3 * self.tokens / self.total_ms


def generation(text: Text, now: Callable[[], float] = time.perf_counter) -> Generation:
    """One text, timed. ValueError if it has no tokens."""
    began, first, tokens = now(), None, []
    for token in text():
        first = now() if first is None else first
        tokens.append(int(token))
    if first is None:
        raise ValueError("a text without tokens")
    return Generation(first - began, now() - began, tuple(tokens))


def in_turn(
    texts: dict[str, Text], prompt: int, runs: int, now: Callable[[], float] = time.perf_counter
) -> list[Timed]:
    """Every program `runs` times in turn, after a round that does not count."""
    found: dict[str, list[Generation]] = {name: [] for name in texts}
    for number in range(runs + 1):
        for name, text in texts.items():
            measured = generation(text, now)
            kernel = text.seconds() if isinstance(text, Launched) else None
            if number:
                found[name].append(replace(measured, kernel=kernel))
    lead = next(iter(found.values()))[0].tokens
    return [_timed(name, prompt, each, lead) for name, each in found.items()]


def _timed(name: str, prompt: int, runs: Sequence[Generation], lead: Sequence[int]) -> Timed:
    totals = [1e3 * run.total for run in runs]
    tokens = runs[0].tokens
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(tokens, lead, strict=False)))
    first = 1e3 * median(run.first for run in runs)
    kernels = [run.kernel for run in runs if run.kernel is not None]
    kernel = 1e3 * median(kernels) / max(len(tokens) - 1, 1) if kernels else None
    return Timed(name, prompt, first, median(totals), min(totals), max(totals), len(tokens), same, kernel)


def transformers_model(model: ModelSpec, weights: Any, length: int) -> Any:
    """transformers' Llama with these weights (`TorchWeights`), in their dtype and on their device.

    AMK005 for a model with biases or norms of heads, which that class does not have.
    """
    if model.qkv_bias or model.qk_norm:
        raise AmkError(Diagnostic("AMK005", f"transformers' Llama has no biases or norms of heads, {model.name} has"))
    torch, hub = importlib.import_module("torch"), importlib.import_module("transformers")
    config = hub.LlamaConfig(
        hidden_size=model.hidden, intermediate_size=model.ffn, num_hidden_layers=model.layers,
        num_attention_heads=model.heads, num_key_value_heads=model.kv_heads, head_dim=model.head_dim,
        vocab_size=model.vocab, rms_norm_eps=model.rms_eps, max_position_embeddings=length,
        tie_word_embeddings=model.tied_embeddings, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    like = weights.embedding
    with torch.device("meta"):
        llama = hub.LlamaForCausalLM(config)
    llama = llama.to_empty(device=like.device).to(like.dtype).eval()
    llama.load_state_dict(_named(model, weights), strict=not model.tied_embeddings)
    frequencies = torch.tensor(rope_frequencies(model), dtype=torch.float32, device=like.device)
    llama.model.rotary_emb.inv_freq = llama.model.rotary_emb.original_inv_freq = frequencies
    llama.model.rotary_emb.attention_scaling = 1.0
    return llama


def _named(model: ModelSpec, weights: Any) -> dict[str, Any]:
    """The weights under transformers' names."""
    matrices, dtype = weights.matrices, weights.embedding.dtype
    named = {"model.embed_tokens.weight": weights.embedding, "lm_head.weight": matrices["lm_head"][0]}
    named["model.norm.weight"] = weights.norm[2 * model.layers].to(dtype)
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    for layer in range(model.layers):
        own = f"model.layers.{layer}."
        for name, rows in zip("qkv", matrices["qkv"][layer].split([q, kv, kv]), strict=True):
            named[f"{own}self_attn.{name}_proj.weight"] = rows
        for name, rows in zip(("gate", "up"), matrices["gate_up"][layer].chunk(2), strict=True):
            named[f"{own}mlp.{name}_proj.weight"] = rows
        named[f"{own}self_attn.o_proj.weight"] = matrices["o"][layer]
        named[f"{own}mlp.down_proj.weight"] = matrices["down"][layer]
        named[f"{own}input_layernorm.weight"] = weights.norm[2 * layer].to(dtype)
        named[f"{own}post_attention_layernorm.weight"] = weights.norm[2 * layer + 1].to(dtype)
    return named


def transformers_text(model: Any, prompt: Sequence[int], new: int, **options: Any) -> Iterator[int]:
    """Greedy tokens by `generate` as a user calls it, with a streamer that hears of each; options: more for it."""
    torch, heard = importlib.import_module("torch"), Queue[list[int] | None]()
    base: Any = importlib.import_module("transformers.generation.streamers").BaseStreamer

    class Heard(base):  # type: ignore[misc]
        def put(self, value: Any) -> None:
            heard.put(value.tolist())

        def end(self) -> None:
            heard.put(None)

    ids = torch.tensor([list(prompt)], device=model.device)
    work = Thread(
        target=model.generate, args=(ids,),
        kwargs={
            "attention_mask": torch.ones_like(ids), "max_new_tokens": new, "min_new_tokens": new, "do_sample": False,
            "streamer": Heard(), **options,
        },
    )  # fmt: skip
    work.start()
    heard.get()  # the prompt comes back first
    while (value := heard.get()) is not None:
        yield from value
    work.join()


def amk_text(backend: ScheduleBackend, prompt: Sequence[int], new: int) -> Iterator[int]:
    """Greedy tokens; nothing of an earlier text is used."""
    backend.forget()
    text = list(prompt)
    while (left := len(prompt) + new - len(text)) > 0:
        for token in backend.extend(text, left, GREEDY, ()):
            text.append(token)
            yield token


class Launched:
    """The same with the host away: behind the first token as few launches as may be, each waited for to its end. What
    streaming costs is the difference."""

    def __init__(
        self, backend: ScheduleBackend, prompt: Sequence[int], new: int, mark: Callable[[], Any] | None = None
    ) -> None:
        """mark: records an event with a time on the engine's stream."""
        self._backend, self._prompt, self._new, self._mark = backend, list(prompt), new, mark
        self._marks: list[Any] = []

    def __call__(self) -> Iterator[int]:
        self._backend.forget()
        first = self._backend.extend(self._prompt, 1, GREEDY, ())[0]
        yield first
        engine, left = self._backend.engine, self._new - 1
        engine.request([*self._prompt, first], start=len(self._prompt))
        self._marks = [self._mark()] if self._mark else []
        while left:
            tokens = engine.step(min(left, engine.schedule.launch.max_tokens)).tolist()
            yield from tokens
            left -= len(tokens)
        self._marks += [self._mark()] if self._mark else []

    def seconds(self) -> float | None:
        """From the first launch of the last text to the end of its last one, by the GPU's clock."""
        if not self._marks:
            return None
        began, ended = self._marks
        ended.synchronize()
        return float(began.elapsed_time(ended)) / 1e3


def mark(stream: Any) -> Any:
    """An event with a time, recorded on the stream (its handle)."""
    torch = importlib.import_module("torch")
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.ExternalStream(int(stream)))
    return event


def measured(arguments: argparse.Namespace) -> list[Timed]:
    """On this machine's GPU."""
    from amk.bench.tools.ahead import kernel_of
    from amk.bench.tools.subject import Subject, load_weights
    from amk.bench.tools.torch_model import TorchWeights
    from amk.engine.backends.step_prompts import in_steps, last_step, steps_beside
    from amk.models.model import load_model
    from amk.planner.decode import plan
    from amk.planner.formats import formats
    from amk.planner.settings import FAST
    from amk.prefill.reader import prompts_of
    from amk.targets.target import load_target

    model, length = load_model(arguments.model), max(arguments.prompt) + arguments.new
    schedule = plan(
        model, load_target(arguments.gpu), settings=FAST, formats=formats(arguments.dtype), max_context=length
    )
    if "rows" in arguments.prefill:
        steps = in_steps(schedule)
        seal([steps, *filter(None, [last_step(schedule, steps)])])
    weights = TorchWeights.random(model, arguments.seed)
    subject = Subject.random(kernel_of(schedule), arguments.seed, weights)
    engine, label = subject.engine, schedule.weights_label

    def reader(way: Prefill) -> PromptReader | None:
        pack = partial(load_weights, weights=weights)
        return steps_beside(engine, pack) if way == "rows" else prompts_of(engine, way)

    ways: list[Prefill] = arguments.prefill
    backends = {f"amk {label}, prompt by {way}": ScheduleBackend(engine, prompts=reader(way)) for way in ways}
    other = None
    if not arguments.transformers:
        pass
    elif importlib.util.find_spec("transformers") is None:
        print("transformers is not installed: left out", file=sys.stderr)
    else:
        other = transformers_model(model, subject.weights, length)
    found: list[Timed] = []
    for count in arguments.prompt:
        prompt = [(17 * i + 5) % model.vocab for i in range(count)]
        texts: dict[str, Text] = {
            name: partial(amk_text, backend, prompt, arguments.new) for name, backend in backends.items()
        }
        if arguments.launched:
            name, backend = next(iter(backends.items()))
            texts[f"{name}, launched"] = Launched(backend, prompt, arguments.new, partial(mark, engine.stream.handle))
        theirs = partial(transformers_text, other, prompt, arguments.new)
        if other is not None and "plain" in arguments.transformers:
            texts["transformers bf16"] = theirs
        if other is not None and "compiled" in arguments.transformers:
            texts["transformers bf16, static, compiled"] = partial(theirs, cache_implementation="static")
        found += in_turn(texts, count, arguments.runs)
    return found


def record(path: Path, content: dict[str, Any], module: str, argv: Sequence[str], device: Device) -> None:
    """Write what a bench found, with the command and the machine."""
    from amk.bench.tools.hardware import provenance

    run = provenance(f"python -m {module} {shlex.join(argv)}", device)
    path.write_text(json.dumps(content | {"run": run}, indent=1) + "\n", encoding="utf-8")


def seal(schedules: Sequence[Schedule]) -> None:
    """Prove and compile them at once, each in a process: a start finds what they sealed."""
    with process_pool(len(schedules)) as pool:
        list(pool.map(started, schedules))


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m amk.bench.end_to_end", description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--prompt", type=_positive, nargs="+", default=[512], help="tokens (default: 512)")
    parser.add_argument("--new", type=_positive, default=128, help="tokens (default: 128)")
    parser.add_argument("--prefill", choices=("torch", "rows", "kernel"), nargs="+", default=["torch"])
    parser.add_argument("--transformers", choices=("plain", "compiled"), nargs="*", default=["plain"])
    parser.add_argument("--launched", action="store_true", help="the first also without streaming: few, long launches")
    parser.add_argument("--runs", type=_positive, default=5, help="that count (default: 5)")
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
    print(
        f"{'program':44} {'prompt':>6} {'first ms':>9} {'each ms':>9} {'all ms':>9} {'least':>9} {'most':>9} "
        f"{'tokens/s':>9}  agrees    kernel ms"
    )
    for row in rows:
        times = f"{row.first_ms:9.2f} {row.each_ms:9.4f} "
        times += " ".join(f"{t:9.1f}" for t in (row.total_ms, row.least_ms, row.most_ms))
        print(
            f"{row.program:44} {row.prompt:6} {times} {row.tokens_per_second:9.1f}  {row.agrees} of {row.tokens}"
            + ("" if row.kernel_ms is None else f" {row.kernel_ms:9.4f}")
        )
    if arguments.record:
        found = [asdict(row) | {"each_ms": row.each_ms, "tokens_per_second": row.tokens_per_second} for row in rows]
        record(arguments.record, {"new": arguments.new, "rows": found}, "amk.bench.end_to_end", argv, device)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
