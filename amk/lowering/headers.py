"""The device headers of the product, handed to the compiler from memory under the prefix `amk/`.

Passing text and not host paths keeps a compilation a function of its inputs: the same source gives the same bytes on
every machine, and the cache key is a hash of what was really compiled.
"""

from __future__ import annotations

import re
from importlib import resources
from importlib.resources.abc import Traversable

from amk.lowering import refusal

PREFIX = "amk/"
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"(amk/[^"\n]+)"', re.MULTILINE)


def closure(source: str) -> dict[str, str]:
    """Every header that `source` includes as "amk/...", directly or not: include name -> text, sorted by name.

    Only what is included is returned, so that editing one op's header leaves other kernels' cache entries valid.
    """
    found: dict[str, str] = {}
    pending = _INCLUDE.findall(source)
    while pending:
        name = pending.pop()
        if name not in found:
            found[name] = read_header(name)
            pending += _INCLUDE.findall(found[name])
    return dict(sorted(found.items()))


def read_header(name: str) -> str:
    """Text of one of our headers by its include name. Raises AMK901 for a name that does not exist."""
    node: Traversable = resources.files("amk.lowering") / "cuda"
    parts = name.removeprefix(PREFIX).split("/")
    if not all(re.fullmatch(r"[A-Za-z0-9_]+(\.cuh)?", part) for part in parts):
        raise refusal.internal(f"generated source includes {name!r}, which is not a header name")
    for part in parts:
        node = node / part
    if not node.is_file():
        raise refusal.internal(f"generated source includes {name!r}, which does not exist")
    return node.read_text(encoding="utf-8")
