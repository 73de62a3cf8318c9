"""Tiny random checkpoints whose logits transformers and amk compute side by side."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from amk.engine.backends.forward import ForwardPass
from amk.engine.backends.forward_backend import ForwardBackend
from amk.engine.checkpoints.open_checkpoint import open_checkpoint
from amk.report.diagnostic import AmkError, Diagnostic, Exit

transformers.logging.set_verbosity(transformers.logging.CRITICAL)
transformers.logging.disable_progress_bar()

TYPES = ("llama", "mistral", "qwen2", "qwen3", "gpt_neox")
PROMPT = [int(token) for token in np.random.default_rng(1).integers(3, 83, 24)]

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 83,
    "max_position_embeddings": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
}
OF_TYPE: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {},
    "gpt_neox": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
}


def config_class(kind: str) -> Any:
    return transformers.CONFIG_MAPPING[kind]


def checkpoint(directory: Path, kind: str, **changes: Any) -> Path:
    """A saved random model; every tensor, norms and biases included, differs from its initial constant."""
    torch.manual_seed(0)
    config = config_class(kind)(**(SIZES | OF_TYPE[kind] | changes))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn(parameter.shape)
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    return directory


def changed(original: Path, directory: Path, **fields: Any) -> Path:
    """The same weights under a config.json with other fields; the value ABSENT removes one."""
    directory.mkdir(parents=True)
    os.link(original / "model.safetensors", directory / "model.safetensors")
    config = json.loads((original / "config.json").read_text()) | fields
    config = {key: value for key, value in config.items() if value is not ABSENT}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


ABSENT = object()


@dataclass(frozen=True)
class Outcome:
    """Logits [tokens, vocab], or why there are none."""

    logits: NDArray[np.float32] | None
    refusal: Any = None


def by_transformers(directory: Path, tokens: list[int]) -> Outcome:
    """Its own logits in float32, the second half of the tokens read behind a cache of the first, as in decoding; what
    it could not load entirely counts as refused."""
    try:
        model, loading = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, output_loading_info=True, attn_implementation="eager"
        )
        if loading["missing_keys"] or loading["mismatched_keys"]:
            return Outcome(None, f"not all weights: {loading}")
        parts, half, cache = [], (len(tokens) + 1) // 2, None
        with torch.no_grad():
            for part in filter(None, (tokens[:half], tokens[half:])):
                found = model(torch.tensor([part]), past_key_values=cache, use_cache=True, return_dict=True)
                cache = found.past_key_values
                parts.append(found.logits[0].numpy())
        return Outcome(np.concatenate(parts))
    except Exception as error:  # noqa: BLE001  whatever it says, it gave no logits
        return Outcome(None, f"{type(error).__name__}: {error}")


def by_amk(directory: Path, tokens: list[int]) -> Outcome:
    try:
        opened = open_checkpoint(directory)
        return Outcome(ForwardBackend(ForwardPass(opened, len(tokens))).every(tokens))
    except AmkError as error:
        assert error.exit_code is Exit.INPUT
        return Outcome(None, error.diagnostics[0])


def names(diagnostic: Diagnostic, field: str) -> bool:
    """The refusal says which field it is about."""
    path = diagnostic.where.path if diagnostic.where and diagnostic.where.path else ""
    return field in path or field in diagnostic.message or any(field in fact.text for fact in diagnostic.facts)
