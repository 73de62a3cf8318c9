"""The real checkpoint on the CPU: the greedy texts of transformers, a conversation, and the time to the first word."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import amk
from tests.prompts import PROMPTS

pytestmark = pytest.mark.checkpoint

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> amk.LanguageModel:
    return amk.load(smollm2_path)


def test_the_question_is_answered(model: amk.LanguageModel) -> None:
    found = model.generate(QUESTION)
    assert (found.text, found.finish) == ("The capital of France is Paris.", "stop")
    paris, rome = model.score(QUESTION, ["The capital of France is Paris.", "The capital of France is Rome."])
    assert paris.greedy and paris.logprob > rome.logprob


def stored(path: Path) -> dict[str, Any]:
    """The file's tensors as transformers names them, by the `gguf` package alone."""
    places = {
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    }  # fmt: skip
    found = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        match tensor.name.split("."):
            case ["blk", layer, part, _]:
                if part in ("attn_q", "attn_k"):  # the two of a rotated pair lie side by side in the file
                    values = values.reshape(-1, 32, 2, 576).swapaxes(1, 2).reshape(-1, 576)
                found[f"model.layers.{layer}.{places[part]}.weight"] = values
            case ["token_embd", _]:
                found["model.embed_tokens.weight"] = values
            case _:
                assert tensor.name == "output_norm.weight"
                found["model.norm.weight"] = values
    return found


def theirs(smollm2_path: Path, prompts: list[list[int]], count: int) -> list[list[int]]:
    """Greedy texts of transformers in float32 with the weights of the same file."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0}, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    other = transformers.LlamaForCausalLM(config).eval()
    weights = {name: torch.from_numpy(values.copy()) for name, values in stored(smollm2_path).items()}
    missing, unexpected = other.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    other.tie_weights()
    found = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        text = other.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
        found.append(text[0, len(prompt) :].tolist())
    return found


def check(model: amk.LanguageModel, smollm2_path: Path, texts: list[str], count: int) -> None:
    prompts = [model.encode(text) for text in texts] + [model.encode(QUESTION)]
    for prompt, text in zip(prompts, theirs(smollm2_path, prompts, count), strict=True):
        assert list(model.generate(prompt, max_tokens=count).tokens) == text


@pytest.mark.long
def test_greedy_texts_are_those_of_transformers(model: amk.LanguageModel, smollm2_path: Path) -> None:
    check(model, smollm2_path, list(PROMPTS), 64)


def test_a_greedy_text_is_that_of_transformers(model: amk.LanguageModel, smollm2_path: Path) -> None:
    check(model, smollm2_path, list(PROMPTS)[:1], 16)


def test_the_first_word_of_a_chat_takes_seconds_of_processor_time(smollm2_path: Path) -> None:
    """Of the whole command, on one thread. About 3 s on an idle core, twice that where cores are shared.
    The interpreter of schedules takes 14 s."""
    words = ["generate", "--model", str(smollm2_path), "--prompt", QUESTION[0]["content"], "--max-tokens", "1"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "amk", *words], capture_output=True, text=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout == "The\n"
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 10
