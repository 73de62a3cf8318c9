"""The pages' systems are SAFE, and their mistakes get the very messages that the pages show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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


BEGINNERS = {
    "more tiles ahead than slots": ("init=SLOTS)", "init=SLOTS + 1)", "start empty at 3 instead of 4"),
    "a threshold one too low": ("wait(full, k + 1)", "wait(full, k)", "wait for full to be 1 higher"),
    "a threshold that stays where it is": ("c.wait(full, k + 1)", "c.wait(full, 1)", "full to be 1 higher each time"),
    "a poll without a fence": (
        "wait(full, k + 1)",
        'wait(full, k + 1, order="relaxed")',
        "wait for full at ring.py:21",
    ),
    "a signal that is no release": ("signal(full)", 'signal(full, order="relaxed")', "make producer's signal of full"),
    "no wait before the read": ("c.wait(full, k + 1)", "pass", "let consumer wait for full >= 1 before its access"),
    "no wait for a free slot": ("p.wait(empty, k + 1)", "pass", "let producer wait for empty >= 4 before its access"),
    "no release of the slot": (
        "c.signal(empty)",
        "pass",
        "too few: add signals of it to consumer behind its access at",
    ),
    "no signal of the tile": ("p.signal(full)", "pass", "full gets 9 too few: add signals of it to producer behind"),
}


@pytest.mark.parametrize(("before", "after", "words"), BEGINNERS.values(), ids=BEGINNERS)
def test_the_usual_mistakes_are_told_with_what_to_change(before: str, after: str, words: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    assert before in code
    found = explained(code.replace(before, after))
    assert words in found.partition("= help: ")[2], found


def test_the_page_s_loops_are_safe_for_every_number_of_laps() -> None:
    from amk.systems.loop_document import parse_loops
    from amk.systems.loop_program import judged_program

    page = (PAGE.parent / "loops.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for code in page.split("```python\n")[1:]:
        exec(compile(code.partition("```")[0], "ring.py", "exec"), names)
    assert amk.verify(names["endless"]()).safe and amk.verify(names["tma"](2)).safe
    text = (PAGE.parent / "files.md").read_text(encoding="utf-8").partition("```json\n")[2].partition("```")[0]
    assert judged_program(parse_loops(text.encode(), "ring.json")).safe
    told = judged_program(parse_loops(text.replace("k + 1", "k").encode(), "ring.json"))
    assert told.verdict == "UNSAFE" and "ring.cu:12" not in told.explain() and "ring.json:" in told.explain()


GUIDE = PAGE.parent / "guides" / "kernel-author.md"
MISTAKES = {
    ("phase ^ 1)", "phase)"): ("AMK201", "empty 0 is in phase 0, which still needs 1 of 1 arrivals"),
    ('sys.mbarrier(f"empty {s}")', 'sys.mbarrier(f"empty {s}", 2)'): ("AMK201", "still needs 1 of 2 arrivals"),
    ("p.expect(full[s], BYTES)", "p.expect(full[s], 2 * BYTES)"): (
        "AMK201",
        "still needs 0 of 1 arrivals and 4096 bytes",
    ),
}


def told(code: str) -> str:
    names: dict[str, Any] = {}
    exec(compile(code.replace("print(", "("), "ring.py", "exec"), names)
    return str(amk.verify(names["kernel"]()).explain())


def test_the_guide_s_ring_is_right_and_its_mistakes_are_told_as_it_says() -> None:
    page = GUIDE.read_text(encoding="utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    assert told(code).startswith("SAFE")
    for (before, after), (finding, words) in MISTAKES.items():
        assert before in code and words in page
        found = told(code.replace(before, after))
        assert finding in found and words in found, found
    lines = code.splitlines()
    read = next(n for n, line in enumerate(lines) if "c.read(" in line)
    lines[read], lines[read + 1] = lines[read + 1], lines[read]
    assert "AMK302" in told("\n".join(lines)) and "slots" in told("\n".join(lines))


def test_the_compiler_guide_s_file_gets_the_finding_that_it_shows() -> None:
    from amk.systems.document import parse_system
    from amk.systems.verdict import judged

    page = (PAGE.parent / "guides" / "compiler-author.md").read_text(encoding="utf-8")
    text = page.partition("```json\n")[2].partition("```")[0]
    found = judged(parse_system(text.encode(), "hand-off.json")).explain().splitlines()[1:3]
    assert all(line.strip() in page for line in found), found
