"""`.ci/run` runs the tutorial by tests/tutorial.py, which knows every command and every program of the page."""

from __future__ import annotations

import pytest

from tests import tutorial

SAID = (
    tutorial.PARIS + " there was\n\nFaust, by Goethe.\nUsage(prompt_tokens=163, cached_tokens=149, steps=9)\n"
    '[\n"blue", "red"\n]\n[-4.6, -12.5, -8.7]\n56.1\n'
)


def test_every_command_is_run_or_left_out_for_a_reason() -> None:
    run, program = tutorial.chosen()
    assert run == list(tutorial.COMMANDS)
    assert program.startswith("import amk\n") and len(tutorial.programs(tutorial.SERVING)) == 1


def test_a_new_command_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(tutorial.COMMANDS, "amk targets")
    with pytest.raises(ValueError, match="amk targets"):
        tutorial.chosen()


@pytest.mark.parametrize(
    ("text", "other"),
    [("Paris", "Lyon"), ("=149", "=0"), ('"blue", "red"', '"blue"'), ("-12.5", "-2.5"), ("56.1", "0.9"), ("56.1", "")],
)
def test_what_the_program_should_print(text: str, other: str) -> None:
    assert tutorial.check_program(SAID)
    assert not tutorial.check_program(SAID.replace(text, other))
