"""The tokenizer of a Hugging Face directory: `tokenizer.json`, and what `tokenizer_config.json` adds to it."""

from pathlib import Path
from typing import Any

from amk.engine.refusal import bad_weights
from amk.engine.tokenizers.tokenizer import Tokenizer
from amk.engine.tokenizers.tokenizer_process import Source
from amk.report.json_file import read_bytes, read_json

MAX_TOKENIZER_BYTES = 128 << 20
MAX_CONFIG_BYTES = 16 << 20


def tokenizer_from_directory(path: Path, vocab: int | None) -> Tokenizer:
    """`vocab`: rows of the embedding, if known. AMK013 when `tokenizer.json` is missing."""
    file = path / "tokenizer.json"
    if not file.is_file():
        raise bad_weights(
            path,
            "there is no tokenizer.json in this directory",
            help="save the fast tokenizer of the model there; a sentencepiece file alone is not enough",
        )
    config = _object(path / "tokenizer_config.json")
    older: dict[str, Any] = {}
    if "added_tokens_decoder" not in config:
        older = {"map": _object(path / "special_tokens_map.json"), "added": _object(path / "added_tokens.json")}
    source = Source(read_bytes(file, MAX_TOKENIZER_BYTES), config, older, vocab)
    templates = _templates(path, config)
    return Tokenizer(source, path, (), templates.get("default"), templates.get("tool_use"))


def _object(file: Path) -> dict[str, Any]:
    """The object in a file beside tokenizer.json; {} if there is none."""
    found = read_json(file, MAX_CONFIG_BYTES) if file.is_file() else {}
    if not isinstance(found, dict):
        raise bad_weights(file, f"{file.name} should be an object")
    return found


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
