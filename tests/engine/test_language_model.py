"""The Python interface on small random checkpoints: what a request asks for is what it gets, on every backend."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import amk
from amk.api import devices
from amk.api.card import Card
from amk.cli import main
from amk.engine.backends.choice import choose, log_softmax
from amk.engine.backends.forward import ForwardPass, Part
from amk.engine.generation import scoring
from amk.engine.generation.completion import StopFilter
from amk.models.model import load_model
from amk.planner.decode import plan
from amk.planner.settings import Settings
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import save_schedule
from amk.schedule_ir.ranking import gumbel
from amk.schedule_ir.sampling import Sampling
from amk.targets.target import load_target
from tests.engine import tiny_chat
from tests.reference.llama_numpy import Config, Decoder
from tests.reference.sampling_numpy import probabilities


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_chat.write(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def model(directory: Path) -> amk.LanguageModel:
    return amk.load(directory, device="cpu")


def reference(directory: Path) -> Decoder:
    from amk.engine.checkpoints.open_checkpoint import open_checkpoint

    opened = open_checkpoint(directory)
    spec = opened.spec
    config = Config(spec.layers, spec.heads, spec.kv_heads, spec.head_dim, spec.rms_eps, spec.rope_theta)
    return Decoder(config, {name: opened.tensor(name) for name in opened.shapes})


def greedy(directory: Path, prompt: list[int], count: int) -> list[int]:
    decoder, read, found = reference(directory), prompt, list[int]()
    for _ in range(count):
        read = [int(decoder.forward(read).argmax())]
        found += read
    return found


PROMPT = "HELLO WORLD"


def test_a_greedy_answer(model: amk.LanguageModel, directory: Path) -> None:
    found = model.generate(PROMPT, max_tokens=12, ignore_eos=True)
    tokens = model.encode(PROMPT)
    assert list(found.tokens) == greedy(directory, tokens, 12)
    assert found.finish == "length"
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (11, 12)
    assert found.text == model.tokenizer.decode(found.tokens)
    assert found.logprobs is None
    assert model.generate(tokens, max_tokens=12, ignore_eos=True).tokens == found.tokens


def test_an_end_token_ends_the_answer_and_is_not_shown(model: amk.LanguageModel) -> None:
    found = model.generate(PROMPT, logit_bias={1: 1000.0})
    assert (found.tokens, found.text, found.finish) == ((1,), "", "stop")
    assert len(model.generate(PROMPT, logit_bias={1: 1000.0}, ignore_eos=True, max_tokens=3).tokens) == 3


def test_the_context_ends_the_answer(directory: Path) -> None:
    with amk.load(directory, device="cpu", max_context=14) as short:
        found = short.generate(PROMPT, ignore_eos=True)
        assert (len(found.tokens), found.finish) == (4, "length")
        with pytest.raises(AmkError, match="AMK014"):
            short.generate(PROMPT + " AGAIN")
    with pytest.raises(AmkError, match="closed"):
        short.generate(PROMPT)


def test_a_stop_string_ends_the_answer_before_itself(model: amk.LanguageModel) -> None:
    whole = model.generate(PROMPT, max_tokens=20, ignore_eos=True)
    stop = whole.text[7:10]
    found = model.generate(PROMPT, max_tokens=20, ignore_eos=True, stop=["no such text", stop])
    assert found.text == whole.text[: whole.text.index(stop)]
    assert found.finish == "stop" and len(found.tokens) < len(whole.tokens)


@pytest.mark.parametrize(
    ("parts", "stops", "text"),
    [
        (["ab", "c", "d"], ["cd"], "ab"), (["aba", "bc"], ["abc"], "ab"), (["ab", "ab"], ["abx"], "abab"),
        (["one two"], ["two", "one"], ""), (["x"], [], "x"), (["aaa", "ab"], ["aab"], "aa"),
    ],
)  # fmt: skip
def test_text_is_held_back_while_it_may_be_a_stop_string(parts: list[str], stops: list[str], text: str) -> None:
    filter_ = StopFilter(stops)
    assert "".join([filter_.push(part) for part in parts]) + filter_.finish() == text


def test_pieces_join_to_the_text_and_logprobs_are_those_of_the_model(model: amk.LanguageModel, directory: Path) -> None:
    stream = model.stream(PROMPT, max_tokens=6, logprobs=3, ignore_eos=True, temperature=1.3, seed=5)
    pieces = list(stream)
    found = stream.completion
    assert "".join(piece.text for piece in pieces) == found.text
    assert found.logprobs is not None
    table = log_softmax(reference_logits(directory, [*model.encode(PROMPT), *found.tokens]))[-7:-1]
    for row, token, entry in zip(table, found.tokens, found.logprobs, strict=True):
        assert entry.logprob == pytest.approx(row[token], abs=1e-3)
        assert [token for token, _ in entry.top] == np.argsort(-row)[:3].tolist()


def reference_logits(directory: Path, tokens: list[int]) -> np.ndarray:
    decoder = reference(directory)
    return np.array([decoder.forward([token]) for token in tokens])


def test_logits_and_scores(model: amk.LanguageModel, directory: Path) -> None:
    tokens = model.encode(PROMPT)
    wanted = reference_logits(directory, tokens)
    np.testing.assert_allclose(model.logits(PROMPT), wanted, rtol=1e-3, atol=1e-3)
    best = greedy(directory, tokens, 3)
    first, second = model.score(PROMPT, [best, [5, 6]])
    assert first.greedy and not second.greedy
    table = log_softmax(reference_logits(directory, [*tokens, 5]))
    assert second.logprobs == pytest.approx((table[-2, 5], table[-1, 6]), abs=1e-3)
    assert second.logprob == pytest.approx(sum(second.logprobs))
    assert model.score(PROMPT, "AB")[0].tokens == tuple(model.encode("AB"))


@pytest.mark.parametrize("most", [1, 4, 256])
def test_shared_prefixes_change_no_score(model: amk.LanguageModel, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree in one pass, in several, and each continuation by itself."""
    monkeypatch.setattr(scoring, "MOST_NODES", most)
    tokens = model.encode(PROMPT)
    texts = [[5], [5, 6], [5, 6, 7], [5, 7, 7], [8, 6, 7], [5, 6, 7], [9], [8] * 10]
    for text, found in zip(texts, model.score(PROMPT, texts), strict=True):
        table = log_softmax(model.logits([*tokens, *text])[len(tokens) - 1 :])
        assert found.tokens == tuple(text)
        assert found.logprobs == pytest.approx(table[np.arange(len(text)), text], abs=1e-4)
    for wrong in ([], [1000], [5] * 119):
        with pytest.raises(AmkError, match="AMK014"):
            model.score(PROMPT, [[5], wrong])
    assert len(model.score(PROMPT, [[5] * 118])[0].tokens) == 118


