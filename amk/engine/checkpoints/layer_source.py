"""The tensors of a slice of layers, read from the checkpoint of the whole model."""

from __future__ import annotations

from amk.models.model_spec import ModelSpec
from amk.models.row_groups import CodedSource, TensorSource
from amk.weights.bfloat import F32
from amk.weights.quantised import Quantised
from amk.weights.weight_format import WeightFormat


class LayerSource:
    """Layer 0 of it is the layer of `source` that the slice begins with."""

    def __init__(self, source: TensorSource, first: int) -> None:
        self._source, self._first = source, first

    def tensor(self, name: str, rows: slice = slice(None)) -> F32:
        return self._source.tensor(self._there(name), rows)

    def _there(self, name: str) -> str:
        layer, dot, part = name.partition(".")
        return f"l{int(layer[1:]) + self._first}.{part}" if dot else name


class CodedLayerSource(LayerSource):
    """Of a checkpoint whose matrices are codes already."""

    def __init__(self, source: TensorSource, first: int) -> None:
        super().__init__(source, first)
        assert isinstance(source, CodedSource)
        self._coded: CodedSource = source

    @property
    def form(self) -> WeightFormat:
        return self._coded.form

    def codes(self, name: str, rows: slice) -> Quantised:
        return self._coded.codes(self._there(name), rows)


def layer_source(model: ModelSpec, source: TensorSource) -> TensorSource:
    """What `model`, a slice of layers, reads of the whole model's tensors; `source` itself for a whole model."""
    if model.slice is None:
        return source
    kind = CodedLayerSource if isinstance(source, CodedSource) else LayerSource
    return kind(source, model.slice.first)
