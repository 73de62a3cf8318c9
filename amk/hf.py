"""Decoding for transformers: `model.generate(**inputs, custom_generate=amk.hf.decode(...))`.

transformers prepares the request as it always does and reads the prompt into amk's cache; amk computes every token
behind it, with its own copy of the weights. Needs torch and transformers, which are imported by whoever calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from amk.api.loading import load
from amk.engine.backends.room import OfOneText, check_room
from amk.engine.generation.language_model import LanguageModel
from amk.report.diagnostic import AmkError, Diagnostic

Prompts = Literal["transformers", "amk"]
"""What reads a prompt."""


def decode(
    source: LanguageModel | str | Path, *, prompts: Prompts = "transformers", streamer: Any = None, **options: Any
) -> Callable[..., Any]:
    """A function for `custom_generate` that decodes with amk.

    source: what `amk.load` returned, or what it takes, with its `options`. The model of transformers must have the same
        checkpoint.
    prompts: what reads them.
        'transformers': its model reads all tokens but the last of each sequence, without padding, in blocks of
        prefill_chunk_size if generation_config says so. Keys and values lie in amk's cache without a copy where both
        have one type (float32 on the device cpu, the cache's bf16 on one GPU). They are copied layer by layer where
        types or devices differ, where the cache is fp8, and where heads are rotated in part (gpt_neox). They serve this
        answer alone, because the model may have other weights than amk's.
        'amk': amk reads them, and reads nothing again that earlier texts left in the cache.
        amk also reads them on the device emulator, for models that were loaded with states=True, where no cache is
        free, and where more sequences than `LanguageModel.sequences` are decoded step by step.
    streamer: one of transformers'. `generate` hands its own to no function.

    Greedy decoding and sampling, logits processors, stopping criteria, left padding and several sequences work as in
    transformers. Sequences share one cache. Greedy ones without processors are decoded one after the other; others read
    their texts again at every step. The function returns what `generate` returns: tokens i64 [sequences, length], or
    with return_dict_in_generate an object with `sequences`.

    It raises AMK005 for unknown `prompts`, AMK012 for another model, and AMK014 where the cache is full before
    transformers ends the text. It raises AMK015 for embeddings in the place of tokens, a cache that has tokens already,
    beam search, lookup or contrastive decoding, DoLa, guidance and constraints (`force_words_ids`), and for scores,
    attentions or hidden states.

    transformers hands `assistant_model` and `tokenizer` to no function: the first is ignored, and it refuses
    `stop_strings` itself. Pass stopping_criteria=[StopStringCriteria(tokenizer, texts)] for them.
    """
    if prompts not in get_args(Prompts):
        raise AmkError(Diagnostic("AMK005", f"prompts={prompts!r} is not known", help="transformers or amk"))
    model = source if isinstance(source, LanguageModel) else load(source, **options)

    def generate(
        theirs: Any, input_ids: Any, logits_processor: Any, stopping_criteria: Any, generation_config: Any, **more: Any
    ) -> Any:
        _check(model, theirs, generation_config)
        if more.get("inputs_embeds") is not None:
            raise AmkError(Diagnostic("AMK015", "decoding for transformers does not do inputs_embeds"))
        cache = more.get("cache") or more.get("past_key_values")  # the first is the newer name
        if cache is not None and cache.get_seq_length():
            raise AmkError(Diagnostic("AMK015", "decoding for transformers does not do past_key_values with tokens"))
        mask = more.get("attention_mask")
        seen = [True] * len(input_ids) if mask is None else mask.bool()
        texts = [ids[where].reshape(-1).tolist() for ids, where in zip(input_ids, seen, strict=True)]
        by = theirs if prompts == "transformers" else None
        request = _Request(model, by, logits_processor, stopping_criteria, generation_config, streamer)
        return request.answered(input_ids, texts)

    return generate


class _Request:
    """One call of `generate`. by: the model of transformers that reads prompts; None for amk."""

    def __init__(
        self, model: LanguageModel, by: Any, processors: Any, criteria: Any, config: Any, streamer: Any
    ) -> None:
        self._model, self._by, self._processors, self._criteria = model, by, processors, criteria
        self._config, self._streamer = config, streamer

    def answered(self, ids: Any, prompts: list[list[int]]) -> Any:
        """What `generate` returns. ids: i64 [sequences, length] with padding; prompts: without."""
        import torch

        if self._streamer is not None:
            self._streamer.put(ids.cpu())
        if self._processors or self._config.do_sample:
            sequences = self._chosen_there(ids, prompts)
        else:
            rows = [self._most_probable(ids[row : row + 1], prompt)[0] for row, prompt in enumerate(prompts)]
            sequences = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self._padding)
        if self._streamer is not None:
            self._streamer.end()
        if not self._config.return_dict_in_generate:
            return sequences
        from transformers.generation import GenerateDecoderOnlyOutput

        return GenerateDecoderOnlyOutput(sequences=sequences)

    def _most_probable(self, ids: Any, prompt: list[int]) -> Any:
        """One sequence with its greedy answer, [1, length]."""
        room = max(self._model.context - len(prompt) + 1, 1)
        with self._model.stream(self._read_ahead(prompt, ids.device), max_tokens=room, ignore_eos=True) as stream:
            for piece in stream:
                ids = self._longer(ids, [piece.token])
                if bool(self._criteria(ids, None).all()):
                    return ids
        raise self._full(len(prompt), room)

    def _chosen_there(self, ids: Any, texts: list[list[int]]) -> Any:
        """All sequences step by step: transformers chooses by its own rules from amk's logits."""
        import torch

        if len(texts) <= self._model.sequences:
            texts = [self._read_ahead(text, ids.device) for text in texts]
        going, length = [True] * len(texts), ids.shape[1]
        while any(going):
            longest = max(len(text) for text, on in zip(texts, going, strict=True) if on)
            more = ids.shape[1] - length
            if longest > self._model.context and more:
                raise self._full(longest - more, more)
            rows = [self._model.logits(text, last=True) if on else None for text, on in zip(texts, going, strict=True)]
            some = next(row for row in rows if row is not None)
            logits = torch.from_numpy(np.stack([some if row is None else row for row in rows])).to(ids.device)
            scores = self._processors(ids, logits)
            if self._config.do_sample:
                chosen = torch.multinomial(torch.softmax(scores, dim=-1), num_samples=1)[:, 0].tolist()
            else:
                chosen = scores.argmax(dim=-1).tolist()
            tokens = [token if on else self._padding for token, on in zip(chosen, going, strict=True)]
            ids = self._longer(ids, tokens)
            for text, token in zip(texts, tokens, strict=True):
                text.append(token)
            ended = self._criteria(ids, None).tolist()
            going = [on and not end for on, end in zip(going, ended, strict=True)]
        return ids

    def _full(self, prompt: int, more: int) -> AmkError:
        message = f"{prompt:,} tokens of the prompt and {more:,} behind it are more than the {self._model.context:,} "
        help_text = "ask for a larger max_context, or for fewer tokens"
        return AmkError(Diagnostic("AMK014", f"{message}positions of the KV cache", help=help_text))

    def _read_ahead(self, prompt: list[int], device: Any) -> list[int]:
        """The prompt, all but its last token read where transformers can."""
        if self._by is None or len(prompt) < 2:
            return prompt
        check_room(prompt, self._model.spec.vocab, self._model.context)
        from amk.prefill.by_caller import CallersPrompts

        reader = CallersPrompts(self._by, self._model.spec, self._config.prefill_chunk_size, device)
        text = [OfOneText(prompt[0]), *prompt[1:]]
        read = partial(reader.read, text[:-1])
        return text if self._model.lend(text[:-1], read) else prompt

    def _longer(self, ids: Any, tokens: list[int]) -> Any:
        import torch

        if self._streamer is not None:
            self._streamer.put(torch.tensor(tokens))
        return torch.cat([ids, torch.tensor(tokens, device=ids.device)[:, None]], dim=-1)

    @property
    def _padding(self) -> int:
        token = self._config._pad_token_tensor
        return 0 if token is None else int(token)


def _check(model: LanguageModel, theirs: Any, config: Any) -> None:
    spec, other = model.spec, theirs.config.get_text_config()
    pairs = {
        "vocab_size": (spec.vocab, other.vocab_size),
        "hidden_size": (spec.hidden, other.hidden_size),
        "num_hidden_layers": (spec.layers, other.num_hidden_layers),
    }
    for name, (ours, their) in pairs.items():
        if ours != their:
            message = f"the models differ: {name} is {ours:,} in {spec.name} and {their:,} in transformers"
            raise AmkError(Diagnostic("AMK012", message))
    asked = {
        "num_beams": (config.num_beams or 1) > 1,
        "prompt_lookup_num_tokens": config.prompt_lookup_num_tokens is not None,
        "penalty_alpha": bool(config.penalty_alpha),
        **{name: bool(getattr(config, name, None)) for name in ("force_words_ids", "constraints")},
        "dola_layers": config.dola_layers is not None,
        "guidance_scale": config.guidance_scale not in (None, 1, 1.0),
        **{name: bool(getattr(config, name)) for name in _NOT_TOLD},
    }
    for name, wanted in asked.items():
        if wanted:
            raise AmkError(Diagnostic("AMK015", f"decoding for transformers does not do {name}"))


_NOT_TOLD = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
