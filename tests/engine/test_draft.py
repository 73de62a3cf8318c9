"""Guesses of a draft model change no text, and no distribution."""

from __future__ import annotations

import io
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amk
from amk.api import loading
from amk.cli import main
from amk.engine.backends.forward import ForwardPass
from amk.engine.backends.forward_backend import ForwardBackend
from amk.engine.generation.draft import Draft
from amk.engine.generation.speculation import Speculation
from amk.planner.formats import BF16
from amk.report.diagnostic import AmkError
from amk.schedule_ir.sampling import GREEDY, Sampling
from tests.engine import tiny_chat
from tests.engine.test_forward import Arrays, expected
from tests.engine.tiny import tiny_model
from tests.reference.sampling_numpy import probabilities

PROMPT = "ABABAB WAS"
CONTEXT = 48
DRAWN = {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 11}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_chat.write(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights with some noise, so that it is right now and then."""
    return tiny_chat.write(tmp_path_factory.mktemp("models") / "draft", noise=0.02)


@pytest.fixture(scope="module")
def plain(directory: Path) -> Iterator[amk.LanguageModel]:
    with amk.load(directory, device="cpu", max_context=CONTEXT) as model:
        yield model


def test_the_text_is_that_of_one_token_at_a_time(directory: Path, draft: Path, plain: amk.LanguageModel) -> None:
    """Greedy and drawn, with logprobs, a turn later, and up to the end of the context."""
    with amk.load(directory, device="cpu", max_context=CONTEXT, draft=draft, draft_tokens=3) as guessing:
        for options in ({}, DRAWN, {"logprobs": 1}, {"max_tokens": 100}):
            arguments = {"max_tokens": 16, "ignore_eos": True} | options
            wanted, found = plain.generate(PROMPT, **arguments), guessing.generate(PROMPT, **arguments)
            assert (found.tokens, found.text, found.finish) == (wanted.tokens, wanted.text, wanted.finish)
            assert 0 < found.usage.accepted_tokens < found.usage.drafted_tokens
        again = [*plain.encode(PROMPT), *wanted.tokens[:3], 9]
        assert guessing.generate(again, max_tokens=5).tokens == plain.generate(again, max_tokens=5).tokens


@pytest.mark.turns(4)
def test_schedules_of_both_models(directory: Path, draft: Path, plain: amk.LanguageModel) -> None:
    """One of several rows verifies what one of one row draws where it runs."""
    loaded: dict[str, Any] = {"device": "interpreter", "max_context": 16, "sampling": "greedy"}
    with amk.load(directory, draft=draft, draft_tokens=2, **loaded) as guessing:
        for options in ({}, DRAWN):
            arguments: dict[str, Any] = {"max_tokens": 5, "ignore_eos": True} | options
            found = guessing.generate(PROMPT, **arguments)
            assert found.tokens == plain.generate(PROMPT, **arguments).tokens
            assert found.usage.accepted_tokens > 0


def test_a_draft_that_is_the_model_is_always_right(directory: Path, plain: amk.LanguageModel) -> None:
    """Also where tokens are drawn: both models draw with the noise of seed and position."""
    with amk.load(directory, device="cpu", max_context=CONTEXT, speculate="draft", draft=directory) as guessing:
        for options in ({}, DRAWN):
            found = guessing.generate(PROMPT, max_tokens=24, ignore_eos=True, **options)
            assert found.tokens == plain.generate(PROMPT, max_tokens=24, ignore_eos=True, **options).tokens
            assert (found.usage.accepted_tokens, found.usage.steps) == (found.usage.drafted_tokens, 3)


@pytest.mark.turns(4)
def test_a_small_draft_and_several_texts(directory: Path, tmp_path: Path, plain: amk.LanguageModel) -> None:
    """Its first layer, with a context that ends before the texts do."""
    small = tiny_chat.write(tmp_path / "small", layers=1)
    config = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 30}))
    prompts, options = [PROMPT, "Q", "XY XY XY", "HELLO"], {"max_tokens": 30, "ignore_eos": True, "seed": 2}
    with amk.load(directory, device="cpu", max_context=CONTEXT, draft=small, batch=3) as several:
        for temperature in (0, 1):
            arguments: dict[str, Any] = options | {"temperature": temperature}
            found = several.generate_all(prompts, **arguments)
            assert [each.tokens for each in found] == [plain.generate(prompt, **arguments).tokens for prompt in prompts]
            assert all(each.usage.drafted_tokens > 0 for each in found)
        (longest,) = several.generate_all(["A" * 31], max_tokens=5)
        assert longest.usage.drafted_tokens == 0


def test_what_the_other_model_does_not_know_is_not_guessed(plain: amk.LanguageModel) -> None:
    backend = plain._backend
    (first, second) = Draft(backend, 96).guess([40, 41], 2, GREEDY)
    assert Draft(backend, first).guess([40, 41] if first > 41 else [0], 2, GREEDY) == []
    assert Draft(backend, 40).guess([39, 40], 2, GREEDY) == []
    assert Draft(backend, 96).guess([39, b"...."], 2, GREEDY) == []
    if second > first:
        assert Draft(backend, second).guess([40, 41], 2, GREEDY) in ([first], [])


@pytest.mark.turns(12)
def test_sampling_keeps_the_distribution() -> None:
    """Every text of three tokens among the three most probable ones, enumerated with its probability by an independent
    decoder, and how often each comes with guesses. With equal seeds the texts are those without guesses."""
    spec, prompt, seeds = tiny_model(layers=1), [3, 17, 5], 700
    source, other = Arrays(spec), Arrays(spec)
    draw = np.random.default_rng(2)
    for name, array in other.arrays.items():
        if array.ndim == 2:
            other.arrays[name] = array + 0.05 * draw.standard_normal(array.shape).astype(np.float32)
    model, draft = (ForwardBackend(ForwardPass(each, 16)) for each in (source, other))
    found, verified, right = Counter[tuple[int, ...]](), 0, 0
    for seed in range(seeds):
        sampling, text = Sampling(1.2, top_k=3, seed=seed), list(prompt)
        speculation = Speculation(model, Draft(draft, spec.vocab), 2)
        while len(text) < 6:
            guesses = speculation.guessed(text, 6 - len(text), sampling)
            chosen = ((token, None) for token in model.choices(guesses.text, len(text) - 1, sampling))
            more = [token for token, _ in speculation.accepted(guesses, chosen, ())]
            text, verified, right = text + more, verified + len(guesses.tokens), right + len(more) - 1
        found[tuple(text[3:])] += 1
        if seed < 50:
            plain = list(prompt)
            while len(plain) < 6:
                plain += model.extend(plain, 1, sampling, ())
            assert plain == text
    assert 0.2 < right / verified < 0.95
    exact = enumerated(spec, source, prompt, 3)
    assert sum(exact.values()) == pytest.approx(1) and found.keys() <= exact.keys()
    distance = sum((found[text] - seeds * p) ** 2 / (seeds * p) for text, p in exact.items() if seeds * p >= 5)
    bins = sum(seeds * p >= 5 for p in exact.values())
    assert bins >= 9 and distance < bins + 4 * (2 * bins) ** 0.5, "four standard deviations of chi square"


def enumerated(spec: Any, source: Arrays, prompt: list[int], count: int) -> dict[tuple[int, ...], float]:
    texts: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(count):
        longer: dict[tuple[int, ...], float] = {}
        for text, probability in texts.items():
            row = probabilities(expected(spec, source, [*prompt, *text])[-1], 1.2, 3)
            longer |= {(*text, int(token)): probability * float(row[token]) for token in np.flatnonzero(row)}
        texts = longer
    assert len(texts) == 3**count and not any(a == b for a, b in itertools.combinations(texts, 2))
    return texts


def test_another_tokenizer_is_refused_by_name(directory: Path, tmp_path: Path) -> None:
    words = [*tiny_chat.WORDS]
    words[10], words[20] = words[20], words[10]
    other = tiny_chat.write(tmp_path / "other", words=words)
    with pytest.raises(AmkError, match="AMK012") as refused:
        amk.load(directory, device="cpu", draft=other)
    (diagnostic,) = refused.value.diagnostics
    assert "tokenizer of the draft" in diagnostic.message
    for fact, end in zip(diagnostic.facts, ("token 10 of the model", "token 20 of the draft"), strict=True):
        assert fact.text.startswith(repr(words[20])) and fact.text.endswith(end)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"speculate": "draft"}, "AMK005"),
        ({"speculate": "lookup", "draft": ...}, "AMK005"),
        ({"draft": ..., "draft_tokens": 0}, "AMK005"),
        ({"draft": "no-such-model"}, "AMK010"),
        ({"draft": ..., "device": "interpreter", "batch": 2}, "AMK016"),
    ],
)
def test_what_cannot_be_is_refused(directory: Path, draft: Path, options: dict[str, Any], code: str) -> None:
    arguments = {name: draft if value is ... else value for name, value in options.items()}
    with pytest.raises(AmkError, match=code):
        amk.load(directory, **({"device": "cpu"} | arguments))


def test_memory_that_does_not_hold_both_is_refused(directory: Path, draft: Path) -> None:
    files, second = loading.open_files(directory), loading.open_files(draft)
    wanted = loading.Planned(BF16, "bf16", 32, "greedy", rows=2)
    run = loading.planned(files.checkpoint.spec, "interpreter", None, wanted)
    assert loading._draft_plan(second, run, "interpreter", None).model.layers == 2
    small = run.model_copy(update={"target": run.target.model_copy(update={"hbm_bytes": 1 << 20})})
    with pytest.raises(AmkError, match="AMK011"):
        loading._draft_plan(second, small, "interpreter", None)


def test_commands(directory: Path, draft: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    asked = ["generate", "--model", str(directory), "--device", "cpu", "--prompt", PROMPT, "--plain"]
    asked += ["--max-tokens", "8", "--json"]
    answers = []
    for more in ([], ["--draft", str(draft)], ["--draft", str(draft), "--prompt", "Q"]):
        assert main([*asked, *more]) == 0
        answers.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    assert [len(each) for each in answers] == [1, 1, 2]
    assert answers[0][0]["tokens"] == answers[1][0]["tokens"] == answers[2][0]["tokens"]
    assert answers[1][0]["usage"]["drafted_tokens"] > 0
    monkeypatch.setattr("sys.stdin", io.StringIO("HI\n"))
    chat = ["chat", "--model", str(directory), "--device", "cpu", "--draft", str(draft), "--max-tokens", "3"]
    assert main(chat) == 0
