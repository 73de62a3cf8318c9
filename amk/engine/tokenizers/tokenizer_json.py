"""The tokenizer of a Hugging Face directory: `tokenizer.json`, and what `tokenizer_config.json` adds to it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from amk.engine.refusal import bad_weights
from amk.engine.tokenizers.tokenizer import Tokenizer
from amk.report.json_file import read_bytes, read_json

MAX_TOKENIZER_BYTES = 128 << 20
MAX_CONFIG_BYTES = 16 << 20
_FLAGS = ("lstrip", "rstrip", "normalized", "single_word")
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


def tokenizer_from_directory(path: Path, vocab: int | None) -> Tokenizer:
    """`vocab`: rows of the embedding, if known. AMK013 when `tokenizer.json` is missing or unreadable."""
    file = path / "tokenizer.json"
    if not file.is_file():
        raise bad_weights(
            path,
            "there is no tokenizer.json in this directory",
            help="save the fast tokenizer of the model there; a sentencepiece file alone is not enough",
        )
    backend, normalizer = _backend(read_bytes(file, MAX_TOKENIZER_BYTES), file)
    config_file = path / "tokenizer_config.json"
    config = read_json(config_file, MAX_CONFIG_BYTES) if config_file.is_file() else {}
    if not isinstance(config, dict):
        raise bad_weights(config_file, "tokenizer_config.json should be an object")
    special = {key: text for key in _SPECIAL if (text := _token_text(config.get(key))) is not None}
    _add_tokens(backend, config, vocab)
    backend.encode_special_tokens = config.get("split_special_tokens") is True
    return Tokenizer(backend, path, (), _template(path, config), special, normalizer)


def _add_tokens(backend: Backend, config: Mapping[str, Any], vocab: int | None) -> None:
    """Tokens that tokenizer_config.json adds, or that are special by its word only.

    One that would get an id behind the embedding is left out: no prompt can use it (a padding token, mostly).
    """
    more = config.get("added_tokens_decoder")
    listed = more if isinstance(more, dict) else {}
    tokens = [(each, False) for _, each in sorted(listed.items(), key=lambda item: (len(item[0]), item[0]))]
    tokens += [(config.get(key), True) for key in (*_SPECIAL, "sep_token", "cls_token", "mask_token")]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        found = config.get(key)
        each = found if isinstance(found, list) else list(found.values()) if isinstance(found, dict) else []
        tokens += [(token, isinstance(token, str)) for token in each]
    known = {token.content: token.special for token in backend.get_added_tokens_decoder().values()}
    for token, always in tokens:
        text = _token_text(token)
        special = always or (isinstance(token, dict) and token.get("special") is True)
        if not text or known.get(text) is True or (text in known and not special):
            continue
        if backend.token_to_id(text) is None and vocab is not None and backend.get_vocab_size() >= vocab:
            continue
        backend.add_tokens([_added(text, token, special)])
        known[text] = special


def _added(text: str, token: Any, special: bool) -> AddedToken:
    flags = {key: token.get(key) is True for key in _FLAGS} if isinstance(token, dict) else {"normalized": False}
    return AddedToken(text, special=special, **flags)


def _backend(content: bytes, file: Path) -> tuple[Backend, Any]:
    """A tokenizer.json in memory without its normaliser, and that; AMK013 when the package does not accept it.

    A normaliser is applied to the added tokens as soon as both are there, and may take for ever or panic, so only the
    process with limits has it.
    """
    try:
        record = json.loads(content, object_pairs_hook=_unique)
        normalizer = record.get("normalizer")
        if normalizer is not None:
            content = json.dumps(record | {"normalizer": None}).encode()
        backend = Backend.from_buffer(content)
    except Exception as error:  # the package raises plain Exception for anything wrong with the file
        raise bad_weights(file, "the tokenizer cannot be read", str(error)[:500]) from error
    # What a file stores of these are the settings of whoever trained with it; a prompt is neither cut nor filled up.
    backend.no_truncation()
    backend.no_padding()
    return backend, normalizer


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a key appears twice in one object")
    return fields


def _token_text(value: Any) -> str | None:
    """A special token is its text or an object that holds it as 'content'."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _template(path: Path, config: dict[str, Any]) -> str | None:
    """`chat_template.jinja`, else the configuration's template: a text, or a list of named ones with a 'default'."""
    file = path / "chat_template.jinja"
    if file.is_file():
        return read_bytes(file, MAX_CONFIG_BYTES).decode("utf-8", "replace")
    given = config.get("chat_template")
    if isinstance(given, list):
        named = {each.get("name"): each.get("template") for each in given if isinstance(each, dict)}
        given = named.get("default")
    return given if isinstance(given, str) else None
