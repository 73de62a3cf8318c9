"""Bodies of requests in OpenAI's interface, checked: what is not done is refused by its name, never ignored.

`Prompts.unread` checks what goes to the chat template.

Fields beyond OpenAI's: `top_k`, `chat_template_kwargs` (values for the template) and the response format `grammar`.
"""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from amk.engine.generation.completion import MOST_LOGPROBS, Options

RESERVED = {"messages", "tools", "add_generation_prompt"}
"""Values of a template that are no business of `chat_template_kwargs`."""
Off = Literal[0, False] | None
"""A field that may be there with the value that does nothing."""
_Text = Annotated[str, Field(max_length=1 << 20)]
_Stop = Annotated[str, Field(min_length=1, max_length=1000)]
_Tokens = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(min_length=1)]
_Nothing = Annotated[dict[str, Any] | list[Any] | None, Field(max_length=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class Part(_Strict):
    type: Literal["text"]
    text: _Text


class Function(_Strict):
    name: str
    arguments: str | dict[str, Any]

    @field_validator("arguments")
    @classmethod
    def _object(cls, arguments: str | dict[str, Any]) -> str | dict[str, Any]:
        try:
            value = json.loads(arguments) if isinstance(arguments, str) else arguments
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise ValueError("the text is not a JSON object")
        return arguments


class Call(_Strict):
    id: str | None = None
    type: Literal["function"] = "function"
    function: Function
    index: int | None = None


class Message(BaseModel):
    """What else a message has is for the template. A message of the developer is one of the system, as templates of the
    models here call it."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow", allow_inf_nan=False)

    role: Annotated[str, Field(max_length=100)]
    content: _Text | list[Part] | None = None
    tool_calls: list[Call] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls are the assistant's")
        if self.content is None and not self.tool_calls:
            raise ValueError("content is missing")
        return self

    def for_template(self) -> dict[str, Any]:
        parts = self.content if isinstance(self.content, list) else []
        text = "".join(part.text for part in parts) if isinstance(self.content, list) else self.content
        role = "system" if self.role == "developer" else self.role
        return {**self.model_dump(exclude_unset=True), "role": role, "content": text}


class JsonSchema(_Strict):
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class ResponseFormat(_Strict):
    """grammar: syntax and definition say what the answer is made of."""

    type: Literal["text", "json_object", "json_schema", "grammar"]
    json_schema: JsonSchema | None = None
    syntax: Literal["lark", "regex"] = "lark"
    definition: Annotated[str, Field(max_length=1 << 16)] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        missing = {"json_schema": self.json_schema is None, "grammar": self.definition is None}
        if missing.get(self.type):
            raise ValueError("json_schema is missing" if self.type == "json_schema" else "definition is missing")
        own = {"json_schema": {"json_schema"}, "grammar": {"syntax", "definition"}}.get(self.type, set())
        others = self.model_fields_set - {"type"} - own
        if foreign := sorted(name for name in others if getattr(self, name) is not None):
            raise ValueError(f"{', '.join(foreign)} says nothing about an answer of the type {self.type}")
        return self

    def restriction(self) -> dict[str, Any]:
        """The same as an option."""
        if self.type == "json_object":
            return {"json_schema": {"type": "object"}}
        if self.json_schema is not None:
            return {"json_schema": self.json_schema.schema_}
        return {} if self.type == "text" else {"regex" if self.syntax == "regex" else "grammar": self.definition}


class StreamOptions(_Strict):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class _Request(_Strict, ABC):
    """What both kinds of request share."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    stop: _Stop | Annotated[list[_Stop], Field(max_length=16)] | None = None
    logit_bias: (
        dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]] | None
    ) = None
    response_format: ResponseFormat | None = None
    n: Literal[1] | None = None
    frequency_penalty: Off = None
    presence_penalty: Off = None
    user: Any = None
    metadata: Any = None
    store: Off = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None

    @model_validator(mode="after")
    def _streamed(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is about a stream, and stream is not true")
        return self

    @property
    @abstractmethod
    def asked_tokens(self) -> int | None:
        """Tokens of an answer, if the request says."""

    @property
    @abstractmethod
    def asked_logprobs(self) -> int | None:
        """Alternatives whose probabilities are told with every token, if any are asked for."""

    @property
    def usage_in_stream(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def options(self, most: int, defaults: Mapping[str, Any]) -> Options:
        """How to decode. most: tokens of an answer; defaults: sampling, for fields that the request leaves out. Without
        a seed in either it is another one every time.

        AMK015 for a value outside its range.
        """
        seed = None if self.seed is None else self.seed % (1 << 64)
        values = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k, "seed": seed}
        drawn: dict[str, Any] = {"seed": secrets.randbits(63), **defaults}
        drawn |= {key: value for key, value in values.items() if value is not None}
        if drawn["temperature"] == 0:
            drawn |= {"top_p": 1.0, "top_k": 0}
        return Options(
            max_tokens=min(self.asked_tokens or most, most),
            stop=self.stop or (),
            logprobs=self.asked_logprobs,
            logit_bias={int(token): bias for token, bias in (self.logit_bias or {}).items()},
            **(self.response_format.restriction() if self.response_format is not None else {}),
            **drawn,
        )


def sampling_defaults(suggested: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """For requests that leave fields out: the server's options, else what the checkpoint suggests, else OpenAI's. A
    filter among the options means that tokens are drawn, also where the checkpoint suggests the most probable one."""
    defaults = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, **suggested}
    if options.keys() & {"top_k", "top_p"}:
        defaults["temperature"] = defaults["temperature"] or 1.0
    return defaults | {**options}


def fault(error: ValidationError) -> tuple[str | None, str]:
    """Which field is wrong, and why. Of a value that may be of several kinds, what is wrong in the kind that it has."""
    found = error.errors(include_url=False, include_input=False)
    first = next((each for each in found if not each["type"].endswith("_type")), found[0])
    names = [str(part) for part in first["loc"] if isinstance(part, int) or part.isidentifier()]
    return ".".join(names) or None, first["msg"]


class ChatRequest(_Request):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    parallel_tool_calls: Literal[True] | None = None
    functions: _Nothing = None
    modalities: list[Literal["text"]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _heeded(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs asks for logprobs, which is not true")
        if taken := sorted(RESERVED & (self.chat_template_kwargs or {}).keys()):
            raise ValueError(f"chat_template_kwargs has {', '.join(taken)}, which the request says elsewhere")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_tokens and max_completion_tokens say the same: give one of them")
        return self

    @property
    def asked_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def asked_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(_Request):
    """POST /v1/completions."""

    prompt: _Text | _Tokens | Annotated[list[_Text | _Tokens], Field(min_length=1, max_length=64)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    suffix: Literal[""] | None = None

    @property
    def asked_tokens(self) -> int | None:
        return self.max_tokens or 16

    @property
    def asked_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each of its own."""
        prompt: Any = self.prompt
        single = isinstance(prompt, str) or isinstance(prompt[0], int)
        return [prompt] if single else list(prompt)
