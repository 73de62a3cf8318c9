"""The checkpoint of the tests as a model of transformers, its tensors read by the `gguf` package alone."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

PLACES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip


def stored(path: Path) -> dict[str, Any]:
    """The file's tensors in float32, named as transformers names them."""
    found = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        match tensor.name.split("."):
            case ["blk", layer, part, _]:
                if part in ("attn_q", "attn_k"):  # the two of a rotated pair lie side by side in the file
                    values = values.reshape(-1, 32, 2, 576).swapaxes(1, 2).reshape(-1, 576)
                found[f"model.layers.{layer}.{PLACES[part]}.weight"] = values
            case ["token_embd", _]:
                found["model.embed_tokens.weight"] = values
            case _:
                assert tensor.name == "output_norm.weight"
                found["model.norm.weight"] = values
    return found


def in_transformers(path: Path) -> Any:
    """The model in float32. Skips the test where torch or transformers are missing."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0}, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    weights = {name: torch.from_numpy(values.copy()) for name, values in stored(path).items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model


def greedy(model: Any, prompt: list[int], count: int, **options: Any) -> list[int]:
    """The tokens that transformers' own `generate` appends."""
    import torch

    ids = torch.tensor([prompt])
    text = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, **options)
    return [int(token) for token in text[0, len(prompt) :]]


def in_bfloat16(model: Any) -> Any:
    """A copy with weights and arithmetic in bfloat16. As when transformers loads it, RoPE's frequencies are float32."""
    rounded = copy.deepcopy(model).bfloat16()
    rounded.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq.clone()
    return rounded


def perplexity(model: Any, tokens: list[int], window: int, stride: int) -> float:
    """By transformers' loss over windows. Tokens that an earlier window predicted are labelled -100, as it asks."""
    import torch

    total, count, done = 0.0, 0, 0
    for begin in range(0, len(tokens), stride):
        end = min(begin + window, len(tokens))
        ids = torch.tensor([tokens[begin:end]])
        labels = ids.clone()
        labels[:, : max(done - begin, 1)] = -100
        predicted = int((labels != -100).sum())
        with torch.no_grad():
            total += float(model(ids, labels=labels).loss) * predicted
        count, done = count + predicted, end
        if end == len(tokens):
            break
    return math.exp(total / count)
