"""Several tokens from one pass of the model: the first that it reads is known, the others are guesses that it verifies.

A guess is accepted if it is the token that is chosen there, and the guesses behind a wrong one are dropped, so the text
is that of one token at a time. This holds for drawn tokens, too: with its noise from a counter-based generator a draw
is a function of logits, seed and position. Bias, mask and logprobs are functions of logits and of the tokens before.
Keys and values of dropped guesses are overwritten by what comes there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Literal, NamedTuple, Protocol, get_args, runtime_checkable

from amk.engine.backends.backend import Backend
from amk.engine.backends.room import Token
from amk.engine.generation.completion import TokenLogprob
from amk.engine.generation.draft import Draft
from amk.engine.generation.lookup import Lookup
from amk.engine.generation.prefix_tree import ROOT, PrefixTree
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.sampling import GREEDY, Sampling

Method = Literal["lookup", "draft"]
"""Where guesses come from: the text itself (`lookup`), a smaller model (`draft`)."""
GUESSES = 7
"""Of a pass unless told otherwise."""

Chosen = tuple[int, TokenLogprob | None]
"""A token, and its logprob if asked for."""


@runtime_checkable
class Verifier(Backend, Protocol):
    """A backend that reads several tokens at once. rows: how many a pass reads whether they are asked for or not; None
    where it takes the longer the more it reads. trees: whether it reads several continuations of a text at once."""

    @property
    def rows(self) -> int | None: ...

    @property
    def trees(self) -> bool: ...

    def choices(self, tokens: Sequence[Token], first: int, sampling: Sampling) -> Iterator[int]:
        """The tokens that are chosen behind token `first` and behind each that follows it."""


@runtime_checkable
class Accepting(Verifier, Protocol):
    """A backend of which a launch has several steps, and may accept guesses between them by itself.

    steps: of a launch."""

    steps: int

    def accepts(self, sampling: Sampling) -> bool:
        """Whether it does where tokens are chosen so."""

    def accepted(
        self, tokens: Sequence[Token], prefix: int, most: int, sampling: Sampling, eos: Sequence[int]
    ) -> list[list[int]]:
        """What each step of a launch adds behind the first `prefix` tokens; the others are guesses."""


class Drafter(Protocol):
    """Guesses what comes next in one text."""

    def guess(self, tokens: Sequence[Token], count: int, sampling: Sampling) -> list[int]:
        """At most `count` tokens that may follow `tokens`, where they are chosen so."""


@runtime_checkable
class Branching(Drafter, Protocol):
    """A drafter that has several guesses of the next token."""

    def ways(self, tokens: Sequence[Token], count: int, most: int) -> list[list[int]]:
        """At most `most` continuations of `count` tokens, whose first tokens differ; the likeliest first."""


class Launched(NamedTuple):
    """Tokens that a launch added, the guesses that it verified, and how many of them were right."""

    tokens: list[int]
    drafted: int
    accepted: int


class Guesses(NamedTuple):
    """A text that is known, and what may follow it."""

    context: Sequence[Token]
    tokens: list[int]

    @property
    def text(self) -> list[Token]:
        return [*self.context, *self.tokens]


class Speculation:
    """Of one text. Where a pass takes the longer the more it reads, one guess more is made than was accepted the last
    time, `most` at most. branches: ways in which a pass may go on. The cache keeps the first way; what was accepted of
    another one is read again, in the place of guesses."""

    def __init__(self, backend: Verifier, drafter: Drafter, most: int, branches: int = 1) -> None:
        self._backend, self._drafter, self._branches = backend, drafter, branches
        self._accepting = backend if isinstance(backend, Accepting) else None
        self._most = self._next = most if backend.rows is None else min(most, backend.rows - 1)
        self._again = 0

    def guessed(self, tokens: Sequence[Token], most: int, sampling: Sampling) -> Guesses:
        """The text for a pass that gives at most `most` tokens."""
        room = min(most - 1, self._backend.context - len(tokens), self._next)
        found = self._drafter.guess(tokens, room, sampling) if room > 0 else []
        return Guesses(tokens, found)

    def tree(self, tokens: Sequence[Token], most: int) -> PrefixTree | None:
        """Guesses in several ways for a pass that gives at most `most` tokens, an eighth of them in each way but the
        first; None where there is one way."""
        if self._branches == 1 or not isinstance(self._drafter, Branching):
            return None
        depth = min(most - 1, self._backend.context - len(tokens), self._next)
        ways = self._drafter.ways(tokens, depth, self._branches) if depth > 0 else []
        rows = self._most if self._backend.rows is None else self._backend.rows - 1
        nodes = min(self._most, rows - self._again, depth * len(ways))
        others = len(ways) - 1
        share = min(max(nodes // 8, 1), max(nodes - 1, 0) // max(others, 1))
        first = nodes - share * others
        return PrefixTree(way[: share if number else first] for number, way in enumerate(ways))

    def followed(
        self, tree: PrefixTree, choose: Callable[[int, list[int]], Chosen], eos: Sequence[int]
    ) -> list[Chosen]:
        """What is chosen behind the text, and behind each node of the tree that was. choose: behind a node, when these
        tokens were."""
        found: list[Chosen] = []
        node: int | None = ROOT
        self._again = 0
        while node is not None:
            found.append(choose(node, [token for token, _ in found]))
            node = None if found[-1][0] in eos else tree.behind(node, found[-1][0])
            self._again += node is not None and node != len(found) - 1
        if tree.tokens and self._backend.rows is None:
            self._next = min(len(found), self._most)
        return found

    def accepted(self, guesses: Guesses, chosen: Iterable[Chosen], eos: Sequence[int]) -> list[Chosen]:
        """Of what is chosen behind the known text and behind each guess: all up to the first that was not guessed or
        ends the text. The last one is the model's own, those before it are accepted guesses."""
        found: list[Chosen] = []
        for each, guess in zip(chosen, [*guesses.tokens, None], strict=True):
            found.append(each)
            if each[0] != guess or each[0] in eos:
                break
        if guesses.tokens and self._backend.rows is None:
            self._next = min(len(found), self._most)
        return found

    def launched(self, tokens: Sequence[Token], most: int, sampling: Sampling, eos: Sequence[int]) -> Launched | None:
        """A launch of several steps that adds at most `most` tokens; None where the backend leaves it to the host to
        accept guesses.

        The guesses are made at once, and stay at their places: behind a wrong one, the next step tries those that
        follow it.
        """
        backend = self._accepting
        if backend is None or not backend.accepts(sampling):
            return None
        assert backend.rows is not None
        known = len(tokens)
        room = min(most - 1, backend.context - known, backend.steps * backend.rows - 1)
        found = self._drafter.guess(tokens, room, sampling) if room > 0 else []
        added, at, drafted = list[int](), known, 0
        steps = backend.accepted([*tokens, *found], known, most, sampling, eos)
        for step in steps:
            drafted += max(min(at + backend.rows - 1, known + len(found)) - at, len(step) - 1)
            added, at = added + step, at + len(step)
        return Launched(added, drafted, len(added) - len(steps))


