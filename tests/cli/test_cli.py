"""The command line: exit codes, streams, and behaviour when things go wrong."""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from amk import __version__, cli
from amk.adversary.suite import folder
from amk.commands import doctor, explain
from amk.models.model import load_model
from amk.models.model_hf import ARCHITECTURES
from amk.planner.decode import plan
from amk.report.diagnostic import TITLES, AmkError, Diagnostic, Exit, explanation
from amk.schedule_ir.codec import save_schedule
from amk.targets.target import load_target


def run(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = cli.main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--help"])
    assert caught.value.code == 0
    assert cli.COMMANDS[command].help[1:] in capsys.readouterr().out


@pytest.mark.parametrize("words", [["models"], ["targets"], ["explain"], ["explain", "AMK201"], ["targets", "A100"]])
def test_text_and_json_succeed(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(words, capsys)
    assert (code, err) == (0, "") and out.count("\n") > 1
    code, out, err = run([*words, "--format", "json"], capsys)
    assert (code, err) == (0, "") and json.loads(out)


def test_models_as_json_have_counts(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(["models", "SmolLM2-135M", "--format=json"], capsys)
    (model,) = json.loads(out)["models"]
    assert (model["name"], model["params"]) == ("smollm2-135m", 134_515_008)


def test_target_sources_are_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(["targets", "h200"], capsys)
    assert "143,156 MiB" in out and "measured on one H200" in out


def test_explain_lists_every_code(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(["explain"], capsys)
    assert all(code in out for code in TITLES)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert (caught.value.code, capsys.readouterr().out) == (0, f"amk {__version__}\n")


@pytest.mark.parametrize(
    "words",
    [[], ["bogus"], ["models", "--bogus"], ["targets", "--format", "xml"], ["adversarial", "--seed", "-1"],
     ["plan", "--model", "smollm2-135m", "--gpu", "l4", "--search", "--seed", "-1"],
     ["autoresearch", "--model", "smollm2-135m", "--gpu", "l4", "--seed", "-1"]],
)  # fmt: skip
def test_usage_errors_exit_2_on_stderr(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    captured = capsys.readouterr()
    assert (caught.value.code, captured.out) == (2, "")
    assert re.search(r"^amk( \w+)?: error: ", captured.err, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "code"),
    [(["models", "nope"], "AMK010"), (["targets", "nope"], "AMK010"), (["explain", "AMK999"], "AMK009"),
     (["models", "/dev/zero"], "AMK001"), (["models", "\x1b[31mred"], "AMK010")],
)  # fmt: skip
def test_bad_input_is_one_diagnostic_and_exit_2(
    words: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(words, capsys)
    assert (status, out) == (2, "")
    assert err.startswith(f"error[{code}]: ") and "Traceback" not in err and "\x1b" not in err
    status, out, err = run([*words, "--format", "json"], capsys)
    assert (status, err) == (2, "")
    assert json.loads(out)["diagnostics"][0]["code"] == code


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr(explain, "run", fail)


def test_an_unforeseen_exception_is_amk901(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    failing(monkeypatch, RuntimeError("boom"))
    status, out, err = run(["explain"], capsys)
    assert (status, out) == (4, "")
    assert err.startswith("error[AMK901]: RuntimeError: boom") and "--debug" in err and "Traceback" not in err


@pytest.mark.parametrize("command", [
    ["simulate", "--calibrate"], ["simulate", "--against"], ["models"], ["verify"], ["quantize", "--model"],
    ["bench", "--table"], ["adversarial", "--neighbourhood"], ["plan", "--gpu", "l4", "--model"],
], ids=" ".join)  # fmt: skip
def test_a_name_that_no_file_can_have_is_bad_input(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("x" * 300, "README.md/" * 2000):
        status, out, err = run([*command, name], capsys)
        assert (status, out) == (2, "") and err.startswith("error[AMK0") and "Traceback" not in err


@pytest.mark.parametrize("words", [["--debug", "explain"], ["explain", "--debug"]])
def test_debug_shows_the_traceback(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, RuntimeError("boom"))
    status, _, err = run(words, capsys)
    assert status == 4 and "Traceback" in err and "AMK901" in err


@pytest.mark.parametrize("code", [Exit.UNSAFE, Exit.UNKNOWN, Exit.NO_GPU])
def test_an_error_decides_its_exit_code(
    code: Exit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, AmkError(Diagnostic("AMK201", "stuck"), code))
    assert run(["explain", "--format", "json"], capsys)[0] == code


def test_interrupt_exits_130_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, KeyboardInterrupt())
    assert run(["explain"], capsys) == (130, "", "")


def test_a_closed_pipe_is_quiet() -> None:
    process = subprocess.Popen([sys.executable, "-m", "amk", "explain"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 141


@pytest.mark.parametrize("words", [["explain"], ["verify", "adversarial/missing-wait.json", "--format", "json"]])
def test_output_without_room_is_no_defect(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-m", "amk", *words], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == Exit.INPUT
    assert done.stderr.startswith(b"error[AMK001]: the output could not be written: No space left on device\n")


def test_helps_name_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert all(f"`{kind}`" in explanation("AMK012") for kind in ARCHITECTURES)
    _, _, err = run(["plan", "--model", "smollm2-135m", "--gpu", "h200", "--rows", "65"], capsys)
    assert "1 to 64 rows, 65 were asked for" in err and "1 to 64 sequences" not in err


def test_a_file_of_weights_is_no_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path := tmp_path / "model.safetensors").write_bytes(b"[" * 99)
    status, _, err = run(["plan", "--model", str(path), "--gpu", "h200"], capsys)
    assert status == 2 and "this is a file of weights" in err and "give the directory" in err


def test_a_terminal_without_unicode_gets_escapes() -> None:
    environment = {"PYTHONIOENCODING": "ascii", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", "amk", "explain", "AMK008"], capture_output=True, env=environment, check=False
    )
    assert done.returncode == 0 and b"\\u0430" in done.stdout


def test_help_and_version_import_nothing_heavy() -> None:
    script = "import sys, amk.cli\ntry: amk.cli.main(['--help'])\nexcept SystemExit: print(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    for module in ("numpy", "pydantic", "z3", "cuda", "gguf", "torch"):
        assert f"'{module}'" not in done.stdout


BUDGET = {"report": 8, "models": 6, "weights": 4, "targets": 2, "schedule_ir": 40, "validator": 42}
"""Modules of each package that `amk verify` may load for llama3-8b on an h200; of the others together OTHERS."""
OTHERS = 8
EXPLAINED = 10
"""Modules of the validator that only an UNSAFE verdict needs."""


def loaded(file: Path) -> tuple[str, Counter[str]]:
    """What `amk verify` says of the file in a process of its own, and the modules of each package that it loads."""
    script = (
        "import sys; from amk.cli import main; main(['verify', sys.argv[1], '--fix-seconds', '0']); "
        "print(*(n for n in sys.modules if n.split('.')[0] == 'amk'))"
    )
    done = subprocess.run([sys.executable, "-c", script, str(file)], capture_output=True, text=True, check=True)
    text, _, names = done.stdout.rstrip("\n").rpartition("\n")
    return text, Counter(name.partition(".")[2].partition(".")[0] for name in names.split())


@pytest.mark.turns(4)
def test_a_verdict_loads_no_more_than_its_budget(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    save_schedule(plan(load_model("llama3-8b"), load_target("h200")), file)
    text, packages = loaded(file)
    assert text.startswith("SAFE")
    assert all(packages.pop(name) <= most for name, most in BUDGET.items()) and packages.total() <= OTHERS


def test_only_a_finding_loads_what_explains_it() -> None:
    text, packages = loaded(folder() / "missing-wait.json")
    assert text.startswith("UNSAFE")
    budget = BUDGET | {"validator": BUDGET["validator"] + EXPLAINED}
    assert all(packages.pop(name) <= most for name, most in budget.items()) and packages.total() <= OTHERS


def test_doctor_reports_and_never_raises(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(["doctor", "--format", "json"], capsys)
    findings = {finding["what"]: finding for finding in json.loads(out)["findings"]}
    assert set(findings) >= {"python", "numpy", "nvrtc library", "nvidia driver", "gpu", "cache directory"}
    assert status == (2 if any(finding["status"] == "bad" for finding in findings.values()) else 0)


def test_doctor_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "REQUIRED", ("no-such-package-here",))
    monkeypatch.delenv("HOME", raising=False)
    status, out, _ = run(["doctor"], capsys)
    assert status == 2 and "pip install no-such-package-here" in out


@pytest.mark.parametrize(
    "words", [["models", "nope"], ["export", "nope", "-o", "x"], ["verify", "nope.json"], ["replay", "nope"]]
)
def test_every_command_tells_its_diagnostics_as_sarif_and_as_workflow_commands(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    plain, _, err = run(words, capsys)
    code, out, _ = run([*words, "--format", "sarif"], capsys)
    (result,) = json.loads(out)["runs"][0]["results"]
    assert code == plain and f"[{result['ruleId']}]" in err
    _, out, _ = run([*words, "--format=github"], capsys)
    assert out.startswith("::error ") and result["ruleId"] in out


def test_sarif_of_a_success_is_an_empty_log_and_nothing_else_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["models", "--format", "sarif"], capsys)
    assert code == 0 and json.loads(out)["runs"][0]["results"] == [] and "llama3-8b" in err
