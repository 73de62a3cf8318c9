"""Pydantic's complaints become diagnostics with a JSON pointer and the right code."""

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from amk.report.schema import MAX_FINDINGS, json_pointer, quoted, schema_error


class _Inner(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    count: Annotated[int, Field(ge=0, le=10)]
    ratio: Annotated[float, Field(allow_inf_nan=False)] = 1.0


class _Outer(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    items: list[_Inner]


@pytest.mark.parametrize(
    ("item", "code", "path", "words"),
    [
        ({"count": "3"}, "AMK005", "/top/items/0/count", "valid integer"),
        ({"count": 11}, "AMK005", "/top/items/0/count", "less than or equal to 10"),
        ({}, "AMK005", "/top/items/0/count", "missing"),
        ({"count": 1, "cuont": 1}, "AMK005", "/top/items/0/cuont", "unknown field 'cuont'"),
        ({"count": 1, "ratio": float("nan")}, "AMK006", "/top/items/0/ratio", "finite"),
    ],
)
def test_each_kind(item: dict[str, object], code: str, path: str, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        _Outer.model_validate({"items": [item]})
    (found,) = schema_error(caught.value, "f.json", ("top",)).diagnostics
    assert (found.code, found.where and found.where.path, found.where and found.where.file) == (code, path, "f.json")
    assert words in found.message


class _Read(BaseModel):
    do: Literal["read"]


class _Write(BaseModel):
    do: Literal["write"]


def test_what_tells_kinds_apart_is_a_field_like_others() -> None:
    kinds: TypeAdapter[_Read | _Write] = TypeAdapter(Annotated[_Read | _Write, Field(discriminator="do")])
    with pytest.raises(ValidationError) as caught:
        kinds.validate_python({})
    (found,) = schema_error(caught.value).diagnostics
    assert (found.code, found.message) == ("AMK005", "field 'do' is missing")


def test_a_flood_is_cut() -> None:
    with pytest.raises(ValidationError) as caught:
        _Outer.model_validate({"items": [{}] * 500})
    found = schema_error(caught.value).diagnostics
    assert len(found) == MAX_FINDINGS + 1
    assert "480 more" in found[-1].message


def test_pointer_escapes_per_rfc_6901() -> None:
    assert json_pointer(("a/b", "c~d", 3)) == "/a~1b/c~0d/3"
    assert json_pointer(()) == ""


def test_quoted_is_always_short() -> None:
    for value in (10**5000, -(10**9), "x" * 10**6, [0] * 10**6, {"a": 1}, None, True, 1e300, b"x"):
        assert 0 < len(quoted(value)) < 120
