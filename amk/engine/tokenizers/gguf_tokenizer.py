"""The tokenizer in GGUF metadata, rebuilt for the `tokenizers` package.

Two kinds exist among Llama-family models. 'gpt2': byte-level BPE with a merge list, where a name ('pre') says how text
is split beforehand. 'llama': sentencepiece, which merges the adjacent pair whose joint token has the highest score.
That is BPE with the merges ordered by score. Source of the splitting rules: the models' own tokenizer.json files.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from amk.engine.refusal import bad_weights, unsupported
from amk.engine.tokenizers.tokenizer import Tokenizer
from amk.engine.tokenizers.tokenizer_process import Source
from amk.models.gguf_header import GgufArray, GgufHeader, read_gguf_array, read_gguf_header
from amk.report.diagnostic import AmkError

MAX_ARRAY = 4_000_000  # the largest vocabularies in use have 0.3 million tokens and 0.5 million merges
_CONTROL, _USER_DEFINED, _BYTE = 3, 4, 6  # token types of the format
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # how sentencepiece writes a space

_CONTRACTION_WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTION_WORD + r"|\p{N}{1,3}|" + _REST
_QWEN2 = _CONTRACTION_WORD + r"|\p{N}|" + _REST
_LLAMA3_NAMES = frozenset({"llama3", "llama-v3", "llama-bpe"})
_PRE = frozenset({"smollm", "gpt-2", "qwen2"}) | _LLAMA3_NAMES


class _Metadata:
    """Typed access to the tokenizer's fields of a header that was found to stay inside its file."""

    def __init__(self, path: Path, header: GgufHeader) -> None:
        self.path, self.fields = path, header.fields
        for key, value in header.fields.items():
            if isinstance(value, GgufArray) and value.length > MAX_ARRAY:
                raise bad_weights(path, f"metadata {key!r} has {value.length:,} elements, the limit is {MAX_ARRAY:,}")

    def array(self, key: str, kind: type) -> list[Any]:
        """The elements of an array, each of which is a `kind`; AMK013 otherwise."""
        name = f"tokenizer.ggml.{key}"
        found = self.fields.get(name)
        try:
            values = read_gguf_array(self.path, found) if isinstance(found, GgufArray) else []
        except AmkError as error:
            raise bad_weights(self.path, f"{name}: {error.diagnostics[0].message}") from error
        if not values or not all(type(value) is kind for value in values):
            raise bad_weights(self.path, f"metadata {name!r} should be an array of {kind.__name__}")
        return list(values)

    def text(self, key: str) -> str | None:
        value = self.fields.get(key)
        return value if isinstance(value, str) else None

    def flag(self, key: str, default: bool) -> bool:
        value = self.fields.get(f"tokenizer.ggml.{key}", default)
        return value if isinstance(value, bool) else default

    def token(self, key: str, count: int) -> int | None:
        """A token id below `count`, or None when the file names none; AMK013 for one outside."""
        value = self.fields.get(f"tokenizer.ggml.{key}_token_id")
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < count:
            raise bad_weights(self.path, f"the {key} token is {str(value)[:40]}, the vocabulary has {count:,}")
        return value


