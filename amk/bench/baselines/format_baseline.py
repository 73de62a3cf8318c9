"""Baselines `fp8` and `int4`: torch.compile around the library's own products for weights in these formats.

`fp8` is `torch._scaled_mm` with a scale for each row of the weights and for each sequence of x. It multiplies fp8 by
fp8, so x is rounded to e4m3 as well. Its logits are therefore further from the reference than those of a kernel that
keeps x in bf16, and the row says how far. They may be as far from it as those of the same model in f32 with x rounded
so, and half as far again: bf16 arithmetic moves some x to the next code.

`int4` is tinygemm, `torch._weight_int4pack_mm`, with bf16 scales and zeros for each group. Matrices in bf16, such as an
lm_head that is not quantised, are library products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from amk.bench.baselines.compile_baseline import LOOSE, VARIANTS, WITH_GENERATED, StaticModel, fastest, static_caches
from amk.bench.tools.accuracy import relative_error
from amk.bench.tools.device_quantise import DeviceQuantised, quantised
from amk.bench.tools.subject import Subject
from amk.bench.tools.timing import Contestant
from amk.models.matrices import MATRICES
from amk.report.diagnostic import AmkError, Diagnostic
from amk.weights.e4m3 import E4M3_MOST
from amk.weights.weight_format import WeightFormat

INNER_TILES = 8
"""Tiles of k that tinygemm packs together; k is a multiple of 16 of them."""
TINYGEMM_GROUPS = (32, 64, 128, 256)


class Product(Protocol):
    """A matrix [rows, k] in some format."""

    def times(self, x: Tensor) -> Tensor:
        """x [batch, k] bf16 -> [batch, rows] bf16."""

    def emulated(self, x: Tensor) -> Tensor:
        """The same in f32, with x and the weights as the product has them."""


@dataclass
class Library:
    """rows bf16 [rows, k]."""

    rows: Tensor

    def times(self, x: Tensor) -> Tensor:
        return F.linear(x, self.rows)

    def emulated(self, x: Tensor) -> Tensor:
        return F.linear(x, self.rows.float())


@dataclass
class Fp8Matrix:
    """codes e4m3 [rows, k], scales f32 [1, rows]."""

    codes: Tensor
    scales: Tensor

    @classmethod
    def of(cls, quantised: DeviceQuantised) -> Fp8Matrix:
        return cls(quantised.codes.view(torch.float8_e4m3fn), quantised.scales[:, 0].float().view(1, -1).contiguous())

    def times(self, x: Tensor) -> Tensor:
        coded, scale = rounded_rows(x)
        return torch._scaled_mm(
            coded, self.codes.t(), scale_a=scale, scale_b=self.scales, out_dtype=torch.bfloat16
        )  # fmt: skip

    def emulated(self, x: Tensor) -> Tensor:
        coded, scale = rounded_rows(x)
        return F.linear(coded.float() * scale, self.codes.float()) * self.scales


def rounded_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 codes of x [batch, k], and f32 scales [batch, 1]."""
    scale = x.abs().amax(dim=-1, keepdim=True).float().clamp(min=1e-12) / E4M3_MOST
    return (x.float() / scale).clamp(-E4M3_MOST, E4M3_MOST).to(torch.float8_e4m3fn), scale


@dataclass
class Int4Matrix:
    """packed: the codes in tinygemm's order; scales_and_zeros: bf16 [groups, rows, 2]; dense: what they stand for."""

    packed: Tensor
    group: int
    scales_and_zeros: Tensor

    @classmethod
    def of(cls, quantised: DeviceQuantised, group: int) -> Int4Matrix:
        pairs = (quantised.codes[:, 0::2] << 4 | quantised.codes[:, 1::2]).contiguous()
        packed = torch.ops.aten._convert_weight_to_int4pack(pairs, INNER_TILES)
        return cls(packed, group, scales_and_zeros(quantised))

    def times(self, x: Tensor) -> Tensor:
        output: Tensor = torch.ops.aten._weight_int4pack_mm(x, self.packed, self.group, self.scales_and_zeros)
        return output

    def emulated(self, x: Tensor) -> Tensor:
        return self.times(x.bfloat16()).float()


