"""A tokenizer that puts a space before every text, as SentencePiece does: answers continue the text of a prompt."""

from __future__ import annotations

import json
import string
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, processors

import amk
from amk.cli import main
from amk.engine.backends.forward_backend import ForwardBackend
from tests.engine import tiny_model
from tests.serve.serving import serving

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
BYTES = [f"<0x{byte:02X}>" for byte in (0x0A, 0xC3, 0xA9, 0xC4)]
WORDS = ["<unk>", "<s>", "</s>", *BYTES, SPACE, *string.ascii_lowercase, "bl", f"{SPACE}a", f"{SPACE}bl"]
IDS = {word: token for token, word in enumerate(WORDS)}
SAID = [{"role": "user", "content": "say"}]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tiny_model.write_single(tmp_path_factory.mktemp("models") / "tiny", tiny_model.weights())
    merges = [("b", "l"), (SPACE, "a"), (SPACE, "bl")]
    backend = Tokenizer(models.BPE(IDS, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    backend.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return path


@pytest.fixture(scope="module")
def model(directory: Path) -> amk.LanguageModel:
    return amk.load(directory, device="cpu")


def only(*words: str) -> dict[str, object]:
    """Options of an answer that is these tokens."""

    def mask(answer: object) -> object:
        allowed = [False] * tiny_model.VOCAB
        allowed[IDS[words[len(answer)]]] = True  # type: ignore[arg-type]
        return allowed

    return {"mask": mask, "max_tokens": len(words)}


@pytest.mark.parametrize("prompt", ["the sky is", "a", "caf\u00e9", "caf\u00e9\u00e9", "the "])
@pytest.mark.parametrize(
    ("words", "text"),
    [((f"{SPACE}bl", "u"), " blu"), (("bl",), "bl"), ((SPACE, f"{SPACE}a"), "  a"), (("<0xC3>", "<0xA9>"), "\u00e9")],
)
def test_a_space_between_prompt_and_answer_is_kept(
    prompt: str, words: tuple[str, ...], text: str, model: amk.LanguageModel
) -> None:
    assert model.generate(prompt, **only(*words)).text == text
    assert model.tokenizer.decode([*model.encode(prompt), *(IDS[word] for word in words)]) == prompt + text


def test_an_answer_of_a_conversation_begins_with_its_word(model: amk.LanguageModel) -> None:
    assert model.generate(SAID, **only(f"{SPACE}bl", "u")).text == "blu"


@pytest.mark.parametrize(
    ("continuation", "words"),
    [(" blu", [f"{SPACE}bl", "u"]), ("blu", ["bl", "u"]), ("  a", [SPACE, f"{SPACE}a"]), ("\n", ["<0x0A>"])],
)
def test_a_continuation_is_what_stands_behind_the_text(
    continuation: str, words: list[str], model: amk.LanguageModel
) -> None:
    tokens = tuple(IDS[word] for word in words)
    assert model.score("the sky is", [continuation])[0].tokens == tokens
    assert model.generate("the sky is", choices=[continuation]).text == continuation


def test_choices_of_a_conversation_begin_with_their_word(model: amk.LanguageModel) -> None:
    answer = model.generate(SAID, choices=["blu"])
    assert (answer.text, answer.tokens[0]) == ("blu", IDS[f"{SPACE}bl"])


def test_the_command_line_and_the_server_keep_the_space(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ForwardBackend, "extend", lambda *_: [IDS[f"{SPACE}a"]])
    command = ["generate", "--model", str(directory), "--device", "cpu", "--prompt", "a", "--max-tokens", "2"]
    assert main(command) == main([*command, "--plain"]) == 0
    assert capsys.readouterr().out.splitlines() == ["a a", " a a"]
    with serving(directory) as running:
        completion = running.post("/v1/completions", prompt="a", max_tokens=2, temperature=0)[1]
        chat = running.post("/v1/chat/completions", messages=SAID, max_tokens=2, temperature=0)[1]
    assert completion["choices"][0]["text"] == " a a"
    assert chat["choices"][0]["message"]["content"] == "a a"
