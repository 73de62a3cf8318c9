"""Families of decoders: every module of this folder is one, and its `graph` says what its models are."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from amk.models.graph import Graph, Variant


@cache
def families() -> tuple[str, ...]:
    """Their names."""
    return tuple(info.name for info in iter_modules(__path__))


def graph_of(family: str) -> Callable[[Variant], Graph]:
    """What makes the graph of a model of the family."""
    made: Callable[[Variant], Graph] = import_module(f"{__name__}.{family}").graph
    return made
