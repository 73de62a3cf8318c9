"""GPT-NeoX and Pythia: LayerNorm, attention and MLP beside each other, GELU, heads rotated in part.

q, k and v are one tensor in files, whose rows take turns by heads. Source: Black et al., GPT-NeoX-20B (arXiv
2204.06745), section 2.1; Biderman et al., Pythia (arXiv 2304.01373), section 2.2.
"""

from __future__ import annotations

from amk.models.graph import Attention, Extent, Graph, Norm, Product, Tensor, Variant

FUSED, UP, DOWN = "attention.query_key_value", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"

ACTIVATIONS = {"gelu": False, "gelu-tanh": True}
"""Of the MLP: gelu(up), exact or by tanh."""


def graph(model: Variant) -> Graph:
    """Attention has biases (of q, k, v and the output) or not; the MLP has them always.

    Unless the block is parallel, the MLP reads the state that attention was added to. Where it is, the MLP's first
    product stands before attention, so that it is done while the heads' rows cross.
    """
    if model.activation not in ACTIVATIONS or model.qk_norm:
        raise ValueError("models of the family gpt_neox have GELU, and no norms of heads")
    attn_norm, ffn_norm = _norm("attn", "input_layernorm", 0), _norm("ffn", "post_attention_layernorm", 1)
    if model.parallel:
        ffn_norm = _norm("ffn", "post_attention_layernorm", 0)
    rows = tuple(_projection(f"w{x}", "weight", i, "hidden") for i, x in enumerate("qkv"))
    biases = tuple(_projection(f"b{x}", "bias", i) for i, x in enumerate("qkv")) if model.qkv_bias else ()
    output = (_tensor("bo", "attention.dense.bias", "hidden"),) if model.qkv_bias else ()
    w_up, b_up = _tensor("w_up", f"{UP}.weight", "ffn", "hidden"), _tensor("b_up", f"{UP}.bias", "ffn")
    w_down, b_down = _tensor("w_down", f"{DOWN}.weight", "hidden", "ffn"), _tensor("b_down", f"{DOWN}.bias", "hidden")
    qkv = Product("qkv", attn_norm, rows, "rows", biases)
    tanh = ("tanh", ACTIVATIONS[model.activation])
    up = Product("gate_up", ffn_norm, (w_up,), "activation", (b_up,), op="gelu", settings=(tanh,))
    wo = _tensor("wo", "attention.dense.weight", "hidden", "q_dim")
    o, down = Product("o", "attn", (wo,), "residual", output), Product("down", "act", (w_down,), "residual", (b_down,))
    final = Norm(
        _tensor("final_norm", "gpt_neox.final_layer_norm.weight", "hidden"),
        _tensor("final_shift", "gpt_neox.final_layer_norm.bias", "hidden"),
    )
    return Graph(
        norm="layer",
        nodes=(qkv, up, Attention(), o, down) if model.parallel else (qkv, Attention(), o, up, down),
        embedding=_tensor("embed", "gpt_neox.embed_in.weight", "vocab", "hidden"),
        head=Product("lm_head", final, (_tensor("lm_head", "embed_out.weight", "vocab", "hidden"),), "logits"),
        prefix="gpt_neox.layers.{}.",
    )


def _tensor(name: str, stored_name: str, *shape: Extent) -> Tensor:
    return Tensor(name, shape, stored_name)


def _norm(name: str, stored_name: str, reads: int) -> Norm:
    weight, shift = (
        _tensor(f"{name}_norm", f"{stored_name}.weight", "hidden"),
        _tensor(f"{name}_shift", f"{stored_name}.bias", "hidden"),
    )
    return Norm(weight, shift, reads)


def _projection(name: str, kind: str, index: int, *columns: Extent) -> Tensor:
    """Of q, k or v: the rows of a head follow those of the same head of the others; q and k are rotated in part."""
    shape: tuple[Extent, ...] = ("q_dim" if index == 0 else "kv_dim", *columns)
    return Tensor(name, shape, f"{FUSED}.{kind}", (index, 3), partly=index < 2)
