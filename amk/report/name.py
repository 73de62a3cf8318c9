"""Names of models, targets and everything else that a file may define."""

import difflib
import re
from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

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


def closest(text: str, known: Iterable[str]) -> str | None:
    """A help line naming up to three known names that resemble `text`, ignoring case; None if none does."""
    if len(text) > 200:
        return None
    by_folded = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(text.lower(), list(by_folded), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(by_folded[name] for name in matches)}?" if matches else None
