"""A tokenizer that came with weights, so is untrusted, in a process with limits and a deadline for each request.

A catastrophic expression, a normaliser that multiplies the text, or a panic of the package end that process, not this
one. Cost: one start and one load of the vocabulary, 0.3 to 1.5 s, then about 0.1 ms a request.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from amk.engine.refusal import bad_weights, unsupported
from amk.engine.tokenizers import tokenizer_child
from amk.engine.tokenizers.chat import package_directories, standard_library
from amk.report.diagnostic import AmkError, Diagnostic

SECONDS = 20.0
"""For a request, and one more for every CHARACTERS of text."""
CHARACTERS = 20_000
MEMORY_BYTES = 4 << 30
MAX_ANSWER = 256 << 20


@dataclass(frozen=True)
class Source:
    """What a tokenizer is made from: a tokenizer.json in memory, and the fields of `tokenizer_child.tokenizer_of`."""

    content: bytes
    config: Mapping[str, Any] = field(default_factory=dict)
    older: Mapping[str, Any] = field(default_factory=dict)
    vocab: int | None = None

    def read(self) -> Backend:
        """In this process, so without its normaliser, which comes with the weights and is not trusted."""
        backend: Backend = tokenizer_child.tokenizer_of(
            self.content, self.config, self.older, self.vocab, normalizes=False
        )[0]
        return backend


class TokenizerProcess:
    """Serves several threads in turn. AMK012 from a request that it does not stand; all later ones fail. AMK013 for a
    file that cannot be read."""

    def __init__(self, source: Source, path: Path, seconds: float = SECONDS, memory: int = MEMORY_BYTES) -> None:
        self._path, self._seconds, self._failed, self._one = path, seconds, "", threading.Lock()
        self._number = 0
        self._first: tuple[Source, int] | None = source, memory
        # -I and -S: neither the user's environment nor site packages decide what the child imports.
        command = [sys.executable, "-I", "-S", str(Path(tokenizer_child.__file__))]
        self._popen = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={"TOKENIZERS_PARALLELISM": "false"}, process_group=0,  # Ctrl-C is for this process alone
        )  # fmt: skip
        weakref.finalize(self, _end, self._popen)
        threading.Thread(target=self._load, daemon=True).start()

    def _load(self) -> None:
        """Let the process load its vocabulary while nobody waits for it; a request says what goes wrong."""
        with contextlib.suppress(AmkError):
            self.facts()

    @property
    def usable(self) -> bool:
        """False once a request has failed in a way that ended the process."""
        return not self._failed

    def facts(self) -> dict[str, Any]:
        """`special`: special tokens by the names that templates call them. `size`: one more than the largest id."""
        return self._ask({"facts": True}, 0)

    def encode(self, text: str, special: bool) -> list[int]:
        """Tokens of `text`; AMK005 if it is not Unicode text."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            message = f"character {error.start + 1} of the text is no Unicode character: its bytes were not UTF-8"
            raise AmkError(Diagnostic("AMK005", message)) from error
        return [int(each) for each in self._ask({"encode": text, "special": special}, len(text))["ids"]]

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._ask({"decode": list(tokens)}, len(tokens))["text"])

    def _ask(self, request: dict[str, Any], size: int) -> dict[str, Any]:
        with self._one:
            return self._answer(request, size)

    def _answer(self, request: dict[str, Any], size: int) -> dict[str, Any]:
        if self._failed:
            raise self._refused(self._failed)
        seconds = self._seconds + size / CHARACTERS
        late = threading.Event()
        timer = threading.Timer(seconds, self._end_late, (late,))
        timer.daemon = True
        timer.start()
        try:
            line = self._exchanged(request)
        finally:
            timer.cancel()
        if not line.endswith(b"\n"):
            self._popen.kill()
            code = self._popen.wait()
            self._failed = f"it takes more than {seconds:g} s" if late.is_set() else f"its process ended ({code})"
            raise self._refused(self._failed)
        answer: dict[str, Any] = json.loads(line)
        if "unreadable" in answer:
            raise bad_weights(self._path, "the tokenizer cannot be read", answer["unreadable"])
        if "error" in answer:
            raise self._refused(answer["error"])
        return answer

    def _end_late(self, late: threading.Event) -> None:
        late.set()
        self._popen.kill()

    def _exchanged(self, request: dict[str, Any]) -> bytes:
        """The line that answers, or what there is of it when the process has ended.

        Whoever waits for an answer may be interrupted, so the next one finds that answer before its own.
        """
        assert self._popen.stdin is not None and self._popen.stdout is not None
        self._number += 1
        mine = b"%d " % self._number
        try:
            if self._first is not None:
                source, memory = self._first
                self._popen.stdin.write(json.dumps(_described(source, memory)).encode() + b"\n" + source.content)
            self._first = None
            self._popen.stdin.write(mine + json.dumps(request).encode() + b"\n")
            self._popen.stdin.flush()
            while (line := self._popen.stdout.readline(MAX_ANSWER)).endswith(b"\n"):
                if line.startswith(mine):
                    return line.removeprefix(mine)
            return line
        except OSError:
            return b""

    def _refused(self, reason: str) -> AmkError:
        return unsupported(self._path, f"the tokenizer of this model cannot be used: {reason}")


def _described(source: Source, memory: int) -> dict[str, Any]:
    """What the process is told first."""
    return {
        "path": [*standard_library(), *package_directories("tokenizers")], "memory_bytes": memory,
        "bytes": len(source.content), "config": source.config, "older": source.older, "vocab": source.vocab,
    }  # fmt: skip


def _end(popen: subprocess.Popen[bytes]) -> None:
    popen.kill()
    popen.wait()
    for pipe in (popen.stdin, popen.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
