"""Llama, Mistral, Qwen2 and Qwen3: RMSNorm, one block after the other, SwiGLU.

Sources: the model cards and papers of Llama 2, Llama 3.1, Mistral 7B, Qwen2.5 and Qwen3.
"""

from __future__ import annotations

from amk.models.graph import Attention, Graph, Norm, Product, Tensor, Variant

ACTIVATIONS = ("silu",)
"""Of the MLP: silu(gate) * up."""


def graph(model: Variant) -> Graph:
    """Biases of q, k and v (Qwen2) and norms of heads (Qwen3) as the model has them."""
    if model.activation not in ACTIVATIONS or model.parallel:
        raise ValueError("models of the family llama have SwiGLU, and one block after the other")
    attn_norm = Norm(Tensor("attn_norm", ("hidden",), "input_layernorm.weight"))
    ffn_norm = Norm(Tensor("ffn_norm", ("hidden",), "post_attention_layernorm.weight"), reads=1)
    heads = [Tensor(f"{x}_norm", ("head_dim",), f"self_attn.{x}_norm.weight") for x in "qk"]
    q_norm, k_norm = heads if model.qk_norm else (None, None)
    nodes = (
        Product("qkv", attn_norm, tuple(_projection(x) for x in "qkv"), "rows", _biases(model)),
        Attention(q_norm, k_norm),
        Product("o", "attn", (Tensor("wo", ("hidden", "q_dim"), "self_attn.o_proj.weight"),), "residual"),
        Product("gate_up", ffn_norm, tuple(_wide(x) for x in ("gate", "up")), "activation", in_turn=True, op="swiglu"),
        Product("down", "act", (Tensor("w_down", ("hidden", "ffn"), "mlp.down_proj.weight"),), "residual"),
    )
    final = Norm(Tensor("final_norm", ("hidden",), "model.norm.weight"))
    head = Product("lm_head", final, (Tensor("lm_head", ("vocab", "hidden"), "lm_head.weight"),), "logits")
    embedding = Tensor("embed", ("vocab", "hidden"), "model.embed_tokens.weight")
    return Graph("rms", nodes, embedding, head, "model.layers.{}.")


def _projection(letter: str) -> Tensor:
    return Tensor(f"w{letter}", ("q_dim" if letter == "q" else "kv_dim", "hidden"), f"self_attn.{letter}_proj.weight")


def _wide(name: str) -> Tensor:
    return Tensor(f"w_{name}", ("ffn", "hidden"), f"mlp.{name}_proj.weight")


def _biases(model: Variant) -> tuple[Tensor, ...]:
    if not model.qkv_bias:
        return ()
    return tuple(Tensor(f"b{x}", ("q_dim" if x == "q" else "kv_dim",), f"self_attn.{x}_proj.bias") for x in "qkv")
