"""The tokenizer of a checkpoint, whatever its format."""

from pathlib import Path

from amk.engine.tokenizers.gguf_tokenizer import tokenizer_from_gguf
from amk.engine.tokenizers.tokenizer import Tokenizer
from amk.engine.tokenizers.tokenizer_json import tokenizer_from_directory


def open_tokenizer(path: Path | str, vocab: int | None = None) -> Tokenizer:
    """The tokenizer of the checkpoint at `path`.

    Raises AMK013 when it is missing, unreadable or has ids that `vocab` embedding rows do not cover, AMK012 for a kind
    that is not supported, and AMK001 to 007 for a file that is not proper JSON.
    """
    tokenizer = begin_tokenizer(Path(path), vocab)
    tokenizer.check(vocab)
    return tokenizer


def begin_tokenizer(path: Path, vocab: int | None) -> Tokenizer:
    """As `open_tokenizer`, with a vocabulary that is still being read: whoever asks waits, and `check` finds what is
    wrong with it."""
    tokenizer = tokenizer_from_directory(path, vocab) if path.is_dir() else tokenizer_from_gguf(path)
    tokenizer.begin()
    return tokenizer
