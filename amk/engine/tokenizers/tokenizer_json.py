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
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LISTS = ("additional_special_tokens", "extra_special_tokens")


def tokenizer_from_directory(path: Path, vocab: int | None) -> Tokenizer:
    """`vocab`: rows of the embedding, if known. AMK013 when `tokenizer.json` is missing or unreadable."""
    file = path / "tokenizer.json"
    if not file.is_file():
        raise bad_weights(
            path,
            "there is no tokenizer.json in this directory",
            help="save the fast tokenizer of the model there; a sentencepiece file alone is not enough",
        )
    backend, normalizer, filling = _backend(read_bytes(file, MAX_TOKENIZER_BYTES), file)
    config_file = path / "tokenizer_config.json"
    config = filling | _object(config_file)
    if "added_tokens_decoder" not in config:
        config = _older(path, config)
    special = {key: text for key, token in _named(config).items() if (text := _token_text(token)) is not None}
    _add_tokens(backend, config, vocab)
    backend.encode_special_tokens = config.get("split_special_tokens") is True
    templates = _templates(path, config)
    default, for_tools = templates.get("default"), templates.get("tool_use")
    return Tokenizer(backend, path, (), default, for_tools, special, normalizer)


def _object(file: Path) -> dict[str, Any]:
    """The object in a file beside tokenizer.json; {} if there is none."""
    found = read_json(file, MAX_CONFIG_BYTES) if file.is_file() else {}
    if not isinstance(found, dict):
        raise bad_weights(file, f"{file.name} should be an object")
    return found


def _older(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with what older directories say in files of their own: which tokens are special, and which
    were added, by index."""
    found = dict(config)
    for key, value in _object(path / "special_tokens_map.json").items():
        if key == "extra_special_tokens" and isinstance(value, list):
            value = [*(found.get(key) or []), *value]
        found[key] = value | {"special": True} if isinstance(value, dict) and key not in _LISTS else value
    named = {_token_text(token) for token in _named(found).values()}
    added = {text: at for text, at in _object(path / "added_tokens.json").items() if isinstance(at, int)}
    flags = {text: {"special": text in named, "normalized": text not in named} for text in added}
    return found | {"added_tokens_decoder": {str(at): {"content": text, **flags[text]} for text, at in added.items()}}


def _named(config: Mapping[str, Any]) -> dict[str, Any]:
    """Special tokens that a template may call by a name, in the order of their ids if they are new: the usual ones, and
    the model's own."""
    own = {key: value for key, value in config.items() if key.endswith("_token") and isinstance(value, str)}
    extra = config.get("extra_special_tokens")
    usual = {key: config[key] for key in _SPECIAL if key in config}
    return usual | own | (extra if isinstance(extra, dict) else {})


def _add_tokens(backend: Backend, config: Mapping[str, Any], vocab: int | None) -> None:
    """Tokens that tokenizer_config.json adds, or that are special by its word only.

    One that would get an id behind the embedding is left out: no prompt can use it (a padding token, mostly).
    """
    more = config.get("added_tokens_decoder")
    listed = more if isinstance(more, dict) else {}
    tokens = [(each, False) for _, each in sorted(listed.items(), key=lambda item: (len(item[0]), item[0]))]
    tokens += [(token, True) for token in _named(config).values()]
    for key in _LISTS:
        found = config.get(key)
        tokens += [(token, isinstance(token, str)) for token in found] if isinstance(found, list) else []
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


def _backend(content: bytes, file: Path) -> tuple[Backend, Any, dict[str, Any]]:
    """A tokenizer.json in memory without its normaliser, and that; the token that it fills up with, by its name in
    tokenizer_config.json, if it says one. AMK013 when the package does not accept it.

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
    padding = record.get("padding")
    return backend, normalizer, {"pad_token": padding["pad_token"]} if padding else {}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a key appears twice in one object")
    return fields


def _token_text(value: Any) -> str | None:
    """A special token is its text or an object that holds it as 'content'."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _templates(path: Path, config: dict[str, Any]) -> dict[str, str]:
    """Chat templates by name: files of their own, else those of the configuration, a text or a list of named ones."""
    files = {"default": path / "chat_template.jinja"}
    files |= {file.stem: file for file in sorted((path / "additional_chat_templates").glob("*.jinja"))}
    found = {
        name: read_bytes(file, MAX_CONFIG_BYTES).decode("utf-8", "replace")
        for name, file in files.items()
        if file.is_file()
    }
    template = config.get("chat_template")
    named = [{"name": "default", "template": template}] if isinstance(template, str) else template
    listed = [each for each in named if isinstance(each, dict)] if isinstance(named, list) else []
    texts = ((each.get("name"), each.get("template")) for each in listed)
    return found or {name: text for name, text in texts if isinstance(name, str) and isinstance(text, str)}
