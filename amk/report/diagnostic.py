"""What the program has to say about an input, as data; `render` turns it into text."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, Literal

from amk.report.codes import TITLES, advice, reason


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
class Source:
    """The input at the place of a diagnostic: its text on one line, and where it ends (1-based, exclusive)."""

    text: str
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True)
class Change:
    """One edit of an input: the JSON it puts, inserts or removes at `path`, and the same as text over a region.

    `start` and `end` are (line, column), 1-based, end exclusive; `text` replaces what stands between them. They are
    None when the input has no known text.
    """

    do: Literal["replace", "insert", "remove"]
    path: str
    value: Any = None
    start: tuple[int, int] | None = None
    end: tuple[int, int] | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Fix:
    """Changes that have been verified to remove the finding; applied in order."""

    description: str
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding. `code` must be registered in `codes`, otherwise ValueError. Without `help` the code's is given."""

    code: str
    message: str
    severity: Severity = Severity.ERROR
    where: Where | None = None
    facts: tuple[Fact, ...] = ()
    help: str | None = None
    source: Source | None = None
    fix: Fix | None = None

    def __post_init__(self) -> None:
        if self.code not in TITLES:
            raise ValueError(f"diagnostic code {self.code!r} is not registered")

    @property
    def title(self) -> str:
        return TITLES[self.code]

    @property
    def causes(self) -> tuple[Fact, ...]:
        """The facts; if none of them says why, and it is about what a schedule does, the reason that its code gives."""
        complete = any(fact.mark == "=" for fact in self.facts) or self.code[3] not in "12345"
        return self.facts if complete else (*self.facts, Fact("=", reason(self.code)))

    @property
    def advice(self) -> str:
        """What to do: `help`, or what the explanation of the code says."""
        return self.help or advice(self.code)


class AmkError(Exception):
    """Ends a command with diagnostics and an exit code; bad input is `Exit.INPUT`."""

    def __init__(self, diagnostics: Diagnostic | Sequence[Diagnostic], exit_code: Exit = Exit.INPUT) -> None:
        several = (diagnostics,) if isinstance(diagnostics, Diagnostic) else tuple(diagnostics)
        if not several:
            raise ValueError("an AmkError carries at least one diagnostic")
        super().__init__(f"{several[0].code}: {several[0].message}")
        self.diagnostics = several
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[object, ...]:
        """From its parts and not from its text: what cannot be read back takes a whole pool of processes with it."""
        return type(self), (self.diagnostics, self.exit_code)
