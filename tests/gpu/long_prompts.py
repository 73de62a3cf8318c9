"""Caches and logits behind long prompts, by every way to read one, beside a forward pass in fp64 of the same weights.

python -m tests.gpu.long_prompts MODEL GPU [TOKENS,..]   prints one JSON object a line.

By whole prompts: keys and values of every layer and position, and the logits behind the last token, by steps of several
rows, by torch's products, and token by token; torch in bf16, each operation rounded, is the measure. `cache` is the
largest relative error of a row of keys or values among as many positions as BAND, band by band, over those of torch in
bf16: what goes wrong at a position alone shows there, and does not need to change a token.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from amk.bench.end_to_end import seal
from amk.bench.tools.accuracy import relative_error
from amk.bench.tools.ahead import kernel_of
from amk.bench.tools.subject import Subject, load_weights
from amk.bench.tools.torch_model import TorchDecoder, TorchWeights
from amk.engine.backends.schedule_backend import ScheduleBackend
from amk.engine.backends.step_prompts import in_steps, last_step, steps_beside
from amk.models.model import load_model
from amk.models.rope import rope_frequencies
from amk.planner.decode import plan
from amk.planner.settings import FAST
from amk.prefill.reader import prompts_of
from amk.prefill.views import view
from amk.schedule_ir.sampling import GREEDY
from amk.targets.target import load_target

LENGTHS, BAND, SEED = (64, 512, 2048), 256, 7
CONTINUED = 4
"""Tokens behind each prompt that are compared."""


class WholePrompt(TorchDecoder):
    """All tokens of one text at once, each seeing those before it."""

    def rope(self, pos: int) -> tuple[Tensor, Tensor]:
        """Of the positions before `pos`."""
        at = torch.arange(pos, dtype=torch.float64)[:, None]
        angles = at * torch.tensor(rope_frequencies(self.weights.model), dtype=torch.float64)
        angles = torch.cat([angles, angles], dim=-1).to(self.k_cache.device)
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)

    def attended(self, q: Tensor, k: Tensor, v: Tensor, layer: int, pos: int) -> Tensor:
        model = self.weights.model
        queries, keys, values = (t.view(pos, -1, model.head_dim).transpose(0, 1) for t in (q, k, v))
        self.k_cache[layer, :, :pos], self.v_cache[layer, :, :pos] = keys, values
        out = F.scaled_dot_product_attention(
            queries[None], keys[None].to(self.dtype), values[None].to(self.dtype), is_causal=True, enable_gqa=True
        )
        return out[0].transpose(0, 1).reshape(pos, -1)


def forward(weights: TorchWeights, tokens: Sequence[int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(logits behind the last token, caches [2, layers, heads, tokens, head_dim])."""
    model, count = weights.model, len(tokens)
    shape = model.layers, model.kv_heads, count, model.head_dim
    caches = torch.zeros(2, *shape, dtype=torch.bfloat16, device="cuda")
    decoder = WholePrompt(weights, caches[0], caches[1], dtype)
    logits = decoder.step(torch.tensor(tokens, device="cuda"), count, decoder.rope(count))
    return logits.reshape(count, -1)[-1].double(), caches


def bands(actual: Tensor, exact: Tensor) -> list[float]:
    """The largest relative error of a row of keys or values, band by band."""
    off = (actual.float() - exact.float()).norm(dim=-1) / exact.float().norm(dim=-1)
    each = off.amax(dim=(0, 1, 2))
    return [float(each[at : at + BAND].max()) for at in range(0, len(each), BAND)]


def summary(logits: Tensor, caches: Tensor, exact: tuple[Tensor, Tensor]) -> dict[str, Any]:
    wanted = exact[0]
    best = int(logits.argmax())
    return {
        "error": relative_error(logits, wanted), "token": best, "exact_token": int(wanted.argmax()),
        "rank": int((wanted > wanted[best]).sum()), "behind_by": float((wanted.max() - wanted[best]) / wanted.std()),
        "cache": [round(x, 5) for x in bands(caches, exact[1])],
    }  # fmt: skip


def prompts(vocab: int, length: int) -> dict[str, list[int]]:
    """By name: drawn tokens, and those that `amk.bench.end_to_end` gives."""
    drawn = {f"drawn {seed}": np.random.default_rng(seed).integers(0, vocab, length).tolist() for seed in range(2)}
    return drawn | {"17 i + 5": [(17 * i + 5) % vocab for i in range(length)]}


def lines(
    subject: Subject, backends: dict[str, ScheduleBackend], prompt: str, tokens: list[int]
) -> Iterator[dict[str, Any]]:
    """What each way makes of one prompt. stated: whether the first token is that of the logits."""
    model, weights, length = subject.engine.schedule.model, subject.weights, len(tokens)
    exact = forward(weights, tokens, torch.float64)
    rounded = forward(weights, tokens, torch.bfloat16)
    yield {"way": "torch in bf16", "tokens": length, "prompt": prompt, **summary(*rounded, exact)}
    for name, backend in backends.items():
        backend.forget()
        logits = torch.from_numpy(np.asarray(backend.logits(tokens)).reshape(-1)[: model.vocab].copy()).cuda().double()
        held = torch.stack([view(subject.engine, each)[:, :, :length].clone() for each in ("k_cache", "v_cache")])
        backend.forget()
        answer: list[int] = []
        text = list(tokens)
        while len(answer) < CONTINUED:
            answer += backend.extend([*text, *answer], CONTINUED - len(answer), GREEDY, ())
        stated = answer[0] == int(logits.argmax())
        yield {
            "way": name, "tokens": length, "prompt": prompt, **summary(logits, held, exact), "given": answer,
            "stated": stated, "exact": logit_gaps(weights, text, answer),
        }  # fmt: skip


def logit_gaps(weights: TorchWeights, text: Sequence[int], answer: Sequence[int]) -> list[float]:
    """How far the logit of each given token is below the largest, behind the text and the tokens before it, in
    standard deviations of the logits, in fp64."""
    found = []
    for count in range(len(answer)):
        logits, _ = forward(weights, [*text, *answer[:count]], torch.float64)
        found.append(round(float((logits.max() - logits[answer[count]]) / logits.std()), 5))
    return found


def measure(model_name: str, gpu: str, lengths: Sequence[int]) -> None:
    model = load_model(model_name)
    schedule = plan(model, load_target(gpu), settings=FAST, max_context=max(lengths) + CONTINUED)
    steps = in_steps(schedule)
    seal([steps, *filter(None, [last_step(schedule, steps)])])
    weights = TorchWeights.random(model, SEED)
    subject = Subject.random(kernel_of(schedule), SEED, weights)
    engine = subject.engine
    readers = {
        "rows": steps_beside(engine, partial(load_weights, weights=weights)),
        "torch": prompts_of(engine, "torch"), "kernel": None,
    }  # fmt: skip
    backends = {name: ScheduleBackend(engine, prompts=reader) for name, reader in readers.items()}
    for length in lengths:
        for prompt, tokens in prompts(model.vocab, length).items():
            for line in lines(subject, backends, prompt, tokens):
                print(json.dumps({"model": model.name, **line}), flush=True)


if __name__ == "__main__":
    asked = [int(each) for each in sys.argv[3].split(",")] if len(sys.argv) > 3 else LENGTHS
    measure(sys.argv[1], sys.argv[2], asked)
