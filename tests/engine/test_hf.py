"""`custom_generate=amk.hf.decode(...)` gives what transformers' own `generate` gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import amk  # noqa: E402
from amk.engine.refusal import AmkError  # noqa: E402
from tests.engine import tiny_chat  # noqa: E402
from tests.engine.tiny_model import CONFIG  # noqa: E402

PROMPTS = torch.tensor([[40, 41, 42, 43], [0, 0, 44, 45]])
INPUTS = {"input_ids": PROMPTS, "attention_mask": (PROMPTS != 0).long()}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, amk.LanguageModel]:
    path: Path = tiny_chat.write(tmp_path_factory.mktemp("hf") / "tiny")
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), amk.load(path, device="cpu")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"repetition_penalty": 1.5, "min_new_tokens": 3},
        {"eos_token_id": [50, 60, 70]},
        {"max_length": 9},
        {"bad_words_ids": [[30], [31]], "no_repeat_ngram_size": 2},
        {"prefill_chunk_size": 2},
    ],
)
@pytest.mark.parametrize("prompts", ["transformers", "amk"])
def test_greedy_texts(pair: tuple[Any, amk.LanguageModel], options: dict[str, Any], prompts: Any) -> None:
    theirs, ours = pair
    asked = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0} | options
    if "max_length" in asked:
        del asked["max_new_tokens"]
    wanted = theirs.generate(**INPUTS, **asked)
    decode = amk.hf.decode(ours, prompts=prompts)
    assert torch.equal(theirs.generate(**INPUTS, **asked, custom_generate=decode), wanted)


def test_drawn_texts_take_the_same_numbers(pair: tuple[Any, amk.LanguageModel]) -> None:
    theirs, ours = pair
    asked: dict[str, Any] = {
        "max_new_tokens": 10,
        "do_sample": True,
        "temperature": 0.7,
        "top_k": 20,
        "pad_token_id": 0,
    }
    torch.manual_seed(4)
    wanted = theirs.generate(PROMPTS[:1], **asked)
    torch.manual_seed(4)
    assert torch.equal(theirs.generate(PROMPTS[:1], **asked, custom_generate=amk.hf.decode(ours)), wanted)


def test_dictionary_streamer_and_files(pair: tuple[Any, amk.LanguageModel]) -> None:
    theirs, ours = pair

    class Heard:
        def __init__(self) -> None:
            self.tokens: list[int] = []
            self.ended = False

        def put(self, value: Any) -> None:
            self.tokens += value.reshape(-1).tolist()

        def end(self) -> None:
            self.ended = True

    heard = Heard()
    decode = amk.hf.decode(ours.path, device="cpu", streamer=heard)
    found = theirs.generate(
        PROMPTS[:1], max_new_tokens=5, do_sample=False, return_dict_in_generate=True, pad_token_id=0,
        custom_generate=decode,
    )  # fmt: skip
    assert found.sequences[0].tolist() == heard.tokens and heard.ended
    assert torch.equal(found.sequences, theirs.generate(PROMPTS[:1], max_new_tokens=5, do_sample=False, pad_token_id=0))


def test_what_is_refused(pair: tuple[Any, amk.LanguageModel]) -> None:
    theirs, ours = pair
    decode = amk.hf.decode(ours)
    with pytest.raises(AmkError, match="AMK005"):
        amk.hf.decode(ours, prompts="torch")  # type: ignore[arg-type]
    for name, value in {"num_beams": 2, "penalty_alpha": 0.6, "dola_layers": "high"}.items():
        with pytest.raises(AmkError, match=f"AMK015.*{name}"):
            theirs.generate(PROMPTS[:1], max_new_tokens=2, custom_generate=decode, **{name: value})
    with pytest.raises(AmkError, match="AMK015"):
        asked = {"return_dict_in_generate": True, "output_logits": True}
        theirs.generate(PROMPTS[:1], max_new_tokens=2, custom_generate=decode, **asked)
    config = {key: value for key, value in CONFIG.items() if key != "architectures"} | {"num_hidden_layers": 1}
    other = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
    with pytest.raises(AmkError, match="AMK012"):
        other.generate(PROMPTS[:1], max_new_tokens=2, custom_generate=decode)


@pytest.mark.parametrize("texts", [1, 2])
@pytest.mark.parametrize("chosen", [{"do_sample": False}, {"do_sample": False, "no_repeat_ngram_size": 3}])
def test_who_reads_the_prompt(texts: int, chosen: dict[str, Any], tmp_path: Path) -> None:
    """The caller's model, once and for this answer alone: it need not have amk's weights."""
    path = tiny_chat.write(tmp_path / "tiny")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        for parameter in theirs.model.layers[0].self_attn.parameters():
            parameter.neg_()
    read: list[int] = []
    theirs.model.register_forward_pre_hook(
        lambda *arguments: read.append(arguments[2]["input_ids"].numel()), with_kwargs=True
    )
    ours = amk.load(path, device="cpu", batch=texts)
    asked: dict[str, Any] = {"max_new_tokens": 12, "pad_token_id": 0} | chosen
    prompts = {"input_ids": PROMPTS.clone(), "attention_mask": INPUTS["attention_mask"]}

    def answer(**options: Any) -> Any:
        return theirs.generate(**prompts, **asked, custom_generate=amk.hf.decode(ours, **options))

    own = answer(prompts="amk")
    assert read == []
    mixed = answer()
    several = texts > 1 or "no_repeat_ngram_size" not in chosen
    assert read == ([3, 1] if several else []) and torch.equal(mixed, own) is not several
    assert torch.equal(answer(prompts="amk"), own)


@pytest.mark.parametrize("drawn", [False, True])
def test_a_text_longer_than_the_cache_is_not_cut(pair: tuple[Any, amk.LanguageModel], drawn: bool) -> None:
    """Nobody would know that the answer has not ended."""
    theirs, ours = pair
    answer = ours.generate(PROMPTS[0].tolist(), max_tokens=200, ignore_eos=True).tokens
    never = next(token for token in range(ours.spec.vocab) if token not in answer)
    asked = {"max_new_tokens": 200, "pad_token_id": 0, "eos_token_id": never, "do_sample": drawn}
    asked |= {"suppress_tokens": [never]} if drawn else {}
    with pytest.raises(AmkError, match=r"AMK014: 4 tokens of the prompt and \d+ behind it are more than the"):
        theirs.generate(PROMPTS[:1], **asked, custom_generate=amk.hf.decode(ours))


def test_a_cache_with_tokens_and_constraints_are_refused(pair: tuple[Any, amk.LanguageModel]) -> None:
    theirs, ours = pair
    read = theirs(PROMPTS[:1, :2]).past_key_values
    for name, value in {"past_key_values": read, "force_words_ids": [[5]]}.items():
        with pytest.raises(AmkError, match=f"AMK015.*{name}"):
            theirs.generate(PROMPTS[:1], max_new_tokens=2, custom_generate=amk.hf.decode(ours), **{name: value})


def test_texts_that_stop(pair: tuple[Any, amk.LanguageModel]) -> None:
    theirs, ours = pair

    def stop(ids: Any, scores: Any, **more: Any) -> Any:
        return torch.tensor([len(row) >= 7 for row in ids])

    asked: dict[str, Any] = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0, "stopping_criteria": [stop]}
    found = theirs.generate(PROMPTS[:1], **asked, custom_generate=amk.hf.decode(ours))
    assert torch.equal(found, theirs.generate(PROMPTS[:1], **asked)) and found.shape[1] == 7
    with pytest.raises(ValueError, match="tokenizer"):
        asked = {"stop_strings": ["A"], "tokenizer": object()}
        theirs.generate(PROMPTS[:1], max_new_tokens=2, custom_generate=amk.hf.decode(ours), **asked)


def test_embeddings_in_the_place_of_tokens_are_refused(pair: tuple[Any, amk.LanguageModel]) -> None:
    theirs, ours = pair
    embeddings = theirs.get_input_embeddings()(PROMPTS[:1])
    with pytest.raises(AmkError, match=r"AMK015.*inputs_embeds"):
        theirs.generate(inputs_embeds=embeddings, max_new_tokens=2, custom_generate=amk.hf.decode(ours))
