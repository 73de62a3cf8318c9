"""A Hugging Face `config.json` as a ModelSpec.

Both spellings are read: `rope_theta` + `rope_scaling` + `torch_dtype`, and `rope_parameters` + `dtype`. Absent fields
take the defaults of the architecture's configuration class in transformers. A field that would change the mathematics
and is not implemented is AMK012, never ignored.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from amk.models.model_spec import ModelSpec
from amk.models.packed_config import packed_layout
from amk.report.diagnostic import AmkError, Diagnostic, Where, because, shown
from amk.report.schema import json_pointer, quoted, schema_error

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
}

_GELU = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
}
"""What transformers calls the forms of GELU."""

# Fields that must have the given value where they are present at all; null counts as absent but for those below.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "mlp_bias": (False,),
    "rope_interleaved": (False,),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "logit_scale": (1.0,),
    "logits_scaling": (1.0,),
    "embedding_multiplier": (1.0,),
    "residual_multiplier": (1.0,),
    "attention_multiplier": (),
    "no_rope_layers": (),
    "per_layer_config": (),
    "text_config": (),
    "is_encoder_decoder": (False,),
    "is_causal": (True,),
    "transformers_weights": (),
}
_NULL_IS_NO_ABSENCE = frozenset({"is_causal"})

_HF_NAME = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "ffn": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab": "vocab_size",
    "max_context": "max_position_embeddings",
    "rms_eps": "rms_norm_eps",
    "tied_embeddings": "tie_word_embeddings",
    "eos": "eos_token_id",
    "bos": "bos_token_id",
}


@dataclass(frozen=True)
class _Config:
    """The object of a config.json with the file it came from; values are type-checked when they are asked for."""

    values: Mapping[str, Any]
    file: str | None

    def get(self, key: str, *kinds: type, default: Any = None) -> Any:
        """The value, or `default` if it is absent or null; AMK005 if it is none of `kinds` (bool is no int)."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.wrong(key, f"'{key}' should be {' or '.join(_WORDS[kind] for kind in kinds)}")
        return value

    def required(self, key: str, *kinds: type) -> Any:
        value = self.get(key, *kinds)
        if value is None:
            raise self.wrong(key, f"field '{key}' is missing")
        return value

    def wrong(self, key: str, message: str) -> AmkError:
        facts = (shown(f"{key} = {quoted(self.values[key])}"),) if key in self.values else ()
        return AmkError(Diagnostic("AMK005", message, where=self.at(key), facts=facts))

    def unsupported(self, key: str, message: str) -> AmkError:
        facts = (
            shown(f"{key} = {quoted(self.values.get(key))}"),
            because("ignoring it would compute a different model"),
        )
        return AmkError(Diagnostic("AMK012", message, where=self.at(key), facts=facts))

    def at(self, key: str) -> Where:
        return Where(file=self.file, path=json_pointer((key,)))


_WORDS: dict[type, str] = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}
_WORDS |= {list: "an array", dict: "an object"}


def model_from_hf_config(values: object, name: str, source: str, file: str | None = None) -> ModelSpec:
    """The model that the parsed `config.json` describes; AMK005 or AMK012 as an AmkError otherwise.

    `name` is the ModelSpec's name, `source` says where the numbers are from, `file` only places diagnostics.
    """
    if not isinstance(values, dict):
        raise AmkError(Diagnostic("AMK005", "config.json should be an object", where=Where(file=file, path="/")))
    config = _Config(values, file)
    kind = _architecture(config)
    _refuse_other_mathematics(config, kind)
    _refuse_other_storage(config)
    heads = config.required("num_attention_heads", int)
    hidden = config.required("hidden_size", int)
    theta, scaling, rotary = _rope(config, kind)
    fields = {
        "name": name,
        "source": source[:500],
        "layers": config.required("num_hidden_layers", int),
        "hidden": hidden,
        "ffn": config.required("intermediate_size", int),
        "heads": heads,
        "vocab": config.required("vocab_size", int),
        "max_context": config.required("max_position_embeddings", int),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "tied_embeddings": config.get("tie_word_embeddings", bool, default=False),
        "bos": config.get("bos_token_id", int),
        "eos": token_ids(config.get("eos_token_id", int, list)),
    }
    fields |= _neox(config, hidden, heads, rotary) if kind == "gpt_neox" else _llama(config, kind, hidden, heads)
    try:
        return ModelSpec.model_validate(fields)
    except ValidationError as error:
        raise _in_hf_words(error, file) from error


def _llama(config: _Config, kind: str, hidden: int, heads: int) -> dict[str, Any]:
    """What a model of the family `llama` has in its own way."""
    return {
        "kv_heads": _kv_heads(config, kind, heads),
        "head_dim": _head_dim(config, kind, hidden, heads),
        "rms_eps": config.get("rms_norm_eps", float, int, default=1e-6),
        "qkv_bias": kind == "qwen2",
        "qk_norm": kind == "qwen3",
    }


