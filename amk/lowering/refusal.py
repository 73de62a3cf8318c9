"""How the lowering says no: one diagnostic and the exit code that its kind implies."""

from __future__ import annotations

from amk.report.diagnostic import AmkError, Diagnostic, Exit, Fact


def internal(message: str, *facts: Fact) -> AmkError:
    """Something the generator or the compiler did that it should not: AMK901, exit 4."""
    return AmkError(Diagnostic("AMK901", message, facts=facts), Exit.INTERNAL)


def unsafe(code: str, message: str, *facts: Fact, advice: str | None = None) -> AmkError:
    """A compiled kernel that must not be launched: exit 1, like a verdict of `amk verify`."""
    return AmkError(Diagnostic(code, message, facts=facts, help=advice), Exit.UNSAFE)


def unusable(message: str, *facts: Fact, advice: str | None = None) -> AmkError:
    """No GPU to run on: AMK602, exit 5."""
    return AmkError(Diagnostic("AMK602", message, facts=facts, help=advice), Exit.NO_GPU)


def unsupported(code: str, message: str, advice: str | None = None) -> AmkError:
    """A request that the installation or the target cannot satisfy: exit 2."""
    return AmkError(Diagnostic(code, message, help=advice), Exit.INPUT)
