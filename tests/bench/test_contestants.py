"""Contestants are refused before anything is planned."""

from __future__ import annotations

import pytest

from amk.bench.tools.contestants import parse


@pytest.mark.parametrize("changes", ["fast", "warp=1", "warps=1/", "warps=1/0", "warps=ten", "handoff='tagged'/2"])
def test_changes_that_are_none_are_refused(changes: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--model", "llama3-8b", "warps=10", changes])
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_an_empty_change_is_the_default_plan() -> None:
    assert parse(["--model", "llama3-8b", "", "warps=10; held_refills=1/3", "@plan.json"]).changes[0] == ""
