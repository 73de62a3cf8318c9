"""The comparison of proposers can be cut short and continued, and says what its record says."""

import json
from math import exp, log
from pathlib import Path
from typing import Any

import pytest

from tests.agent import time_to_best

ENDS = {"local": 1.20, "beam": 1.30, "portfolio": 1.29}
CUT = Path("cut")


def drawn(what: tuple[str, str, int]) -> dict[str, Any]:
    """As `solved`, of known ends; the beam is cut short while there is a file that says so."""
    where, name, seed = what
    if name == "beam" and CUT.exists():
        raise KeyboardInterrupt
    return {"problem": where, "proposer": name, "seed": seed, "curve": [0.0, -log(ENDS[name])]}


def test_what_was_cut_short_is_continued_and_rendered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (("solved", drawn), ("SEEDS", 2), ("EVALS", 1), ("AT", (1,))):
        monkeypatch.setattr(time_to_best, name, value)
    record, wanted = tmp_path / "found.json", [*ENDS]
    CUT.touch()
    with pytest.raises(KeyboardInterrupt):
        time_to_best.run(record, 1, wanted, ["simulator"])
    before = json.loads(record.read_text())["rows"]
    assert 0 < len(before) < 6 and "beam" not in {row["proposer"] for row in before}
    CUT.unlink()
    time_to_best.run(record, 1, wanted, ["simulator"])
    assert len(json.loads(record.read_text())["rows"]) == 6
    ends = time_to_best.claims(time_to_best.results(record, "simulator"))
    assert {who: exp(gain) for who, gain in ends.items()} == pytest.approx(
        {"over the best single one (beam)": 1.29 / 1.30, "over local": 1.29 / 1.20}
    )
    time_to_best.write(record, tmp_path / "found.md")
    assert "-0.77%" in (tmp_path / "found.md").read_text() and (tmp_path / "found-simulator.svg").is_file()
