"""Formats per matrix under a bound on the error: the fewest bytes whose mean KL over a text stays below the bound.

Each (matrix, format) is measured alone. From all bf16, the step that saves the most bytes per KL is taken while the sum
of the measured KLs allows it; the sum is only an estimate, so the choice is measured as a whole, and while it is above
the bound the matrix with the largest KL goes back to its next better format. bf16 everywhere is within any bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from amk.quantize.error import BF16, Progress, TextError, TextJudge, stored_bytes
from amk.schedule_ir.matrices import MATRICES, MatrixName
from amk.schedule_ir.weight_format import FormatName

CANDIDATES: tuple[FormatName, ...] = ("int8", "int8-g128", "int4-g64", "int4-g128")

Forms = dict[MatrixName, FormatName]


@dataclass(frozen=True)
class Choice:
    """forms, what they take, what they cost, and the KL of every (matrix, format) alone."""

    forms: Forms
    bytes: int
    error: TextError
    alone: dict[tuple[MatrixName, FormatName], float]


def choose(judge: TextJudge, most_kl: float, tell: Progress = lambda line: None) -> Choice:
    """The choice for a bound of `most_kl` nats on the mean KL; ValueError if it is not positive."""
    if not most_kl > 0:
        raise ValueError("the bound on the KL must be positive")
    alone: dict[tuple[MatrixName, FormatName], float] = {(name, "bf16"): 0.0 for name in MATRICES}
    for name in MATRICES:
        for form in CANDIDATES:
            alone[name, form] = judge.error({name: form}).kl
            tell(f"{name} in {form}: KL {alone[name, form]:.3g}")
    forms = estimated(judge, alone, most_kl)
    while True:
        error = judge.error(forms)
        tell(f"{', '.join(f'{name} {form}' for name, form in forms.items())}: KL {error.kl:.3g}")
        if error.kl <= most_kl or all(form == "bf16" for form in forms.values()):
            return Choice(forms, stored_bytes(judge.model, forms), error, alone)
        worst = max(forms, key=lambda name: alone[name, forms[name]])
        forms = forms | {worst: _better(judge, alone, worst, forms)}


def estimated(judge: TextJudge, alone: dict[tuple[MatrixName, FormatName], float], most_kl: float) -> Forms:
    """Greedy by bytes saved per KL, KLs added."""
    forms: Forms = dict(BF16)
    while True:
        spent, size = sum(alone[name, form] for name, form in forms.items()), stored_bytes(judge.model, forms)
        steps = []
        for name in MATRICES:
            for form in CANDIDATES:
                more = alone[name, form] - alone[name, forms[name]]
                saved = size - stored_bytes(judge.model, forms | {name: form})
                if saved > 0 and spent + more <= most_kl:
                    steps.append((saved / max(more, 1e-9), name, form))
        if not steps:
            return forms
        _, name, form = max(steps)
        forms[name] = form


def _better(
    judge: TextJudge, alone: dict[tuple[MatrixName, FormatName], float], name: MatrixName, forms: Forms
) -> FormatName:
    """The next format of the matrix with a smaller KL: the one that costs the fewest bytes, bf16 at last."""
    fits = [form for form in CANDIDATES if alone[name, form] < alone[name, forms[name]]]
    return min(fits, key=lambda form: stored_bytes(judge.model, forms | {name: form}), default="bf16")
