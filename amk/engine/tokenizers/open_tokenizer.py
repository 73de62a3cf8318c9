"""The tokenizer of a checkpoint, whatever its format."""

from pathlib import Path

from amk.engine.refusal import bad_weights
from amk.engine.tokenizers.gguf_tokenizer import tokenizer_from_gguf
from amk.engine.tokenizers.tokenizer import Tokenizer
from amk.engine.tokenizers.tokenizer_json import tokenizer_from_directory


def open_tokenizer(path: Path | str, vocab: int | None = None) -> Tokenizer:
    """The tokenizer of the checkpoint at `path`.

    Raises AMK013 when it is missing, unreadable or has ids that `vocab` embedding rows do not cover, AMK012 for a kind
    that is not supported, and AMK001 to 007 for a file that is not proper JSON.
    """
    path = Path(path)
    tokenizer = tokenizer_from_directory(path, vocab) if path.is_dir() else tokenizer_from_gguf(path)
    if vocab is not None and tokenizer.size > vocab:
        raise bad_weights(path, f"the tokenizer has token {tokenizer.size - 1:,}, the embedding has {vocab:,} rows")
    return tokenizer
