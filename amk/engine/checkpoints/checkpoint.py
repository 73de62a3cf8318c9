"""Weights by logical name, whatever file they come from.

A checkpoint gives the tensors of the model's graph under the graph's names, as float32 and only the rows asked for:
'embed', 'lm_head', 'final_norm', and for layer i 'l{i}.wq', 'l{i}.attn_norm' and so on. Matrices are [out, in]; the
rows of Q and K are in rotate-half order (pair j, j + head_dim/2). 'lm_head' is 'embed' when the model ties them.

Nothing here unpickles. Files are memory-mapped; a shape is compared with the model's before anything is allocated.
"""

from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from amk.engine.refusal import bad_weights
from amk.models.model import ModelSpec
from amk.report.diagnostic import Diagnostic, Severity, Where, shown
from amk.weights.bfloat import Bits

Floats = npt.NDArray[np.float32]
Shape = tuple[int, ...]

MOST_NAMED = 4
NO_SIGN, INFINITE = np.uint16(0x7FFF), 0x7F80
"""Of bf16 bits."""
CHUNK = 1 << 20  # elements converted at a time, so that converting needs little more memory than the result


def tensor_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Every logical tensor of the model with its shape; 'lm_head' only when it is not tied to 'embed'."""
    return dict(spec.tensors())


def stored_name(logical: str, per_layer: dict[str, str], top: dict[str, str]) -> str:
    """The name a file format gives to a logical tensor; '{}' in `per_layer` stands for the layer."""
    if logical in top:
        return top[logical]
    layer, _, part = logical.partition(".")
    return per_layer[part].format(layer[1:])


class Checkpoint(ABC):
    """The weights of one model. `path` is None for weights that come from no file.

    stored_as: how the file stores a logical tensor, in the words of its format ('BF16', 'F16', 'Q4_K', 'int4-g128-zp').
    unread: tensors of the file that the model of its configuration does not have.
    """

    def __init__(self, spec: ModelSpec, path: Path | None) -> None:
        self.spec = spec
        self.path = path
        self.shapes = tensor_shapes(spec)
        self.stored_as: dict[str, str] = {}
        self.unread: tuple[str, ...] = ()

    def shape(self, name: str) -> Shape:
        """Shape of a logical tensor; KeyError when the model has none of that name."""
        return self.shapes[self._canonical(name)]

    def tensor(self, name: str, rows: slice = slice(None)) -> Floats:
        """The asked rows of a logical tensor (elements, for a vector) as a new float32 array.

        Raises KeyError for a name the model does not have, ValueError for a strided slice, AMK013 for a value that is
        NaN or infinite.
        """
        count, *rest = self.shape(name)
        start, stop, step = rows.indices(count)
        if step != 1:
            raise ValueError(f"rows of {name} are taken in order, not with step {step}")
        out = np.empty((max(stop - start, 0), *rest), np.float32)
        self.fill(name, out, start)
        return out

    def fill(self, name: str, out: Floats, start: int = 0) -> None:
        """As `tensor`, for rows [start, start + len(out)) into an array that the caller has; `out` is contiguous."""
        name = self._canonical(name)
        at_once = max(1, CHUNK // (out.shape[1] if out.ndim > 1 else 1))
        for first in range(0, len(out), at_once):
            block = out[first : first + at_once]
            self._read(name, start + first, start + first + len(block), block)
            self._check_finite(name, start + first, block)

    def bits(self, name: str, rows: slice) -> Bits | None:
        """The asked rows of a tensor as bf16 bits, a view of the file where rows stand there in this order; None where
        the file stores another type. Rows are taken in order. AMK013 for a value that is NaN or infinite."""
        found = self.stored_bits(name, rows)
        if found is not None:
            flat = found.reshape(-1)
            for first in range(0, flat.size, CHUNK):
                if int((flat[first : first + CHUNK] & NO_SIGN).max()) >= INFINITE:
                    self.tensor(name, rows)  # says which one it is
        return found

    def stored_bits(self, name: str, rows: slice) -> Bits | None:
        """As `bits`, whatever the values are."""
        name = self._canonical(name)
        start, stop, _ = rows.indices(self.shapes[name][0])
        return self._bits(name, start, stop)

    def _bits(self, name: str, start: int, stop: int) -> Bits | None:
        """Rows [start, stop) of the tensor, contiguous, where the file stores bf16."""
        return None

    @abstractmethod
    def _read(self, name: str, start: int, stop: int, out: Floats) -> None:
        """Writes rows [start, stop) of the tensor, which is one of `shapes`, to `out`."""

    def _canonical(self, name: str) -> str:
        return "embed" if name == "lm_head" and self.spec.tied_embeddings else name

    def _check_finite(self, name: str, first: int, block: Floats) -> None:
        # min and max both pass a NaN on, and unlike isfinite(block) they need no array of the block's size.
        if not (np.isfinite(block.min()) and np.isfinite(block.max())):
            row, *column = (int(index[0]) for index in np.nonzero(~np.isfinite(block)))
            place = ", ".join(str(index) for index in (first + row, *column))
            raise bad_weights(self.path, f"{name}[{place}] is {block[row, *column]}", "weights must be finite numbers")


def unread(checkpoint: Checkpoint) -> tuple[Diagnostic, ...]:
    """A warning that names tensors which are not read: they may be a part of the model that its configuration hides."""
    names = checkpoint.unread
    if not names:
        return ()
    text = ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else "")
    message = f"{len(names):,} tensor(s) of the file are not part of the model of its configuration, and not read"
    where = Where(file=str(checkpoint.path))
    return (Diagnostic("AMK013", message, severity=Severity.WARNING, where=where, facts=(shown(text),)),)


def check_shape(path: Path, name: str, stored_name: str, shape: Shape | None, expected: Shape) -> None:
    """AMK013 unless the file holds the tensor with exactly the model's shape."""
    if shape is None:
        raise bad_weights(path, f"tensor {stored_name!r} is missing", f"the model needs it as {name} {list(expected)}")
    if shape != expected:
        raise bad_weights(
            path,
            f"tensor {stored_name!r} has shape {list(shape)}, expected {list(expected)}",
            f"the model's configuration gives {name} that shape",
        )
