"""The page's ring is SAFE, and its mistake gets the very message that the page shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import amk

PAGE = Path(amk.__file__).parent / "systems" / "README.md"


def explained(code: str) -> str:
    names: dict[str, Any] = {}
    exec(compile(code, "ring.py", "exec"), names)
    return str(amk.verify(names["ring"]()).explain())


def test_the_page_shows_what_is_said() -> None:
    page = PAGE.read_text(encoding="utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    assert explained(code).startswith("SAFE")
    told = explained(code.replace("c.wait(full, k + 1)", "c.wait(full, k)")).splitlines()[1:]
    assert all(f"    {line}\n" in page for line in told) and len(told) == 6
