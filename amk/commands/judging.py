"""From `--model`, `--text` and `--quantiser` on a command line to a judge of weight formats."""

from __future__ import annotations

from pathlib import Path

from amk.engine.checkpoints.locate import find_checkpoint
from amk.engine.checkpoints.open_checkpoint import open_checkpoint
from amk.engine.tokenizers.open_tokenizer import open_tokenizer
from amk.quantize.error import TextJudge
from amk.quantize.search import searched
from amk.report.diagnostic import AmkError, Diagnostic, Where
from amk.weights.quantised import Quantiser, nearest

QUANTISERS: dict[str, Quantiser] = {"nearest": nearest, "search": searched}
TOKENS = 192
"""Tokens of a text that are read unless told otherwise."""


def judge_of(model: str, text: str, quantiser: str = "search", tokens: int = TOKENS) -> TextJudge:
    """Compares the checkpoint's formats over the text; AMK001 if it cannot be read, AMK014 if it is too short."""
    path = find_checkpoint(model)
    checkpoint = open_checkpoint(path)
    try:
        content = Path(text).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise AmkError(Diagnostic("AMK001", f"cannot read: {error}", where=Where(file=text))) from error
    read = open_tokenizer(path, checkpoint.spec.vocab).encode(content)[:tokens]
    if len(read) < 2:
        raise AmkError(Diagnostic("AMK014", "the text has fewer than two tokens", where=Where(file=text)))
    return TextJudge.of(checkpoint.spec, checkpoint, read, QUANTISERS[quantiser])
