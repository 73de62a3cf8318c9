"""Refusals of checkpoints and tokenizers: AMK013 for bad weights, AMK012 for something amk does not support."""

from pathlib import Path

from amk.report.diagnostic import AmkError, Diagnostic, Where, because


def bad_weights(path: Path | str | None, message: str, *facts: str, help: str | None = None) -> AmkError:
    """AMK013, exit 2: the file cannot be read or does not hold the model it says it holds."""
    return _refusal("AMK013", path, message, facts, help)


def unsupported(path: Path | str | None, message: str, *facts: str, help: str | None = None) -> AmkError:
    """AMK012, exit 2: the file is well-formed but asks for something amk does not do."""
    return _refusal("AMK012", path, message, facts, help)


def _refusal(code: str, path: Path | str | None, message: str, facts: tuple[str, ...], help: str | None) -> AmkError:
    where = None if path is None else Where(file=str(path))
    return AmkError(Diagnostic(code, message, where=where, facts=tuple(because(f) for f in facts), help=help))
