"""A Llama-family decoder as data: its shapes, its constants, and the tensors that it owns."""

from collections.abc import Iterator
from functools import cached_property
from math import prod
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from amk.schedule_ir.name import Name

# Wide enough for any dense decoder that one device could hold; narrow enough that no product overflows 64 bits.
_Width = Annotated[int, Field(ge=1, le=1 << 20)]
_Count = Annotated[int, Field(ge=1, le=1 << 12)]
_Positions = Annotated[int, Field(ge=1, le=1 << 24)]
_Token = Annotated[int, Field(ge=0, lt=1 << 31)]
_Factor = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class RopeScaling(BaseModel):
    """The `llama3` RoPE scaling; `rope.py` has the formula. `original_context` is in positions."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    factor: Annotated[float, Field(ge=1, le=1e6, allow_inf_nan=False)]
    low_freq_factor: _Factor
    high_freq_factor: _Factor
    original_context: _Positions

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError("high_freq_factor must be greater than low_freq_factor")
        return self


class ModelSpec(BaseModel):
    """One model: RMSNorm, RoPE attention with grouped KV heads, SwiGLU; widths in elements, contexts in positions."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    name: Name
    source: Annotated[str, Field(max_length=500)]
    layers: _Count
    hidden: _Width
    ffn: _Width
    heads: _Count
    kv_heads: _Count
    head_dim: Annotated[int, Field(ge=2, le=1024)]
    vocab: Annotated[int, Field(ge=1, le=1 << 24)]
    max_context: _Positions
    rms_eps: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
    rope_theta: Annotated[float, Field(gt=1, le=1e12, allow_inf_nan=False)]
    rope_scaling: RopeScaling | None = None
    tied_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    bos: _Token | None = None
    eos: Annotated[tuple[_Token, ...], Field(max_length=64, strict=False)] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.head_dim % 2:
            raise ValueError(f"head_dim ({self.head_dim}) must be even, RoPE rotates pairs")
        for token in (*self.eos, *(() if self.bos is None else (self.bos,))):
            if token >= self.vocab:
                raise ValueError(f"token id {token} is outside the vocabulary of {self.vocab}")
        if len(set(self.eos)) < len(self.eos):
            raise ValueError("eos lists a token twice")
        return self

    @property
    def q_dim(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads

    def layer_tensors(self) -> dict[str, tuple[int, ...]]:
        """Shapes of one layer's tensors, keyed by their Hugging Face name without `model.layers.<i>.`; rows first."""
        shapes: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (self.hidden,),
            "self_attn.q_proj.weight": (self.q_dim, self.hidden),
            "self_attn.k_proj.weight": (self.kv_dim, self.hidden),
            "self_attn.v_proj.weight": (self.kv_dim, self.hidden),
            "self_attn.o_proj.weight": (self.hidden, self.q_dim),
            "post_attention_layernorm.weight": (self.hidden,),
            "mlp.gate_proj.weight": (self.ffn, self.hidden),
            "mlp.up_proj.weight": (self.ffn, self.hidden),
            "mlp.down_proj.weight": (self.hidden, self.ffn),
        }
        if self.qkv_bias:
            shapes["self_attn.q_proj.bias"] = (self.q_dim,)
            shapes["self_attn.k_proj.bias"] = (self.kv_dim,)
            shapes["self_attn.v_proj.bias"] = (self.kv_dim,)
        if self.qk_norm:
            shapes["self_attn.q_norm.weight"] = (self.head_dim,)
            shapes["self_attn.k_norm.weight"] = (self.head_dim,)
        return shapes

    def global_tensors(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors outside the layers; a tied output head is not a tensor of its own."""
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab, self.hidden),
            "model.norm.weight": (self.hidden,),
        }
        if not self.tied_embeddings:
            shapes["lm_head.weight"] = (self.vocab, self.hidden)
        return shapes

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Every tensor of the checkpoint with its full name and shape."""
        yield from self.global_tensors().items()
        for layer in range(self.layers):
            for name, shape in self.layer_tensors().items():
                yield f"model.layers.{layer}.{name}", shape

    @cached_property
    def layer_params(self) -> int:
        """Elements of one layer's tensors."""
        return sum(prod(shape) for shape in self.layer_tensors().values())

    @cached_property
    def params(self) -> int:
        """Elements of all tensors, tied ones once."""
        return sum(prod(shape) for shape in self.global_tensors().values()) + self.layers * self.layer_params
