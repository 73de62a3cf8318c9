"""`--temperature`, `--top-k`, `--top-p` and `--seed` of commands that choose tokens."""

from __future__ import annotations

import argparse

from amk.schedule_ir.sampling import GREEDY, Sampling


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "sampling",
        "temperature, top-k and top-p apply in this order; with none of them the most probable token is taken",
    )
    group.add_argument(
        "--temperature", type=float, metavar="T", help="draw tokens; 0 takes the most probable one (default: 0)"
    )
    group.add_argument("--top-k", type=int, metavar="K", help="draw among the K most probable tokens (default: all)")
    group.add_argument(
        "--top-p",
        type=float,
        metavar="P",
        help="draw among the most probable tokens that reach P together (default: 1)",
    )
    group.add_argument(
        "--seed", type=int, default=GREEDY.seed, metavar="N", help="equal seeds give equal texts (default: 0)"
    )


def sampling_of(arguments: argparse.Namespace) -> Sampling:
    """What the arguments ask for; a filter without a temperature means temperature 1. AMK015 for bad values."""
    filtered = arguments.top_k is not None or arguments.top_p is not None
    temperature = arguments.temperature
    return Sampling(
        temperature=temperature if temperature is not None else 1.0 if filtered else 0.0,
        top_k=GREEDY.top_k if arguments.top_k is None else arguments.top_k,
        top_p=GREEDY.top_p if arguments.top_p is None else arguments.top_p,
        seed=arguments.seed,
    )