def test_states_out_and_embeddings_in(model: amk.LanguageModel, directory: Path) -> None:
    tokens = model.encode(PROMPT)
    head = load_file(directory / "model.safetensors")["lm_head.weight"]
    np.testing.assert_allclose(model.hidden(PROMPT) @ head.T, model.logits(PROMPT), rtol=1e-4, atol=1e-4)
    rows = model.embeddings(tokens)
    np.testing.assert_array_equal(rows, load_file(directory / "model.safetensors")["model.embed_tokens.weight"][tokens])
    assert model.generate(rows, max_tokens=4).tokens == model.generate(tokens, max_tokens=4).tokens
    np.testing.assert_array_equal(model.logits(rows), model.logits(tokens))
    assert np.abs(model.logits(rows + 1) - model.logits(rows)).max() > 0.01
    assert model.score(rows, [[5, 6]])[0].logprob == pytest.approx(model.score(tokens, [[5, 6]])[0].logprob, abs=1e-4)
    with pytest.raises(AmkError, match="AMK015"):
        model.generate(rows[:, :-1])


def test_choices_expressions_and_schemas(model: amk.LanguageModel) -> None:
    for seed in range(4):
        drawn = {"temperature": 1.0, "seed": seed}
        found = model.generate(PROMPT, choices=["YES", "YESTERDAY", "NO"], **drawn)
        assert found.text in ("YES", "YESTERDAY", "NO") and found.finish == "stop"
        assert re.fullmatch("[A-C]{2,4}", model.generate(PROMPT, regex="[A-C]{2,4}", **drawn).text)
        schema = {"enum": ["RED", "BLUE"]}
        assert json.loads(model.generate(PROMPT, json_schema=schema, **drawn).text) in ("RED", "BLUE")
        assert model.generate(PROMPT, grammar='start: "A" "B"+ "C"', max_tokens=40, **drawn).text.startswith("AB")
    never = np.zeros(model.spec.vocab, bool)
    for wrong in ({"choices": "YES"}, {"choices": [""]}, {"choices": ["A"], "regex": "A"}, {"regex": "("},
                  {"choices": ["A"], "mask": lambda answer: never}):  # fmt: skip
        with pytest.raises(AmkError, match="AMK015"):
            model.generate(PROMPT, **wrong)


