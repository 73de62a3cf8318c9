"""READMEs agree with the records that they quote."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from amk import cli
from amk.bench.table.table import Case, load_table
from amk.report import chart
from amk.simulator import scatter
from tests.agent import time_to_best
from tests.readme import architecture, bars, guesses, pages, records, speed

LINK = re.compile(r"\((?:\.\./)*tests/records/([^)#]+)\)")
TARGET = re.compile(r"\]\((?!https?:|mailto:)([^)\s#]*)(?:#([^)\s]+))?\)")
DEFINITION = re.compile(r"^\[([^\]]+)\]: (\S+)$", re.MULTILINE)
USE = re.compile(r"\[([^\[\]]+)\](?![(:\[])")
"""Of links whose targets stand at the end of the page."""
MODULE = re.compile(r"`((?:[\w.]+/)*\w+\.(?:py|cuh))`")
PAGES = sorted(
    p
    for p in records.ROOT.rglob("*.md")
    if p.relative_to(records.ROOT).parts[0] in {"README.md", "amk", "adversarial", "tests"}
)
QUOTING = [
    page for page in PAGES if page != records.ROOT / "README.md" and LINK.search(page.read_text(encoding="utf-8"))
]
READMES = [page for page in PAGES if page.name == "README.md"]
MODULES = sorted((records.ROOT / "amk").rglob("*.py"))
CODE = {p.relative_to(records.ROOT).as_posix() for top in ("amk", "tests") for p in (records.ROOT / top).rglob("*.*")}
BEFORE = "d1b2b13"
"""A commit since which `.ci/run` has changed and LICENSE has not."""
IN_GIT = records.changed(BEFORE, ("LICENSE",)) is not None


@pytest.mark.parametrize("path", sorted(pages.PARTS), ids=lambda path: path.name)
def test_what_records_say_is_up_to_date(path: Path) -> None:
    assert pages.PARTS[path]() == path.read_text(encoding="utf-8"), "run `python -m tests.readme`"


def test_the_readme_shows_what_verify_says(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Of the race that it shows: every line but the prompt, and what stands behind a # there."""
    text = (records.ROOT / "README.md").read_text(encoding="utf-8")
    _, behind = text.split("    $ amk verify adversarial/missing-wait.json --witness w.json\n")
    lines = [line.strip().partition("  # ")[0].strip() for line in behind.split("\n\n")[0].splitlines()]
    schedule, witness = str(records.ROOT / "adversarial/missing-wait.json"), str(tmp_path / "w.json")
    assert cli.main(["verify", schedule, "--witness", witness]) == 1
    said = [line.strip() for text in capsys.readouterr() for line in text.splitlines()]
    assert len(lines) == 5 and [line for line in lines if line not in said] == []


def test_every_record_has_a_claim_and_every_claim_a_record() -> None:
    files = {p.relative_to(records.RECORDS).as_posix() for p in records.RECORDS.glob("*/*")}
    assert files == {claim.record for claim in records.claims()}
    for claim in records.claims():
        assert all((records.ROOT / path).exists() for path in claim.about), claim


MACHINE = re.compile(r"(?<![\w.:/-])/(?:root|home|tmp|work|mnt|workspace|scratch)/")
"""Folders of one machine, which mean nothing on another."""


def test_records_and_pages_name_no_folder_of_a_machine() -> None:
    texts = [p for p in (*PAGES, *(records.ROOT / "tests").rglob("*.json"), *records.ROOT.glob("tests/**/*.svg"))]
    assert len(texts) > 200
    assert [p.name for p in texts if MACHINE.search(p.read_text(encoding="utf-8"))] == []


def test_tokens_of_a_step_and_the_probability_of_a_guess() -> None:
    assert [guesses.tokens(8, right) for right in (0.0, 0.5, 1.0)] == [1.0, 2 - 2**-7, 8.0]
    for rows in (2, 5, 8):
        assert guesses.tokens(rows, guesses.probability(rows, 1.5)) == pytest.approx(1.5)
    even = guesses.probability(8, guesses.times()[8] / guesses.times()[1])
    assert 1 / 7 < even < 1 / 6, "speculation.md says one of six"


