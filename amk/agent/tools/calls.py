"""The tools as a language model calls them: a name, a schema of arguments, and text for an answer.

Arguments are checked against the function's own types. Whatever goes wrong is an answer in words (`RefusedError`), and
no exception of the driver. Answers are cut at ANSWER characters.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from amk.agent.tools.desk import TOOLS, Desk
from amk.agent.tools.refused import RefusedError
from amk.report.diagnostic import AmkError

ANSWER: Final = 16_000
Function = Callable[..., Any]


@dataclass(frozen=True)
class Tool:
    """`method` of a desk; arguments: the model that they are checked against."""

    name: str
    description: str
    arguments: type[BaseModel]
    method: Function

    @property
    def schema(self) -> dict[str, Any]:
        return self.arguments.model_json_schema()

    def call(self, desk: Desk, arguments: dict[str, Any]) -> str:
        """The answer as text. RefusedError, in words, for anything that cannot be done."""
        try:
            values = self.arguments.model_validate(arguments)
            found = self.method(desk, **{name: getattr(values, name) for name in values.model_fields_set})
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise RefusedError(f"{self.name}: {where}: {first['msg']}"[:500]) from error
        except AmkError as error:
            raise RefusedError(f"{self.name}: {error}"[:1000]) from error
        return text_of(found)


def text_of(answer: Any) -> str:
    if isinstance(answer, list):
        answer = [each.model_dump(mode="json") for each in answer]
    elif isinstance(answer, BaseModel):
        answer = answer.model_dump(mode="json")
    text = answer if isinstance(answer, str) else json.dumps(answer)
    return text if len(text) <= ANSWER else f"{text[:ANSWER]}\n... cut: {len(text) - ANSWER} more characters"


def signature(method: Function) -> inspect.Signature:
    """Of a tool, without `self`, with types in place of their names."""
    hints, known = get_type_hints(method), inspect.signature(method)
    parameters = [p.replace(annotation=hints[p.name]) for p in known.parameters.values() if p.name != "self"]
    return known.replace(parameters=parameters, return_annotation=hints["return"])


def tool(method: Function) -> Tool:
    required: Any = ...
    fields: dict[str, Any] = {
        p.name: (p.annotation, required if p.default is p.empty else p.default)
        for p in signature(method).parameters.values()
    }
    config = ConfigDict(extra="forbid")
    arguments = create_model(method.__name__, __config__=config, **fields)
    return Tool(method.__name__, inspect.cleandoc(method.__doc__ or ""), arguments, method)


ALL: Final = tuple(tool(method) for method in TOOLS)
