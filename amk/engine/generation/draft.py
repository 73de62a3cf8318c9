"""Guesses of a second model of the same tokens, which is smaller: a draft model.

It continues the text as the request chooses tokens. A drawn token has its noise from seed and position, the same in
both models, so where they agree on the probabilities they agree on the draw.
"""

from __future__ import annotations

from collections.abc import Sequence

from amk.engine.backends.backend import Backend
from amk.engine.backends.room import Token
from amk.engine.refusal import unsupported
from amk.engine.tokenizers.tokenizer import Tokenizer
from amk.schedule_ir.sampling import Sampling


class Draft:
    """vocab: tokens that both models know. A text with others, or longer than the draft's context, gets no guesses."""

    def __init__(self, backend: Backend, vocab: int) -> None:
        self.backend, self._vocab = backend, vocab

    def guess(self, tokens: Sequence[Token], count: int, sampling: Sampling) -> list[int]:
        """`count` tokens, fewer at the end of its context."""
        if not all(self._knows(token) for token in tokens):
            return []
        count, found = min(count, self.backend.context - len(tokens) + 1), list[int]()
        while len(found) < count:
            more = self.backend.extend([*tokens, *found], count - len(found), sampling, ())
            found += more
            if not self._knows(found[-1]):
                break
        end = next((n for n, token in enumerate(found) if not self._knows(token)), len(found))
        return found[:end]

    def _knows(self, token: Token) -> bool:
        return isinstance(token, int) and token < self._vocab


def check_same_tokens(model: Tokenizer, draft: Tokenizer) -> None:
    """AMK012 unless both have the same tokens: what one guesses would be another text for the other."""
    ours, theirs = (each.backend.get_vocab(with_added_tokens=True) for each in (model, draft))
    if ours == theirs:
        return
    text = min(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
    facts = [
        f"{text!r} is {_numbered(each.get(text))} {where}"
        for each, where in ((ours, "of the model"), (theirs, "of the draft"))
    ]
    raise unsupported(draft.path, f"the tokenizer of the draft is not that of {model.path}", *facts)


def _numbered(token: int | None) -> str:
    return "no token" if token is None else f"token {token:,}"
