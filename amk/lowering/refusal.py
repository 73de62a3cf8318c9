"""What the lowering raises when it refuses: a code, a sentence, an exit code."""

from __future__ import annotations


class LoweringError(ValueError):
    """A refusal of the lowering. `code` is an AMKnnn code, `exit_code` what a command exits with."""

    def __init__(self, code: str, message: str, *, exit_code: int = 4) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.exit_code = exit_code
