"""The real checkpoint over many turns, on a long text, and against the clock; beside transformers, for the record.

python -m pytest tests/engine/test_smollm2_evidence.py --long -k conversation --record FILE
"""

from __future__ import annotations

import bisect
import inspect
import os
import pydoc_data.topics
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import amk
from amk.engine.generation.speculation import speculating
from tests.engine.smollm2_in_transformers import greedy, in_bfloat16, in_transformers, perplexity
from tests.prompts import PROMPTS

pytestmark = [pytest.mark.checkpoint, pytest.mark.long]

ANSWER = 48
"""Tokens of an answer at most."""
TOKENS = 8192
"""Of the text whose perplexity is measured."""
WINDOWS = ((512, 512), (1024, 512), (2048, 1536))
"""Windows and strides of it."""
REPEATS = 5

ANSWER_WITH_GUESSES = 128
CODE, PROSE = inspect.getsource(bisect), Path("tests/data/public_domain.txt").read_text(encoding="utf-8")
TASKS = {
    "code, continued": CODE[:1800],
    "code, changed": [{"role": "user", "content": f"Write this with longer names of variables:\n\n{CODE[:900]}"}],
    "prose, continued": PROSE,
    "prose, summarised": [{"role": "user", "content": f"Summarise this text:\n\n{PROSE}"}],
    "prose, corrected": [{"role": "user", "content": f"Copy this text and correct its spelling:\n\n{PROSE[:700]}"}],
    "chat, planets": [{"role": "user", "content": "List the planets and say one thing about each of them."}],
    "chat, gravity": [{"role": "user", "content": "Explain gravity to a child."}],
}

Record = Callable[[str, Any], None]


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> amk.LanguageModel:
    return amk.load(smollm2_path, device="cpu")


def test_a_conversation_of_twenty_turns(model: amk.LanguageModel, smollm2_path: Path, record_property: Record) -> None:
    """Every answer is the greedy one of transformers for the same conversation, though the turns share a cache."""
    other, chat = in_transformers(smollm2_path), model.chat("You answer briefly.")
    differing, cached, tokens = [], 0, 0
    for number, text in enumerate(PROMPTS, 1):
        prompt = model.encode([*chat.messages, {"role": "user", "content": text}])
        answer = chat.say(text, max_tokens=ANSWER)
        if list(answer.tokens) != greedy(other, prompt, ANSWER):
            differing.append(number)
        cached, tokens = cached + answer.usage.cached_tokens, tokens + len(answer.tokens)
    record_property("turns", len(PROMPTS))
    record_property("answer_tokens", tokens)
    record_property("prompt_tokens_of_the_last_turn", len(prompt))
    record_property("prompt_tokens_not_read_again", cached)
    record_property("turns_that_differ", differing)
    assert differing == []


@pytest.mark.parametrize(("window", "stride"), WINDOWS)
def test_perplexity(
    model: amk.LanguageModel, window: int, stride: int, smollm2_path: Path, record_property: Record
) -> None:
    """Of the begin of Python's own help. Both read equal windows and the same dequantised weights."""
    text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    tokens = model.tokenizer.encode(text[: 8 * TOKENS])[:TOKENS]
    assert len(tokens) == TOKENS
    found, exact = model.perplexity(tokens, window=window, stride=stride), in_transformers(smollm2_path)
    other = {
        "transformers_float32": perplexity(exact, tokens, window, stride),
        "transformers_bfloat16": perplexity(in_bfloat16(exact), tokens, window, stride),
    }
    record_property("predicted_tokens", found.tokens)
    for name, value in {"amk_float32": found.value, **other}.items():
        record_property(name, round(value, 5))
    apart = found.value / other["transformers_bfloat16"] - 1
    record_property("amk_over_bfloat16_percent", round(100 * apart, 4))
    assert found.value == pytest.approx(other["transformers_float32"], rel=2e-5)
    assert abs(apart) < 0.001


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("most", [3, 7])
def test_speculation(model: amk.LanguageModel, task: str, most: int, record_property: Record) -> None:
    """Equal texts with guesses and without; tokens a pass, and tokens a second of processor time, prompts left out."""
    guessing = amk.LanguageModel(
        model.spec, model.tokenizer, model._backend, speculating=speculating(model._backend, "lookup", most)
    )
    prompt, rates, found = model.encode(TASKS[task]), list[float](), list[amk.Completion]()
    for each in (model, guessing):
        each.generate(prompt, max_tokens=1)
        before = time.process_time()
        found.append(each.generate(prompt, max_tokens=ANSWER_WITH_GUESSES, ignore_eos=True))
        rates.append(len(found[-1].tokens) / (time.process_time() - before))
    usage = found[1].usage
    record_property("tokens_a_pass", round(usage.completion_tokens / usage.steps, 2))
    record_property("accepted_of_drafted", f"{usage.accepted_tokens} of {usage.drafted_tokens}")
    record_property("tokens_per_processor_second", {"plain": round(rates[0], 1), "guessing": round(rates[1], 1)})
    record_property("times_as_fast", round(rates[1] / rates[0], 2))
    assert found[0].tokens == found[1].tokens