def scales_and_zeros(quantised: DeviceQuantised) -> Tensor:
    """tinygemm's: a code stands for (code - 8) * scale + zero; bf16 [groups, rows, 2]."""
    scales = quantised.scales.float()
    zeros = torch.zeros_like(scales) if quantised.zeros is None else (8 - quantised.zeros.float()) * scales
    return torch.stack([scales, zeros], dim=-1).bfloat16().transpose(0, 1).contiguous()


@dataclass
class FormatModel(StaticModel):
    """The step with every product in the format of its matrix. emulating: in f32, for a reference."""

    products: dict[str, list[Product]] = field(default_factory=dict)
    emulating: bool = False

    def product(self, name: str, layer: int) -> Product:
        return self.products[name][layer]

    def times(self, name: str, product: Product, x: Tensor) -> Tensor:
        return product.emulated(x) if self.emulating else product.times(x)


ROUNDED = 1.5
"""Most times the error of the same model in f32 with x in e4m3."""


def fp8_compiled(subject: Subject, pos: int, first_token: int, torch_error: float, reference: Tensor) -> Contestant:
    """One token at `pos`. AMK005 for other weights; WrongBaseline if the logits are not the model's with x in e4m3."""
    model = _model(subject, pos, "fp8", lambda matrix, form: Fp8Matrix.of(matrix), lambda form: form.group == 0)
    caches = static_caches(subject, pos, WITH_GENERATED[0].length(pos))
    caches = [layer.float() for layer in caches[0]], [layer.float() for layer in caches[1]]
    exact: Any = replace(
        model, emulating=True, norms=[n.float() for n in model.norms], cos=model.cos.float(), sin=model.sin.float(),
        bias=[b.float() for b in model.bias], head_norms=[(q.float(), k.float()) for q, k in model.head_norms],
        weights=replace(model.weights, embedding=model.weights.embedding.float()),
    )  # fmt: skip
    with torch.no_grad():
        own = exact.step(subject.tokens(first_token), torch.tensor([pos], device="cuda"), caches)
    allowed = max(torch_error, ROUNDED * relative_error(own, reference) / LOOSE)
    return fastest("fp8", model, VARIANTS, subject, pos, first_token, (allowed, reference))


def int4_compiled(subject: Subject, pos: int, first_token: int, torch_error: float, reference: Tensor) -> Contestant:
    """One token at `pos`. AMK005 for other weights; WrongBaseline if the logits are not those of the model."""
    model = _model(
        subject, pos, "int4", lambda matrix, form: Int4Matrix.of(matrix, form.group),
        lambda form: form.group in TINYGEMM_GROUPS,
    )  # fmt: skip
    return fastest("int4", model, VARIANTS, subject, pos, first_token, (torch_error, reference))


def _model(
    subject: Subject, pos: int, codes: str, make: Callable[[DeviceQuantised, WeightFormat], Product],
    works: Callable[[WeightFormat], bool],
) -> FormatModel:  # fmt: skip
    """The codes are made from the weights that the kernel's were made from, by the same rounding."""
    stream = subject.schedule.streams[0]
    forms = {chunk.weights for name in MATRICES for chunk in stream.kinds(name)}
    if not any(form.codes == codes for form in forms) or any(
        form.codes not in (codes, "bf16") or (form.codes == codes and not works(form)) for form in forms
    ):
        raise AmkError(Diagnostic("AMK005", f"the baseline {codes} is for plans whose weights are {codes} or bf16"))
    model: Any = FormatModel.of(subject.weights, WITH_GENERATED[0].length(pos), torch.bfloat16)

    def product(name: Any, layer: int, rows: Tensor) -> Product:
        form = stream.chunk(name, layer).weights
        return Library(rows) if form.plain else make(quantised(rows, form), form)

    model.products = {
        name: [product(name, layer, rows) for layer, rows in enumerate(subject.original.matrices[name])]
        for name in MATRICES
    }
    result: FormatModel = model
    return result