def test_bias_and_mask(model: amk.LanguageModel) -> None:
    plain = model.generate(PROMPT, max_tokens=4, ignore_eos=True).tokens
    assert plain[0] not in model.generate(PROMPT, max_tokens=4, logit_bias={plain[0]: -100}, ignore_eos=True).tokens
    allowed = np.zeros(model.spec.vocab, bool)
    allowed[[20, 21]] = True
    seen: list[int] = []

    def mask(answer: Any) -> np.ndarray:
        seen.append(len(answer))
        return allowed

    assert set(model.generate(PROMPT, max_tokens=5, mask=mask).tokens) <= {20, 21}
    assert seen == [0, 1, 2, 3, 4]
    for options in (
        {"logit_bias": {99: 1.0}},
        {"mask": lambda _: np.ones(3, bool)},
        {"mask": lambda _: ~allowed & False},
    ):
        with pytest.raises(AmkError, match="AMK015"):
            model.generate(PROMPT, **options)


@pytest.mark.parametrize(
    "options",
    [
        *({"max_tokens": value} for value in (0, 2.5, None, True)),
        *({"logprobs": value} for value in (21, True, 1.0)),
        *({"stop": value} for value in ("", 5, None, ["a", 5], {"a"})),
        *({"temperature": value} for value in (-1.0, "hot", True)),
        *({"top_p": value} for value in (0.0, "most")),
        *({"top_k": value} for value in (-1, 2.5)),
        *({"seed": value} for value in (-1, None, "one")),
        *({"logit_bias": value} for value in ([5], {"5": 1.0}, {5: "much"}, {5: float("nan")}, {5: float("inf")})),
    ],
    ids=str,
)
def test_options_outside_their_range_are_refused(model: amk.LanguageModel, options: dict[str, Any]) -> None:
    with pytest.raises(AmkError, match="AMK015"):
        model.generate(PROMPT, **options)


@pytest.mark.parametrize(
    ("name", "advice"),
    [("presence_penalty", "known are max_tokens, temperature, "), ("max_token", "did you mean 'max_tokens'?")],
)
def test_an_unknown_option_is_named_as_the_caller_named_it(model: amk.LanguageModel, name: str, advice: str) -> None:
    """A TypeError, which an unknown keyword of `amk.load` is, too."""
    option: dict[str, Any] = {name: 1}

    async def pieces() -> list[amk.Piece]:
        return [piece async for piece in model.astream(PROMPT, **option)]

    for ask in (
        lambda: model.generate(PROMPT, **option), lambda: model.generate_all([PROMPT], **option),
        lambda: model.stream(PROMPT, **option), lambda: model.chat().say("HI", **option),
        lambda: model.chat().stream("HI", **option), lambda: asyncio.run(model.agenerate(PROMPT, **option)),
        lambda: asyncio.run(pieces()),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=re.escape(f"unexpected keyword argument {name!r}: {advice}")):
            ask()
    with pytest.raises(TypeError, match=name):
        amk.load(model.path, **option)


def test_options_may_be_numbers_of_numpy(model: amk.LanguageModel) -> None:
    options = {"max_tokens": np.int64(3), "temperature": np.float32(0.5), "seed": np.uint32(7)}
    model.generate(PROMPT, max_tokens=1)  # whoever asks again finds the prompt in the cache, which usage tells
    assert model.generate(PROMPT, **options) == model.generate(PROMPT, max_tokens=3, temperature=0.5, seed=7)
    bias = {np.int64(20): np.float64(90.0), 21: float("-inf")}
    assert model.generate(PROMPT, max_tokens=2, logit_bias=bias).tokens == (20, 20)
    assert model.generate(PROMPT, max_tokens=2, mask=lambda _: [token == 22 for token in range(99)][: model.spec.vocab])


