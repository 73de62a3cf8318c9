"""What a choice of formats costs: the error of matrices, and of the model over a text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from amk.quantize.forward import StoredTensors, text_logits
from amk.schedule_ir.bfloat import F32
from amk.schedule_ir.matrices import MATRICES, MatrixName, matrix
from amk.schedule_ir.model_spec import ModelSpec
from amk.schedule_ir.quantised import Quantiser, nearest, rounded
from amk.schedule_ir.row_groups import TensorSource
from amk.schedule_ir.weight_format import FormatName, weight_format

F64 = NDArray[np.float64]
BF16: dict[MatrixName, FormatName] = dict.fromkeys(MATRICES, "bf16")


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


@dataclass(frozen=True)
class TextJudge:
    """Compares stored weights with the same weights in bf16 over one text."""

    model: ModelSpec
    source: TensorSource
    tokens: Sequence[int]
    reference: F64
    quantise: Quantiser = nearest

    @classmethod
    def of(
        cls, model: ModelSpec, source: TensorSource, tokens: Sequence[int], quantise: Quantiser = nearest
    ) -> TextJudge:
        """ValueError for a text of fewer than two tokens, which predicts nothing."""
        if len(tokens) < 2:
            raise ValueError("the text has fewer than two tokens")
        reference = log_softmax(text_logits(model, StoredTensors(source, BF16), tokens))
        return cls(model, source, tokens, reference, quantise)

    def error(self, forms: Mapping[MatrixName, FormatName]) -> TextError:
        """The error of the model with these formats."""
        stored = StoredTensors(self.source, BF16 | dict(forms), self.quantise)
        found = log_softmax(text_logits(self.model, stored, self.tokens))
        kl = (np.exp(self.reference) * (self.reference - found)).sum(axis=-1)
        same = self.reference.argmax(axis=-1) == found.argmax(axis=-1)
        return TextError(
            float(kl.mean()), float(kl.max()), float(same.mean()), self._perplexity(found),
            self._perplexity(self.reference),
        )  # fmt: skip

    def _perplexity(self, logs: F64) -> float:
        following = np.asarray(self.tokens[1:])
        return float(np.exp(-logs[np.arange(len(following)), following].mean()))


def stored_bytes(model: ModelSpec, forms: Mapping[MatrixName, FormatName]) -> int:
    """Bytes of all streamed matrices, scales included, padding not."""
    total = 0
    for name in MATRICES:
        shape = matrix(model, name)
        each = weight_format(forms[name]).needed_bytes(shape.rows, shape.k)
        total += each * (model.layers if shape.per_layer else 1)
    return total


Progress = Callable[[str], None]
