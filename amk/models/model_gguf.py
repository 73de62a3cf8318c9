"""GGUF metadata as a ModelSpec."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from amk.models.gguf_header import GgufArray, GgufHeader, Scalar, read_floats, read_gguf_array, read_gguf_header
from amk.models.model_spec import ModelSpec, RopeScaling
from amk.models.rope import llama3_divisors, rope_frequencies
from amk.report.diagnostic import AmkError, Diagnostic, Where, because, shown
from amk.report.schema import as_name, quoted, schema_error

# GGUF stores Mistral as `llama`.
ARCHITECTURES = ("llama", "qwen2", "qwen3")

# The llama3 scaling of every released Llama 3.1, 3.2 and 3.3; GGUF keeps only the divisors that follow from it.
_LOW, _HIGH, _ORIGINAL = 1.0, 4.0, 8192

_READ = frozenset(
    {"context_length", "embedding_length", "block_count", "feed_forward_length", "vocab_size", "expert_count"}
    | {f"attention.{key}" for key in ("head_count", "head_count_kv", "key_length", "value_length", "sliding_window")}
    | {"attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.dimension_count", "rope.scaling.type"}
)
"""Keys below the architecture's name that the description is made of."""

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.scale": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "expert_used_count": (0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "rope.scale_linear": (1.0,),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.factor": (1.0,),
    "use_parallel_residual": (False,),
}
"""Keys that may stand there with a value that changes nothing. Any other key is refused by its name."""

_WITHOUT_SCALING = ("rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.finetuned")
"""Keys that say something about a scaling of type 'none', which is no scaling."""

_IGNORED = ("tensor_data_layout", "rope.scaling.finetuned")
"""Keys about the file's history."""

_ROPE_DIVISORS = "rope_freqs.weight"
_EOS_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")

_TURN_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<end_of_utterance>")
"""Tokens that end a turn in chat templates."""
_CONTROL = 3  # a token type of the format


def model_from_gguf(path: Path, header: GgufHeader | None = None) -> ModelSpec:
    """The model in the GGUF file at `path`; AMK001, AMK005 or AMK012 as an AmkError otherwise. header: of the file.

    Its ends of text are those that the metadata name. Where they name none of a turn, as in older files, control tokens
    that end a turn in the chat template end a text, too.
    """
    header = header or read_gguf_header(path)
    shapes = {name: tensor.shape for name, tensor in header.tensors.items()}
    divisors: Sequence[float] | None = None
    if _ROPE_DIVISORS in header.tensors:
        try:
            divisors = read_floats(path, header.tensors[_ROPE_DIVISORS], limit=512)
        except (OSError, ValueError) as error:
            message = f"tensor '{_ROPE_DIVISORS}' cannot be read: {error}"
            raise AmkError(Diagnostic("AMK013", message, where=Where(file=str(path)))) from error
    model = model_from_gguf_fields(header.fields, shapes, divisors, str(path))
    more = [token for token in _ends_of_turns(path, header.fields) if token not in model.eos and token < model.vocab]
    return model.model_copy(update={"eos": (*model.eos, *more)}) if more else model