def _neox(config: _Config, hidden: int, heads: int, rotary: float) -> dict[str, Any]:
    """What a model of the family `gpt_neox` has in its own way. rotary: the share of a head that is rotated."""
    if heads <= 0 or hidden % heads:
        raise config.wrong("num_attention_heads", "'hidden_size' is no multiple of the heads")
    dim = hidden // heads
    if config.get("head_dim", int, default=dim) != dim:
        raise config.unsupported("head_dim", "'head_dim' is other than 'hidden_size' / 'num_attention_heads'")
    turned = int(dim * rotary)
    if not 0 < turned <= dim or turned % 2:
        key = "rotary_pct" if "rotary_pct" in config.values else _rope_key(config)
        raise config.unsupported(key, f"{turned} of the {dim} elements of a head are rotated, an even number can be")
    return {
        "family": "gpt_neox",
        "kv_heads": heads,
        "head_dim": dim,
        "rms_eps": config.get("layer_norm_eps", float, int, default=1e-5),
        "qkv_bias": config.get("attention_bias", bool, default=True),
        "activation": _GELU[config.get("hidden_act", str, default="gelu")],
        "parallel": config.get("use_parallel_residual", bool, default=True),
        "rotary_dim": None if turned == dim else turned,
    }


def token_ids(value: Any) -> tuple[Any, ...]:
    """`eos_token_id` is one id, a list of ids or null; order kept, repeats dropped. Elements are checked later."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    return tuple(each for index, each in enumerate(ids) if each not in ids[:index]) if len(ids) <= 64 else tuple(ids)


def _refuse_other_storage(config: _Config) -> None:
    """AMK012 for quantised weights in a layout that is not read."""
    stored = config.get("quantization_config", dict)
    if stored is None:
        return
    try:
        packed_layout(stored)
    except ValueError as error:
        raise config.unsupported("quantization_config", str(error)) from error


def _architecture(config: _Config) -> str:
    kind = config.get("model_type", str)
    names = config.get("architectures", list, default=[])
    if kind is None:
        known = [model_type for model_type, name in ARCHITECTURES.items() if name in names]
        if len(known) != 1:
            raise config.wrong("model_type", "field 'model_type' is missing")
        kind = known[0]
    if kind not in ARCHITECTURES:
        supported = ", ".join(ARCHITECTURES)
        raise config.unsupported("model_type", f"model type {quoted(kind)} is not supported (supported: {supported})")
    if names and ARCHITECTURES[kind] not in names:
        raise config.unsupported("architectures", f"a {kind} model that is not a {ARCHITECTURES[kind]}")
    return str(kind)


def _refuse_other_mathematics(config: _Config, kind: str) -> None:
    for key, neutral in _NEUTRAL.items():
        value = config.values.get(key)
        absent = value is None and not (key in config.values and key in _NULL_IS_NO_ABSENCE)
        if not absent and value not in neutral:
            raise config.unsupported(key, f"'{key}' is not supported with this value")
    known, usual = (tuple(_GELU), "gelu") if kind == "gpt_neox" else (("silu", "swish"), "silu")
    if config.get("hidden_act", str, default=usual) not in known:
        raise config.unsupported("hidden_act", f"this activation is not supported (supported: {', '.join(known)})")
    if kind != "gpt_neox" and config.get("attention_bias", bool, default=False):
        # In Llama and Qwen3 this adds a bias to o_proj as well; Qwen2 has its own fixed q, k, v biases.
        raise config.unsupported("attention_bias", "attention biases that include the output projection")
    if (reason := _sliding_window(config, kind)) is not None:
        raise config.unsupported(*reason)


def _sliding_window(config: _Config, kind: str) -> tuple[str, str] | None:
    """The field that activates a window shorter than the context, and why; None if attention is full everywhere."""
    kinds = config.get("layer_types", list)
    if kinds is not None and kinds != ["full_attention"] * config.required("num_hidden_layers", int):
        return "layer_types", "'layer_types' is other than 'full_attention' for each of 'num_hidden_layers'"
    positions = config.required("max_position_embeddings", int)
    if kinds is None and kind in ("llama", "gpt_neox", "mistral"):
        # The classes have no such fields, but the cache of transformers keeps no more positions than they say.
        for key in ("attention_chunk_size",) if kind == "mistral" else ("attention_chunk_size", "sliding_window"):
            if (kept := config.get(key, int, default=positions)) < positions:
                return key, f"a cache of {kept} positions in a context of {positions}"
    if kind in ("llama", "gpt_neox"):
        return None
    # MistralConfig: an absent field means 4,096, null means none. The Qwen classes need the switch as well.
    if kind == "mistral" and "sliding_window" not in config.values:
        window, active = 4096, True
    else:
        window = config.get("sliding_window", int, default=positions)
        active = kind == "mistral" or config.get("use_sliding_window", bool, default=False)
    layers = config.required("num_hidden_layers", int)
    if kind != "mistral" and config.get("max_window_layers", int, default=28) >= layers:
        return None  # the window starts at a layer that does not exist
    if active and window < positions:
        return "sliding_window", f"a sliding window of {window} positions in a context of {positions}"
    return None


def _kv_heads(config: _Config, kind: str, heads: int) -> Any:
    """Llama defaults to one KV head per query head; the other classes' defaults fit no released model."""
    if kind == "llama":
        return config.get("num_key_value_heads", int, default=heads)
    return config.required("num_key_value_heads", int)