def tokenizer_from_gguf(path: Path) -> Tokenizer:
    """The tokenizer of a GGUF file; AMK013 when it is damaged, AMK012 when its kind or splitting rule is not known."""
    metadata = _Metadata(path, read_gguf_header(path))
    kind = metadata.text("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise unsupported(path, f"tokenizers of kind {str(kind)[:100]!r} are not supported", "'gpt2' and 'llama' are")
    tokens = metadata.array("tokens", str)
    ids = {text: token for token, text in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise bad_weights(path, f"{len(tokens) - len(ids):,} tokens of the vocabulary have the text of another one")
    types = metadata.array("token_type", int)
    if len(types) != len(tokens):
        raise bad_weights(path, f"{len(tokens):,} tokens and {len(types):,} token types")
    backend = _byte_level(metadata, ids) if kind == "gpt2" else _sentencepiece(metadata, tokens, ids, types)
    for wanted, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        chosen = [text for text, type_ in zip(tokens, types, strict=True) if type_ == wanted and text]
        backend.add_tokens([AddedToken(text, special=special, normalized=False) for text in chosen])
    return _assembled(metadata, backend, tokens, bos_by_default=kind == "llama")


def _assembled(metadata: _Metadata, backend: Backend, tokens: list[str], bos_by_default: bool) -> Tokenizer:
    for key in ("add_eos_token", "add_sep_token"):
        if metadata.flag(key, False):
            raise unsupported(
                metadata.path,
                f"'tokenizer.ggml.{key}' is not supported with this value: a token behind every prompt",
                help="set it to false, as models that continue a prompt have it",
            )
    named = {key: metadata.token(key, len(tokens)) for key in ("bos", "eos", "unknown", "padding")}
    template_names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    special = {template_names[key]: tokens[token] for key, token in named.items() if token is not None}
    bos = named["bos"]
    by_default = bos_by_default or metadata.text("tokenizer.ggml.pre") in _LLAMA3_NAMES
    prefix = (bos,) if bos is not None and metadata.flag("add_bos_token", by_default) else ()
    template = metadata.text("tokenizer.chat_template")
    for_tools = metadata.text("tokenizer.chat_template.tool_use")
    return Tokenizer(Source(backend.to_str().encode()), metadata.path, prefix, template, for_tools, special)


def _byte_level(metadata: _Metadata, ids: dict[str, int]) -> Backend:
    pre = metadata.text("tokenizer.ggml.pre")
    if pre not in _PRE:
        raise unsupported(
            metadata.path,
            f"the splitting rule {str(pre)[:100]!r} of this tokenizer is not known",
            f"known are {', '.join(sorted(_PRE))}",
            help="use a Hugging Face directory with tokenizer.json",
        )
    merges = metadata.array("merges", str)
    if any(merge.count(" ") != 1 for merge in merges):
        raise bad_weights(metadata.path, "a merge of the tokenizer is not two tokens")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    backend = _bpe(metadata.path, ids, pairs, ignore_merges=pre in _LLAMA3_NAMES)
    backend.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre in ("smollm", "gpt-2"))
    first: Any = None
    if pre == "smollm":
        first = pre_tokenizers.Digits(individual_digits=True)
    elif pre != "gpt-2":
        first = pre_tokenizers.Split(Regex(_QWEN2 if pre == "qwen2" else _LLAMA3), behavior="isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([first, whole]) if first else whole
    return backend


def _sentencepiece(metadata: _Metadata, tokens: list[str], ids: dict[str, int], types: list[int]) -> Backend:
    scores = metadata.array("scores", float)
    if len(scores) != len(tokens) or not np.isfinite(scores).all():
        raise bad_weights(metadata.path, f"{len(tokens):,} tokens and {len(scores):,} scores, which must be finite")
    mergeable = {text for text, type_ in zip(tokens, types, strict=True) if type_ not in (_CONTROL, _BYTE)}
    ranked = sorted(mergeable, key=lambda text: (-scores[ids[text]], ids[text]))
    unknown = metadata.token("unknown", len(tokens))
    backend = _bpe(
        metadata.path,
        ids,
        _splits(ranked, mergeable),
        byte_fallback=True,
        fuse_unk=True,
        unk_token=None if unknown is None else tokens[unknown],
    )
    spaces: list[Any] = [normalizers.Replace(" ", _SPACE)]
    stripped: list[Any] = []
    if metadata.flag("add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend(_SPACE))
        stripped = [decoders.Strip(" ", 1, 0)]
    backend.normalizer = normalizers.Sequence(spaces)
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *stripped]
    )
    return backend


def _splits(texts: Iterable[str], vocabulary: set[str]) -> list[tuple[str, str]]:
    """Every way to join two known tokens to a known one, best joint token first."""
    return [
        (text[:cut], text[cut:])
        for text in texts
        for cut in range(1, len(text))
        if text[:cut] in vocabulary and text[cut:] in vocabulary
    ]


def _bpe(path: Path, ids: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> Backend:
    try:
        return Backend(models.BPE(ids, merges, **options))
    except Exception as error:  # the package raises plain Exception, for a merge of unknown tokens for instance
        raise bad_weights(path, "the vocabulary and merges do not make a tokenizer", str(error)[:500]) from error
