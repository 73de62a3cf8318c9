"""A decoder as data: what every product reads, which tensors are its rows, and what becomes of its result.

Everything that differs between families of models follows from the graph: the tensors of a layer and their shapes, the
rows of the packed matrices, the constants and the phases of a plan. So do the plain forward pass and the values that
the validator wants every read to find.

A layer is a list of nodes in the order in which a plan does them. Additions to the residual stream count the hidden
states of a layer. The layer is given state 0, every product that is added makes the next one, and the last is state 0
of the next layer. States and norms are counted on from layer to layer over the whole model. The final norm is the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, get_args

MatrixName = Literal["qkv", "o", "gate_up", "down", "lm_head"]
"""The matrices of a decoder. gate_up is the first product of the MLP, with or without a gate."""
MATRICES: tuple[MatrixName, ...] = get_args(MatrixName)
Extent = Literal["hidden", "q_dim", "kv_dim", "ffn", "head_dim", "vocab"]
NormKind = Literal["rms", "layer"]
Then = Literal["rows", "activation", "residual", "logits"]
TAKEN_BY: dict[Then, str] = {"rows": "store_rows", "residual": "add_residual", "logits": "argmax_rows"}
"""The op that takes the rows of a product, where the graph names none."""


@dataclass(frozen=True)
class Tensor:
    """A tensor of a checkpoint; rows of q and k are in rotate-half order (pair j, j + head_dim / 2).

    stored: what Hugging Face's files call it, within the layer. part (i, n): there it is the i-th of n tensors whose
    rows take turns by heads. partly: of the rows of a head only the first `rotary_dim` are rotated, and the file has
    these in front.
    """

    name: str
    shape: tuple[Extent, ...]
    stored: str
    part: tuple[int, int] = (0, 1)
    partly: bool = False


@dataclass(frozen=True)
class Norm:
    """Of hidden state `reads` of the layer: RMSNorm with `weight`, or LayerNorm with `weight` and `shift`."""

    weight: Tensor
    shift: Tensor | None = None
    reads: int = 0


@dataclass(frozen=True)
class Product:
    """rows @ value + biases. reads: a norm, the output of attention, or that of the activation.

    in_turn: row groups of the matrix have equal numbers of rows of every tensor, else one tensor follows the other.
    then: the rows are those of q, k and v; go through the activation; are added to the residual stream; are logits.
    op: what takes the rows and does that, where there is a choice. settings: fields of that op, with their values.
    """

    matrix: MatrixName
    reads: Norm | Literal["attn", "act"]
    rows: tuple[Tensor, ...]
    then: Then
    biases: tuple[Tensor, ...] = ()
    in_turn: bool = False
    op: str = ""
    settings: tuple[tuple[str, int], ...] = ()

    @property
    def taken_by(self) -> str:
        """The op that takes the rows."""
        return self.op or TAKEN_BY[self.then]


@dataclass(frozen=True)
class Attention:
    """Rotary, causal, with a cache; of rows q, k and v, head by head. Norms of heads are RMSNorms of q and k."""

    q_norm: Tensor | None = None
    k_norm: Tensor | None = None


Node = Product | Attention


class Variant(Protocol):
    """What a family's graph may depend on. parallel: attention and MLP read the same hidden state. A graph that cannot
    be what one of them says raises ValueError: no option is passed over."""

    @property
    def qkv_bias(self) -> bool: ...
    @property
    def qk_norm(self) -> bool: ...
    @property
    def activation(self) -> str: ...
    @property
    def parallel(self) -> bool: ...


@dataclass(frozen=True)
class Graph:
    """norm: that of all hidden states. nodes: of a layer. prefix: of a layer's tensors in Hugging Face's files, with
    `{}` for its number.
    """

    norm: NormKind
    nodes: tuple[Node, ...]
    embedding: Tensor
    head: Product
    prefix: str

    @cached_property
    def products(self) -> dict[MatrixName, Product]:
        """By matrix, in the order of the nodes; lm_head is the last."""
        return {node.matrix: node for node in (*self.nodes, self.head) if isinstance(node, Product)}

    @cached_property
    def norms(self) -> tuple[Norm, ...]:
        """Those of a layer."""
        reads = (node.reads for node in self.nodes if isinstance(node, Product))
        return tuple(dict.fromkeys(norm for norm in reads if isinstance(norm, Norm)))

    @property
    def final_norm(self) -> Norm:
        assert isinstance(self.head.reads, Norm)
        return self.head.reads

    @cached_property
    def additions(self) -> tuple[MatrixName, ...]:
        """The products that are added to the residual stream, in order."""
        return tuple(name for name, product in self.products.items() if product.then == "residual")

    @cached_property
    def attention(self) -> Attention:
        return next(node for node in self.nodes if isinstance(node, Attention))

    @cached_property
    def published(self) -> tuple[bool, ...]:
        """Of the states behind the additions of a layer: whether a norm reads them."""
        read = {norm.reads for norm in self.norms}
        last = len(self.additions)
        return tuple(state == last or state in read for state in range(1, last + 1))

    def norm_of(self, matrix: MatrixName, layer: int, layers: int) -> int | None:
        """The number of the norm that the matrix multiplies; None if it multiplies something else."""
        reads = self.products[matrix].reads
        if not isinstance(reads, Norm):
            return None
        return len(self.norms) * layers if matrix == "lm_head" else len(self.norms) * layer + self.norms.index(reads)

    def reader(self, norm: Norm) -> MatrixName:
        """The matrix that multiplies the norm."""
        return next(name for name, product in self.products.items() if product.reads == norm)

    def state_of(self, norm: int) -> int:
        """The number of the hidden state that the norm of that number is of."""
        layer, at = divmod(norm, len(self.norms))
        return len(self.additions) * layer + self.norms[at].reads  # the final norm counts as the next layer's first

    def state_before(self, matrix: MatrixName, layer: int) -> int:
        """The number of the hidden state that the product is added to."""
        return len(self.additions) * layer + self.additions.index(matrix)

    @cached_property
    def layer_tensors(self) -> dict[str, Tensor]:
        """By name, without the layer."""
        found: list[Tensor | None] = []
        for node in self.nodes:
            found += [node.q_norm, node.k_norm] if isinstance(node, Attention) else _tensors(node)
        return {tensor.name: tensor for tensor in found if tensor is not None}

    @cached_property
    def top_tensors(self) -> dict[str, Tensor]:
        """Those of no layer; where the head is tied, lm_head is the embedding."""
        return {tensor.name: tensor for tensor in (self.embedding, *_tensors(self.head)) if tensor is not None}

    @cached_property
    def matrix_of(self) -> dict[str, MatrixName]:
        """The matrix that a tensor's rows are part of, by its name without the layer."""
        return {tensor.name: name for name, product in self.products.items() for tensor in product.rows}

    def tensor(self, name: str) -> tuple[Tensor, str]:
        """The tensor called `l3.wq` or `embed`, and what Hugging Face's files call it; KeyError if there is none."""
        layer, _, part = name.rpartition(".")
        if not layer:
            return self.top_tensors[name], self.top_tensors[name].stored
        found = self.layer_tensors[part]
        return found, self.prefix.format(int(layer[1:])) + found.stored


def _tensors(product: Product) -> list[Tensor | None]:
    norm = [product.reads.weight, product.reads.shift] if isinstance(product.reads, Norm) else []
    return [*norm, *product.rows, *product.biases]
