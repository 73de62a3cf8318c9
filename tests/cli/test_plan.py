"""`amk plan`: the file it writes, the figures it prints, what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from amk.cli import main
from amk.schedule_ir.codec import load_schedule


def test_a_plan_is_written_and_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.json"
    words = ["plan", "--model", "SmolLM2-135M", "--gpu", "L4", "--max-context", "512", "-o", str(file)]
    assert main([*words, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    schedule, _ = load_schedule(file)
    assert (found["context"], found["workers"], found["plan"]) == (512, 58, "fast")
    assert found["ring_slots"] == schedule.streams[0].slots >= 2
    assert found["shared_bytes"] == schedule.launch.shared_bytes <= found["shared_limit"]
    memory = found["memory"]
    parts = memory["weights"] + memory["kv_cache"] + memory["activations"] + memory["reserve"]
    assert parts == memory["sum"] < memory["device"]
    assert memory["kv_cache"] == 2 * 2 * 30 * 3 * 512 * 64


@pytest.mark.parametrize(("preset", "workers"), [("fast", "132 of 8 warps"), ("naive", "132 of 4 warps")])
def test_the_text_names_context_memory_and_ring(preset: str, workers: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "llama3-8b", "--gpu", "h200", "--plan", preset]) == 0
    out = capsys.readouterr().out
    for part in ("8,192 of the model's 8,192 positions", workers, "kv cache", "a worker", "bytes a warp"):
        assert part in out


def test_a_model_that_does_not_fit_shows_the_sum(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "llama3-70b", "--gpu", "a10g"]) == 2
    err = capsys.readouterr().err
    assert "AMK011" in err and "shortfall" in err and "weights" in err


def test_a_file_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--model", "smollm2-135m", "--gpu", "l4", "--max-context", "64"]
    assert main([*words, "-o", str(tmp_path / "no" / "such.json")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_a_plan_needs_neither_compiler_nor_elf_reader() -> None:
    words = ["plan", "--model", "smollm2-135m", "--gpu", "l4", "--max-context", "64"]
    script = f"""
import sys
for name in ("elftools", "cuda"):
    sys.modules[name] = None
import amk.cli
assert amk.cli.main({words!r}) == 0
assert not [name for name in sys.modules if name.startswith("amk.lowering")]
"""
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=60)
