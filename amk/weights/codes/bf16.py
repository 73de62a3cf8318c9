"""bf16: the numbers as they are, without scales."""

from amk.weights.codes import Code

CODE = Code(bits=16, formats=("bf16",), staged="bf16")
