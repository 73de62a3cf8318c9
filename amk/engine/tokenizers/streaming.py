"""Text of a growing sequence of tokens, emitted as soon as it cannot change any more.

A character may be spread over several byte-level tokens, and an unfinished one decodes to U+FFFD; so a trailing run of
U+FFFD is held back until what follows decides it. The decoder is given a window that begins at a token before the
unfinished text, because decoders strip a leading space; of an answer that continues a text, at that text's last token.
"""

from collections.abc import Callable, Sequence

_WINDOW = 64  # tokens; a model that emits only broken bytes is shown them, so that the window stays short


class StreamDecoder:
    """Feed tokens to `push` and print what it returns, then print `finish()`; the parts join to the whole text.

    before: tokens that the others continue, whose text is whole characters and not part of what is returned.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], before: Sequence[int] = ()) -> None:
        self._decode = decode
        self._window = list(before)
        self._fresh = len(before)  # index in the window of the first token whose text is not wholly emitted
        self._emitted = len(decode(before)) if before else 0  # characters of the window's text that are emitted

    def push(self, token: int) -> str:
        """The text that `token` completes, possibly empty."""
        self._window.append(token)
        text = self._decode(self._window)
        held = len(self._window) - self._fresh
        stable = text if held > _WINDOW else text.rstrip("\N{REPLACEMENT CHARACTER}")
        part = stable[self._emitted :]
        self._emitted = max(self._emitted, len(stable))
        if len(stable) == len(text) and part:
            self._window = self._window[self._fresh :]
            self._fresh = len(self._window)
            self._emitted = len(self._decode(self._window))
        return part

    def finish(self) -> str:
        """What was held back; an unfinished character shows as U+FFFD."""
        part = self._decode(self._window)[self._emitted :]
        self._window, self._fresh, self._emitted = [], 0, 0
        return part
