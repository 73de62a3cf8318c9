"""`amk serve` as a process: signals, and what it refuses to start with."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from amk.cli import main
from amk.serve.settings import KEYS_VARIABLE, keys_of

PATIENCE = 60


def started(directory: Path, port: int = 0) -> tuple[subprocess.Popen[str], int]:
    words = ["-m", "amk", "serve", "--model", str(directory), "--device", "cpu", "--port", str(port), "--name", "tiny"]
    process = subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "serving tiny at http://127.0.0.1:" in line, line + process.stderr.read()
    return process, int(line.rsplit(":", 1)[1].partition("/")[0])


def asked(port: int) -> Any:
    body = json.dumps({"model": "tiny", "prompt": "HELLO", "max_tokens": 3, "temperature": 0}).encode()
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


def test_what_it_does_not_start_with(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEYS_VARIABLE, raising=False)
    command = ["serve", "--model", str(directory), "--device", "cpu"]
    for wrong in (["--port", "70000"], ["--max-tokens", "0"], ["--max-answer-seconds", "nan"]):
        with pytest.raises(SystemExit, match="2"):
            main([*command, *wrong])
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
