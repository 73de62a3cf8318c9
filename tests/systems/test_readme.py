"""The pages' systems are SAFE, and their mistakes get the very messages that the pages show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import amk
from amk.cli import main

PAGE = Path(amk.__file__).parent / "systems" / "README.md"


def explained(code: str) -> str:
    names: dict[str, Any] = {}
    exec(compile(code, "ring.py", "exec"), names)
    return str(amk.verify(names["ring"]()).explain())


def test_the_page_shows_what_is_said() -> None:
    page = PAGE.read_text(encoding="utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    assert explained(code).startswith("SAFE")
    lines = explained(code.replace("c.wait(full, k + 1)", "c.wait(full, k)")).splitlines()[1:]
    assert all(f"    {line}\n" in page for line in lines) and len(lines) == 6


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
    verdict = judged_program(
        parse_loops(text.replace('"full", "at_least": "k + 1"', '"full", "at_least": "k"').encode(), "ring.json")
    )
    assert verdict.verdict == "UNSAFE" and "ring.cu:12" not in verdict.explain() and "ring.json:" in verdict.explain()


LOOPS = {
    "a threshold one too low": ("c.wait(full, k + 1)", "c.wait(full, k)", "1 higher, every time", "AMK302"),
    "more tiles ahead than slots": ("init=slots)", "init=slots + 1)", "start empty at 3 instead of 4", "AMK302"),
    "a poll without a fence": ("(full, k + 1)", '(full, k + 1, "relaxed")', "make consumer's wait for full", "AMK302"),
    "no signal of the tile": ("p.signal(full)", "pass", "add signals of it to producer behind", "AMK202"),
    "a condition": ("c.wait(full, k + 1)", "k == 0 or c.wait(full, k + 1)", "is no condition", ""),
    "the other parity": ("(k // slots + 1) % 2", "k // slots % 2", "and others with the other parity", "AMK201"),
    "one consumer too few": (", slots, warps)", ", slots)", "empty[0] and others count 2 arrivals", "AMK201"),
    "other bytes than come": ("slots], 4096)", "slots], 2048)", "expect 4096 bytes, as many as come", "AMK202"),
    "no expected bytes": ("p.expect(full[k % slots], 4096)", "pass", "`expect` its 4096 bytes at full[0]", "AMK202"),
}


@pytest.mark.parametrize(("before", "after", "words", "code"), LOOPS.values(), ids=LOOPS)
def test_the_usual_mistakes_in_loops_are_told_with_what_to_change(
    before: str, after: str, words: str, code: str
) -> None:
    page = (PAGE.parent / "loops.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    source = "".join(part.partition("```")[0] for part in page.split("```python\n")[1:])
    assert source.count(before) == 1
    exec(compile(source.replace(before, after), "ring.py", "exec"), names)
    kernel = names["endless" if source.index(before) < source.index("def tma") else "tma"]
    if not code:
        with pytest.raises(TypeError, match=words):
            kernel()
        return
    found = amk.verify(kernel()).explain()
    assert code in found and words in found.partition("= help: ")[2], found
    assert "SAFE" not in found.partition("= help: ")[2] or " laps` is SAFE" in found


JSON = {
    "a threshold one too low": ('"full", "at_least": "k + 1"', '"full", "at_least": "k"', "be 1 higher, every time at"),
    "a name that is not declared": ('"counter": "full"}', '"counter": "ful"}', "'ful'; declared: full, empty"),
    "a word that is not known": ('"at_least": "k + 1"}', '"atleast": "k + 1"}', "`amk schema --loops`"),
    "a count that is computed": ('"count": "tiles"', '"count": "tiles * 2"', 'as in "count": "tiles"'),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "words"), JSON.values(), ids=JSON)
def test_mistakes_in_a_file_with_loops_are_told_with_what_to_change(
    before: str, after: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (PAGE.parent / "files.md").read_text(encoding="utf-8").partition("```json\n")[2].partition("```")[0]
    assert before in text
    (tmp_path / "ring.json").write_text(text.replace(before, after))
    assert main(["verify", str(tmp_path / "ring.json")]) != 0
    output = capsys.readouterr()
    assert words in output.out + output.err


GUIDE = PAGE.parent / "guides" / "kernel-author.md"
MISTAKES = {
    ("phase ^ 1)", "phase)"): ("AMK201", "empty 0 is in phase 0, which still needs 1 of 1 arrivals"),
    ('sys.mbarrier(f"empty {s}")', 'sys.mbarrier(f"empty {s}", 2)'): ("AMK201", "still needs 1 of 2 arrivals"),
    ("p.expect(full[s], BYTES)", "p.expect(full[s], 2 * BYTES)"): (
        "AMK201",
        "still needs 0 of 1 arrivals and 4096 bytes",
    ),
}


def explanation(code: str) -> str:
    names: dict[str, Any] = {}
    exec(compile(code.replace("print(", "("), "ring.py", "exec"), names)
    return str(amk.verify(names["kernel"]()).explain())


def test_the_guide_s_ring_is_right_and_its_mistakes_are_told_as_it_says() -> None:
    page = GUIDE.read_text(encoding="utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    assert explanation(code).startswith("SAFE")
    for (before, after), (finding, words) in MISTAKES.items():
        assert before in code and words in page
        found = explanation(code.replace(before, after))
        assert finding in found and words in found, found
    lines = code.splitlines()
    read = next(n for n, line in enumerate(lines) if "c.read(" in line)
    lines[read], lines[read + 1] = lines[read + 1], lines[read]
    assert "AMK302" in explanation("\n".join(lines)) and "slots" in explanation("\n".join(lines))


def test_the_compiler_guide_s_file_gets_the_finding_that_it_shows() -> None:
    from amk.systems.document import parse_system
    from amk.systems.verdict import judged

    page = (PAGE.parent / "guides" / "compiler-author.md").read_text(encoding="utf-8")
    text = page.partition("```json\n")[2].partition("```")[0]
    found = judged(parse_system(text.encode(), "hand-off.json")).explain().splitlines()[1:3]
    assert all(line.strip() in page for line in found), found