def test_the_speed_table_says_which_rows_are_of_another_run() -> None:
    def entry(pos: int, commit: str) -> dict[str, Any]:
        key = {"model": "llama3-8b", "dtype": "bf16", "pos": pos, "batch": 1}
        run = {"hardware": {"name": "NVIDIA H200"}, "commit": commit, "date": "2026-11-26T22:40:00"}
        return {"row": {"key": key, "ceiling_gbps": 4545.4}, "run": run}

    rows = [entry(128, "aaaaaaaa"), entry(128, "aaaaaaaa"), entry(16, "aaaaaaaa"), entry(2047, "b")]
    assert speed.source(rows) == (
        "One NVIDIA H200, commit aaaaaaa, 2026-11-26, which reads 4,545 GB/s. "
        "llama3-8b bf16, 2,047: one NVIDIA H200, commit b, 2026-11-26, which reads 4,545 GB/s."
    )


def test_ratios_to_torch_take_its_fastest_process() -> None:
    """One process of torch.compile may be slower than another by 8%: of all that computed with bf16 weights at a
    position, whatever the format of amk was there, the fastest counts."""
    rows = [entry["row"] for entry in json.loads((speed.RECORDS / speed.TABLES[0]).read_text())["rows"]]
    compared = 0
    for line in speed.lines([speed.RECORDS / speed.TABLES[0]]):
        model, _, pos, batch = line.case
        where = {"model": model, "pos": pos, "batch": batch}
        there = [row for row in rows if where.items() <= row["key"].items()]
        own = sorted(row["times"]["ms"] for row in there if row["key"]["dtype"] == line.case[1])
        for name in ("compile", "cublas-graph"):
            times = [row["baselines"][name]["ms"] for row in there if name in row["baselines"]]
            if name not in line.baselines:
                assert not times or all(
                    name not in row["baselines"] for row in there if row["key"]["dtype"] == line.case[1]
                )
                continue
            ms, ratio = line.baselines[name]
            assert ms == min(times) and ratio == pytest.approx(min(times) / own[len(own) // 2]), line.case
            compared += len(set(times)) > 1
    assert compared > 5


def test_every_record_names_its_commit_or_says_why_not() -> None:
    for claim in records.claims():
        assert records.commits(claim) or claim.unknown, claim.record
        assert records.state().stale[claim.record] is not None or claim.unknown, claim.record


@pytest.mark.skipif(not IN_GIT, reason="needs the history of the repository")
def test_the_index_was_true_at_its_commit() -> None:
    as_of, stale = records.state()
    found = {claim.record: records.stale(claim, as_of) for claim in records.claims()}
    assert found == stale, "run `python -m tests.readme --stale`"


@pytest.mark.skipif(not IN_GIT, reason="needs the history of the repository")
def test_readme_says_which_quoted_records_are_stale() -> None:
    by_record = {claim.record: claim for claim in records.claims()}
    for paragraph in (records.ROOT / "README.md").read_text(encoding="utf-8").split("\n\n"):
        for record in LINK.findall(paragraph):
            if record in by_record and records.stale(by_record[record]) is not False:
                assert "changed since" in paragraph, f"{record} is stale: say '... have changed since' beside the link"


@pytest.mark.parametrize("page", QUOTING, ids=lambda page: page.relative_to(records.ROOT).as_posix())
def test_a_page_with_a_stale_record_says_how_old_it_is(page: Path) -> None:
    """By commit or day, or by the index, which has both and what has changed since."""
    text = page.read_text(encoding="utf-8")
    by_record = {claim.record: claim for claim in records.claims()}
    for record in {each for each in LINK.findall(text) if each in by_record}:
        claim = by_record[record]
        marks = (*records.commits(claim), *(records.dates(claim.made_of or record) or ()), "records/README.md)")
        current = records.state().stale[record] is False
        assert current or any(word in text for word in marks), f"{record} is stale: name its commit, or link the index"


def test_measured_numbers_of_the_readme_are_filled_in() -> None:
    text = (records.ROOT / "README.md").read_text(encoding="utf-8")
    by_hand = re.sub(r"<!-- ([\w-]+) -->.*?<!-- /\1 -->", "", text, flags=re.DOTALL)
    assert re.findall(r"\d[\d.,]*(?: (?:ms|us|s|GB/s|J|tests|tokens a second)|%|x)\b", by_hand) == []


@pytest.mark.skipif(not IN_GIT, reason="needs the history of the repository")
def test_a_change_makes_a_record_stale() -> None:
    assert records.changed(BEFORE, ("LICENSE",)) is False
    assert records.changed(BEFORE, (".ci/run",)) is True
    assert records.changed(BEFORE, ("README.md",)) is False, "a page says what there is, and changes nothing of it"
    assert records.changed("0000000", ("LICENSE",)) is None
    assert records.changed(BEFORE, (".ci/run",), BEFORE) is False


def test_all_commits_of_a_record_are_read() -> None:
    claims = {claim.record: claim for claim in records.claims()}
    assert records.commits(claims["proof/neighbourhood-abstractions.json"]) == ("690096c", "94952ae")
    assert records.commits(claims["proof/fuzzed-schedules.json"]) == ("d1b2b13", "1b01e34")
    assert records.commits(claims["speed/h200-refills.json"]) == ("af1c040", "3eef6e6")
    assert records.commits(claims["proof/matrix-bf16.md"]) == records.commits(claims["proof/matrix-bf16.json"])


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    heads = [line.lstrip("# ") for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(records.ROOT).as_posix())
def test_links_and_names_of_modules_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in TARGET.findall(text):
        aim = page.parent / target if target else page
        assert aim.exists(), target
        assert not anchor or anchor in anchors(aim), f"{target}#{anchor}"
    here = page.parent.relative_to(records.ROOT).as_posix()
    for name in MODULE.findall(text):
        places = (name, f"amk/{name}", f"{here}/{name}") if "/" in name else ()
        known = any(p in CODE for p in places) or any(p.endswith(f"/{name}") for p in CODE)
        assert known, f"`{name}` is not a file of this repository"
    ends = dict(DEFINITION.findall(text))
    assert [end for end in ends.values() if not (page.parent / end).exists()] == []
    assert not ends or ends.keys() == set(USE.findall(text))


OWN_NAME = re.compile(r"`((?:[a-z_]+/)*[a-z_]+\.py)`")


def test_docstrings_name_modules_that_exist() -> None:
    lost = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                names = [n for n in OWN_NAME.findall(text) if not any(f"/{p}".endswith(f"/{n}") for p in CODE)]
                lost += [(path.name, found) for found in names]
    assert lost == []


def code_lines(path: Path) -> int:
    """Lines of a module without docstrings, comments and blank lines."""
    text = path.read_text(encoding="utf-8")
    loose = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr))
    strings = (v for v in loose if isinstance(v, ast.Constant) and isinstance(v.value, str))
    words = {line for v in strings for line in range(v.lineno, (v.end_lineno or v.lineno) + 1)}
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") and n not in words for n, line in lines)


