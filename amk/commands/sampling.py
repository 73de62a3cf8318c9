"""`--temperature`, `--top-k`, `--top-p` and `--seed` of commands that choose tokens."""

from __future__ import annotations

import argparse
from typing import Any

from amk.schedule_ir.sampling import GREEDY, Sampling

FIELDS = ("temperature", "top_k", "top_p", "seed")


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """For a command that takes the most probable token unless an option says otherwise."""
    description = "temperature, top-k and top-p apply in this order; with none of them the most probable token is taken"
    _add(parser, description, {"temperature": "0", "top_k": "all", "top_p": "1", "seed": "0"})


def add_sampling_defaults(parser: argparse.ArgumentParser) -> None:
    """For a server, whose requests choose: what holds for those that leave the field out."""
    description = (
        "defaults of requests: a field that a request has counts before its option here; temperature, top-k and top-p "
        "apply in this order"
    )
    suggested = "what the checkpoint suggests in generation_config.json or the sampling keys of a GGUF file, else {}"
    defaults = {name: suggested.format(value) for name, value in (("temperature", 1), ("top_k", "all"), ("top_p", 1))}
    _add(parser, description, defaults | {"seed": "another one for every request"})


def _add(parser: argparse.ArgumentParser, description: str, defaults: dict[str, str]) -> None:
    group = parser.add_argument_group("sampling", description)
    helps = {
        "temperature": "draw tokens; 0 takes the most probable one", "top_k": "draw among the K most probable tokens",
        "top_p": "draw among the most probable tokens that reach P together",
        "seed": "equal seeds give equal texts",
    }  # fmt: skip
    for (name, text), letter, kind in zip(helps.items(), "TKPN", (float, int, float, int), strict=True):
        option = f"--{name.replace('_', '-')}"
        group.add_argument(option, type=kind, metavar=letter, help=f"{text} (default: {defaults[name]})")


def sampling_of(arguments: argparse.Namespace) -> Sampling:
    """What the arguments ask for; a filter without a temperature means temperature 1. AMK015 for bad values."""
    options = sampling_options(arguments)
    temperature = 1.0 if options.keys() & {"top_k", "top_p"} else GREEDY.temperature
    return Sampling(**{"temperature": temperature, **options})


def sampling_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options that are there, as fields of `Sampling`. AMK015 for bad values."""
    options = {name: getattr(arguments, name) for name in FIELDS if getattr(arguments, name) is not None}
    Sampling(**options)
    return options
