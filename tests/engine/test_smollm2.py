"""The real checkpoint: its description, its bytes, its tokenizer, and that the reference makes sense of them."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from amk.engine.checkpoints.checkpoint import Checkpoint
from amk.engine.checkpoints.open_checkpoint import open_checkpoint
from amk.engine.tokenizers.open_tokenizer import open_tokenizer
from amk.engine.tokenizers.tokenizer import Tokenizer
from amk.models.model import load_model
from tests.engine.ggml_formats import q4_1, q8_0
from tests.reference.llama_numpy import Config, Decoder, greedy

pytestmark = pytest.mark.checkpoint

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def checkpoint(smollm2_path: Path) -> Checkpoint:
    return open_checkpoint(smollm2_path)


@pytest.fixture(scope="module")
def tokenizer(smollm2_path: Path, checkpoint: Checkpoint) -> Tokenizer:
    return open_tokenizer(smollm2_path, checkpoint.spec.vocab)


def test_the_file_is_the_shipped_model(checkpoint: Checkpoint) -> None:
    apart = {"name", "source", "bos", "eos"}
    assert checkpoint.spec.model_dump(exclude=apart) == load_model("smollm2-135m").model_dump(exclude=apart)


@pytest.mark.turns(12)
def test_real_blocks_match_the_definition_of_their_format(checkpoint: Checkpoint, smollm2_path: Path) -> None:
    stored = {tensor.name: tensor.data for tensor in GGUFReader(smollm2_path).tensors}
    cases = [
        ("l7.w_down", "blk.7.ffn_down.weight", q4_1, 20),
        ("l29.wv", "blk.29.attn_v.weight", q4_1, 20),
        ("embed", "token_embd.weight", q8_0, 34),
    ]
    for name, gguf_name, decode, size in cases:
        for row in (0, 1, 100, 191):
            expected = [decode(bytes(block)) for block in stored[gguf_name][row].reshape(-1, size)]
            found = checkpoint.tensor(name, slice(row, row + 1))[0]
            np.testing.assert_allclose(found, np.concatenate(expected), rtol=1e-6, atol=1e-7, err_msg=name)


def test_chat_prompt(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode_chat(QUESTION)
    assert len(tokens) == 37
    by_id = tokenizer.backend.id_to_token
    assert [by_id(token) for token in tokens[:3]] == ["<|im_start|>", "system", "Ċ"]
    assert [by_id(token) for token in tokens[-4:]] == ["<|im_start|>", "ass", "istant", "Ċ"]
    assert "What is the capital of France?" in tokenizer.decode(tokens)


@pytest.mark.parametrize("text", ["naïve 日本語 🇫🇷", "x = 12345\n\n\n  y", "a" * 1000, "", " \t "])
def test_text_survives_a_round_trip(text: str, tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.turns(12)
def test_the_reference_answers_in_words(checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
    spec = checkpoint.spec
    config = Config(spec.layers, spec.heads, spec.kv_heads, spec.head_dim, spec.rms_eps, spec.rope_theta)
    decoder = Decoder(config, {name: checkpoint.tensor(name) for name in checkpoint.shapes})
    stream = tokenizer.stream()
    tokens = [token for token, _ in greedy(decoder, tokenizer.encode_chat(QUESTION), spec.eos, 20)]
    text = "".join([stream.push(token) for token in tokens]) + stream.finish()
    assert text == "The capital of France is Paris."
    assert tokens[-1] in spec.eos
