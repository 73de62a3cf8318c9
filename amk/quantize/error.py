"""What a choice of formats costs: the error of matrices, and of the model over a text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from amk.models.matrices import MATRICES, MatrixName, matrix
from amk.models.model_spec import ModelSpec
from amk.models.row_groups import TensorSource
from amk.quantize.forward import Forms, Matrices, StoredTensors, embedded, hidden_states, logits_of
from amk.weights.bfloat import F32
from amk.weights.quantised import Quantiser, nearest, rounded
from amk.weights.weight_format import FormatName, weight_format

F64 = NDArray[np.float64]
BF16: dict[MatrixName, FormatName] = dict.fromkeys(MATRICES, "bf16")
LAYERED_MATRICES = tuple(name for name in MATRICES if name != "lm_head")


def matrix_error(rows: F32, form: FormatName, quantise: Quantiser = nearest) -> float:
    """|stored - rows| / |rows| in the 2-norm."""
    stored = rounded(rows, weight_format(form), quantise).astype(np.float64)
    return float(np.linalg.norm(stored - rows) / np.linalg.norm(rows))


def output_error(rows: F32, form: FormatName, inputs: F32, quantise: Quantiser = nearest) -> float:
    """The error of rows @ x for the columns x of `inputs`, relative, in the 2-norm."""
    exact = rows.astype(np.float64) @ inputs
    stored = rounded(rows, weight_format(form), quantise).astype(np.float64) @ inputs
    return float(np.linalg.norm(stored - exact) / np.linalg.norm(exact))


def synthetic(kind: str, rows: int = 256, k: int = 2048, seed: int = 0) -> F32:
    """Matrices that no quantiser has touched: gaussian; heavy-tailed (Student's t, 3 degrees of freedom); sparse
    outliers (1 in 1,000 twenty times as large); outlier columns (1 in 256 ten times as large, as large inputs make).
    """
    draw = np.random.default_rng(seed)
    values = draw.standard_normal((rows, k))
    if kind == "heavy-tailed":
        values = draw.standard_t(3, (rows, k))
    elif kind == "sparse outliers":
        values[draw.random((rows, k)) < 1e-3] *= 20
    elif kind == "outlier columns":
        values[:, draw.random(k) < 1 / 256] *= 10
    elif kind != "gaussian":
        raise ValueError(f"no synthetic matrix is called {kind}")
    return np.asarray(values * k**-0.5, np.float32)


SYNTHETIC = ("gaussian", "heavy-tailed", "sparse outliers", "outlier columns")


@dataclass(frozen=True)
class TextError:
    """Over the predicted tokens of a text: mean and largest KL(reference || stored) in nats, share of equal argmax,
    perplexities of the reference and of the stored weights.
    """

    kl: float
    kl_most: float
    argmax: float
    perplexity: float
    reference_perplexity: float


def log_softmax(logits: F32) -> F64:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def by_layer(model: ModelSpec, forms: Forms | Sequence[Forms]) -> tuple[Forms, ...]:
    """The formats of every layer; what is left out is bf16. lm_head, which belongs to none, has that of the first."""
    each = [forms] * model.layers if isinstance(forms, Mapping) else forms
    return tuple(BF16 | dict(one) for one in each)


@dataclass(frozen=True)
class TextJudge:
    """Compares stored weights with the same weights in bf16 over one text.

    states: what every layer reads in bf16, so that a pass begins at the first layer that is stored otherwise.
    """

    model: ModelSpec
    source: TensorSource
    tokens: Sequence[int]
    reference: F64
    quantise: Quantiser = nearest
    states: Sequence[F32] = ()
    cache: Matrices = field(default_factory=dict)

    @classmethod
    def of(
        cls, model: ModelSpec, source: TensorSource, tokens: Sequence[int], quantise: Quantiser = nearest
    ) -> TextJudge:
        """ValueError for a text of fewer than two tokens, which predicts nothing."""
        if len(tokens) < 2:
            raise ValueError("the text has fewer than two tokens")
        kept: Matrices = {}
        stored = StoredTensors(model, source, by_layer(model, BF16), quantise, kept)
        states = hidden_states(model, stored, tokens, embedded(stored, tokens))
        return cls(
            model, source, tokens, log_softmax(logits_of(model, stored, states[-1])), quantise, tuple(states), kept
        )

    def error(self, forms: Forms | Sequence[Forms]) -> TextError:
        """The error of the model with these formats in all layers, or in each."""
        layers = by_layer(self.model, forms)
        stored = StoredTensors(self.model, self.source, layers, self.quantise, self.cache)
        changed = (n for n, each in enumerate(layers) if any(each[name] != "bf16" for name in LAYERED_MATRICES))
        first = next(changed, self.model.layers)
        x = hidden_states(self.model, stored, self.tokens, self.states[first], first)[-1]
        logprobs = log_softmax(logits_of(self.model, stored, x))
        kl = (np.exp(self.reference) * (self.reference - logprobs)).sum(axis=-1)
        same = self.reference.argmax(axis=-1) == logprobs.argmax(axis=-1)
        return TextError(
            float(kl.mean()), float(kl.max()), float(same.mean()), self._perplexity(logprobs),
            self._perplexity(self.reference),
        )  # fmt: skip

    def _perplexity(self, logs: F64) -> float:
        following = np.asarray(self.tokens[1:])
        return float(np.exp(-logs[np.arange(len(following)), following].mean()))


def stored_bytes(model: ModelSpec, forms: Forms | Sequence[Forms]) -> int:
    """Bytes of all streamed matrices, scales included, padding not."""
    layers = by_layer(model, forms)
    total = matrix_bytes(model, "lm_head", layers[0]["lm_head"])
    return total + sum(matrix_bytes(model, name, each[name]) for each in layers for name in LAYERED_MATRICES)


def matrix_bytes(model: ModelSpec, name: MatrixName, form: FormatName) -> int:
    """Bytes of one matrix, scales included, padding not."""
    shape = matrix(model, name)
    return weight_format(form).needed_bytes(shape.rows, shape.k)


Progress = Callable[[str], None]
