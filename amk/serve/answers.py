"""Answers and errors in the words of OpenAI's interface."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from typing import Any, Literal

from amk.engine.generation.completion import Completion, Piece, TokenLogprob, Usage
from amk.report.diagnostic import AmkError, Exit

Kind = Literal["chat", "completion"]
TokenBytes = Callable[[int], bytes]

_OBJECTS = {"chat": ("chat.completion", "chat.completion.chunk"), "completion": ("text_completion",) * 2}
_PREFIX = {"chat": "chatcmpl", "completion": "cmpl"}
_STATUS = {Exit.INPUT: 400, Exit.UNKNOWN: 503}


class Frame:
    """What all parts of one answer share. token_bytes: bytes of a token's text."""

    def __init__(self, kind: Kind, model: str, token_bytes: TokenBytes) -> None:
        self.kind, self._token_bytes = kind, token_bytes
        self._head = {"id": f"{_PREFIX[kind]}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def whole(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """The answer to one prompt, or to several in their order."""
        choices = [self._choice(index, each) for index, each in enumerate(completions)]
        total = Usage(*(sum(column) for column in zip(*(astuple(c.usage) for c in completions), strict=True)))
        return {**self._head, "object": _OBJECTS[self.kind][0], "choices": choices, "usage": usage(total)}

    def first(self) -> dict[str, Any] | None:
        """The chunk before any text."""
        return self._chunk(0, {"delta": {"role": "assistant", "content": ""}}) if self.kind == "chat" else None

    def piece(self, index: int, piece: Piece) -> dict[str, Any] | None:
        """The chunk of one token; None if it has nothing to say."""
        if not piece.text and piece.logprob is None:
            return None
        logprobs = [piece.logprob] if piece.logprob is not None else None
        text = {"delta": {"content": piece.text}} if self.kind == "chat" else {"text": piece.text}
        return self._chunk(index, text | {"logprobs": self._logprobs(logprobs)})

    def last(self, index: int, finish: str) -> dict[str, Any]:
        text: dict[str, Any] = {"delta": {}} if self.kind == "chat" else {"text": ""}
        return self._chunk(index, text, finish)

    def usage(self, total: Usage) -> dict[str, Any]:
        """The chunk after the last one, where it was asked for."""
        return {**self._head, "object": _OBJECTS[self.kind][1], "choices": [], "usage": usage(total)}

    def _chunk(self, index: int, text: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": index, "logprobs": None, **text, "finish_reason": finish}
        return {**self._head, "object": _OBJECTS[self.kind][1], "choices": [choice]}

    def _choice(self, index: int, completion: Completion) -> dict[str, Any]:
        choice = {"index": index, "logprobs": self._logprobs(completion.logprobs), "finish_reason": completion.finish}
        if self.kind == "chat":
            return choice | {"message": {"role": "assistant", "content": completion.text, "refusal": None}}
        return choice | {"text": completion.text}

    def _logprobs(self, tokens: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
        if tokens is None:
            return None
        if self.kind == "chat":
            content = [
                self._one(t.token, t.logprob) | {"top_logprobs": [self._one(*each) for each in t.top]} for t in tokens
            ]
            return {"content": content, "refusal": None}
        return {
            "tokens": [self._name(t.token) for t in tokens],
            "token_logprobs": [t.logprob for t in tokens],
            "top_logprobs": [self._alternatives(t) for t in tokens],
            "text_offset": None,
        }

    def _one(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": self._text(token), "logprob": logprob, "bytes": list(self._token_bytes(token))}

    def _text(self, token: int) -> str:
        return self._token_bytes(token).decode("utf-8", "replace")

    def _alternatives(self, chosen: TokenLogprob) -> dict[str, float]:
        """The most probable tokens by their names; of two with one name, the more probable one."""
        named: dict[str, float] = {}
        for token, logprob in chosen.top:
            named.setdefault(self._name(token), logprob)
        return named

    def _name(self, token: int) -> str:
        """Its text, or the bytes of a token that is no text by itself, so that no two of these have one name."""
        content = self._token_bytes(token)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


def usage(counts: Usage) -> dict[str, Any]:
    prompt, answer, right = counts.prompt_tokens, counts.completion_tokens, counts.accepted_tokens
    guesses = {"accepted_prediction_tokens": right, "rejected_prediction_tokens": counts.drafted_tokens - right}
    return {
        "prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": counts.cached_tokens}, "completion_tokens_details": guesses,
    }  # fmt: skip


def added(left: Usage, right: Usage) -> Usage:
    return Usage(*(a + b for a, b in zip(astuple(left), astuple(right), strict=True)))


def error_body(message: str, code: str | None = None, param: str | None = None, status: int = 400) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def status_of(error: AmkError) -> int:
    return _STATUS.get(error.exit_code, 500)


def body_of(error: AmkError) -> dict[str, Any]:
    """The first diagnostic; one of the program itself keeps its details in the log."""
    first, status = error.diagnostics[0], status_of(error)
    message = first.message if status != 500 else "the server failed to compute the answer"
    return error_body(message, first.code, status=status)


def event(data: Mapping[str, Any] | None) -> bytes:
    """One server-sent event; None: the last."""
    text = "[DONE]" if data is None else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()
