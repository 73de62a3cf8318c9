"""`amk generate` and `amk chat` on the CPU and on the interpreter, with the real checkpoint."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from amk.cli import main
from amk.commands import model_arguments
from amk.models.model import load_model
from amk.planner.decode import plan
from amk.planner.settings import Settings
from amk.schedule_ir.codec import save_schedule
from amk.targets.target import load_target

pytestmark = pytest.mark.checkpoint

ON_SCHEDULE = ("--device", "interpreter")


@pytest.mark.turns(12)
def test_the_question_is_answered_in_words(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the template has it, without its system message of 20 tokens; the answer ends with the model's own token."""
    asked = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    words = ["generate", "--model", str(smollm2_path), "--prompt", asked, "--plain", "--device", "cpu"]
    assert main(words) == 0
    assert capsys.readouterr().out == "The capital of France is Paris.\n"


@pytest.mark.turns(24)
def test_a_question_is_answered_by_the_schedule(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A short text: the interpreter takes a second for a token. All of the model's layers are in it."""
    asked = "The capital of France is"
    words = ["generate", "--model", str(smollm2_path), "--prompt", asked, "--plain", "--max-tokens", "2", *ON_SCHEDULE]
    assert main(words) == 0
    shown = capsys.readouterr()
    assert shown.out == " Paris.\n"
    assert "AMK017" in shown.err and "Q4_1" in shown.err


def test_a_schedule_does_not_run_on_the_device_cpu(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "--model", str(smollm2_path), "--prompt", "Hi", "--device", "cpu"]
    for more in (["--schedule", "s.json"], ["--gpu", "h200"], ["--dtype", "int8"], ["--kv-dtype", "fp8"]):
        assert main([*words, *more]) == 2
        assert "AMK005" in capsys.readouterr().err


@pytest.mark.turns(12)
def test_an_answer_as_json(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "--model", str(smollm2_path), "--prompt", "What is the capital of France?", "--json"]
    assert main([*words, "--logprobs", "2", "--stop", "Paris", "--prompt", "Hi", "--max-tokens", "8"]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (first["text"], first["finish"]) == ("The capital of France is ", "stop")
    assert (second["finish"], second["usage"]["completion_tokens"]) == ("length", 8)
    assert [len(each["top"]) for each in first["logprobs"]] == [2] * len(first["tokens"])


@pytest.mark.turns(12)
def test_the_form_json_has_the_answer_in_it(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "--model", str(smollm2_path), "--prompt", "What is the capital of France?", "--device", "cpu"]
    assert main([*words, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == "The capital of France is Paris."
    assert main([*words, "--logprobs", "2"]) == 2
    assert "--logprobs are told with --json" in capsys.readouterr().err


@pytest.mark.turns(12)
def test_a_conversation_of_two_turns(
    smollm2_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("What is the capital of France?\n\nAnd of Italy?\n"))
    assert main(["chat", "--model", str(smollm2_path), "--max-tokens", "24"]) == 0
    assert capsys.readouterr().out.splitlines() == ["The capital of France is Paris.", "The capital of Italy is Rome."]


@pytest.mark.turns(4)
def test_a_question_is_put_into_the_chat_template(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "generate",
        "--model",
        str(smollm2_path),
        "--prompt",
        "What is the capital of France?",
        "--device",
        "interpreter",
    ]
    assert main([*words, "--max-context", "3"]) == 2
    assert "37 tokens" in capsys.readouterr().err


@pytest.mark.turns(4)
def test_a_prompt_longer_than_the_context_is_refused(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "generate",
        "--model",
        str(smollm2_path),
        "--prompt",
        "a b c d e f g h",
        "--plain",
        "--device",
        "interpreter",
    ]
    assert main([*words, "--max-context", "3"]) == 2
    assert "AMK014" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    ["--temperature nan", "--temperature -1", "--temperature 1e30", "--top-p 0", "--top-p inf", "--top-k -3",
     "--temperature 1 --top-k 99999999999", "--seed -1", "--seed 18446744073709551616"],
)  # fmt: skip
def test_sampling_outside_its_range_is_refused(
    words: str, smollm2_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["generate", "--model", str(smollm2_path), "--prompt", "Hi", "--device", "cpu", *words.split()]
    assert main(asked) == 2
    assert "AMK015" in capsys.readouterr().err


@pytest.mark.turns(24)
def test_a_drawn_text_is_a_function_of_its_seed(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "generate",
        "--model",
        str(smollm2_path),
        "--prompt",
        "Once upon a time",
        "--plain",
        "--device",
        "interpreter",
    ]
    words += ["--max-tokens", "4", "--temperature", "0.9", "--top-k", "50", "--top-p", "0.9", "--seed", "3"]
    assert main(words) == 0
    assert capsys.readouterr().out == ", the town had\n"


def test_a_greedy_schedule_draws_nothing(
    smollm2_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.json"
    model = load_model("smollm2-135m")
    save_schedule(plan(model, load_target("h200"), settings=Settings(warps=2), max_context=64, workers=4), file)
    words = [
        "generate",
        "--model",
        str(smollm2_path),
        "--prompt",
        "Hi",
        "--device",
        "interpreter",
        "--schedule",
        str(file),
    ]
    assert main([*words, "--temperature", "0.7"]) == 2
    err = capsys.readouterr().err
    assert "AMK015" in err and "--sampling temperature" in err


def test_a_schedule_of_another_model_is_refused(
    smollm2_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = load_model("smollm2-135m").model_copy(update={"layers": 29})
    file = tmp_path / "s.json"
    save_schedule(plan(other, load_target("h200"), settings=Settings(warps=2), max_context=64, workers=4), file)
    words = [
        "generate",
        "--model",
        str(smollm2_path),
        "--prompt",
        "Hi",
        "--device",
        "interpreter",
        "--schedule",
        str(file),
    ]
    assert main(words) == 2
    err = capsys.readouterr().err
    assert "AMK013" in err and "layers: 29 in the schedule, 30 here" in err


def test_without_a_gpu_cuda_is_refused(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "--model", str(smollm2_path), "--prompt", "Hi", "--device", "cuda"]
    assert main(words) == 5
    assert "AMK602" in capsys.readouterr().err


@pytest.mark.turns(16)
def test_several_prompts_are_answered_in_one_batch(
    smollm2_path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The texts of a batch are those of its prompts alone, whatever their lengths: these were decoded alone."""
    prompts = ["The capital of France is", "One,"]
    words = ["generate", "--model", str(smollm2_path), "--plain", *ON_SCHEDULE, "--max-tokens", "2"]
    file = tmp_path / "prompts.txt"
    file.write_text(prompts[1] + "\n", encoding="utf-8")
    assert main([*words, "--prompt", prompts[0], "--prompts", str(file)]) == 0
    assert capsys.readouterr().out == "[1]  Paris.\n[2]  the number\n"


def test_no_prompt_is_refused(smollm2_path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["generate", "--model", str(smollm2_path), "--device", "cpu"]
    assert main(words) == 2
    assert "AMK005" in capsys.readouterr().err
    assert main([*words, "--prompts", str(tmp_path / "absent.txt")]) == 2
    assert "AMK001" in capsys.readouterr().err
    assert main([*words, "--prompt", "Hi", "--prompt", ""]) == 2
    assert "AMK014" in (err := capsys.readouterr().err) and "prompt 2 is empty" in err


def test_a_schedule_without_a_gpu_is_said_to_be_slow(
    smollm2_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_arguments, "usable_card", lambda: None)
    words = ["generate", "--model", str(smollm2_path), "--prompt", "Hi", "--schedule", str(smollm2_path)]
    assert main(words) == 2, "the file is no schedule"
    assert "numpy runs the schedule" in capsys.readouterr().err
