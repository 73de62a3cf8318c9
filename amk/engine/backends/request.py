"""What the host writes to start the texts of a batch: given tokens, how tokens are chosen, launch state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amk.lowering import refusal
from amk.report.diagnostic import AmkError, Diagnostic, because
from amk.schedule_ir.ops.begin import done_registers, pos_register, token_register
from amk.schedule_ir.ops.select import REQUEST, request_words
from amk.schedule_ir.sampling import GREEDY, Mode, Sampling, require
from amk.schedule_ir.schedule import Schedule, mode_of
from amk.schedule_ir.tree import tree_words

MOST_EOS = len(REQUEST) - 1
"""End-of-text tokens that the kernel knows."""


class TextEngine(ABC):
    """What runs a schedule, how its texts are started, and how far they may go: every launch is announced."""

    schedule: Schedule
    _reached: int = 0
    """Position of the next token, of the sequence that is farthest."""

    def request(
        self,
        prompt: list[int],
        eos: tuple[int, ...] = (),
        sampling: Sampling = GREEDY,
        start: int = 0,
        prompt_length: int | None = None,
        parents: Sequence[int] = (),
    ) -> None:
        """Start a text at token `start` of the prompt; the cache holds those before it. The rest is fed token by token,
        then tokens are chosen.

        prompt_length, parents: see `request_buffers`. AMK015 if the schedule cannot choose tokens as `sampling` says.
        """
        self.request_batch([prompt], eos, sampling, start, prompt_length, parents)

    def request_batch(
        self,
        prompts: Sequence[Sequence[int]],
        eos: tuple[int, ...] = (),
        sampling: Sampling | Sequence[Sampling] = GREEDY,
        start: int | Sequence[int] = 0,
        prompt_length: int | None = None,
        parents: Sequence[int] = (),
    ) -> None:
        """As `request`, for one prompt per sequence of the batch; AMK016 if they are not as many.

        sampling: of all, or of each its own. start: of each its own, for sequences that are live.
        """
        starts = [start] * len(prompts) if isinstance(start, int) else start
        buffers = request_buffers(self.schedule, prompts, eos, prompt_length, parents, starts)
        buffers |= sampling_buffer(self.schedule, sampling, self._mode)
        state = first_state(prompts, starts_of(self.schedule, start))
        self._begin(buffers, state, [len(prompt) for prompt in prompts])
        self.stands_at(state)

    @cached_property
    def _mode(self) -> Mode:
        """How the schedule chooses tokens."""
        return mode_of(self.schedule)

    def stands_at(self, state: Mapping[str, int]) -> None:
        """Words of the launch state that were written, all positions among them."""
        sequences = self.schedule.batch if self.schedule.live else 1
        self._reached = max(state[pos_register(s)] for s in range(sequences))

    def _launches(self, tokens: int) -> None:
        """Announce a launch of so many steps. AMK014 if one of them would read or write behind the context: no kernel
        looks, but for slices of layers, which are given a position that they bound. AMK901 for more than
        `launch.max_tokens`, for which the schedule is proved and `output` has room."""
        end, context = self._reached + tokens * self.schedule.rows, self.schedule.kv.context
        if self.schedule.model.slice is None and end > context:
            message = f"a launch of {tokens:,} steps from position {self._reached:,} ends at {end:,}"
            fact = because(f"the KV cache holds {context:,} positions, and a step writes without looking")
            raise AmkError(Diagnostic("AMK014", message, facts=(fact,)))
        if tokens > self.schedule.launch.max_tokens:
            raise refusal.internal(f"a launch of {tokens} tokens, at most {self.schedule.launch.max_tokens} are proved")
        self._reached = end

    @abstractmethod
    def _begin(
        self, buffers: Mapping[str, NDArray[np.int32]], state: Mapping[str, int], lengths: Sequence[int]
    ) -> None:
        """Write the buffers and these words of the launch state. lengths: of the prompts, behind which are zeros."""


def slice_buffers(schedule: Schedule, hidden: NDArray[np.float32], position: int) -> dict[str, NDArray[Any]]:
    """What a slice of a model is given for a token."""
    found: dict[str, NDArray[Any]] = {"hidden_in": np.asarray(hidden, np.float32)}
    return found | ({"position": np.array([position], np.int32)} if schedule.model.layers else {})


def slice_result(schedule: Schedule) -> tuple[str, int]:
    """The buffer that a slice leaves its result in, f32, and how many numbers that is."""
    model = schedule.model
    return ("logits", model.vocab) if model.has_head else ("hidden_out", model.hidden)


def first_buffers(schedule: Schedule) -> dict[str, NDArray[np.int32]]:
    """What a launch is told until a text is requested: to take the largest logits, of rows that follow each other."""
    tree = {"tree": tree_words((), schedule.rows)} if schedule.tree else {}
    return sampling_buffer(schedule, GREEDY) | tree


def sampling_buffer(
    schedule: Schedule, sampling: Sampling | Sequence[Sampling], mode: Mode | None = None
) -> dict[str, NDArray[np.int32]]:
    """Content of `sampling`, where the schedule has it; AMK015 if it cannot choose tokens so. mode: how the schedule
    chooses tokens, where that is known."""
    each = [sampling] * schedule.batch if isinstance(sampling, Sampling) else list(sampling)
    mode = mode or mode_of(schedule)
    for wanted in each:
        require(mode, wanted)
    return {} if mode == "greedy" else {"sampling": np.concatenate([wanted.words() for wanted in each])}


def request_buffers(
    schedule: Schedule,
    prompts: Sequence[Sequence[int]],
    eos: Sequence[int],
    prompt_length: int | None = None,
    parents: Sequence[int] = (),
    starts: Sequence[int] = (),
) -> dict[str, NDArray[np.int32]]:
    """Content of `request` and `prompt`, and of `tree` where rows are one: a prompt per sequence, of any lengths that
    the context holds.

    prompt_length: tokens of the first prompt behind which the model chooses, for a step whose rows are read from the
    prompt and may be wrong; default: all. parents: of the rows behind a step's first, see `tree_words`; a chain without
    them. starts: where each text begins; no step reads a token before.
    AMK016 unless there are as many prompts as sequences.
    """
    if len(prompts) != schedule.batch:
        message = f"the schedule decodes {schedule.batch} sequence(s) together, {len(prompts)} were given"
        raise AmkError(Diagnostic("AMK016", message))
    words = np.full(request_words(schedule.batch), -1, np.int32)
    words[0] = len(prompts[0]) if prompt_length is None else prompt_length
    words[1 : 1 + len(eos[:MOST_EOS])] = eos[:MOST_EOS]
    words[len(REQUEST) :] = [len(prompt) for prompt in prompts[1:]]
    padded = np.zeros((schedule.batch, schedule.kv.context), np.int32)
    for row, prompt, start in zip(padded, prompts, starts or [0] * len(prompts), strict=True):
        row[start : len(prompt)] = prompt[start:]
    found = {"request": words, "prompt": padded.reshape(-1)}
    return found | {"tree": tree_words(parents, schedule.rows)} if schedule.tree else found


def first_state(prompts: Sequence[Sequence[int]], start: int | Sequence[int] = 0) -> dict[str, int]:
    """Words of the launch state before token `start` of every prompt is read; the cache holds those before it.

    start: of each prompt its own, for sequences that are live.
    """
    ended = dict.fromkeys(done_registers(len(prompts)), 0)
    if isinstance(start, int):
        return {token_register(s): prompt[start] for s, prompt in enumerate(prompts)} | {"pos": start} | ended
    found = {token_register(s): prompt[at] for s, (prompt, at) in enumerate(zip(prompts, start, strict=True))}
    return found | {pos_register(s): at for s, at in enumerate(start)} | ended


def starts_of(schedule: Schedule, start: int | Sequence[int]) -> int | Sequence[int]:
    """`start` of `first_state`: where all sequences begin, of live ones each by itself."""
    return [start] * schedule.batch if schedule.live and isinstance(start, int) else start


def tokens_of(schedule: Schedule, output: NDArray[np.int32]) -> NDArray[np.int32]:
    """Words of the output buffer as [tokens], or [tokens, vectors] where a step reads several tokens."""
    return output if schedule.vectors == 1 else output.reshape(-1, schedule.vectors)
