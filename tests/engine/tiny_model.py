"""A model small enough to write in a test, as a safetensors directory or a GGUF file.

`LOGICAL` says which stored name carries which logical tensor; the tests' own table, apart from amk's.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import safetensors.numpy

LAYERS, HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 2, 256, 512, 4, 2, 64, 96

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}

# logical part -> (safetensors, GGUF, shape)
LOGICAL: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "attn_norm": ("input_layernorm.weight", "attn_norm.weight", (HIDDEN,)),
    "wq": ("self_attn.q_proj.weight", "attn_q.weight", (HEADS * HEAD_DIM, HIDDEN)),
    "wk": ("self_attn.k_proj.weight", "attn_k.weight", (KV_HEADS * HEAD_DIM, HIDDEN)),
    "wv": ("self_attn.v_proj.weight", "attn_v.weight", (KV_HEADS * HEAD_DIM, HIDDEN)),
    "wo": ("self_attn.o_proj.weight", "attn_output.weight", (HIDDEN, HEADS * HEAD_DIM)),
    "ffn_norm": ("post_attention_layernorm.weight", "ffn_norm.weight", (HIDDEN,)),
    "w_gate": ("mlp.gate_proj.weight", "ffn_gate.weight", (FFN, HIDDEN)),
    "w_up": ("mlp.up_proj.weight", "ffn_up.weight", (FFN, HIDDEN)),
    "w_down": ("mlp.down_proj.weight", "ffn_down.weight", (HIDDEN, FFN)),
}
BIASES: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "bq": ("self_attn.q_proj.bias", "attn_q.bias", (HEADS * HEAD_DIM,)),
    "bk": ("self_attn.k_proj.bias", "attn_k.bias", (KV_HEADS * HEAD_DIM,)),
    "bv": ("self_attn.v_proj.bias", "attn_v.bias", (KV_HEADS * HEAD_DIM,)),
}
QK_NORMS: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "q_norm": ("self_attn.q_norm.weight", "attn_q_norm.weight", (HEAD_DIM,)),
    "k_norm": ("self_attn.k_norm.weight", "attn_k_norm.weight", (HEAD_DIM,)),
}


def parts(model_type: str = "llama") -> dict[str, tuple[str, str, tuple[int, ...]]]:
    return LOGICAL | {"llama": {}, "qwen2": BIASES, "qwen3": QK_NORMS}[model_type]


def weights(model_type: str = "llama", *, tied: bool = False, seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 arrays by logical name, every value exact in bfloat16 and float16."""
    random = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"embed": (VOCAB, HIDDEN), "final_norm": (HIDDEN,)}
    if not tied:
        shapes["lm_head"] = (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        shapes |= {f"l{layer}.{part}": shape for part, (_, _, shape) in parts(model_type).items()}
    return {name: (random.integers(-64, 65, shape) / 1024).astype(np.float32) for name, shape in shapes.items()}


def hf_name(logical: str) -> str:
    top = {"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "lm_head": "lm_head.weight"}
    if logical in top:
        return top[logical]
    layer, _, part = logical.partition(".")
    return f"model.layers.{layer[1:]}.{(LOGICAL | BIASES | QK_NORMS)[part][0]}"


def gguf_name(logical: str) -> str:
    top = {"embed": "token_embd.weight", "final_norm": "output_norm.weight", "lm_head": "output.weight"}
    if logical in top:
        return top[logical]
    layer, _, part = logical.partition(".")
    return f"blk.{layer[1:]}.{(LOGICAL | BIASES | QK_NORMS)[part][1]}"


def write_bf16(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """A safetensors file of bfloat16, by hand: the package's numpy interface has no such type."""
    header: dict[str, Any] = {}
    at = 0
    for name, array in arrays.items():
        header[name] = {"dtype": "BF16", "shape": list(array.shape), "data_offsets": [at, at + 2 * array.size]}
        at += 2 * array.size
    text = json.dumps(header).encode()
    body = b"".join((array.view(np.uint32) >> 16).astype("<u2").tobytes() for array in arrays.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def write_config(directory: Path, **changes: Any) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG | changes))


def write_single(directory: Path, arrays: dict[str, np.ndarray], dtype: str = "F32", **changes: Any) -> Path:
    write_config(directory, **changes)
    named = {hf_name(name): array for name, array in arrays.items()}
    if dtype == "BF16":
        write_bf16(directory / "model.safetensors", named)
    else:
        kind = {"F32": np.float32, "F16": np.float16}[dtype]
        plain = {name: array.astype(kind) for name, array in named.items()}
        safetensors.numpy.save_file(plain, directory / "model.safetensors")
    return directory


def write_sharded(directory: Path, arrays: dict[str, np.ndarray], shards: int = 3, **changes: Any) -> Path:
    write_config(directory, **changes)
    named = {hf_name(name): array for name, array in arrays.items()}
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        mine = dict(list(named.items())[shard::shards])
        safetensors.numpy.save_file(mine, directory / file)
        weight_map |= dict.fromkeys(mine, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Q or K as llama-architecture GGUF files store it: the two halves of each head alternate."""
    return rows.reshape(heads, 2, HEAD_DIM // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(
    path: Path,
    arrays: dict[str, np.ndarray],
    kinds: dict[str, gguf.GGMLQuantizationType] | None = None,
    raw: dict[str, tuple[np.ndarray, gguf.GGMLQuantizationType]] | None = None,
    arch: str = "llama",
    extra: Any = lambda writer: None,
) -> Path:
    """`kinds` quantises tensors by logical name, `raw` gives stored bytes; `extra` adds metadata to the writer."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name("tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    extra(writer)
    for name, array in arrays.items():
        stored = array
        if arch == "llama" and name.endswith((".wq", ".bq")):
            stored = interleave(array, HEADS)
        if arch == "llama" and name.endswith((".wk", ".bk")):
            stored = interleave(array, KV_HEADS)
        kind = (kinds or {}).get(name, gguf.GGMLQuantizationType.F32)
        if raw and name in raw:
            data, kind = raw[name]
            writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
        elif kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(gguf_name(name), np.ascontiguousarray(stored))
        else:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(stored, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
