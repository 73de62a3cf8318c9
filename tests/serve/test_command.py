"""`amk serve` as a process: signals, and what it refuses to start with."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import amk
from amk.api.loading import open_files
from amk.cli import main
from amk.commands.model_arguments import _notes_of_server
from amk.engine.generation.generation_config import unheeded
from amk.serve.settings import KEYS_VARIABLE, keys_of

PATIENCE = 60


def started(
    directory: Path, port: int = 0, device: str = "cpu", options: Sequence[str] = ()
) -> tuple[subprocess.Popen[str], int]:
    words = ["-m", "amk", "serve", "--model", str(directory), "--device", device, "--port", str(port), "--name", "tiny"]
    process = subprocess.Popen([sys.executable, *words, *options], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines = [""]
    while "serving tiny at http://127.0.0.1:" not in lines[-1]:
        lines.append(process.stderr.readline())
        assert lines[-1], "".join(lines)
    return process, int(lines[-1].rsplit(":", 1)[1].partition("/")[0])


def asked(port: int, **fields: Any) -> Any:
    body = json.dumps({"model": "tiny", "prompt": "HELLO", "max_tokens": 3, **(fields or {"temperature": 0})}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.load(answer)["choices"][0]["text"]


@pytest.mark.turns(4)
def test_killed_and_started_again_it_serves_at_the_same_port_and_ends_in_order(directory: Path) -> None:
    process, port = started(directory)
    try:
        first = asked(port)
        process.kill()
        assert process.wait(PATIENCE) == -signal.SIGKILL
        process, port = started(directory, port)
        assert asked(port) == first
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) in (0, -signal.SIGTERM)
    finally:
        process.kill()
        process.wait(PATIENCE)


@pytest.mark.turns(4)
@pytest.mark.parametrize("device", ["cpu", "interpreter"])
def test_options_are_the_defaults_of_requests(directory: Path, device: str) -> None:
    """On a schedule, too, which is planned to draw whatever a request asks for."""
    options = ["--temperature", "2", "--top-k", "50", "--seed", "5", "--max-context", "64"]
    process, port = started(directory, device=device, options=options)
    try:
        texts = [asked(port, max_tokens=8, **fields) for fields in ({"top_p": 1}, {}, {"seed": 6}, {"temperature": 0})]
        with amk.load(directory, device="cpu", max_context=64) as model:
            drawn = {"temperature": 2.0, "top_k": 50, "max_tokens": 8}
            wanted = [model.generate("HELLO", **drawn, seed=seed).text for seed in (5, 5, 6)]
            assert texts == [*wanted, model.generate("HELLO", max_tokens=8).text]
            assert len({*texts}) == 3
    finally:
        process.kill()
        process.wait(PATIENCE)


@pytest.mark.turns(4)
def test_without_options_a_schedule_draws_at_temperature_1(directory: Path) -> None:
    process, port = started(directory, device="interpreter", options=["--max-context", "32"])
    try:
        with amk.load(directory, device="cpu", max_context=32) as model:
            assert asked(port, seed=3) == model.generate("HELLO", max_tokens=3, temperature=1.0, seed=3).text
    finally:
        process.kill()
        process.wait(PATIENCE)


def test_the_help_says_what_holds_without_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["serve", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "a field that a request has counts before its option here" in shown
    assert "the sampling keys of a GGUF file, else 1)" in shown and "the most probable token is taken" not in shown


def test_what_the_checkpoint_suggests_is_not_said_to_be_ignored(directory: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(directory, tmp_path / "m"))
    values = {"do_sample": True, "temperature": 0.5, "top_k": 7, "repetition_penalty": 1.1}
    (path / "generation_config.json").write_text(json.dumps(values))
    (greedy,), (note,) = unheeded(path), unheeded(path, suggestions=True)
    assert "temperature" in greedy.message and "temperature" not in note.message
    assert "repetition_penalty" in note.message
    files = open_files(path)
    assert _notes_of_server([greedy], files) == [note]


@pytest.mark.parametrize("command", ["generate", "chat", "serve"])
@pytest.mark.parametrize(
    "options",
    [
        *(["--device", "cpu", f"--draft-{name}", "2"] for name in ("tokens", "steps", "branches")),
        ["--device", "cpu", "--quantiser", "nearest"], ["--device", "cpu", "--max-kl", "0.1"],
        *(["--device", device, "--prefill", "kernel"] for device in ("cpu", "interpreter", "emulator")),
        *(
            ["--device", "interpreter", "--schedule", "s.json", name, value]
            for name, value in (
                ("--gpu", "h200"), ("--dtype", "int8"), ("--lm-head-dtype", "int8"), ("--kv-dtype", "fp8"),
                ("--max-context", "64"),
            )
        ),
    ],
    ids=" ".join,
)  # fmt: skip
def test_an_option_that_nothing_heeds_is_refused(
    directory: Path, command: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [command, "--model", str(directory), *(["--prompt", "HI"] if command == "generate" else [])]
    assert main([*words, *options]) == 2
    shown = capsys.readouterr().err
    assert "AMK005" in shown and (options[-2] in shown or "--max-kl" in options)


def test_a_schedule_says_its_batch_itself(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["serve", "--model", str(directory), "--device", "interpreter", "--port", "0", "--schedule", "s.json"]
    assert main([*words, "--batch", "2"]) == 2
    assert "--batch is for plans" in capsys.readouterr().err


def test_what_it_does_not_start_with(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEYS_VARIABLE, raising=False)
    command = ["serve", "--model", str(directory), "--device", "cpu"]
    for wrong in (["--port", "70000"], ["--max-tokens", "0"], ["--max-answer-seconds", "nan"], ["--stop", "x"]):
        with pytest.raises(SystemExit, match="2"):
            main([*command, *wrong])
    for name, value in (("temperature", "-1"), ("top-k", "-1"), ("top-p", "0"), ("seed", "-1")):
        assert main([*command, f"--{name}", value]) == 2
        assert "AMK015" in capsys.readouterr().err
    assert main([*command, "--host", "0.0.0.0"]) == 2
    assert KEYS_VARIABLE in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main([*command, "--port", str(taken.getsockname()[1])]) == 2
    assert "cannot listen" in capsys.readouterr().err


def test_keys_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    found = keys_of({KEYS_VARIABLE: "ann:longenough, another1"})
    assert found.client("Bearer longenough", "") == "ann" and found.client("Bearer another1", "") == "key 2"
    for wrong in ("", "longenough", "Basic longenough", "Bearer longenoug", "Bearer "):
        assert found.client(wrong, "1.2.3.4") is None
    assert not keys_of({}) and keys_of({}).client("", "1.2.3.4") == "1.2.3.4"
    assert "AMK_API_KEYS" not in os.environ or keys_of()
