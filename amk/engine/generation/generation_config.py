"""What `generation_config.json` beside the weights asks of decoding.

Its end-of-text tokens replace those of `config.json`. Decoding is greedy and unfiltered unless the caller says
otherwise, so `unheeded` names everything else in the file that would choose other tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    "top_k": (),
    "top_p": (1,),
    "min_p": (0,),
    "top_h": (),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
}
"""Fields that count where tokens are drawn, so beside `do_sample`."""

LENGTHS = ("max_length", "max_new_tokens")
"""Limits that the caller of amk gives with every request."""


def generation_config(directory: Path) -> Mapping[str, Any]:
    """The object in the file; {} if there is none. AMK001 to 007 for a file that is no JSON object."""
    file = directory / FILE if directory.is_dir() else directory.parent / FILE
    if not directory.is_dir() or not file.is_file():
        return {}
    values = read_json(file, MAX_BYTES)
    if not isinstance(values, dict):
        raise AmkError(Diagnostic("AMK005", f"{FILE} should be an object", where=Where(file=str(file), path="/")))
    return values


def suggested_sampling(values: Mapping[str, Any]) -> dict[str, Any]:
    """temperature, top_k and top_p as the file asks for them, in the words of `Sampling`; {} if it is greedy."""
    if values.get("do_sample") is not True:
        return {}
    found = {"temperature": values.get("temperature", 1.0), "top_k": values.get("top_k", 50)}
    return {key: value for key, value in {**found, "top_p": values.get("top_p", 1.0)}.items() if value is not None}


def unheeded(directory: Path) -> tuple[Diagnostic, ...]:
    """A warning that lists what the file asks for and a greedy, unfiltered text does not do; () if nothing."""
    values = generation_config(directory)
    asked = {key: values[key] for key, off in _OFF.items() if _on(values.get(key), off)}
    if values.get("do_sample") is True:
        asked |= {key: values[key] for key, off in _DRAWN.items() if _on(values.get(key), off)}
    if not asked:
        return ()
    drawn = suggested_sampling(values)
    options = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in drawn.items() if key in asked)
    return (
        Diagnostic(
            "AMK015",
            f"{FILE} asks for {', '.join(asked)}, which is not applied",
            severity=Severity.WARNING,
            where=Where(file=str(directory / FILE), path=json_pointer((next(iter(asked)),))),
            facts=(
                *(shown(f"{key} = {quoted(value)}") for key, value in asked.items()),
                because("decoding takes the most probable token unless the request says otherwise"),
            ),
            help=f"to draw tokens as the file says, pass {options}" if options else None,
        ),
    )


def _on(value: object, off: tuple[object, ...]) -> bool:
    return value is not None and value not in off