@pytest.mark.parametrize(
    "prompt",
    [
        *(None, 7, 1.5, b"AB", ["A", "B"], [1.5], [3, True], np.array([1.5, 2.0]), np.zeros((2, 2, 2)), [[3, 4]]),
        *({"role": "user", "content": "A"}, [{"role": "user", "content": "A"}, 5], [5, {"content": "A"}]),
    ],
    ids=str,
)
def test_what_is_no_prompt_is_refused(model: amk.LanguageModel, prompt: Any) -> None:
    """Nothing of it is rounded, or left out without a word."""
    for ask in (model.generate, model.logits, model.hidden):
        with pytest.raises(AmkError, match="AMK014"):
            ask(prompt)
    if not isinstance(prompt, np.ndarray) and prompt not in (["A", "B"], [[3, 4]]):
        with pytest.raises(AmkError, match="AMK014"):
            model.score("A", [prompt])


def test_tokens_may_be_any_whole_numbers(model: amk.LanguageModel) -> None:
    wanted = model.generate([3, 4, 5], max_tokens=3)
    for prompt in (range(3, 6), (3, 4, 5), np.array([3, 4, 5], np.int32), iter([3, 4, 5])):
        assert model.generate(prompt, max_tokens=3).tokens == wanted.tokens


def test_embeddings_that_are_no_numbers_are_refused(model: amk.LanguageModel) -> None:
    with pytest.raises(AmkError, match=r"AMK015.*finite"):
        model.generate(np.full((2, model.spec.hidden), np.nan, np.float32))


@pytest.mark.parametrize(
    "sampling",
    [Sampling(0.8, seed=4), Sampling(1.0, 9, seed=5), Sampling(1.4, 0, 0.8, 6), Sampling(1.1, 30, 0.9, 1 << 63)],
)
def test_a_choice_is_among_what_an_independent_filter_keeps(sampling: Sampling) -> None:
    for pos in range(40):
        logits = np.random.default_rng(pos).standard_normal(83).astype(np.float32) * 3
        kept = probabilities(logits, sampling.temperature, sampling.top_k, sampling.top_p) > 0
        noise = gumbel((sampling.seed & 0xFFFFFFFF, sampling.seed >> 32), pos, range(83))
        score = (logits - logits.max()) * np.float32(1 / sampling.temperature) + noise
        assert choose(logits, sampling, pos) == int(np.where(kept, score, -np.inf).argmax())


def test_the_cache_is_reused_and_changes_nothing(model: amk.LanguageModel, directory: Path) -> None:
    first = model.generate(PROMPT, max_tokens=5, ignore_eos=True)
    again = model.generate(PROMPT, max_tokens=5, ignore_eos=True)
    assert again.tokens == first.tokens
    assert again.usage.cached_tokens == 10
    streams = [model.stream(text, max_tokens=5, ignore_eos=True) for text in (PROMPT, "OTHER")]
    taken = [[piece.token for piece in pieces] for pieces in zip(*streams, strict=True)]
    assert [row[0] for row in taken] == list(first.tokens)
    assert [row[1] for row in taken] == greedy(directory, model.encode("OTHER"), 5)


def test_a_conversation_reads_only_what_is_new(model: amk.LanguageModel) -> None:
    chat = model.chat("BE SHORT")
    first = chat.say("HI", max_tokens=3, ignore_eos=True)
    second = chat.say("BYE", max_tokens=3, ignore_eos=True)
    assert [message["role"] for message in chat.messages] == ["system", "user", "assistant", "user", "assistant"]
    fresh = amk.load(model.path, device="cpu").generate(chat.messages[:-1], max_tokens=3, ignore_eos=True)
    assert fresh.tokens == second.tokens
    assert second.usage.cached_tokens >= first.usage.prompt_tokens


