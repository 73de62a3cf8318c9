"""Every field of transformers' GenerationConfig: the greedy text is equal, or the field is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from amk.engine.backends.forward import ForwardPass
from amk.engine.backends.forward_backend import ForwardBackend
from amk.engine.checkpoints.open_checkpoint import open_checkpoint
from amk.engine.generation.generation_config import generation_config, suggested_sampling, unheeded
from amk.report.diagnostic import AmkError, Severity
from amk.schedule_ir.sampling import GREEDY
from amk.serve.requests import CompletionRequest
from tests.engine import tiny_model


def directory(path: Path, **fields: Any) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "generation_config.json").write_text(json.dumps(fields))
    return path


def test_what_is_asked_for_is_named(tmp_path: Path) -> None:
    path = directory(tmp_path, do_sample=True, temperature=0.6, top_p=0.9, repetition_penalty=1.1, min_p=0.0)
    (note,) = unheeded(path)
    assert note.severity is Severity.WARNING
    assert (
        note.message == "generation_config.json asks for do_sample, repetition_penalty, temperature, top_p, "
        "which is not applied"
    )
    assert note.help == "to draw tokens as the file says, pass --temperature 0.6 --top-p 0.9"
    assert suggested_sampling(generation_config(path)) == {"temperature": 0.6, "top_k": 50, "top_p": 0.9}


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.6, "top_k": 20}, {"num_beams": 1}])
def test_a_file_without_drawing_asks_for_nothing(fields: dict[str, Any], tmp_path: Path) -> None:
    assert unheeded(directory(tmp_path, **fields)) == ()
    assert suggested_sampling(generation_config(tmp_path)) == {}


@pytest.mark.parametrize("fields", [{"do_sample": False}, {"do_sample": False, "top_k": 20}, {"temperature": 0.0}])
def test_a_greedy_file_suggests_greedy_decoding(fields: dict[str, Any], tmp_path: Path) -> None:
    assert unheeded(directory(tmp_path, **fields)) == ()
    suggested = suggested_sampling(generation_config(tmp_path))
    request = CompletionRequest.model_validate({"model": "tiny", "prompt": "A"})
    assert request.options(4, suggested).sampling.temperature == 0


def test_the_configuration_of_an_old_checkpoint_is_asked(tmp_path: Path) -> None:
    path = tiny_model.write_single(tmp_path / "tiny", tiny_model.weights())
    config = json.loads((path / "config.json").read_text()) | {"repetition_penalty": 1.3, "max_length": 20}
    (path / "config.json").write_text(json.dumps(config))
    assert [note.message for note in unheeded(path)] == [
        "config.json asks for repetition_penalty, which is not applied"
    ]
    assert unheeded(directory(path)) == (), "the file of its own counts, and says nothing"


@pytest.mark.parametrize(
    ("keys", "suggested", "named"),
    [
        ({}, {}, ""),
        ({"temp": 0.0}, {"temperature": 0.0}, ""),
        (
            {"temp": 0.5, "top_p": 0.75},
            {"temperature": 0.5, "top_k": 0, "top_p": 0.75},
            "do_sample, temperature, top_p",
        ),
        ({"top_k": 20}, {"temperature": 1.0, "top_k": 20, "top_p": 1.0}, "do_sample, top_k"),
        ({"penalty_repeat": 1.25}, {}, "repetition_penalty"),
        ({"penalty_repeat": 1.0, "penalty_last_n": 64}, {}, ""),
    ],
)
def test_the_metadata_of_a_gguf_file_are_asked(
    keys: dict[str, Any], suggested: dict[str, Any], named: str, tmp_path: Path
) -> None:
    def extra(writer: Any) -> None:
        for key, value in keys.items():
            (writer.add_int32 if isinstance(value, int) else writer.add_float32)(f"general.sampling.{key}", value)

    path = tiny_model.write_gguf(tmp_path / "m.gguf", tiny_model.weights(), extra=extra)
    assert suggested_sampling(generation_config(path)) == suggested
    notes = [f"m.gguf asks for {named}, which is not applied"] if named else []
    assert [note.message for note in unheeded(path)] == notes


def test_without_a_file_nothing_is_asked_for(tmp_path: Path) -> None:
    assert unheeded(tmp_path) == () == unheeded(tmp_path / "m.gguf")


def test_a_file_that_is_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("[]")
    with pytest.raises(AmkError, match="AMK005"):
        unheeded(tmp_path)


@pytest.mark.parametrize(
    ("fields", "eos"),
    [({}, (2,)), ({"eos_token_id": 5}, (5,)), ({"eos_token_id": [7, 5]}, (7, 5)), ({"eos_token_id": None}, (2,))],
)
def test_its_ends_of_text_replace_those_of_the_configuration(
    fields: dict[str, Any], eos: tuple[int, ...], tmp_path: Path
) -> None:
    path = tiny_model.write_single(tmp_path / "tiny", tiny_model.weights())
    assert open_checkpoint(directory(path, **fields)).spec.eos == eos


VALUES: dict[str, list[Any]] = {
    "do_sample": [True], "num_beams": [3], "repetition_penalty": [0.2, 5.0], "no_repeat_ngram_size": [1],
    "encoder_repetition_penalty": [0.1], "bad_words_ids": [[[61], [13]]], "suppress_tokens": [[61, 13]],
    "begin_suppress_tokens": [[61]], "forced_eos_token_id": [4], "forced_bos_token_id": [4], "min_new_tokens": [12],
    "min_length": [15], "sequence_bias": [[[[61], -50.0]]], "exponential_decay_length_penalty": [[0, 1.5]],
    "temperature": [0.2], "top_k": [1], "top_p": [0.1], "guidance_scale": [3.0], "stop_strings": ["a"],
    "length_penalty": [3.0], "early_stopping": [True], "renormalize_logits": [True], "remove_invalid_values": [True],
    "use_cache": [False], "output_scores": [True], "num_return_sequences": [1], "max_time": [100.0],
    "cache_implementation": ["dynamic"], "num_assistant_tokens": [3], "pad_token_id": [0], "bos_token_id": [0],
    "decoder_start_token_id": [0], "disable_compile": [True], "eos_token_id": [22], "max_length": [7],
    "max_new_tokens": [4], "prompt_lookup_num_tokens": [2], "token_healing": [True], "penalty_alpha": [0.6],
    "dola_layers": ["high"],
}  # fmt: skip
"""A value that could be there; a field without one is tried as 1, 0.5, true and [1]."""


@pytest.mark.turns(12)
@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_every_field_gives_the_same_text_or_is_named(file: str, tmp_path: Path) -> None:
    """Old checkpoints have the fields in config.json, and no file of their own."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tests.engine.against_transformers import PROMPT, changed, checkpoint

    source = checkpoint(tmp_path / "m", "llama")
    prompt, named = PROMPT[:5], []
    for name in transformers.GenerationConfig().to_dict():
        if name.startswith(("_", "transformers_version")):
            continue
        for number, value in enumerate(VALUES.get(name, [1, 0.5, True, [1]])):
            fields = {"eos_token_id": 2, name: value}
            if file == "config.json":
                path = changed(source, tmp_path / f"{name}{number}", **fields)
            else:
                path = directory(changed(source, tmp_path / f"{name}{number}"), **fields)
            if unheeded(path) or (name == "num_return_sequences" and value == 1):
                named.append(name)
                continue
            try:
                model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
                torch.manual_seed(0)
                found = model.generate(torch.tensor([prompt]), max_new_tokens=10, return_dict_in_generate=False)
            except Exception:  # noqa: BLE001  a value that transformers does not take
                continue
            theirs = found[0, len(prompt) :].tolist()
            assert greedy(path, prompt, len(theirs)) == theirs, (name, value)
    assert {"do_sample", "num_beams", "repetition_penalty", "suppress_tokens", "min_new_tokens"} <= set(named)
    assert {"penalty_alpha", "dola_layers"} <= set(named)


def greedy(path: Path, prompt: list[int], limit: int) -> list[int]:
    opened = open_checkpoint(path)
    backend, tokens = ForwardBackend(ForwardPass(opened, 64)), list[int]()
    while len(tokens) < limit and not (tokens and tokens[-1] in opened.spec.eos):
        tokens += backend.extend([*prompt, *tokens], 1, GREEDY, ())
    return tokens