class Speculating:
    """How texts of a backend are guessed. draft: the model that `drafter` asks, which is freed with the other one."""

    def __init__(
        self,
        backend: Verifier,
        drafter: Callable[[], Drafter],
        most: int,
        draft: Backend | None = None,
        branches: int = 1,
    ) -> None:
        self._backend, self._drafter, self._most, self._draft = backend, drafter, most, draft
        self._branches = branches

    def text(self) -> Speculation:
        """For a text that begins."""
        return Speculation(self._backend, self._drafter(), self._most, self._branches)

    def free(self) -> None:
        if self._draft is not None:
            self._draft.free()


def speculating(
    backend: object, method: Method, most: int, draft: Draft | None = None, steps: int = 1, branches: int = 1
) -> Speculating:
    """What is asked for. AMK005 for a method that is not known, one without its model, or no guesses; AMK016 where the
    backend cannot verify any, or not in several steps of a launch, or not several ways at once."""
    if method not in get_args(Method) or most < 1:
        message = f"speculate={method!r} with {most} draft tokens is not known"
        help_text = "speculate='lookup' or 'draft', with 1 draft token or more"
        raise AmkError(Diagnostic("AMK005", message, help=help_text))
    if (method == "draft") != (draft is not None):
        message = "speculate='draft' and a draft model belong together"
        raise AmkError(Diagnostic("AMK005", message, help="name the model: draft='DIR or name', --draft"))
    if steps < 1 or (steps > 1 and draft is not None):
        message = f"{steps} steps of guesses a launch are not known" + (
            " of a draft model" if draft is not None else ""
        )
        raise AmkError(Diagnostic("AMK005", message, help="draft_steps=1, or more with speculate='lookup'"))
    if branches < 1 or (branches > 1 and (draft is not None or steps > 1)):
        message = f"guesses in {branches} ways are not known"
        message += " of a draft model, or of several steps" * (branches > 1)
        raise AmkError(Diagnostic("AMK005", message, help="draft_branches=1, or more with speculate='lookup'"))
    if steps > 1 and not (isinstance(backend, Accepting) and backend.accepts(GREEDY)):
        message = "a launch does not go on behind guesses by itself"
        raise AmkError(Diagnostic("AMK016", message, help="plan with --rows and --accepts, for the device cuda"))
    if not isinstance(backend, Verifier):
        message = "a step of the schedule reads one token of a text, so it cannot verify guesses"
        raise AmkError(Diagnostic("AMK016", message, help="plan with --rows, without a batch"))
    if branches > 1 and not backend.trees:
        message = "a step of the schedule reads one continuation of a text"
        raise AmkError(Diagnostic("AMK016", message, help="plan with --rows and --tree"))
    if draft is not None:
        return Speculating(backend, lambda: draft, most, draft.backend)
    drafter = partial(Lookup, shortest=2 if backend.rows is None and branches == 1 else 1)
    return Speculating(backend, drafter, most, branches=branches)