@pytest.mark.parametrize("how", ["leaves", "cancels", "interrupts", "fails"])
def test_what_came_of_an_answer_stays_in_the_conversation(model: amk.LanguageModel, how: str) -> None:
    whole = model.chat().say("HI", max_tokens=8, ignore_eos=True).text
    chat, heard = model.chat(), list[str]()

    def listen() -> None:
        with chat.stream("HI", max_tokens=8, ignore_eos=True) as turn:
            for piece in turn:
                heard.append(piece.text)
                if len(heard) == 3 and how == "cancels":
                    turn.cancel()
                elif len(heard) == 3 and how == "leaves":
                    break
                elif len(heard) == 3:
                    raise KeyboardInterrupt if how == "interrupts" else ValueError

    with contextlib.suppress(KeyboardInterrupt, ValueError):
        listen()
    said = [message["content"] for message in chat.messages]
    assert whole.startswith("".join(heard)) and said == ([] if how == "fails" else ["HI", "".join(heard)])


def test_a_turn_that_never_began_is_not_part_of_a_conversation(model: amk.LanguageModel) -> None:
    chat = model.chat()
    with pytest.raises(AmkError, match="AMK014"):
        chat.say("A" * 10_000)
    with chat.stream("HI"):
        pass
    assert chat.messages == []


def test_a_cancelled_answer_stops(model: amk.LanguageModel) -> None:
    stream = model.stream(PROMPT, max_tokens=50, ignore_eos=True)
    next(stream)
    stream.cancel()
    assert next(stream, None) is None
    assert (stream.completion.finish, len(stream.completion.tokens)) == ("cancelled", 1)


def test_async(model: amk.LanguageModel) -> None:
    async def both() -> tuple[amk.Completion, list[int]]:
        answer = await model.agenerate(PROMPT, max_tokens=4, ignore_eos=True)
        return answer, [piece.token async for piece in model.astream(PROMPT, max_tokens=4, ignore_eos=True)]

    answer, tokens = asyncio.run(both())
    assert list(answer.tokens) == tokens == list(model.generate(PROMPT, max_tokens=4, ignore_eos=True).tokens)


