"""Guesses that are verified change no text: the forward pass, the schedule of several rows, its compiled kernel."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amk
from amk.cli import main
from amk.engine.backends.room import Token
from amk.engine.generation.lookup import Lookup
from amk.engine.generation.speculation import Speculating, Speculation
from amk.engine.load import plan_for_cpu
from amk.models.model import load_model
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import save_schedule
from amk.schedule_ir.sampling import GREEDY, Sampling
from tests.engine import tiny_chat

PROMPT = "ABABAB WAS ABABAB"
CONTEXT = 64
DRAWN = {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 11}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_chat.write(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def plain(directory: Path) -> Iterator[amk.LanguageModel]:
    with amk.load(directory, device="cpu", max_context=CONTEXT) as model:
        yield model


@pytest.fixture(scope="module", params=[("cpu", 1), ("interpreter", 1), ("interpreter", 4)], ids=str)
def guessing(directory: Path, request: pytest.FixtureRequest) -> Iterator[amk.LanguageModel]:
    device, steps = request.param
    with amk.load(
        directory, device=device, max_context=CONTEXT, speculate="lookup", draft_tokens=3, draft_steps=steps
    ) as model:
        yield model


class Oracle:
    """Guesses that are right up to a place that wanders through the guesses, and wrong there."""

    def __init__(self, text: Sequence[int]) -> None:
        self._wanted, self.asked = list(text), 0

    def guess(self, tokens: Sequence[Token], count: int, sampling: Sampling) -> list[int]:
        self.asked += 1
        found = self._wanted[len(tokens) : len(tokens) + count]
        wrong = self.asked % 5
        return [token if n != wrong else (token + 1) % 90 for n, token in enumerate(found)]


def test_a_guess_is_what_stood_behind_the_same_tokens() -> None:
    lookup = Lookup(shortest=1)
    text = [1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3]
    assert lookup.guess(text, 4) == [4, 9, 2, 3], "three equal tokens go before two of a later place"
    assert lookup.guess([*text, 8], 4) == []
    assert lookup.guess([*text, 8, 2, 3], 2) == [8, 2]
    assert lookup.guess([7, 6, 7], 5) == [6, 7, 6, 7, 6], "what repeats goes on"
    assert Lookup(shortest=2).guess([7, 6, 7], 5) == lookup.guess([5], 3) == lookup.guess([], 3) == []
    assert lookup.guess([5, 6, b"....", 7, 5, 6], 3) == [], "an embedding is no guess"
    long = [int(token) for token in np.random.default_rng(2).integers(0, 4, 400)]
    for size in (100, 101, 250, 400):
        assert lookup.guess(long[:size], 5) == Lookup(shortest=1).guess(long[:size], 5), "whatever it knew before"


@pytest.mark.turns(16)
@pytest.mark.parametrize("options", [{}, DRAWN], ids=["greedy", "drawn"])
def test_the_text_is_that_of_one_token_at_a_time(
    plain: amk.LanguageModel, guessing: amk.LanguageModel, options: dict[str, Any]
) -> None:
    arguments = {"max_tokens": 24, "ignore_eos": True} | options
    wanted, found = plain.generate(PROMPT, **arguments), guessing.generate(PROMPT, **arguments)
    assert (found.tokens, found.text, found.finish) == (wanted.tokens, wanted.text, wanted.finish)
    usage = found.usage
    assert usage.completion_tokens == usage.steps + usage.accepted_tokens == 24
    assert 0 <= usage.accepted_tokens <= usage.drafted_tokens and usage.drafted_tokens > 0
    assert (wanted.usage.steps, wanted.usage.drafted_tokens) == (24, 0)


@pytest.mark.turns(16)
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.8, 20, 0.9, 11)], ids=["greedy", "drawn"])
def test_every_number_of_right_guesses(
    plain: amk.LanguageModel, guessing: amk.LanguageModel, sampling: Sampling
) -> None:
    """Also at the end of the context, and where an accepted guess ends the text."""
    prompt = plain.encode(PROMPT)
    text = [int(token) for token in prompt]
    while len(text) <= CONTEXT:
        text += plain._backend.extend(text, 1, sampling, ())
    backend = guessing._backend
    for eos in ((), (text[30],)):
        stop = next((at for at in range(len(prompt), len(text)) if text[at] in eos), len(text) - 1)
        speculation = Speculation(backend, Oracle(text), 3)  # type: ignore[arg-type]
        found, sizes = list(text[: len(prompt)]), set[int]()
        while len(found) <= stop:
            guesses = speculation.guessed(found, CONTEXT, sampling)
            chosen = ((token, None) for token in backend.choices(guesses.text, len(found) - 1, sampling))  # type: ignore[attr-defined]
            more = [token for token, _ in speculation.accepted(guesses, chosen, eos)]
            sizes.add(len(more))
            found += more
        assert found == text[: stop + 1]
        assert eos or sizes >= {1, 2, 3}


@pytest.mark.turns(12)
def test_limits_stops_and_streams(plain: amk.LanguageModel, guessing: amk.LanguageModel) -> None:
    whole = plain.generate(PROMPT, max_tokens=16, ignore_eos=True)
    for most in (2, 5, 500):
        wanted = plain.generate(PROMPT, max_tokens=most, ignore_eos=True)
        found = guessing.generate(PROMPT, max_tokens=most, ignore_eos=True)
        assert (found.tokens, found.finish) == (wanted.tokens, wanted.finish)
    for at in (1, 7, 12):
        options = {"max_tokens": 16, "ignore_eos": True, "stop": whole.text[at : at + 2]}
        wanted, stream = plain.generate(PROMPT, **options), guessing.stream(PROMPT, **options)
        assert "".join(piece.text for piece in stream) == wanted.text
        assert (stream.completion.tokens, stream.completion.finish) == (wanted.tokens, "stop")


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    "options",
    [
        {"logprobs": 2},
        {"logit_bias": {40: 3.0, 41: -100}},
        {"logprobs": 1, "temperature": 0.8, "seed": 4},
        {"mask": lambda answer: np.arange(96) % 3 != len(answer) % 3},
        {"regex": "(AB|BA|A){4,12}C"},
        {"choices": ["ABABABAB", "ABABABAC", "ABAC"], "temperature": 1.0, "seed": 2},
    ],
    ids=["logprobs", "bias", "drawn", "mask", "expression", "choices"],
)
def test_what_needs_logits_is_guessed_too(
    plain: amk.LanguageModel, guessing: amk.LanguageModel, options: dict[str, Any]
) -> None:
    if "regex" in options:
        pytest.importorskip("llguidance")
    arguments = {"max_tokens": 11} | options
    wanted, found = plain.generate(PROMPT, **arguments), guessing.generate(PROMPT, **arguments)
    assert (found.tokens, found.text, found.finish) == (wanted.tokens, wanted.text, wanted.finish)
    assert found.usage.drafted_tokens > 0
    for mine, theirs in zip(found.logprobs or (), wanted.logprobs or (), strict=True):
        assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-3)
        assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]


@pytest.mark.turns(4)
def test_texts_of_a_batch_have_guesses_of_their_own(directory: Path, plain: amk.LanguageModel) -> None:
    """Each its own number of rows in a pass, and its own acceptance."""
    prompts = [PROMPT, "ABC ABC ABC ABC AB", "Q", "XY XY XY XY XY X"]
    options: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True}
    wanted = [plain.generate(prompt, **options).tokens for prompt in prompts]
    known = [[*(int(token) for token in plain.encode(p)), *w] for p, w in zip(prompts, wanted, strict=True)]
    with amk.load(directory, device="cpu", max_context=CONTEXT, batch=3, speculate="lookup") as looking:
        assert [each.tokens for each in looking.generate_all(prompts, **options)] == wanted
        guesses = Speculating(looking._backend, lambda: Knowing(known), 4)  # type: ignore[arg-type]
        several = amk.LanguageModel(looking.spec, looking.tokenizer, looking._backend, speculating=guesses)
        found = several.generate_all(prompts, **options)
    assert [each.tokens for each in found] == wanted
    assert all(each.usage.accepted_tokens > 10 for each in found)


class Knowing:
    """Guesses of one who knows the texts, each wrong in one place of six."""

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        self._texts = texts

    def guess(self, tokens: Sequence[Token], count: int, sampling: Sampling) -> list[int]:
        at = len(tokens)
        found = next(list(text[at : at + count]) for text in self._texts if list(text[:at]) == list(tokens))
        return [token if (at + n) % 6 else (token + 1) % 90 for n, token in enumerate(found)]


@pytest.mark.turns(24)
def test_turns_and_another_text(plain: amk.LanguageModel, guessing: amk.LanguageModel) -> None:
    chats = [model.chat() for model in (plain, guessing)]
    for said in ("HI", "HI HI", "BYE"):
        first, second = (chat.say(said, max_tokens=4, ignore_eos=True) for chat in chats)
        assert first.tokens == second.tokens
        assert first.usage.cached_tokens == second.usage.cached_tokens
    for _ in range(2):
        found = guessing.generate(PROMPT, max_tokens=4, ignore_eos=True)
        assert found.tokens == plain.generate(PROMPT, max_tokens=4, ignore_eos=True).tokens
    assert found.usage.cached_tokens == found.usage.prompt_tokens - 1


@pytest.mark.turns(12)
def test_logits_and_scores_of_a_schedule_of_rows(directory: Path, plain: amk.LanguageModel) -> None:
    schedule = plan_for_cpu(load_model(str(directory)), 24, rows=3)
    with amk.load(directory, schedule=schedule, device="interpreter") as rows:
        np.testing.assert_allclose(rows.logits(PROMPT), plain.logits(PROMPT), rtol=1e-3, atol=1e-3)
        for text in (PROMPT, PROMPT + "X", "AB"):
            found, wanted = (model.generate(text, max_tokens=20, ignore_eos=True) for model in (rows, plain))
            assert found.tokens == wanted.tokens[: 25 - len(rows.encode(text))]
        assert rows.score(PROMPT, ["ABC", "AB"])[0].logprob == pytest.approx(
            plain.score(PROMPT, ["ABC", "AB"])[0].logprob, abs=1e-3
        )


@pytest.mark.turns(12)
def test_the_emulator_verifies_guesses(directory: Path) -> None:
    pytest.importorskip("numba")
    with (
        amk.load(directory, device="cpu", max_context=16) as plain,
        amk.load(directory, device="emulator", max_context=16, speculate="lookup", draft_tokens=1) as emulated,
    ):
        prompt = [40, 41, 40]
        wanted = plain.generate(prompt, max_tokens=3, ignore_eos=True)
        found = emulated.generate(prompt, max_tokens=3, ignore_eos=True)
        assert found.tokens == wanted.tokens and found.usage.drafted_tokens > 0


@pytest.mark.turns(4)
def test_commands(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    model = load_model(str(directory))
    one, rows = (save(plan_for_cpu(model, CONTEXT, rows=n), tmp_path) for n in (1, 3))
    asked = ["generate", "--model", str(directory), "--prompt", PROMPT, "--plain", "--max-tokens", "8", "--json"]
    answers = []
    for more in (
        ["--device", "cpu"], ["--device", "cpu", "--speculate", "lookup", "--draft-tokens", "2"],
        ["--device", "interpreter", "--schedule", rows],
        ["--device", "interpreter", "--schedule", rows, "--speculate", "lookup"],
    ):  # fmt: skip
        assert main([*asked, *more]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert len({tuple(answer["tokens"]) for answer in answers}) == 1
    assert [answer["usage"]["drafted_tokens"] > 0 for answer in answers] == [False, True, False, True]
    monkeypatch.setattr("sys.stdin", io.StringIO("HI\n"))
    assert (
        main(["chat", "--model", str(directory), "--device", "cpu", "--speculate", "lookup", "--max-tokens", "3"]) == 0
    )
    capsys.readouterr()
    assert main([*asked, "--device", "interpreter", "--schedule", one, "--speculate", "lookup"]) == 2
    assert "AMK016" in capsys.readouterr().err
    assert main([*asked[:-1], "--prompt", "HI", "--device", "interpreter", "--speculate", "lookup"]) == 2
    assert "AMK005" in capsys.readouterr().err


def save(schedule: Any, folder: Path) -> str:
    path = folder / f"rows{schedule.rows}.json"
    save_schedule(schedule, path)
    return str(path)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"draft_tokens": 0}, "AMK005"),
        ({"speculate": "crystal ball"}, "AMK005"),
        ({"device": "interpreter", "draft_tokens": 64}, "AMK016"),
        ({"draft_steps": 2}, "AMK016"),
        ({"draft_steps": 0}, "AMK005"),
        ({"dtype": "int8"}, "AMK005"),
        ({"kv_dtype": "fp8"}, "AMK005"),
    ],
)
def test_what_cannot_be_is_refused(directory: Path, options: dict[str, Any], code: str) -> None:
    with pytest.raises(AmkError, match=code):
        amk.load(directory, **({"device": "cpu", "speculate": "lookup"} | options))
