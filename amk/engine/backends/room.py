"""Whether a text fits a model and its cache; apart, because asking needs nothing of schedules."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from amk.report.diagnostic import AmkError, Diagnostic, because

Token = int | bytes
"""A token of the vocabulary, or an embedding in its place: the bytes of f32 [hidden size]."""


class OfOneText(int):
    """A token that equals no other, not even of the same number.

    Behind it a cache shares nothing with other texts: none is given rows of it that somebody else than amk computed.
    """

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    __hash__ = int.__hash__


def check_room(prompt: Sequence[Token], vocab: int, context: int, hidden: int | None = None, before: int = 0) -> None:
    """AMK014 for a text without tokens, with one that is not in the vocabulary, or longer than the context.

    hidden: length of an embedding; None where there may be none. AMK015 for one that is not so. before: tokens at
    the beginning that were looked at earlier.
    """
    new = prompt[before:] if before else prompt
    if any(isinstance(token, bytes) and len(token) != 4 * (hidden or 0) for token in new):
        message = "the prompt has embeddings, which models take that are loaded with states=True or for the cpu"
        message = message if hidden is None else f"the embeddings of the prompt do not have {hidden:,} numbers each"
        raise AmkError(Diagnostic("AMK015", message))
    wrong = next((token for token in new if isinstance(token, int) and not 0 <= token < vocab), None)
    if not prompt:
        raise AmkError(Diagnostic("AMK014", "the prompt has no tokens"))
    if wrong is not None:
        raise AmkError(Diagnostic("AMK014", f"token {wrong} of the prompt is outside the vocabulary of {vocab:,}"))
    if len(prompt) > context:
        raise AmkError(
            Diagnostic(
                "AMK014",
                f"the prompt has {len(prompt):,} tokens, the KV cache holds {context:,} positions",
                facts=(because("every token of the prompt takes one position of the KV cache"),),
                help="ask for a larger --max-context, or shorten the prompt",
            )
        )


def token_numbers(tokens: Sequence[Token]) -> list[int]:
    """Tokens of a text without embeddings, each as it is."""
    return [token if isinstance(token, int) else int(token) for token in tokens]


def tokens_of(prompt: Any) -> list[int]:
    """Numbers of tokens, whatever kind of whole numbers they are. AMK014 for anything else."""
    try:
        parts = [*prompt]
        if isinstance(prompt, bytes) or any(isinstance(part, bool) for part in parts):
            raise TypeError(f"{str(prompt)[:80]} has no numbers of tokens")
        return [part if isinstance(part, OfOneText) else operator.index(part) for part in parts]
    except TypeError as error:
        message = f"the prompt is neither a text, tokens, nor messages with role and content: {error}"
        raise AmkError(Diagnostic("AMK014", message)) from error
