"""The ops. Every module of this folder that declares one is found by itself: an op is its file here and its `.cuh`."""

from __future__ import annotations

from functools import reduce
from importlib import import_module
from operator import or_
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from amk.schedule_ir.ops.base import Op, Work
from amk.schedule_ir.ops.geometry import Access, Geometry
from amk.schedule_ir.ops.sync import BarrierOp, SignalOp, WaitOp


def _found() -> dict[str, type[Op]]:
    """Every class with an `op` of its own, by that name, in alphabetical order."""
    modules = [import_module(f"{__name__}.{info.name}") for info in iter_modules(__path__)]
    classes = [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Op) and value.__module__ == module.__name__
    ]
    named = sorted((str(cls.model_fields["op"].default), cls) for cls in classes if "op" in cls.model_fields)
    return dict(named)


OPS: dict[str, type[Op]] = _found()

if TYPE_CHECKING:
    AnyOp = Op
else:
    AnyOp: Any = Annotated[reduce(or_, OPS.values()), Field(discriminator="op")]

__all__ = ["OPS", "Access", "AnyOp", "BarrierOp", "Geometry", "Op", "SignalOp", "WaitOp", "Work"]