def test_answers_asked_for_at_once_are_read_once(model: amk.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """One seat: without an order each token of one text would evict the other text."""
    prompts, read, plain = [[40 + at] * 20 for at in range(3)], list[int](), ForwardPass.read

    def counted(forward: ForwardPass, parts: Sequence[Part]) -> Any:
        read.extend(len(part.tokens) for part in parts)
        return plain(forward, parts)

    async def together() -> list[amk.Completion]:
        return await asyncio.gather(*(model.agenerate(each, max_tokens=8, ignore_eos=True) for each in prompts))

    monkeypatch.setattr(ForwardPass, "read", counted)
    answers = asyncio.run(together())
    assert sum(read) == 3 * (20 + 7)
    alone = [model.generate(each, max_tokens=8, ignore_eos=True).tokens for each in prompts]
    assert [each.tokens for each in answers] == alone


def test_a_mask_may_ask_the_model(model: amk.LanguageModel) -> None:
    def mask(answer: Any) -> np.ndarray[Any, Any]:
        allowed = np.zeros(model.spec.vocab, bool)
        allowed[model.generate([50, *answer], max_tokens=1, ignore_eos=True).tokens[0]] = True
        return allowed

    masked = model.generate([40, 41], max_tokens=3, ignore_eos=True, mask=mask).tokens
    assert masked == model.generate([50], max_tokens=3, ignore_eos=True).tokens


@pytest.mark.turns(12)
def test_the_emulator_gives_what_the_cpu_gives(directory: Path) -> None:
    pytest.importorskip("numba")
    with amk.load(directory, device="emulator", max_context=16, sampling="greedy") as emulated:
        wanted = greedy(directory, [40, 41], 3)
        assert list(emulated.generate([40, 41], max_tokens=2, ignore_eos=True).tokens) == wanted[:2]
        longer = emulated.generate([40, 41, *wanted[:2]], max_tokens=1, logprobs=1, ignore_eos=True)
        assert longer.usage.cached_tokens == 3
        assert list(longer.tokens) == wanted[2:]


@pytest.mark.turns(4)
def test_the_interpreter_gives_what_the_cpu_gives(model: amk.LanguageModel, directory: Path) -> None:
    """The weights are exact in bf16, so both compute the same model."""
    with amk.load(directory, device="interpreter", max_context=40) as scheduled:
        for options in ({}, {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "seed": 7}, {"logprobs": 1}):
            arguments = {"max_tokens": 4, "ignore_eos": True} | options
            mine, theirs = scheduled.generate(PROMPT, **arguments), model.generate(PROMPT, **arguments)
            assert mine.tokens == theirs.tokens, options
        longer = scheduled.generate([*scheduled.encode(PROMPT), *mine.tokens, 9], max_tokens=2, ignore_eos=True)
        assert longer.usage.cached_tokens >= 14
        assert list(longer.tokens) == greedy(directory, [*model.encode(PROMPT), *mine.tokens, 9], 2)


def test_a_schedule_of_several_sequences_is_refused(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule = plan(load_model(str(directory)), load_target("l4"), settings=Settings(batch=2), max_context=64)
    save_schedule(schedule, tmp_path / "s.json")
    with pytest.raises(AmkError, match="AMK016"):
        amk.load(directory, schedule=schedule, device="interpreter")
    words = ["--model", str(directory), "--schedule", str(tmp_path / "s.json"), "--device", "interpreter"]
    for command in (["generate", "--prompt", "HI", "--plain"], ["chat"], ["serve", "--port", "0"]):
        assert main([*command, *words]) == 2
        assert "AMK016" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "code"),
    [
        *(({"max_context": value}, "AMK005") for value in (0, -5, 2.5, "9", True)),
        ({"max_context": 129}, "AMK011"),
        *(({"batch": value}, code) for value, code in ((2.5, "AMK005"), (0, "AMK016"), (17, "AMK016"))),
        *(({"speculate": "lookup", "draft_tokens": value}, "AMK005") for value in (0, 2.5)),
        *(
            ({name: "none"}, "AMK005")
            for name in ("device", "prefill", "sampling", "kv_dtype", "dtype", "lm_head_dtype")
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("device", ["cpu", "interpreter"])
def test_arguments_of_load_outside_their_range_are_refused(
    directory: Path, device: Any, argument: dict[str, Any], code: str
) -> None:
    """On the device cpu, too, which has no plan that would not fit."""
    with pytest.raises(AmkError, match=code):
        amk.load(directory, **({"device": device} | argument))


def test_what_the_files_ask_for_is_named(directory: Path, tmp_path: Path) -> None:
    import shutil

    path = Path(shutil.copytree(directory, tmp_path / "m"))
    (path / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 0.5, "top_k": 7}))
    with amk.load(path, device="cpu") as loaded:
        assert [note.code for note in loaded.notes] == ["AMK015"]
        assert loaded.suggested == {"temperature": 0.5, "top_k": 7, "top_p": 1.0}
        assert loaded.generate(PROMPT, max_tokens=2, **loaded.suggested).tokens
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": config["num_hidden_layers"] - 1}))
    with amk.load(path, device="cpu") as loaded:
        assert [note.code for note in loaded.notes] == ["AMK015", "AMK013"], "a layer of the file is left out"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"device": "cpu", "gpu": "h200"}, "AMK005"),
        ({"device": "cpu", "prefill": "torch"}, "AMK005"),
        ({"device": "cuda"}, "AMK602"),
        ({"gpu": "no-such"}, "AMK010"),
    ],
)
def test_devices_that_cannot_be_had(
    directory: Path, options: dict[str, Any], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "usable_card", lambda: None)
    with pytest.raises(AmkError, match=code):
        amk.load(directory, **options)


@pytest.mark.parametrize(
    ("card", "device", "gpu", "words"),
    [
        (None, "cpu", None, "no GPU"),
        (Card("NVIDIA H200", "sm_90a", 132), "cuda", "h200", ""),
        (Card("NVIDIA H100 80GB HBM3", "sm_90a", 132), "cuda", "h100", ""),
        (Card("NVIDIA GH200 480GB", "sm_90a", 132), "cuda", "h100", ""),
        (Card("NVIDIA A100-SXM4-80GB", "sm_80", 108), "cuda", "a100-80gb", ""),
        (Card("NVIDIA A100-PCIE-40GB", "sm_80", 108), "cuda", "a100-40gb", ""),
        (Card("NVIDIA L4", "sm_89", 58), "cuda", "l4", ""),
        (Card("NVIDIA GeForce RTX 3060", "sm_86", 28), "cpu", None, "GeForce RTX 3060"),
    ],
)
def test_the_card_decides_where_nobody_does(
    card: Card | None, device: str, gpu: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "usable_card", lambda: card)
    found, target, notes = devices.chosen(None, scheduled=False)
    assert (found, target) == (device, gpu)
    assert all(words in note.message for note in notes) and bool(notes) is bool(words)


