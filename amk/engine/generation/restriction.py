"""From what an answer shall be to the mask of tokens that keeps it so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from amk.engine.generation.completion import Mask, Options, booleans
from amk.engine.generation.grammar import Grammars
from amk.engine.generation.prefix_tree import PrefixTree, TreeMask
from amk.report.diagnostic import AmkError, Diagnostic


def restricted(options: Options, grammars: Grammars, tokens_of: Callable[[str], list[int]]) -> Options:
    """The options with a mask in the place of their schema, expression, grammar or choices, beside the mask they have.

    tokens_of: a text's tokens, without special ones. AMK015 for what cannot be used.
    """
    vocab = grammars.spec.vocab
    if (unknown := next((token for token in options.logit_bias if not 0 <= token < vocab), None)) is not None:
        raise AmkError(Diagnostic("AMK015", f"logit_bias is for token {unknown}, the vocabulary has {vocab:,}"))
    own = _mask(options, grammars, tokens_of)
    if own is None:
        return options
    mask = own if options.mask is None else _both(own, options.mask)
    return replace(options, mask=mask, json_schema=None, regex=None, grammar=None, choices=())


def _mask(options: Options, grammars: Grammars, tokens_of: Callable[[str], list[int]]) -> Mask | None:
    if options.json_schema is not None:
        return grammars.mask("json", options.json_schema)
    if options.regex is not None:
        return grammars.mask("regex", options.regex)
    if options.grammar is not None:
        return grammars.mask("lark", options.grammar)
    if options.choices:
        return _choice(options.choices, grammars, tokens_of)
    return None


def _choice(choices: Sequence[str], grammars: Grammars, tokens_of: Callable[[str], list[int]]) -> TreeMask:
    if not grammars.spec.eos:
        raise AmkError(Diagnostic("AMK015", "choices need a model with a token that ends an answer"))
    sequences = [tokens_of(choice) for choice in choices]
    if not all(sequences):
        raise AmkError(Diagnostic("AMK015", "one of the choices has no tokens"))
    return TreeMask(PrefixTree(sequences), grammars.spec.vocab, grammars.spec.eos)


def _both(left: Mask, right: Mask) -> Mask:
    def mask(answer: Sequence[int]) -> NDArray[np.bool_] | None:
        one, other = left(answer), right(answer)
        return other if one is None else one if other is None else one & booleans(other)

    return mask
