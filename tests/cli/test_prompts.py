"""What `amk generate` takes for a prompt."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from amk.cli import main
from amk.commands.generate import texts
from amk.report.diagnostic import AmkError
from tests.engine.tiny_chat import write


@pytest.mark.parametrize(
    ("content", "prompts"),
    [("a\u2028b\x0c\nc\n", ["a\u2028b\x0c", "c"]), ("a\r\nb", ["a", "b"]), ("\n", [""]), ("", [])],
)
def test_a_prompt_of_a_file_is_a_line(content: str, prompts: list[str], tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text(content, encoding="utf-8", newline="")
    arguments = argparse.Namespace(prompt=["first"], prompts=str(file))
    if "" in prompts:
        with pytest.raises(AmkError, match=r"AMK014.*prompt 2 is empty"):
            texts(arguments)
    else:
        assert texts(arguments) == ["first", *prompts]


def test_a_system_message_without_a_template_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "generate",
        "--model",
        str(tmp_path),
        "--device",
        "cpu",
        "--prompt",
        "Hi",
        "--plain",
        "--system",
        "Be kind",
    ]
    assert main(words) == 2
    assert "AMK005" in (err := capsys.readouterr().err) and "--system" in err


@pytest.mark.parametrize("command", ["chat", "generate"])
def test_bytes_that_are_no_text_are_refused(command: str, tmp_path: Path) -> None:
    words = ["-m", "amk", command, "--model", str(write(tmp_path)), "--device", "cpu", "--max-tokens", "2"]
    done = subprocess.run(
        [sys.executable, *words, *(["--prompt", "-"] if command == "generate" else [])],
        input=b"hi\xff\n", capture_output=True, check=False, env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"},
    )  # fmt: skip
    assert done.returncode == 2 and b"AMK005" in done.stderr and b"UTF-8" in done.stderr
