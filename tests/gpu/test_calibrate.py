"""`amk calibrate` on the GPU: probes give sensible constants, kernels are recorded and read back."""

import json
from pathlib import Path

import pytest

from amk.bench.calibration.sm_rates import SmRates
from amk.cli import main
from amk.commands.measured_runs import measured_runs
from amk.lowering.launch import Device
from amk.simulator.constants import load_constants
from amk.targets.target import Target

pytestmark = pytest.mark.gpu


def test_micro_benchmarks(torch_gpu: Device, gpu: Target, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    assert main(["calibrate", "--gpu", gpu.name, "--micro", str(path)]) == 0
    found = load_constants(path)
    assert 0.05 < found.l2_us < 2 and 0.1 < found.copy_us < 5 and 0 <= found.hop_us < 5
    assert 5 < found.sm_gbps < found.read_gbps < 20_000 and 0 <= found.fast_sms < 0.6


def test_shares_of_the_sms(torch_gpu: Device, gpu: Target, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    assert main(["calibrate", "--gpu", gpu.name, "--shares", str(path)]) == 0
    rates = SmRates.model_validate_json(path.read_text())
    assert len(rates.smid) == torch_gpu.sm_count and len(rates.uuid) == 32
    assert 0 <= rates.gain() < 0.6 and rates.mean().sum() < 20_000


def test_kernels_are_measured_and_recorded(torch_gpu: Device, gpu: Target, tmp_path: Path) -> None:
    path = tmp_path / "k.json"
    words = ["calibrate", "--gpu", gpu.name, "--model", "smollm2-135m", "--kernels", "3", "--max-context", "512"]
    assert main([*words, "--record", str(path), "--steps", "5"]) == 0
    assert len(measured_runs([str(path)])) == 3
    rows = [entry["row"] for entry in json.loads(path.read_text())["rows"]]
    assert all(row["correct"] and 0 < row["error"] <= 1.1 * row["torch_error"] for row in rows)