def test_time_of_a_pass(model: amk.LanguageModel, record_property: Record) -> None:
    """Milliseconds of processor time of a pass that reads 1 to 16 tokens behind a text of 300."""
    text, times = list(range(1000, 1300)), dict[int, float]()
    for count in (1, 2, 4, 8, 16):
        model._backend.logits(text)
        trials = []
        for _ in range(REPEATS):
            before = time.process_time()
            model._backend.every([*text, *range(2000, 2000 + count)], len(text))
            trials.append(time.process_time() - before)
        times[count] = round(1000 * min(trials), 1)
    record_property("milliseconds", times)
    record_property("times_of_one", {count: round(value / times[1], 2) for count, value in times.items()})
    assert all(value < count * times[1] for count, value in times.items() if count > 1), (
        "a guess costs less than a pass"
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_time(smollm2_path: Path, threads: int, record_property: Record) -> None:
    """Of the command until its first word, in processor time; of a prompt of 512 tokens and of 64 tokens after it."""
    environment = os.environ | dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), str(threads))
    command = [sys.executable, "-m", "amk", "generate", "--model", str(smollm2_path), "--device", "cpu"]
    command += ["--prompt", "What is the capital of France?", "--max-tokens", "1"]
    first = []
    for _ in range(REPEATS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert subprocess.run(command, capture_output=True, text=True, env=environment).stdout == "The\n"
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        first.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    _record(record_property, "first_word_processor_seconds", first)
    program = [sys.executable, "-c", _DECODING, str(smollm2_path)]
    rows = [
        [
            float(part)
            for part in subprocess.run(program, capture_output=True, text=True, env=environment).stdout.split()
        ]
        for _ in range(REPEATS)
    ]
    names = ("prompt_seconds", "prompt_processor_seconds", "tokens_per_second", "tokens_per_processor_second")
    for name, column in zip(names, zip(*rows, strict=True), strict=True):
        _record(record_property, name, list(column))
    record_property("load_average", round(os.getloadavg()[0], 1))
    assert statistics.median(first) < 20


_DECODING = """
import sys, time
import amk
model = amk.load(sys.argv[1], device="cpu")
model.generate([5, 6, 7], max_tokens=1)  # reads the weights
prompt = list(range(1000, 1512))
def now(): return time.perf_counter(), time.process_time()
begin = now()
stream = model.stream(prompt, max_tokens=65, ignore_eos=True)
next(stream)
middle = now()
assert len(list(stream)) == 64
end = now()
print(middle[0] - begin[0], middle[1] - begin[1], 64 / (end[0] - middle[0]), 64 / (end[1] - middle[1]))
"""


def _record(record_property: Record, name: str, values: list[float]) -> None:
    spread = f"{min(values):.3g} to {max(values):.3g}"
    record_property(name, {"median": round(statistics.median(values), 3), "spread": spread, "runs": len(values)})