COUNTED = re.compile(r"^\|([^|]*\.py\)[^|]*)\| (?:by hand, )?(\d+)(?: lines)? \|", re.MULTILINE)


@pytest.mark.parametrize(("page", "rows"), [("README.md", 6), ("checker/README.md", 7)])
def test_pages_count_lines_of_code_as_they_are(page: str, rows: int) -> None:
    path = records.ROOT / "amk" / page
    found = COUNTED.findall(path.read_text(encoding="utf-8"))
    assert len(found) == rows
    for modules, count in found:
        files = [path.parent / target for target, _ in TARGET.findall(modules)]
        assert sum(map(code_lines, files)) == int(count), files


def test_the_glossary_is_short_and_its_words_are_used() -> None:
    text = (records.ROOT / "amk" / "README.md").read_text(encoding="utf-8")
    _, behind = text.split("## Words\n")
    words = [row[2:].split(" | ")[0] for row in behind.split("## ")[0].splitlines() if row.startswith("| ")][1:]
    assert 20 < len(words) <= 40
    others = [p for p in PAGES if p != records.ROOT / "amk" / "README.md"] + MODULES
    said = re.sub(r"[_\s]+", " ", "\n".join(p.read_text(encoding="utf-8") for p in others))
    every = [word.strip() for entry in words for word in re.split(r",|\(.*\)", entry) if word.strip()]
    assert [word for word in every if not re.search(rf"\b{word}", said, re.IGNORECASE)] == []


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.name == "README.md"], ids=lambda page: page.relative_to(records.ROOT).as_posix()
)
def test_a_page_that_introduces_a_folder_has_two_pages_of_paper(page: Path) -> None:
    """120 lines; a list that is made from records does not count."""
    text = re.sub(r"<!-- ([\w-]+) -->\n.*?<!-- /\1 -->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"<!-- /?[\w-]+ -->", "", text)
    assert len(text.splitlines()) <= 120 and len(text.split()) <= 1500


LADDER = {
    "1B bf16": (("llama3.2-1b", "bf16", 128, 1),),
    "1B int8": (("llama3.2-1b", "int8", 128, 1),),
    "8B bf16": (("llama3-8b", "bf16", 128, 1),),
    "8B int8; fp8": (("llama3-8b", "int8", 128, 1), ("llama3-8b", "fp8", 128, 1)),
    "8B int4": (("llama3-8b", "int4-g128", 128, 1),),
    "AWQ": (("llama3-8b", "int4-g128-zp-head-bf16", 128, 1),),
    "batch 4": (("llama3-8b", "bf16", 128, 4),),
    "batch 8": (("llama3-8b", "bf16", 128, 8),),
    "batch 16": (("llama3-8b", "bf16", 128, 16),),
    "8B bf16 at 32,767; 131,071": (("llama3.1-8b", "bf16", 32767, 1), ("llama3.1-8b", "bf16", 131071, 1)),
    "qwen3-0.6b": (("qwen3-0.6b", "bf16", 128, 1),),
    "smollm2-135m": (("smollm2-135m", "bf16", 128, 1),),
}


def _label(case: Case) -> str:
    head = case.lm_head if case.lm_head not in (None, case.dtype) else ""
    return f"{case.dtype}-head-{head}" if head else case.dtype


@pytest.mark.parametrize("name", LADDER)
def test_the_ladder_has_the_targets_of_the_table_and_the_times_of_its_record(name: str) -> None:
    cases = load_table("h200").cases
    targets = {(c.model, _label(c), c.pos, c.settings.get("batch", 1)): c.target_ms for c in cases}
    lines = {line.case: line for line in speed.lines([speed.RECORDS / "h200-table.json"])}
    text = (records.ROOT / "amk/lowering/LADDER.md").read_text(encoding="utf-8").split("## Targets")[1]
    found = {cells[1]: cells[2:5] for line in text.splitlines() if len(cells := re.split(r" *\| +", line)) > 4}
    aimed, measured, floor = ([float(re.sub(r":.*", "", each)) for each in cell.split("; ")] for cell in found[name])
    assert aimed == [targets[case] for case in LADDER[name]]
    assert measured == [round(lines[case].ms, 3) for case in LADDER[name]]
    assert floor == [round(lines[case].floor, 3) for case in LADDER[name]]


def test_labels_fit_into_the_pictures() -> None:
    """At 7 and 6 pixels a character of 13 and 11 pixels, which is wide."""
    assert [b.name for g in speed.groups() for b in g.bars if 7 * len(b.name) > bars.LABEL - 8] == []
    notes = re.findall(r'class="note"[^>]*>([^<]*)<', bars.svg(speed.groups(), "ms", pages.BOUND))
    assert [note for note in notes if 6 * len(note) > bars.WIDTH] == []
    assert [box.note for box in architecture.BOXES.values() if 6 * len(box.note) > architecture.WIDE - 8] == []


def _light(colour: str) -> float:
    """Relative luminance of #rrggbb, as WCAG defines it."""
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colour", sorted({*chart.PALETTE, *scatter.COLOURS, *time_to_best.COLOURS}))
def test_lines_of_charts_are_seen_on_light_and_dark_pages(colour: str) -> None:
    for page in ("#ffffff", "#0d1117"):
        low, high = sorted((_light(colour), _light(page)))
        assert (high + 0.05) / (low + 0.05) > 1.8, page


def test_first_tokens_of_the_bench_page_are_those_of_the_record() -> None:
    rows = json.loads((speed.RECORDS / "h200-first-token-rows.json").read_text(encoding="utf-8"))["rows"]
    ms = {(row["program"], row["prompt"]): row["first_ms"] for row in rows}
    text = (records.ROOT / "amk" / "bench" / "README.md").read_text(encoding="utf-8")
    for prompt in (64, 512, 2048):
        cells = next(line for line in text.splitlines() if line.startswith(f"| {prompt:,} |")).split(" | ")
        programs = ("amk bf16, prompt by torch", "amk bf16, prompt by rows", "transformers bf16")
        for cell, program in zip(cells[1:], programs, strict=True):
            shown = cell.strip(" |").split(";")[0]
            assert float(shown) == round(ms[program, prompt], len(shown.partition(".")[2]))
