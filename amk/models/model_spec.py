"""A decoder as data: its shapes, its constants, and by its family the graph of its layers."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from importlib import import_module
from math import prod
from pkgutil import iter_modules
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import CoreSchema

from amk.models import families
from amk.models.graph import Graph, Tensor, Variant
from amk.report.schema import Name, unless

# Wide enough for any dense decoder that one device could hold; narrow enough that no product overflows 64 bits.
_Width = Annotated[int, Field(ge=1, le=1 << 20)]
_Count = Annotated[int, Field(ge=1, le=1 << 12)]
_Positions = Annotated[int, Field(ge=1, le=1 << 24)]
_Token = Annotated[int, Field(ge=0, lt=1 << 31)]
_Factor = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


@cache
def known_families() -> tuple[str, ...]:
    """Their names: every module of `families` is one."""
    return tuple(info.name for info in iter_modules(families.__path__))


def graph_of(family: str) -> Callable[[Variant], Graph]:
    """What makes the graph of a model of the family."""
    graph: Callable[[Variant], Graph] = _module(family).graph
    return graph


def _module(family: str) -> Any:
    return import_module(f"{families.__name__}.{family}")


class _Activation:
    """A field that holds the activation of an MLP, one of those that the model's family has."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: Any) -> Any:
        names = {name for family in known_families() for name in _module(family).ACTIVATIONS}
        return {"enum": sorted(names), "type": "string"}


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


class LayerSlice(BaseModel):
    """Layers [first, first + the spec's own) of a model of `of` layers, without embedding.

    head: the final norm and lm_head come behind them, which are then the last layers, or none.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    first: Annotated[int, Field(ge=0, le=1 << 12)]
    of: _Count
    head: bool = unless(False)


class ModelSpec(BaseModel):
    """One model: its family's graph with these shapes; widths in elements, contexts in positions.

    rms_eps: what the norms add to the mean square, or LayerNorm to the variance. rotary_dim: elements of a head that
    are rotated, all unless given. slice: set where the layers are some of a larger model's, which are given hidden
    states and leave hidden states, or logits; its tensors are numbered from its own layer 0.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    name: Name
    family: Name = unless("llama")
    source: Annotated[str, Field(max_length=500)]
    layers: Annotated[int, Field(ge=0, le=1 << 12)]
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
    activation: Annotated[str, _Activation] = unless("silu")
    parallel: bool = unless(False)
    rotary_dim: Annotated[int, Field(ge=2, le=1024, multiple_of=2)] | None = unless(None)
    bos: _Token | None = None
    eos: Annotated[tuple[_Token, ...], Field(max_length=64, strict=False)] = ()
    slice: LayerSlice | None = unless(None)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.family not in known_families():
            raise ValueError(f"no family of models is called {self.family} (known: {', '.join(known_families())})")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.head_dim % 2:
            raise ValueError(f"head_dim ({self.head_dim}) must be even, RoPE rotates pairs")
        if self.rotary_dim is not None and self.rotary_dim > self.head_dim:
            raise ValueError(f"rotary_dim ({self.rotary_dim}) is more than head_dim ({self.head_dim})")
        for token in (*self.eos, *(() if self.bos is None else (self.bos,))):
            if token >= self.vocab:
                raise ValueError(f"token id {token} is outside the vocabulary of {self.vocab}")
        if len(set(self.eos)) < len(self.eos):
            raise ValueError("eos lists a token twice")
        graph_of(self.family)(self)
        return self

    @model_validator(mode="after")
    def _parts(self) -> Self:
        if not self.layers and (self.slice is None or not self.slice.head):
            raise ValueError("layers must be 1 or more, unless there is the output head alone")
        if self.slice is not None:
            end = self.slice.first + self.layers
            if end > self.slice.of:
                raise ValueError(f"layers {self.slice.first} to {end - 1} of {self.slice.of}")
            if self.slice.head and end < self.slice.of:
                raise ValueError(f"the output head comes behind layer {self.slice.of - 1}, not {end - 1}")
        return self

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """As pydantic's, which would hand what follows from the fields on to a copy that has others."""
        copy = super().model_copy(update=update, deep=deep)
        for name in copy.__dict__.keys() - type(self).model_fields.keys():
            del copy.__dict__[name]
        return copy

    def sliced(self, first: int, stop: int, *, head: bool = False) -> Self:
        """The model that is layers [first, stop) of this one, with `head` and its final norm and lm_head behind them,
        or nothing else; ValueError unless there are such layers.
        """
        there = 0 <= first <= stop <= self.layers and (stop == self.layers if head else first < stop)
        if self.slice is not None or not there:
            behind = " with the output head" if head else ""
            raise ValueError(f"no slice [{first}, {stop}){behind} of {self.name}, which has {self.layers} layers")
        part = LayerSlice(first=first, of=self.layers, head=head)
        return self.model_copy(update={"layers": stop - first, "slice": part})

    @property
    def has_head(self) -> bool:
        """Whether logits are what is computed in the end: of a whole model, or a slice with the output head."""
        return self.slice is None or self.slice.head

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

    @cached_property
    def graph(self) -> Graph:
        """What the model's layers are made of."""
        return graph_of(self.family)(self)

    def shape_of(self, tensor: Tensor) -> tuple[int, ...]:
        return tuple(getattr(self, extent) for extent in tensor.shape)

    def layer_tensors(self) -> dict[str, tuple[int, ...]]:
        """Shapes of one layer's tensors by their name in a checkpoint without the layer; rows first."""
        return {name: self.shape_of(tensor) for name, tensor in self.graph.layer_tensors.items()}

    def global_tensors(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors outside the layers, of which a slice has those of the output head, if any. Beside its
        embedding, a tied output head is not a tensor of its own."""
        if not self.has_head:
            return {}
        lacking = {"embed"} if self.slice is not None else {"lm_head"} if self.tied_embeddings else set()
        return {name: self.shape_of(t) for name, t in self.graph.top_tensors.items() if name not in lacking}

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Every tensor of the checkpoint with its full name and shape."""
        yield from self.global_tensors().items()
        for layer in range(self.layers):
            for name, shape in self.layer_tensors().items():
                yield f"l{layer}.{name}", shape

    @cached_property
    def layer_params(self) -> int:
        """Elements of one layer's tensors."""
        return sum(prod(shape) for shape in self.layer_tensors().values())

    @cached_property
    def params(self) -> int:
        """Elements of all tensors, tied ones once."""
        return sum(prod(shape) for shape in self.global_tensors().values()) + self.layers * self.layer_params
