"""The ops. Each is a file here, found by its name and imported when a schedule first names it, and a `.cuh`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, reduce
from importlib import import_module
from operator import or_
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, TypeAdapter, ValidationInfo
from pydantic_core import CoreSchema, PydanticKnownError, core_schema, to_json

from amk.schedule_ir.memory import Access, Geometry
from amk.schedule_ir.ops.base import Op, Work
from amk.schedule_ir.ops.sync import BarrierOp, SignalOp, WaitOp

_FILES = frozenset(info.name for info in iter_modules(__path__))


@cache
def _declared(file: str) -> dict[str, type[Op]]:
    """The classes of a file of this folder that have an `op` of their own, by that name."""
    module = import_module(f"{__name__}.{file}")
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Op) and value.__module__ == module.__name__
    ]
    return {str(cls.model_fields["op"].default): cls for cls in classes if "op" in cls.model_fields}


class _Ops(Mapping[str, type[Op]]):
    """Name -> class, in alphabetical order. A look-up imports one file, going through all of them imports all."""

    def __getitem__(self, name: str) -> type[Op]:
        found = _declared("sync").get(name)
        return found or _declared(name if name in _FILES else "sync")[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(name for file in _FILES for name in _declared(file)))

    def __len__(self) -> int:
        return len(list(iter(self)))


OPS: Mapping[str, type[Op]] = _Ops()


class _Named:
    """A field that holds an op: of the class that its `op` names."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(_read)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: Any) -> Any:
        every: Any = Annotated[reduce(or_, OPS.values()), Field(discriminator="op")]
        return handler(TypeAdapter(every).core_schema)


def _read(value: Any, info: ValidationInfo) -> Op:
    if isinstance(value, Op):
        return value
    if not isinstance(value, Mapping):
        raise PydanticKnownError("model_attributes_type")
    if "op" not in value:
        raise PydanticKnownError("union_tag_not_found", {"discriminator": "'op'"})
    name = value["op"]
    if not isinstance(name, str) or name not in OPS:
        known = ", ".join(map(repr, OPS))
        raise PydanticKnownError(
            "union_tag_invalid", {"discriminator": "'op'", "tag": str(name), "expected_tags": known}
        )
    if info.mode == "json":  # strict rules are those of JSON, where a list is a tuple
        return OPS[name].model_validate_json(to_json(value))
    return OPS[name].model_validate(value)


if TYPE_CHECKING:
    AnyOp = Op
else:
    AnyOp: Any = Annotated[Op, _Named]

__all__ = ["OPS", "Access", "AnyOp", "BarrierOp", "Geometry", "Op", "SignalOp", "WaitOp", "Work"]