def _head_dim(config: _Config, kind: str, hidden: int, heads: int) -> Any:
    head_dim = config.get("head_dim", int)
    if head_dim is not None:
        return head_dim
    if kind == "qwen3":
        return 128  # Qwen3Config's default does not depend on the width
    if heads <= 0 or hidden % heads:
        raise config.wrong("num_attention_heads", "'head_dim' is absent and 'hidden_size' is no multiple of the heads")
    return hidden // heads


def _rope_key(config: _Config) -> str:
    """The field that holds RoPE parameters, if there is one."""
    return next((key for key in ("rope_scaling", "rope_parameters") if config.get(key, dict)), "rope_parameters")


def _rope(config: _Config, kind: str) -> tuple[Any, dict[str, Any] | None, Any]:
    """`(theta, scaling)` in ModelSpec's words, and the share of a head that is rotated."""
    parameters = {key: found for key in ("rope_scaling", "rope_parameters") if (found := config.get(key, dict))}
    if len(parameters) == 2 and parameters["rope_scaling"] != parameters["rope_parameters"]:
        raise config.unsupported("rope_scaling", "'rope_scaling' and 'rope_parameters' say different things")
    key = _rope_key(config)
    inner = _Config(parameters.get(key, {}), config.file)
    if any(isinstance(value, dict) for value in inner.values.values()):
        raise config.unsupported(key, "RoPE parameters that differ between layers")
    neox = kind == "gpt_neox"
    theta = _one_of(config, inner, key, "rope_theta", "rotary_emb_base" if neox else "rope_theta", 10000.0)
    named = "rotary_pct" if neox else "partial_rotary_factor"
    part = _one_of(config, inner, key, "partial_rotary_factor", named, 0.25 if neox else 1.0)
    if part != 1.0 and not neox:
        raise config.unsupported(named if named in config.values else key, "partial rotary embedding")
    kind = inner.get("rope_type", str, default=inner.get("type", str, default="default"))
    if kind == "default":
        return theta, None, part
    if kind != "llama3":
        raise config.unsupported(key, f"RoPE type {quoted(kind)} (supported: default, llama3)")
    return theta, _llama3(config, inner), part


def _one_of(config: _Config, inner: _Config, key: str, inside: str, outside: str, default: float) -> Any:
    """A number that RoPE parameters (in field `key`) may have as `inside`, and the model as `outside`."""
    for other in {"rope_theta", "partial_rotary_factor"} & {inside} - {outside}:
        if config.get(other, float, int) is not None:
            raise config.unsupported(other, f"a model of this type says '{outside}' instead")
    found = {
        value for c, name in ((config, outside), (inner, inside)) if (value := c.get(name, float, int)) is not None
    }
    if len(found) > 1:
        raise config.wrong(outside, f"'{outside}' and '{key}' disagree")
    return found.pop() if found else default


def _llama3(config: _Config, inner: _Config) -> dict[str, Any]:
    return {
        "factor": inner.required("factor", float, int),
        "low_freq_factor": inner.required("low_freq_factor", float, int),
        "high_freq_factor": inner.required("high_freq_factor", float, int),
        "original_context": _original_context(config, inner),
    }


def _original_context(config: _Config, inner: _Config) -> Any:
    """Positions before the scaling: those of the RoPE parameters, of the model, or all positions that it has."""
    key = "original_max_position_embeddings"
    outside, inside = config.get(key, int), inner.get(key, int)
    if outside is not None and inside is not None and outside != inside:
        raise config.wrong(key, f"'{key}' of the model and of its RoPE parameters disagree")
    either = inside if outside is None else outside
    return config.required("max_position_embeddings", int) if either is None else either


_FIELD = re.compile(r"\b(" + "|".join(_HF_NAME) + r")\b(?= \(|')")
"""A field of ModelSpec in a message: in quotes, or with its value in parentheses."""


def _in_hf_words(error: ValidationError, file: str | None) -> AmkError:
    """ModelSpec's complaint with the field named as the user's file names it."""
    found = schema_error(error, file).diagnostics
    renamed = []
    for diagnostic in found:
        path = diagnostic.where.path if diagnostic.where and diagnostic.where.path else "/"
        field, _, rest = path.removeprefix("/").partition("/")
        key = _HF_NAME.get(field, field)
        where = Where(file=file, path=f"/{key}/{rest}" if rest else f"/{key}")
        message = re.sub(
            r"\b(" + "|".join(_HF_NAME) + r")\b(?= \(|')", lambda word: _HF_NAME[word[1]], diagnostic.message
        )
        renamed.append(Diagnostic(diagnostic.code, message, where=where, facts=diagnostic.facts))
    return AmkError(renamed)
