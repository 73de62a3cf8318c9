"""What `generation_config.json` beside the weights asks of decoding.

Its end-of-text tokens replace those of `config.json`. Decoding is greedy and unfiltered unless the caller says
otherwise, so `unheeded` names everything else in the file that would choose other tokens. Where the file is missing,
`config.json` may have its fields, as in transformers; a GGUF file has some of them in its metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amk.models.gguf_header import read_gguf_header
from amk.report.diagnostic import AmkError, Diagnostic, Severity, Where, because, shown
from amk.report.json_file import read_json
from amk.report.schema import json_pointer, quoted

FILE = "generation_config.json"
MAX_BYTES = 1 << 20

_OFF: dict[str, tuple[object, ...]] = {
    "assistant_early_exit": (0,),
    "bad_words_ids": ([],),
    "begin_suppress_tokens": ([],),
    "do_sample": (False,),
    "dola_layers": (),
    "encoder_repetition_penalty": (1,),
    "exponential_decay_length_penalty": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1,),
    "max_time": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "penalty_alpha": (0,),
    "repetition_penalty": (1,),
    "sequence_bias": ([], {}),
    "stop_strings": ([], ""),
    "suppress_tokens": ([],),
    "token_healing": (False,),
    "watermarking_config": (),
}
"""Fields that choose other tokens or another end, and the values with which they do not."""

_DRAWN: dict[str, tuple[object, ...]] = {
    "temperature": (1,),
    "top_k": (0,),
    "top_p": (1,),
    "min_p": (0,),
    "top_h": (),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "mirostat": (0,),
    "xtc_probability": (0,),
    "sequence": (),
}
"""Fields that count where tokens are drawn, so beside `do_sample`."""

_GGUF = {"temp": "temperature", "penalty_repeat": "repetition_penalty"} | {
    name: name for name in ("top_k", "top_p", "min_p", "mirostat", "xtc_probability", "sequence")
}
"""Fields by their names in GGUF metadata, below `general.sampling`."""

LENGTHS = ("max_length", "max_new_tokens")
"""Limits that the caller of amk gives with every request."""


def generation_config(path: Path) -> Mapping[str, Any]:
    """What the directory or GGUF file asks for, by the names of generation_config.json; {} if nothing.

    AMK001 to 007 for a file that is no JSON object, AMK001 for a damaged GGUF file.
    """
    return _settings_of(path)[1]


def _settings_of(path: Path) -> tuple[Path, Mapping[str, Any]]:
    """Which file asks, and for what."""
    if path.suffix.lower() == ".gguf" and path.is_file():
        fields = read_gguf_header(path).fields
        found = {
            name: fields[f"general.sampling.{key}"]
            for key, name in _GGUF.items()
            if f"general.sampling.{key}" in fields
        }
        drawn = found.get("temperature") != 0 and found.keys() & {"temperature", "top_k", "top_p", "min_p"}
        return path, {"top_k": 0, **found, "do_sample": True} if drawn else found
    file = path / FILE
    if file.is_file():
        return file, _object(file)
    other = path / "config.json"
    fields_of_both = _object(other) if other.is_file() else {}
    return other, {key: value for key, value in fields_of_both.items() if key in _OFF or key in _DRAWN}


def _object(file: Path) -> Mapping[str, Any]:
    values = read_json(file, MAX_BYTES)
    if not isinstance(values, dict):
        raise AmkError(Diagnostic("AMK005", f"{file.name} should be an object", where=Where(file=str(file), path="/")))
    return values


def suggested_sampling(values: Mapping[str, Any]) -> dict[str, Any]:
    """temperature, top_k and top_p as the file asks for them, in the words of `Sampling`: temperature 0 where it says
    that decoding is greedy, {} where it says nothing."""
    if values.get("do_sample") is not True:
        return {"temperature": 0.0} if values.get("do_sample") is False or values.get("temperature") == 0 else {}
    found = {"temperature": values.get("temperature", 1.0), "top_k": values.get("top_k", 50)}
    return {key: value for key, value in {**found, "top_p": values.get("top_p", 1.0)}.items() if value is not None}


SUGGESTED = ("do_sample", "temperature", "top_k", "top_p")
"""What `suggested_sampling` reads."""


def unheeded(path: Path, *, suggestions: bool = False) -> tuple[Diagnostic, ...]:
    """A warning that lists what the files ask for and a greedy, unfiltered text does not do; () if nothing.

    suggestions: tokens are chosen as `suggested_sampling` says, which does more of it.
    """
    file, values = _settings_of(path)
    asked = {key: values[key] for key, off in _OFF.items() if _on(values.get(key), off)}
    if values.get("do_sample") is True:
        asked |= {key: values[key] for key, off in _DRAWN.items() if _on(values.get(key), off)}
    if suggestions:
        asked = {key: value for key, value in asked.items() if key not in SUGGESTED}
    if not asked:
        return ()
    drawn = suggested_sampling(values)
    options = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in drawn.items() if key in asked)
    return (
        Diagnostic(
            "AMK015",
            f"{file.name} asks for {', '.join(asked)}, which is not applied",
            severity=Severity.WARNING,
            where=Where(file=str(file), path=None if file == path else json_pointer((next(iter(asked)),))),
            facts=(
                *(shown(f"{key} = {quoted(value)}") for key, value in asked.items()),
                because(
                    "decoding knows temperature, top_k and top_p"
                    if suggestions
                    else "decoding takes the most probable token unless the request says otherwise"
                ),
            ),
            help=f"to draw tokens as the file says, pass {options}" if options else None,
        ),
    )


def _on(value: object, off: tuple[object, ...]) -> bool:
    return value is not None and value not in off
