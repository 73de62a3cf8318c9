"""Answers that follow a JSON schema, an expression or a grammar: masks of allowed tokens from `llguidance`, its only
importer; the extra `amk[grammar]` has it.

Cost: the vocabulary is read once, about a second; a mask takes 0.1 to 1 ms a token.
"""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from amk.engine.tokenizers.tokenizer import Tokenizer
from amk.models.model_spec import ModelSpec
from amk.report.diagnostic import AmkError, Diagnostic

Syntax = Literal["json", "regex", "lark"]


class Grammars:
    """Makes masks for one model's tokens. Thread safe."""

    def __init__(self, tokenizer: Tokenizer, spec: ModelSpec) -> None:
        self._tokenizer, self.spec = tokenizer, spec
        self._once = threading.Lock()
        self._llg_tokenizer: Any = None

    def mask(self, syntax: Syntax, text: str | Mapping[str, Any]) -> GrammarMask:
        """What restricts one answer. syntax: of `text`, which is a JSON schema, a regular expression or a Lark grammar.

        AMK015 for one that cannot be used, AMK019 where llguidance is not installed.
        """
        if not self.spec.eos:
            raise AmkError(Diagnostic("AMK015", "a grammar needs a model with a token that ends an answer"))
        vocabulary = self._vocabulary()
        from llguidance import LLMatcher

        make = {
            "json": LLMatcher.grammar_from_json_schema,
            "regex": LLMatcher.grammar_from_regex,
            "lark": LLMatcher.grammar_from_lark,
        }[syntax]
        try:
            grammar = make(json.dumps(text) if isinstance(text, Mapping) else text)
            matcher = LLMatcher(vocabulary, grammar, log_level=0)
        except ValueError as error:
            raise _refused(str(error)) from error
        if matcher.is_error():
            raise _refused(matcher.get_error())
        return GrammarMask(matcher, self.spec.vocab)

    def _vocabulary(self) -> Any:
        """The tokens as llguidance has them."""
        if importlib.util.find_spec("llguidance") is None:
            message = "JSON schemas and grammars need llguidance, which is not installed"
            raise AmkError(Diagnostic("AMK019", message, help="pip install 'amk[grammar]'"))
        from llguidance import LLTokenizer

        with self._once:
            if self._llg_tokenizer is None:
                self._tokenizer.encode("")  # what the process with limits does not stand is refused there
                text, eos = self._tokenizer.text, list(self.spec.eos) or None
                try:
                    self._llg_tokenizer = LLTokenizer(text, n_vocab=self.spec.vocab, eos_token=eos)
                except ValueError as error:
                    raise _refused(f"its tokenizer is of no kind that llguidance knows: {error}") from error
            return self._llg_tokenizer


class GrammarMask:
    """Of one answer: tokens that may follow those which it has. It is asked after every token, in order."""

    def __init__(self, matcher: Any, vocab: int) -> None:
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

        self._matcher, self._vocab, self._length = matcher, vocab, 0
        self._bits, self._fill = allocate_token_bitmask(1, vocab), fill_next_token_bitmask

    def __call__(self, answer: Sequence[int]) -> NDArray[np.bool_]:
        for token in answer[self._length :]:
            self._matcher.consume_token(token)
        self._length = len(answer)
        if not self._matcher.is_error():
            self._fill(self._matcher, self._bits)
        if self._matcher.is_error():
            raise _refused(self._matcher.get_error())
        return np.unpackbits(self._bits.view(np.uint8)[0], bitorder="little")[: self._vocab].astype(bool)


def _refused(reason: str) -> AmkError:
    first = reason.strip().splitlines()
    return AmkError(Diagnostic("AMK015", f"the grammar cannot be used: {first[0][:300] if first else 'no reason'}"))
