"""`amk.lm_eval.Model` under lm-evaluation-harness, beside the harness's own model for transformers.

pip install torch==2.13.0 transformers accelerate lm_eval
python -m pytest tests/engine/test_lm_eval.py --long --record FILE
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
lm_eval = pytest.importorskip("lm_eval")

import amk  # noqa: E402
from amk.report.diagnostic import AmkError  # noqa: E402
from tests.engine import tiny_chat  # noqa: E402

DOCUMENTS = [
    {"question": "WHO IS IT?", "choices": ["A CAT", "A CAR", "A"], "answer": 0, "text": "IT IS A CAT."},
    {"question": "WHERE?", "choices": ["HERE", "THERE", "HERE AND THERE"], "answer": 2, "text": "HERE AND THERE " * 16},
    {"question": "WHERE AND WHEN?", "choices": ["NOW", "THEN", "NO"], "answer": 1, "text": "THEN"},
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose tokenizer transformers can open, too."""
    path = tiny_chat.write(tmp_path_factory.mktemp("models") / "tiny")
    config = json.loads((path / "tokenizer_config.json").read_text())
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "pad_token": "</s>"}
    (path / "tokenizer_config.json").write_text(json.dumps(config | names))
    return path


@pytest.fixture(scope="module")
def tiny(directory: Path) -> amk.LanguageModel:
    return amk.load(directory, device="cpu")


def tasks(path: Path) -> list[dict[str, Any]]:
    """One task for each kind of request, all of the same local file."""
    path.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(path)}}, "test_split": "test"}
    shared = data | {"num_fewshot": 0, "doc_to_text": "{{question}}"}
    accuracy = [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")]
    words = [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}]
    matches = [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]
    until = {"until": ["."], "max_gen_toks": 12, "do_sample": False}
    return [
        shared | {"task": "tiny_choice", "output_type": "multiple_choice", "doc_to_choice": "{{choices}}",
                  "doc_to_target": "{{answer}}", "metric_list": accuracy},
        shared | {"task": "tiny_text", "output_type": "loglikelihood_rolling", "doc_to_text": "",
                  "doc_to_target": "{{text}}", "metric_list": words},
        shared | {"task": "tiny_answer", "output_type": "generate_until", "doc_to_target": "{{text}}",
                  "generation_kwargs": until, "metric_list": matches},
    ]  # fmt: skip


def evaluated(model: Any, path: Path) -> tuple[Any, dict[str, Any]]:
    """Results, and what the model answered to every request of every task."""
    found = lm_eval.simple_evaluate(model=model, tasks=tasks(path), bootstrap_iters=0, log_samples=True)
    answers = {name: [each["resps"] for each in samples] for name, samples in found["samples"].items()}
    return found["results"], answers


def test_tasks_of_a_local_file(
    directory: Path,
    tiny: amk.LanguageModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, Any], None],
) -> None:
    """Equal answers and results; texts that follow one another share what they begin with."""
    huggingface = pytest.importorskip("lm_eval.models.huggingface")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    theirs = huggingface.HFLM(pretrained=str(directory), device="cpu", dtype="float32", batch_size=1, max_length=64)
    wanted, expected = evaluated(theirs, tmp_path / "documents.jsonl")
    found, answers = evaluated(amk.lm_eval.Model(tiny, max_length=64), tmp_path / "documents.jsonl")
    assert answers["tiny_answer"] == expected["tiny_answer"]
    for name in ("tiny_choice", "tiny_text"):
        assert numbers(answers[name]) == pytest.approx(numbers(expected[name]), abs=1e-3)
    assert found.keys() == wanted.keys() == {"tiny_choice", "tiny_text", "tiny_answer"}
    for task, results in wanted.items():
        measured = {key: value for key, value in results.items() if isinstance(value, float)}
        assert measured and {key: found[task][key] for key in measured} == pytest.approx(measured, rel=1e-4)
        scores = {key.partition(",")[0]: [round(found[task][key], 6), round(measured[key], 6)] for key in measured}
        record_property(f"{task}: amk, lm_eval's hf", scores)
    record_property("lm_eval", version("lm_eval"))


def numbers(answers: Any) -> list[float]:
    """All numbers of nested lists in order; lm_eval logs answers as text."""
    if isinstance(answers, list | tuple):
        return [number for each in answers for number in numbers(each)]
    return [float({"True": 1, "False": 0}.get(str(answers), answers))]


