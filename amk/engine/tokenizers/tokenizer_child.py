"""Makes a tokenizer from its file, and runs it in a process of its own, started by `tokenizer_process.py` as a script
with `python -I -S`.

Lines of JSON come in on stdin and go out on stdout: first {"path", "memory_bytes", "bytes"} and the other parameters of
`tokenizer_of`, behind it so many bytes of a tokenizer.json; then a number and {"facts"}, {"encode", "special"} or
{"decode"}. Each answer is that number and the facts, {"ids"}, {"text"}, {"error"} or {"unreadable"}. A tokenizer's
expressions may take for ever and its normaliser may multiply a text: the limits of the process, and the deadline of
whoever asks, are for that.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

MAX_TOKENS = 1 << 24
_FLAGS = ("lstrip", "rstrip", "normalized", "single_word")
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LISTS = ("additional_special_tokens", "extra_special_tokens")


def tokenizer_of(
    content: bytes, config: Mapping[str, Any], older: Mapping[str, Any], vocab: int | None, normalizes: bool = True
) -> tuple[Any, dict[str, str]]:
    """A tokenizer of the package from a tokenizer.json in memory, and its special tokens by the names that templates
    call them.

    config, older: the files beside it, see `_older`. vocab: rows of the embedding, if known. normalizes: with its
    normaliser, which is applied to the added tokens as soon as both are there, and may take for ever or panic.
    Exceptions are those of the package, which are plain, and of `json`.
    """
    from tokenizers import Tokenizer

    record = json.loads(content, object_pairs_hook=_unique)
    if not normalizes and record.get("normalizer") is not None:
        content = json.dumps(record | {"normalizer": None}).encode()
    backend = Tokenizer.from_buffer(content)
    # What a file stores of these are the settings of whoever trained with it; a prompt is neither cut nor filled up.
    backend.no_truncation()
    backend.no_padding()
    padding = record.get("padding")
    config = {**({"pad_token": padding["pad_token"]} if padding else {}), **config}
    if "added_tokens_decoder" not in config:
        config = _older(config, older)
    _add_tokens(backend, config, vocab)
    backend.encode_special_tokens = config.get("split_special_tokens") is True
    return backend, {key: text for key, token in _named(config).items() if (text := _token_text(token)) is not None}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a key appears twice in one object")
    return fields


def _older(config: Mapping[str, Any], older: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with what older directories say in files of their own: which tokens are special (`map`), and
    which were added, by index (`added`)."""
    found = dict(config)
    for key, value in older.get("map", {}).items():
        if key == "extra_special_tokens" and isinstance(value, list):
            value = [*(found.get(key) or []), *value]
        found[key] = value | {"special": True} if isinstance(value, dict) and key not in _LISTS else value
    named = {_token_text(token) for token in _named(found).values()}
    added = {text: at for text, at in older.get("added", {}).items() if isinstance(at, int)}
    flags = {text: {"special": text in named, "normalized": text not in named} for text in added}
    return found | {"added_tokens_decoder": {str(at): {"content": text, **flags[text]} for text, at in added.items()}}


def _named(config: Mapping[str, Any]) -> dict[str, Any]:
    """Special tokens that a template may call by a name, in the order of their ids if they are new: the usual ones, and
    the model's own."""
    own = {key: value for key, value in config.items() if key.endswith("_token") and isinstance(value, str)}
    extra = config.get("extra_special_tokens")
    usual = {key: config[key] for key in _SPECIAL if key in config}
    return usual | own | (extra if isinstance(extra, dict) else {})


def _add_tokens(backend: Any, config: Mapping[str, Any], vocab: int | None) -> None:
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


def _added(text: str, token: Any, special: bool) -> Any:
    from tokenizers import AddedToken

    flags = {key: token.get(key) is True for key in _FLAGS} if isinstance(token, dict) else {"normalized": False}
    return AddedToken(text, special=special, **flags)


def _token_text(value: Any) -> str | None:
    """A special token is its text or an object that holds it as 'content'."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _answered(backend: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        if "decode" in request:
            return {"text": backend.decode(request["decode"], skip_special_tokens=True)}
        ids = backend.encode(request["encode"], add_special_tokens=request["special"]).ids
    except BaseException as error:  # noqa: BLE001  a panic of the package is no Exception
        return {"error": _words(error)}
    if len(ids) > MAX_TOKENS:
        return {"error": f"it makes {len(ids):,} tokens of the text"}
    return {"ids": ids}


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def main() -> None:
    first = json.loads(sys.stdin.buffer.readline())
    content = sys.stdin.buffer.read(first["bytes"])
    sys.path[:] = first["path"]
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # elsewhere the address space cannot be limited or counts shared libraries
        resource.setrlimit(resource.RLIMIT_AS, (first["memory_bytes"], first["memory_bytes"]))
    backend, wrong, facts = None, {}, {}
    try:
        backend, special = tokenizer_of(content, first["config"], first["older"], first["vocab"])
        size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        facts = {"special": special, "size": size}
    except Exception as error:  # noqa: BLE001  the package raises plain Exception for anything wrong with the file
        wrong = {"unreadable": _words(error)}
    except BaseException as error:  # noqa: BLE001  a panic of the package
        wrong = {"error": _words(error)}
    for line in sys.stdin.buffer:
        number, _, text = line.decode().partition(" ")
        request = json.loads(text)
        answer = wrong or (facts if "facts" in request else _answered(backend, request))
        sys.stdout.write(f"{number} {json.dumps(answer)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
