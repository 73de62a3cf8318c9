"""Refusals of the emulator: PTX that it cannot read or does not know, and limits that were reached."""

from __future__ import annotations

from amk.report.diagnostic import AmkError, Diagnostic, Exit


def bad_ptx(line: int, why: str) -> AmkError:
    """AMK801: the text is not PTX as this emulator reads it."""
    return AmkError(Diagnostic("AMK801", f"line {line} of the PTX: {why}"), Exit.INPUT)


def unknown_instruction(line: int, opcode: str) -> AmkError:
    """AMK802: an instruction that the emulator does not execute; nothing was run."""
    return AmkError(Diagnostic("AMK802", f"line {line} of the PTX: the emulator does not know {opcode}"), Exit.UNKNOWN)


def too_large(what: str, advice: str = "") -> AmkError:
    """AMK803: the run needs more than its limits."""
    return AmkError(Diagnostic("AMK803", what, help=advice or None), Exit.UNKNOWN)
