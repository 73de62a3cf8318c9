"""Quantisers and their error reports, on small random models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amk.cli import main
from amk.judges.forward import ForwardPass
from amk.models.matrices import MATRICES, MatrixName
from amk.models.model_spec import ModelSpec
from amk.quantize.choose import CANDIDATES, choose
from amk.quantize.error import BF16, SYNTHETIC, TextJudge, log_softmax, matrix_error, stored_bytes, synthetic
from amk.quantize.forward import StoredTensors, text_logits
from amk.quantize.search import searched, squared_error
from amk.weights.quantised import nearest
from amk.weights.weight_format import FORMATS, FormatName, weight_format
from tests.engine.tiny import NEOX, RandomTensors, reference_decoder, tiny_model

TOKENS = [3, 17, 5, 60, 2, 9, 11, 40, 1, 33, 8]
MODELS = [tiny_model(), tiny_model(qkv_bias=True, tied_embeddings=True), tiny_model(qk_norm=True, heads=4, kv_heads=1)]


@pytest.mark.parametrize("model", MODELS)
def test_the_whole_text_at_once_is_the_decoder_token_by_token(model: ModelSpec) -> None:
    source = RandomTensors(model)
    found = text_logits(model, StoredTensors(model, source, [BF16] * model.layers), TOKENS)
    decoder = reference_decoder(model, source.arrays)
    expected = np.stack([decoder.forward([token]) for token in TOKENS])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("changes", [{}, {"parallel": False, "activation": "gelu-tanh", "qkv_bias": False}])
def test_the_whole_text_at_once_is_another_familys_definition(changes: dict[str, Any]) -> None:
    model = tiny_model(**NEOX | changes)
    source = RandomTensors(model)
    found = text_logits(model, StoredTensors(model, source, [BF16] * model.layers), TOKENS)
    judge = ForwardPass(model, source.arrays)
    np.testing.assert_allclose(found, [judge.feed(token) for token in TOKENS], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", SYNTHETIC)
@pytest.mark.parametrize("form", [form for form in FORMATS if form.startswith("int4")])
def test_the_search_is_never_worse_than_the_full_range(form: FormatName, kind: str) -> None:
    rows, how = synthetic(kind, 32, 300), weight_format(form)
    full, clipped = (squared_error(rows, quantise(rows, how), how) for quantise in (nearest, searched))
    assert (clipped <= full * (1 + 1e-12)).all()
    assert clipped.sum() < 0.98 * full.sum()


def test_eight_bits_are_not_clipped() -> None:
    rows = synthetic("gaussian", 16, 128)
    for form in ("int8", "fp8"):
        np.testing.assert_array_equal(
            searched(rows, weight_format(form)).codes, nearest(rows, weight_format(form)).codes
        )


def test_errors_order_the_formats() -> None:
    """Smaller groups and more bits are closer; a Gaussian int8 row errs by the width of its step over sqrt(12)."""
    rows = synthetic("gaussian")
    errors = {form: matrix_error(rows, form) for form in FORMATS}
    assert errors["bf16"] < errors["int8-g64"] < errors["int8-g128"] < errors["int8"] < errors["fp8"]
    assert errors["fp8"] < errors["int4-g64-zp"] < errors["int4-g64"] < errors["int4-g128"]
    step = np.abs(rows).max(axis=1) / 127
    assert errors["int8"] == pytest.approx(np.sqrt((step**2).mean() / 12) / rows.std(), rel=0.05)
    outliers = {form: matrix_error(synthetic("sparse outliers"), form) for form in FORMATS}
    assert outliers["int8"] > 3 * errors["int8"], "one scale a row does not suit outliers"
    assert outliers["fp8"] < 1.2 * errors["fp8"], "a floating point does not mind them"


@pytest.fixture(scope="module")
def judge() -> TextJudge:
    model = tiny_model(hidden=128, ffn=256, layers=1)
    return TextJudge.of(model, RandomTensors(model), TOKENS)


def test_the_error_over_a_text_is_what_its_words_say(judge: TextJudge) -> None:
    same = judge.error(BF16)
    assert (same.kl, same.kl_most, same.argmax) == (0, 0, 1) and same.perplexity == same.reference_perplexity
    found = judge.error(dict.fromkeys(MATRICES, "int4-g128"))
    forms: Any = dict.fromkeys(MATRICES, "int4-g128")
    logs = log_softmax(
        text_logits(judge.model, StoredTensors(judge.model, judge.source, [forms] * judge.model.layers), TOKENS)
    )
    p = np.exp(judge.reference)
    each = [float(sum(p[t] * (judge.reference[t] - logs[t]))) for t in range(len(TOKENS))]
    assert found.kl == pytest.approx(np.mean(each)) and found.kl_most == pytest.approx(max(each))
    chosen = [logs[t, TOKENS[t + 1]] for t in range(len(TOKENS) - 1)]
    assert found.perplexity == pytest.approx(np.exp(-np.mean(chosen)))
    assert 0 < found.kl <= found.kl_most


def test_a_text_that_predicts_nothing_is_refused() -> None:
    model = tiny_model()
    with pytest.raises(ValueError, match="fewer than two"):
        TextJudge.of(model, RandomTensors(model), [3])


@pytest.mark.parametrize("parts", [1, 2])
def test_choices_stay_below_the_bound_and_use_it(judge: TextJudge, parts: int) -> None:
    sizes = []
    for bound in (1e-9, 1e-3, 1e-1, 1e3):
        choice = choose(judge, bound, parts=parts)
        assert choice.error.kl <= bound and judge.error(choice.forms) == choice.error
        assert choice.bytes == stored_bytes(judge.model, choice.forms)
        sizes.append(choice.bytes)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == stored_bytes(judge.model, BF16)
    smallest = min(stored_bytes(judge.model, dict.fromkeys(MATRICES, form)) for form in CANDIDATES)
    assert sizes[-1] == smallest
    with pytest.raises(ValueError, match="positive"):
        choose(judge, 0.0)


def test_layers_that_differ_get_formats_of_their_own() -> None:
    """Weights on the grid of a format cost nothing there: one layer of them takes narrow codes under any bound, the
    other layer does not."""
    model = tiny_model(layers=2)
    source = RandomTensors(model)
    for name, rows in source.arrays.items():
        if name.startswith("l1.w"):
            source.arrays[name] = np.sign(rows).astype(np.float32) / 64
    one = TextJudge.of(model, source, TOKENS)
    choice = choose(one, 1e-6, parts=2)
    assert choice.error.kl <= 1e-6
    first, second = choice.forms
    assert {second[name] for name in ("qkv", "o", "gate_up", "down")} <= {"int4-g64", "int4-g128"}
    assert {first[name] for name in ("qkv", "o", "gate_up", "down")} == {"bf16"}
    assert choice.bytes < choose(one, 1e-6).bytes


def test_a_pass_begins_at_the_first_layer_that_differs() -> None:
    """The same error as of a pass from the first layer on."""
    model = tiny_model(layers=2)
    judge = TextJudge.of(model, RandomTensors(model), TOKENS)
    layers: list[dict[MatrixName, FormatName]] = [BF16, BF16 | {"o": "int4-g128"}]
    stored = StoredTensors(judge.model, judge.source, layers, judge.quantise)
    found = log_softmax(text_logits(judge.model, stored, TOKENS))
    kl = (np.exp(judge.reference) * (judge.reference - found)).sum(axis=-1).mean()
    assert judge.error(layers).kl == pytest.approx(float(kl), rel=1e-9) and kl > 0


def test_the_command_reports_synthetic_matrices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", "--formats", "int8", "int4-g64", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["synthetic"]
    assert {(row["matrix"], row["format"]) for row in rows} == {(k, f) for k in SYNTHETIC for f in ("int8", "int4-g64")}
    assert all(0 < row["error"] < 0.3 for row in rows)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["quantize", "--model", "smollm2-135m"], "go together"),
        (["quantize", "--max-kl", "0.1"], "--max-kl"),
        (["plan", "--model", "smollm2-135m", "--gpu", "h200", "--dtype", "auto"], "--max-kl"),
        (["plan", "--model", "smollm2-135m", "--gpu", "h200", "--max-kl", "0.1"], "--dtype auto"),
        (["plan", "--model", "smollm2-135m", "--gpu", "h200", "--dtype", "int8", "--text", "x"], "--dtype auto"),
    ],
)
def test_half_a_request_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    found = capsys.readouterr().err
    assert "AMK005" in found and message in found


def test_auto_plans_from_a_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, judge: TextJudge
) -> None:
    """The formats that were chosen stand in the schedule."""
    from amk.commands import judging

    monkeypatch.setattr(judging, "judge_of", lambda model, text: judge)
    out = tmp_path / "s.json"
    words = ["plan", "--model", "smollm2-135m", "--gpu", "h200", "--dtype", "auto", "--max-kl", "1000", "--text", "x"]
    assert main([*words, "--max-context", "256", "-o", str(out)]) == 0
    assert "KL" in capsys.readouterr().err
    chunks = json.loads(out.read_text())["streams"][0]["chunks"]
    assert {name: chunk["format"] for name, chunk in chunks.items()} == dict.fromkeys(MATRICES, "int4-g128")