@pytest.mark.checkpoint
@pytest.mark.long
def test_questions_of_mmlu_on_the_real_checkpoint(
    smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, Any], None]
) -> None:
    """Every fifth question that lm_eval has with it, its examples for MMLU; the harness's model reads the same file."""
    huggingface = pytest.importorskip("lm_eval.models.huggingface")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    asked = [question for text in examples().values() for question in questions(text)]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(each) + "\n" for each in asked[::5]))
    accuracy = [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")]
    task = {
        "task": "mmlu_examples", "output_type": "multiple_choice", "dataset_path": "json", "test_split": "test",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "questions.jsonl")}}, "num_fewshot": 0,
        "doc_to_text": "Question: {{question}}\nAnswer:", "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}", "metric_list": accuracy,
    }  # fmt: skip
    scores: dict[str, dict[str, float]] = {}
    answers: dict[str, list[float]] = {}
    for name, make in {
        "amk": lambda: amk.lm_eval.Model(smollm2_path, device="cpu", max_length=1024),
        "lm_eval's hf": lambda: huggingface.HFLM(
            pretrained=str(smollm2_path.parent), gguf_file=smollm2_path.name, device="cpu", dtype="float32",
            batch_size=1, max_length=1024,
        ),
    }.items():  # fmt: skip
        model, start = make(), time.process_time()
        found = lm_eval.simple_evaluate(model=model, tasks=[task], log_samples=True, random_seed=0)
        scores[name] = {"processor_s": round(time.process_time() - start, 1)}
        results = found["results"]["mmlu_examples"]
        scores[name] |= {key: round(value, 4) for key, value in results.items() if isinstance(value, float)}
        answers[name] = numbers([each["resps"] for each in found["samples"]["mmlu_examples"]])
    ours, theirs = (np.array(answers[name]).reshape(-1, 2) for name in scores)
    record_property("questions", len(asked[::5]))
    record_property("results", scores)
    record_property("logarithms of the choices: largest difference", float(np.abs(ours - theirs)[:, 0].max()))
    record_property("lm_eval", version("lm_eval"))
    assert len(ours) == 4 * len(asked[::5]) > 200
    np.testing.assert_allclose(ours, theirs, atol=1e-2)
    assert all(scores["amk"][f"{name},none"] == scores["lm_eval's hf"][f"{name},none"] for name in ("acc", "acc_norm"))


def examples() -> dict[str, str]:
    """Questions of MMLU's development split by subject, which the harness has with it for its prompts."""
    path = Path(lm_eval.__file__).parent / "tasks" / "mmlu" / "flan_cot_fewshot" / "_cot_prompts.json"
    found: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return found


def questions(text: str) -> list[dict[str, Any]]:
    """Those of a subject that have four choices."""
    found = [QUESTION.fullmatch(part) for part in text.split("\n\nQ: ")[1:]]
    return [
        {
            "question": each[1].strip(),
            "choices": [each[n].strip() for n in range(2, 6)],
            "answer": "ABCD".index(each[6]),
        }
        for each in found
        if each is not None
    ]


QUESTION = re.compile(
    r"(.*?)\n?\(A\)(.*?)\(B\)(.*?)\(C\)(.*?)\(D\)(.*?)\nA: Let's think step by step\..*The answer is \(([ABCD])\).*",
    re.S,
)


def requests(*arguments: tuple[Any, ...]) -> list[Any]:
    return [SimpleNamespace(args=each) for each in arguments]


def test_continuations_of_a_text_are_scored_together(tiny: amk.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    score = amk.LanguageModel.score

    def counted(self: Any, text: Any, continuations: Any) -> Any:
        asked.append((len(text), len(continuations)))
        return score(self, text, continuations)

    monkeypatch.setattr(amk.LanguageModel, "score", counted)
    found = amk.lm_eval.Model(tiny).loglikelihood(requests(("ABC", "D"), ("AB", "X"), ("ABC", "DE"), ("", "AB")))
    assert sorted(asked) == [(1, 1), (2, 1), (3, 2)]
    (alone,) = score(tiny, "ABC", ["D"])
    assert found[0] == (pytest.approx(alone.logprob, abs=1e-4), alone.greedy)


def test_a_text_that_does_not_fit_loses_its_begin(tiny: amk.LanguageModel) -> None:
    model = amk.lm_eval.Model(tiny, max_length=8)
    long, short = model.loglikelihood(requests(("ABCDEFGHIJKLMNO", "PQ"), ("IJKLMNO", "PQ")))
    assert long == (pytest.approx(short[0], abs=1e-4), short[1])
    (answer,) = model.generate_until(requests(("ABCDEFGHIJ", {"max_gen_toks": 4})))
    assert answer == tiny.generate("GHIJ", max_tokens=4).text


@pytest.mark.parametrize(("options", "code"), [({"num_beams": 4}, "AMK015"), ({"max_gen_toks": 128}, "AMK014")])
def test_what_amk_does_not_do_is_refused(tiny: amk.LanguageModel, options: dict[str, Any], code: str) -> None:
    with pytest.raises(AmkError, match=code):
        amk.lm_eval.Model(tiny).generate_until(requests(("AB", options)))
