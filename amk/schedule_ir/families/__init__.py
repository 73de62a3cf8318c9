"""Families of decoders: every module of this folder is one, and its `graph` says what its models are."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from amk.schedule_ir.graph import Graph, Variant


@cache
def families() -> dict[str, Callable[[Variant], Graph]]:
    """The graph of a model, by the name of its family."""
    names = [info.name for info in iter_modules(__path__)]
    return {name: import_module(f"{__name__}.{name}").graph for name in names}