def _ends_of_turns(path: Path, fields: Mapping[str, Scalar]) -> list[int]:
    """Control tokens of the vocabulary that the chat template writes behind what somebody says."""
    template = fields.get("tokenizer.chat_template")
    wanted = [text for text in _TURN_ENDS if isinstance(template, str) and text in template]
    tokens, types = (fields.get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type"))
    if _EOS_KEYS[1] in fields or not wanted or not isinstance(tokens, GgufArray) or not isinstance(types, GgufArray):
        return []
    known = zip(read_gguf_array(path, tokens), read_gguf_array(path, types), strict=False)
    return [token for token, (text, kind) in enumerate(known) if kind == _CONTROL and text in wanted]


def model_from_gguf_fields(
    fields: Mapping[str, Scalar],
    shapes: Mapping[str, tuple[int, ...]],
    rope_divisors: Sequence[float] | None = None,
    file: str | None = None,
) -> ModelSpec:
    """The model that GGUF metadata describes.

    `fields` maps keys to values (arrays as GgufArray), `shapes` maps tensor names to shapes with rows first,
    `rope_divisors` is the content of `rope_freqs.weight`, [head_dim // 2]. AMK005 or AMK012 as an AmkError otherwise.
    """
    metadata = _Metadata(fields, file)
    arch = metadata.text("general.architecture")
    if arch not in ARCHITECTURES:
        raise metadata.unsupported("general.architecture", f"supported are {', '.join(ARCHITECTURES)}")
    _refuse_other_mathematics(metadata, arch, shapes)
    values = _values(metadata, arch, shapes)
    try:
        model = ModelSpec.model_validate(values)
    except ValidationError as error:
        raise schema_error(error, file) from error
    return model if rope_divisors is None else _scaled(model, rope_divisors, metadata)


class _Metadata:
    """Typed access to the fields, with diagnostics that name the key."""

    def __init__(self, fields: Mapping[str, Scalar], file: str | None) -> None:
        self.fields = fields
        self.file = file

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.fields.get(key, default)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise self.wrong(key, "should be an integer")

    def number(self, key: str, default: float | None = None) -> float:
        value = self.fields.get(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        raise self.wrong(key, "should be a number")

    def text(self, key: str) -> str:
        value = self.fields.get(key)
        if isinstance(value, str):
            return value
        raise self.wrong(key, "should be a string")

    def wrong(self, key: str, message: str) -> AmkError:
        found = self._shown(key) if key in self.fields else "is missing"
        return AmkError(
            Diagnostic("AMK005", f"metadata '{key}' {message}", where=Where(file=self.file), facts=(shown(found),))
        )

    def unsupported(self, key: str, message: str) -> AmkError:
        facts = (shown(self._shown(key)), because("ignoring it would compute a different model"))
        text = f"'{key}' is not supported with this value: {message}"
        return AmkError(Diagnostic("AMK012", text, where=Where(file=self.file), facts=facts))

    def _shown(self, key: str) -> str:
        return f"{key} = {quoted(self.fields.get(key))}"


def _values(metadata: _Metadata, arch: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, object]:
    """The fields of a ModelSpec, not yet validated."""
    fields, file = metadata.fields, metadata.file
    heads = metadata.integer(f"{arch}.attention.head_count")
    hidden = metadata.integer(f"{arch}.embedding_length")
    if heads <= 0:
        raise metadata.wrong(f"{arch}.attention.head_count", "should be positive")
    return {
        "name": as_name(str(fields.get("general.name", "")), otherwise="gguf"),
        "source": f"GGUF metadata of {Path(file).name if file else 'a file'}"[:500],
        "layers": metadata.integer(f"{arch}.block_count"),
        "hidden": hidden,
        "ffn": metadata.integer(f"{arch}.feed_forward_length"),
        "heads": heads,
        "kv_heads": metadata.integer(f"{arch}.attention.head_count_kv", heads),
        "head_dim": metadata.integer(f"{arch}.attention.key_length", hidden // heads),
        "vocab": _vocabulary(metadata, arch, shapes),
        "max_context": metadata.integer(f"{arch}.context_length"),
        "rms_eps": metadata.number(f"{arch}.attention.layer_norm_rms_epsilon"),
        "rope_theta": metadata.number(f"{arch}.rope.freq_base", 10000.0),
        "tied_embeddings": "output.weight" not in shapes,
        "qkv_bias": arch == "qwen2" or (arch == "llama" and "blk.0.attn_q.bias" in shapes),
        "qk_norm": arch == "qwen3",
        "bos": fields.get("tokenizer.ggml.bos_token_id"),
        "eos": tuple(dict.fromkeys(metadata.integer(key) for key in _EOS_KEYS if key in fields)),
    }


def _refuse_other_mathematics(metadata: _Metadata, arch: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
    fields = metadata.fields
    _refuse_unknown_keys(metadata, arch)
    if fields.get(f"{arch}.expert_count", 0):
        raise metadata.unsupported(f"{arch}.expert_count", "mixtures of experts are not implemented")
    scaling = f"{arch}.rope.scaling.type"
    if fields.get(scaling, "none") != "none":
        raise metadata.unsupported(scaling, "only the llama3 scaling, stored as a tensor, is implemented")
    head_dim = metadata.integer(
        f"{arch}.attention.key_length",
        metadata.integer(f"{arch}.embedding_length") // max(1, metadata.integer(f"{arch}.attention.head_count")),
    )
    for key, why in (
        (f"{arch}.rope.dimension_count", "partial rotary embedding"),
        (f"{arch}.attention.value_length", "values of another width than keys"),
    ):
        if fields.get(key, head_dim) != head_dim:
            raise metadata.unsupported(key, why)
    window = f"{arch}.attention.sliding_window"
    if window in fields and metadata.integer(window) < metadata.integer(f"{arch}.context_length"):
        raise metadata.unsupported(window, "a sliding window shorter than the context")
    for tensor in ("blk.0.attn_output.bias", "blk.0.ffn_down.bias", "blk.0.ffn_gate_inp.weight"):
        if tensor in shapes:
            raise AmkError(
                Diagnostic(
                    "AMK012",
                    f"tensor '{tensor}' belongs to a model that is not supported",
                    where=Where(file=metadata.file),
                )
            )


def _refuse_unknown_keys(metadata: _Metadata, arch: str) -> None:
    """AMK012 for a key of the architecture that is not read and might change the mathematics, or splits the file."""
    unscaled = metadata.fields.get(f"{arch}.rope.scaling.type") == "none"
    for key, value in metadata.fields.items():
        own, _, part = key.partition(".")
        if key == "split.count" and value not in (0, 1):
            raise metadata.unsupported(key, "a model in several files; join them with gguf-split")
        if own == "adapter" or (key == "general.type" and value != "model"):
            raise metadata.unsupported(key, "the file does not hold a model")
        if own != arch or part in _READ or part in _IGNORED or (unscaled and part in _WITHOUT_SCALING):
            continue
        if part not in _NEUTRAL:
            raise metadata.unsupported(key, "what it says is not implemented")
        if value not in _NEUTRAL[part]:
            raise metadata.unsupported(key, f"only {' or '.join(map(str, _NEUTRAL[part]))} is implemented")


def _vocabulary(metadata: _Metadata, arch: str, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Rows of the embedding; the tokenizer may know fewer tokens."""
    if len(shapes.get("token_embd.weight", ())) == 2:
        return shapes["token_embd.weight"][0]
    tokens = metadata.fields.get("tokenizer.ggml.tokens")
    return metadata.integer(f"{arch}.vocab_size", tokens.length if isinstance(tokens, GgufArray) else None)


def _scaled(model: ModelSpec, divisors: Sequence[float], metadata: _Metadata) -> ModelSpec:
    """`model` with the llama3 scaling whose divisors are `divisors`; AMK012 if no such scaling has them.

    The largest divisor is the factor, since the longest wavelengths are divided by it in full; the other three
    parameters are those of every released model, and the whole table is compared with what they give.
    """
    factor = float(f"{max(divisors, default=1.0):.7g}")
    try:
        scaling = RopeScaling(factor=factor, low_freq_factor=_LOW, high_freq_factor=_HIGH, original_context=_ORIGINAL)
    except ValidationError as error:
        raise schema_error(error, metadata.file, (_ROPE_DIVISORS,)) from error
    expected = llama3_divisors(rope_frequencies(model), scaling)
    if len(divisors) != len(expected) or not np.allclose(divisors, expected, rtol=1e-4):
        facts = (because("its divisors follow from no llama3 scaling over 8,192 original positions"),)
        raise AmkError(
            Diagnostic(
                "AMK012",
                f"tensor '{_ROPE_DIVISORS}' is not a supported RoPE scaling",
                where=Where(file=metadata.file),
                facts=facts,
            )
        )
    return ModelSpec.model_validate({**model.model_dump(), "rope_scaling": scaling.model_dump()})
