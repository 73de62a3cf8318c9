"""Whether a text fits a model and its cache; apart, because asking needs nothing of schedules."""

from __future__ import annotations

from collections.abc import Sequence

from amk.report.diagnostic import AmkError, Diagnostic, because


def check_room(prompt: Sequence[int], vocab: int, context: int) -> None:
    """AMK014 for a text without tokens, with one that is not in the vocabulary, or longer than the context."""
    wrong = next((token for token in prompt if not 0 <= token < vocab), None)
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
