"""A model for EleutherAI's lm-evaluation-harness: `lm_eval.simple_evaluate(model=amk.lm_eval.Model(...), tasks=[...])`.

Needs lm_eval (`amk[eval]`), which is imported with this module, and so by nothing else of amk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from amk.api.loading import load
from amk.engine.generation.language_model import LanguageModel
from amk.report.diagnostic import AmkError, Diagnostic

ANSWER = 256
"""Tokens of an answer whose task does not say how many."""
DRAWING = ("temperature", "top_k", "top_p", "seed")
"""What a task may say about sampling, in lm_eval's words and in amk's."""


class Model(TemplateLM):  # type: ignore[misc]
    """Answers lm_eval's three kinds of requests.

    source: what `amk.load` returned, or what it takes, with its `options`. max_length: tokens of a window that is read
    at once; default: the model's context. Requests of tasks with the same text before their continuations are scored
    together, and texts that begin alike follow each other, so that what they share is computed once.
    """

    def __init__(self, source: LanguageModel | str | Path, *, max_length: int | None = None, **options: Any) -> None:
        super().__init__()
        self.model = source if isinstance(source, LanguageModel) else load(source, **options)
        self.max_length = min(max_length or self.model.context, self.model.context)

    @property
    def eot_token_id(self) -> int:
        """The first token that ends a text. AMK012 for a model that has none."""
        if not self.model.spec.eos:
            raise AmkError(Diagnostic("AMK012", f"{self.model.spec.name} has no end-of-text token"))
        return self.model.spec.eos[0]

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text that nothing stands before: the BOS token, or else an end-of-text token."""
        bos = self.model.spec.bos
        return self.eot_token_id if bos is None else bos

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Tokens; with the BOS token where the model wants one and the text does not begin with it."""
        tokenizer = self.model.tokenizer
        plain = tokenizer.process.encode(string, special=False)
        if add_special_tokens is False or (add_special_tokens is None and plain[:1] == [self.prefix_token_id]):
            return plain
        return tokenizer.encode(string)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Natural logarithms of the probabilities of whole texts, in windows that overlap by one token."""
        return [self._of_text(*request.args) for request in requests]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers, each up to one of its stop strings. AMK015 for an option of `generate` that amk does not have."""
        read = [self.tok_encode(request.args[0]) for request in requests]
        texts: dict[int, str] = {}
        for index in sorted(range(len(read)), key=read.__getitem__):
            options = _options(requests[index].args[1])
            room = self.max_length - options["max_tokens"]
            if room < 1:
                message = (
                    f"an answer of {options['max_tokens']:,} tokens leaves no room in {self.max_length:,} positions"
                )
                raise AmkError(Diagnostic("AMK014", message))
            texts[index] = self.model.generate(read[index][-room:], **options).text
            self.cache_hook.add_partial("generate_until", requests[index].args, texts[index])
        return [texts[index] for index in range(len(read))]

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        more = {"add_generation_prompt": add_generation_prompt}
        return self.model.tokenizer.chat_text(chat_history, more=more)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return self.model.tokenizer.chat_template if chat_template else None

    @property
    def tokenizer_name(self) -> str:
        return self.model.path.name

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        """(natural logarithm of the probability, is every token the most probable one) of each continuation."""
        scores: dict[int, tuple[float, bool]] = {}
        for text, indices in self._by_text(requests):
            for index, score in zip(indices, self.model.score(text, [requests[at][2] for at in indices]), strict=True):
                scores[index] = score.logprob, score.greedy
                if requests[index][0] is not None:
                    self.cache_hook.add_partial("loglikelihood", requests[index][0], scores[index])
        return [scores[index] for index in range(len(requests))]

    def _by_text(self, requests: Sequence[tuple[Any, list[int], list[int]]]) -> Iterator[tuple[list[int], list[int]]]:
        """Texts and the requests that continue them, in the order of their tokens.

        A text loses its begin where it and the continuation do not fit; the last token of a continuation is not read.
        """
        groups: dict[tuple[int, ...], list[int]] = {}
        for index, (_, text, continuation) in enumerate(requests):
            room = max(self.max_length + 1 - len(continuation), 1)
            groups.setdefault(tuple(text[-room:]), []).append(index)
        yield from ((list(begin), groups[begin]) for begin in sorted(groups))

    def _of_text(self, text: str) -> float:
        windows = get_rolling_token_windows(
            token_list=self.tok_encode(text),
            prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length,
            context_len=1,
        )
        pairs = [(None, *make_disjoint_window(window)) for window in windows]
        logprob_of_text = sum(logprob for logprob, _ in self._loglikelihood_tokens(pairs))
        self.cache_hook.add_partial("loglikelihood_rolling", (text,), logprob_of_text)
        return logprob_of_text


def _options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """lm_eval's options of an answer as those of `LanguageModel.generate`; AMK015 for one that it does not have."""
    asked = dict(normalize_gen_kwargs(dict(arguments), ANSWER))
    options = {"max_tokens": asked.pop("max_gen_toks"), "stop": [stop for stop in asked.pop("until") if stop]}
    drawn = bool(asked.pop("do_sample"))
    drawing = {name: asked.pop(name) for name in DRAWING if name in asked}
    if asked:
        raise AmkError(Diagnostic("AMK015", f"answers of a task with {', '.join(asked)} cannot be made"))
    return options | (drawing if drawn else {})
