"""What the program has to say about an input, as data; `render` turns it into text.

Codes: one line each, on one screen. The hundreds digit is the area. A code is never reused for another meaning. The
text that `amk explain CODE` prints is `explain/<code>.md` beside this file, so adding a code is one line here and one
Markdown file.

Text may quote hostile input; `printable` makes it safe to show on one line.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import cache
from importlib.resources import files
from typing import Any, Literal

AREAS = {
    0: "input",
    1: "structure and coverage",
    2: "liveness",
    3: "races",
    4: "resources",
    5: "memory model",
    6: "target",
    7: "search",
    8: "emulator",
    9: "internal",
}

TITLES = {
    "AMK001": "input cannot be read or is not JSON",
    "AMK002": "input is too large",
    "AMK003": "input is nested too deeply",
    "AMK004": "schedule version is not known",
    "AMK005": "input does not match its schema",
    "AMK006": "number is not finite",
    "AMK007": "name or key is used twice",
    "AMK008": "name is not allowed",
    "AMK009": "reference to something that does not exist",
    "AMK010": "model or target is not known",
    "AMK011": "model does not fit the target",
    "AMK012": "model configuration is not supported",
    "AMK013": "weights cannot be read or do not match the model",
    "AMK014": "prompt cannot be run",
    "AMK015": "tokens cannot be chosen as asked",
    "AMK016": "batch cannot be decoded as asked",
    "AMK017": "weights are rounded to the format of the schedule",
    "AMK018": "edit does not apply to the schedule",
    "AMK019": "request cannot be served now",
    "AMK101": "output is not fully covered",
    "AMK102": "output is written twice",
    "AMK103": "access is out of bounds",
    "AMK104": "read is served by the wrong producer",
    "AMK105": "read of bytes that nothing has written",
    "AMK106": "dataflow differs from the model",
    "AMK201": "deadlock: a cycle of waits",
    "AMK202": "deadlock: too few increments",
    "AMK203": "epochs of a counter are not separated",
    "AMK204": "counter wraps while a wait can still see it",
    "AMK205": "synchronisation outside the decidable class",
    "AMK206": "certificate does not prove the schedule",
    "AMK207": "solver is not installed",
    "AMK208": "wait is not for at least a value",
    "AMK209": "counter is decremented",
    "AMK210": "counter is reset in flight",
    "AMK211": "synchronisation depends on data",
    "AMK212": "counter is used as a lock",
    "AMK213": "counter is compared as an unsigned number",
    "AMK214": "agents block on a shared pool",
    "AMK215": "SAFE schedule has no certificate that the checker accepts",
    "AMK301": "write-write race",
    "AMK302": "read-write race",
    "AMK401": "shared memory exceeds the limit",
    "AMK402": "workers are not all co-resident",
    "AMK403": "registers exceed the limit",
    "AMK404": "barrier participant count does not match",
    "AMK405": "transaction bytes do not match the copies",
    "AMK406": "address or size is misaligned",
    "AMK407": "a precondition of the device code does not hold",
    "AMK501": "M1: signal goes out before all warps are done",
    "AMK502": "M2: signal does not release",
    "AMK503": "M3: wait does not acquire",
    "AMK504": "M4: warps go on without the one that waits",
    "AMK505": "M5: synchronisation scope is too narrow",
    "AMK506": "M6: counter is touched by a weak or wider operation",
    "AMK507": "M7: no proxy fence between generic and async access",
    "AMK508": "M8: bulk stores are not waited for in full",
    "AMK509": "M9: non-coherent load of data written in this launch",
    "AMK510": "M10: accumulations on a cell differ",
    "AMK511": "M11: arriving at a barrier acquires nothing",
    "AMK512": "M12: tensor map is changed without its fence",
    "AMK513": "M13: tagged word is not a valid hand-off",
    "AMK514": "ring underrun is not excluded (U)",
    "AMK515": "ring overrun is not excluded (O)",
    "AMK601": "target lacks a feature that the schedule uses",
    "AMK602": "no usable GPU",
    "AMK603": "the CUDA driver refused a call",
    "AMK604": "the kernel stalled and was stopped by the watchdog",
    "AMK605": "the CUDA compiler or its headers are missing",
    "AMK606": "machine code belongs to another schedule",
    "AMK607": "machine code synchronises otherwise than the schedule",
    "AMK608": "machine code is not what the compiler makes of the schedule",
    "AMK609": "machine code synchronises with other operands than the schedule's",
    "AMK610": "machine code leaves a rounding to the assembler",
    "AMK701": "run does not exist",
    "AMK702": "journal cannot be written",
    "AMK703": "judges of the run have changed",
    "AMK704": "journal is damaged",
    "AMK705": "run is in use by another process",
    "AMK706": "language model cannot be used as asked",
    "AMK707": "device was lost during the search",
    "AMK708": "Ray cluster cannot be used",
    "AMK709": "judging process keeps ending",
    "AMK801": "PTX cannot be read",
    "AMK802": "the emulator does not know an instruction",
    "AMK803": "emulation reached a limit",
    "AMK804": "the emulated kernel did something wrong",
    "AMK805": "the emulated kernel computes otherwise than the interpreter",
    "AMK806": "the emulator is not installed",
    "AMK901": "internal error",
}


def normalise(text: str) -> str:
    """`amk201`, `201` and `AMK201` all name AMK201; the result may still be unknown."""
    code = text.strip().upper()
    return code if code.startswith("AMK") else f"AMK{code}"


def area(code: str) -> str:
    """The area of a registered code; KeyError for any other."""
    if code not in TITLES:
        raise KeyError(code)
    return AREAS[int(code[3])]


def explanation(code: str) -> str:
    """The Markdown text of a registered code; KeyError for any other."""
    if code not in TITLES:
        raise KeyError(code)
    return (files(__package__) / "explain" / f"{code}.md").read_text(encoding="utf-8")


@cache
def advice(code: str) -> str:
    """The explanation's fix, on one line, without what it says about the message; KeyError for an unregistered code."""
    return re.split(rf"(?<=[.)]) (?={_ASIDES})", _paragraph(code, "Fix"))[0]


@cache
def reason(code: str) -> str:
    """The first sentence of why the finding matters, on one line; KeyError for an unregistered code."""
    return re.split(r"(?<=[a-z)])\. (?=[A-Z])", _paragraph(code, "Why it matters"))[0].removesuffix(".")


_ASIDES = r"(?:The (?:message|witness|numbers)|Source:|Where the formal)\b"


def _paragraph(code: str, name: str) -> str:
    return " ".join(explanation(code).split(f"**{name}.** ", 1)[1].split("\n\n", 1)[0].split())


MAX_TEXT = 2000  # characters of one message or fact; a longer one quotes input, and its head says enough


def printable(text: str, limit: int = MAX_TEXT) -> str:
    """`text` on one line without control characters or lone surrogates, cut at `limit` characters."""
    cut = text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)


class Exit(IntEnum):
    """Exit codes of every command."""

    SAFE = 0
    UNSAFE = 1
    INPUT = 2
    UNKNOWN = 3
    INTERNAL = 4
    NO_GPU = 5


Format = Literal["full", "concise", "json", "sarif", "github"]
FORMATS: tuple[Format, ...] = ("full", "concise", "json", "sarif", "github")
"""The forms in which diagnostics are told."""


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
    """One finding. `code` must be registered in `TITLES`, otherwise ValueError. Without `help` the code's is given."""

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