def test_a_repository_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(AmkError, match="AMK013"):
        amk.load("nobody/no-such-model")


def test_a_repository_is_fetched_by_its_package(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    asked: list[Any] = []

    def snapshot_download(repository: str, **options: Any) -> str:
        names = ["config.json", "model.safetensors", "consolidated.safetensors", "onnx/model.safetensors", "m.gguf"]
        names += ["chat_template.jinja", "additional_chat_templates/tool_use.jinja"]
        allowed = options["allow_patterns"], options["ignore_patterns"]
        kept = hub.utils.filter_repo_objects(names, allow_patterns=allowed[0], ignore_patterns=allowed[1])
        asked.append((repository, options["revision"], sorted(kept)))
        return str(directory)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    assert amk.load("owner/name@v1", device="cpu").generate(PROMPT, max_tokens=1).tokens
    templates = ["additional_chat_templates/tool_use.jinja", "chat_template.jinja"]
    assert asked == [("owner/name", "v1", [*templates, "config.json", "model.safetensors"])]
    monkeypatch.setattr(hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    with pytest.raises(AmkError, match=r"no config\.json"):
        amk.load("owner/name", device="cpu")


def test_plan_verify_simulate() -> None:
    schedule = amk.plan("smollm2-135m", "l4", max_context=256)
    assert amk.verify(schedule).safe
    found = amk.simulate(schedule)
    assert 0 < found.ms < 100
    words = f"{found.ms:.4g} ms a token of smollm2-135m on l4 at position 128, bottleneck {found.bottleneck}"
    assert repr(found) == f"<simulated, not measured: {words}>"


@pytest.mark.turns(4)
def test_a_plan_has_what_the_command_can_ask_for(directory: Path, model: amk.LanguageModel) -> None:
    batch = amk.plan(directory, "l4", max_context=64, batch=2, live=True)
    assert (batch.batch, batch.live) == (2, True)
    guesses = amk.plan(directory, "l4", max_context=64, rows=3, accepts=True)
    assert (guesses.rows, guesses.accepts) == (3, True)
    assert amk.plan(directory, "l4", max_context=64, rows=2, headless=True).headless
    tree = amk.plan(directory, "l4", max_context=64, rows=4, tree=True)
    assert amk.verify(tree).safe and amk.simulate(tree).pos == 63
    with pytest.raises(AmkError, match="AMK005"):
        amk.simulate(tree, 64)
    with amk.load(directory, device="interpreter", schedule=tree) as planned:
        ours, theirs = (each.score([40, 41], [[3, 4], [3, 5]]) for each in (planned, model))
    assert [score.logprob for score in ours] == pytest.approx([score.logprob for score in theirs], abs=1e-2)
    with pytest.raises(AmkError, match="AMK016"):
        amk.plan(directory, "l4", max_context=64, rows=2, batch=2)


def test_importing_needs_nothing_heavy() -> None:
    program = (
        "import sys, amk; assert amk.load and amk.AmkError; "
        "heavy = {'torch', 'transformers', 'anthropic', 'ray', 'huggingface_hub', 'cuda', 'starlette', 'uvicorn'}; "
        "print(*((heavy | {'llguidance'}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
    cpu = "import sys, amk.commands.generate, amk.engine.checkpoints.gguf_file; "
    cpu += "print(*({'z3', 'asyncio', 'amk.planner', 'amk.validator', 'amk.lowering'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", cpu], capture_output=True, text=True, check=True).stdout == "\n"
    verdict = "import sys, amk; amk.verify, amk.plan, amk.simulate; print('amk.engine' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", verdict], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    light = "import sys, amk; print('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", light], capture_output=True, text=True, check=True).stdout == "False\n"
