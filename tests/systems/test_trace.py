"""A flat system's verdict is drawn: the run that shows what is wrong, with what it is about marked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from amk.cli import main
from amk.systems import System
from amk.systems.verdict import judged
from amk.trace.from_system import of_system
from tests.systems.ring import Mistake, ring
from tests.systems.test_rules import tma_ring


@pytest.mark.parametrize(
    ("system", "marked"),
    [(ring(), 0), (tma_ring(), 0), (ring(Mistake(short=1)), 2), (tma_ring(read=False), 2),
     (ring(Mistake(slots=1, at_once=2)), 2), (tma_ring(parity=0), 13)],
)  # fmt: skip
def test_what_the_finding_is_about_is_marked(system: System, marked: int) -> None:
    verdict = judged(system.flat())
    timeline = of_system(verdict)
    assert sum(span.marked for span in timeline.spans) == marked
    assert timeline.notes[0].startswith(verdict.verdict) and (timeline.arrows or not verdict.safe)
    # a complete run of what is SAFE has every event once, and each arrow leads forward
    assert not verdict.safe or len(timeline.spans) == verdict.system.block.events
    assert all(timeline.spans[a.source].end <= timeline.spans[a.target].start for a in timeline.arrows)


def test_the_page_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, page, events = tmp_path / "ring.json", tmp_path / "ring.html", tmp_path / "perfetto.json"
    ring(Mistake(short=1)).save(file)
    assert main(["trace", str(file), "-o", str(page), "-o", str(events)]) == 0
    assert "nothing orders two accesses to slots[0:1024]" in capsys.readouterr().out
    assert "consumer" in page.read_text() and json.loads(events.read_text())["traceEvents"]
    assert main(["trace", str(file), "--logical"]) == 2
