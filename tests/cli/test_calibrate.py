"""`amk calibrate` where it cannot measure; its probes compile for every architecture."""

from pathlib import Path

import pytest

import amk.bench
from amk.cli import main
from amk.commands import bench
from amk.lowering.compile import compile_cuda
from amk.report.diagnostic import AmkError, Diagnostic, Exit


def test_bad_requests_and_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise AmkError(Diagnostic("AMK602", "no CUDA driver"), Exit.NO_GPU)

    monkeypatch.setattr(bench.Device, "open", refuse)
    assert main(["calibrate", "--gpu", "h200"]) == 2
    assert main(["calibrate", "--gpu", "h200", "--model", "smollm2-135m"]) == 2
    assert main(["calibrate", "--gpu", "h200", "--micro", str(tmp_path / "c.json")]) == 5
    assert main(["calibrate", "--gpu", "h200", "--shares", str(tmp_path / "s.json")]) == 5
    assert capsys.readouterr().err.count("error[AMK") == 4


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_probes_compile(arch: str) -> None:
    source = Path(amk.bench.__file__).with_name("calibration").joinpath("micro.cu").read_text(encoding="utf-8")
    compiled = compile_cuda(source, arch)
    named = {"chase", "ping", "copy", "copy_8", "loaded", "read", "barrier_4", "barrier_16", "share"}
    assert {f"amk_probe_{name}" for name in named} == set(compiled.resources)
