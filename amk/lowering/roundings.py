"""Every rounding of the compiled kernel is written in its PTX.

Property: each addition, subtraction, multiplication and fma of floating-point numbers names its rounding. Where `mul`
    and `add` name none, PTX leaves open whether a product is rounded before it is added, and the assembler decides it
    for one of two equal statements and not for the other (PTX ISA 9.0, chapter 9.7.3). With the names, a value depends
    on its operands alone: not on the sequence, the row or the schedule that it belongs to.
Assumptions: ptxas contracts no instruction that names its rounding.
Cost: linear in the text.
"""

from __future__ import annotations

import re

from amk.lowering import refusal
from amk.report.diagnostic import shown

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ARITHMETIC = re.compile(r"(?<![\w.%$])(?:add|sub|mul|mad|fma)((?:\.\w+)*)\b[^;]*")
_FLOATING = frozenset({"f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64"})
_ROUNDED = frozenset({"rn", "rz", "rm", "rp", "rna"})


def check_roundings(ptx: str) -> None:
    """Raise AMK610 for the first floating-point instruction of the text that leaves its rounding open."""
    text = _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), ptx)
    for match in _ARITHMETIC.finditer(text):
        words = set(match[1].split("."))
        if words & _FLOATING and not words & _ROUNDED:
            line = text.count("\n", 0, match.start()) + 1
            instruction = shown(f"line {line}: {' '.join(match[0].split())}")
            raise refusal.unsafe("AMK610", "the PTX leaves open where a product is rounded", instruction)
