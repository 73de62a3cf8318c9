"""What the program has to say about an input, as data; `render` turns it into text."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Literal

from amk.report.codes import TITLES


class Exit(IntEnum):
    """Exit codes of every command."""

    SAFE = 0
    UNSAFE = 1
    INPUT = 2
    UNKNOWN = 3
    INTERNAL = 4
    NO_GPU = 5


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Where:
    """A place in an input: file, 1-based line and column, and a JSON pointer (RFC 6901); any part may be absent."""

    file: str | None = None
    line: int | None = None
    column: int | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """One line under the message: `|` shows the thing itself, `=` says why."""

    mark: Literal["|", "="]
    text: str


def shown(text: str) -> Fact:
    """A `|` line: the offending thing."""
    return Fact("|", text)


def because(text: str) -> Fact:
    """A `=` line: a reason or a consequence."""
    return Fact("=", text)


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding. `code` must be registered in `codes`, otherwise ValueError."""

    code: str
    message: str
    severity: Severity = Severity.ERROR
    where: Where | None = None
    facts: tuple[Fact, ...] = ()
    help: str | None = None

    def __post_init__(self) -> None:
        if self.code not in TITLES:
            raise ValueError(f"diagnostic code {self.code!r} is not registered")

    @property
    def title(self) -> str:
        return TITLES[self.code]


class AmkError(Exception):
    """Ends a command with diagnostics and an exit code; bad input is `Exit.INPUT`."""

    def __init__(self, diagnostics: Diagnostic | Sequence[Diagnostic], exit_code: Exit = Exit.INPUT) -> None:
        found = (diagnostics,) if isinstance(diagnostics, Diagnostic) else tuple(diagnostics)
        if not found:
            raise ValueError("an AmkError carries at least one diagnostic")
        super().__init__(f"{found[0].code}: {found[0].message}")
        self.diagnostics = found
        self.exit_code = exit_code
