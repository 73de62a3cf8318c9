"""Documents that pydantic reads: names, fields left out at their default, and complaints as diagnostics.

AMK006 for a number that is not finite, AMK008 for a name, AMK005 otherwise.
"""

import difflib
import re
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from amk.report.diagnostic import AmkError, Diagnostic, Where, because, shown

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", re.ASCII)


def is_name(text: str) -> bool:
    """ASCII, at most 64 characters, no path separators: safe in file names, CUDA comments and terminals."""
    return NAME.fullmatch(text) is not None


def _check(text: str) -> str:
    if not is_name(text):
        raise PydanticCustomError("amk_name", "a name matches [A-Za-z_][A-Za-z0-9_.-]{0,63}")
    return text


Name = Annotated[str, AfterValidator(_check)]


def as_name(text: str, otherwise: str) -> str:
    """The nearest allowed name: other characters become '-'; `otherwise` if nothing sensible is left."""
    cut = re.sub(r"[^A-Za-z0-9_.-]+", "-", text, flags=re.ASCII).strip("-.")[:64]
    return cut if is_name(cut) else otherwise


def closest(text: str, names: Iterable[str]) -> str | None:
    """A help line naming up to three known names that resemble `text`, ignoring case; None if none does."""
    if len(text) > 200:
        return None
    by_folded = {name.lower(): name for name in names}
    matches = difflib.get_close_matches(text.lower(), list(by_folded), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(by_folded[name] for name in matches)}?" if matches else None


MAX_FINDINGS = 20  # a wrong file yields thousands; the first few say what is wrong

_CODES = {"finite_number": "AMK006", "amk_name": "AMK008", "amk_duplicate": "AMK007", "amk_reference": "AMK009"}


def unless(default: Any, **more: Any) -> Any:
    """A field with this default that is left out of the text while it holds it."""
    return Field(default=default, exclude_if=lambda value: value == default, **more)


def json_pointer(parts: Iterable[str | int]) -> str:
    """RFC 6901: `("agents", 5, "a/b")` is `/agents/5/a~1b`."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def finding(code: str, message: str, path: Iterable[str | int], *reasons: str) -> Diagnostic:
    """What is wrong at a place of the document, and why."""
    return Diagnostic(
        code, message, where=Where(path=json_pointer(path)), facts=tuple(map(because, filter(None, reasons)))
    )


def schema_error(error: ValidationError, file: str | None = None, prefix: tuple[str | int, ...] = ()) -> AmkError:
    """All of `error` as one AmkError; `prefix` is where the validated value sits in the file."""
    # pydantic counts only the valid items of a tuple, so a list whose items are all wrong is also called too short
    every = error.errors(include_url=False)
    details = [d for d in every if d["type"] != "too_short" or not d["input"]] or every
    findings = [_diagnostic(detail, file, prefix) for detail in details[:MAX_FINDINGS]]
    if len(details) > MAX_FINDINGS:
        more = f"{len(details) - MAX_FINDINGS} more problems of this kind are not shown"
        findings.append(Diagnostic("AMK005", more, where=Where(file=file)))
    return AmkError(findings)


def _diagnostic(detail: ErrorDetails, file: str | None, prefix: tuple[str | int, ...]) -> Diagnostic:
    location = (*prefix, *detail["loc"])
    name = str(location[-1]) if location else "the document"
    where = Where(file=file, path=json_pointer(location) or "/")
    kind = detail["type"]
    if kind == "missing":
        return Diagnostic("AMK005", f"field '{name}' is missing", where=where)
    if kind == "union_tag_not_found":
        return Diagnostic("AMK005", f"field {detail['ctx']['discriminator']} is missing", where=where)
    if kind == "extra_forbidden":
        return Diagnostic(
            "AMK005",
            f"unknown field '{name}'",
            where=where,
            facts=(because("unknown fields are refused, so that a misspelt one is not silently ignored"),),
        )
    facts = (shown(f"{name} = {quoted(detail['input'])}"),) if location else ()
    return Diagnostic(_CODES.get(kind, "AMK005"), f"'{name}': {detail['msg']}", where=where, facts=facts)


def quoted(value: object) -> str:
    """A short picture of any input value: its text when it is a scalar, only its kind and size otherwise."""
    if isinstance(value, str):
        return repr(value if len(value) <= 80 else value[:80] + "...")
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int):
        return str(value) if abs(value) < 10**40 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple | dict):
        return f"{'an object' if isinstance(value, dict) else 'an array'} of {len(value)}"
    return f"a value of type {type(value).__name__}"
