"""`--dtype` and its relatives, apart from the planner: the device cpu, which has no formats, starts without it."""

from __future__ import annotations

import argparse

from amk.weights.weight_format import FORMATS

AUTO = "auto"
KV_DTYPES = ("bf16", "fp8")
"""`schedule.CacheDtype`."""
QUANTISER_NAMES = ("nearest", "search")
"""Keys of `judging.QUANTISERS`."""


def add_format_choice(parser: argparse.ArgumentParser) -> None:
    """What is stored how: weights, which `chosen_formats` reads, and the cache."""
    own = "that of an AWQ or GPTQ directory, else bf16"
    parser.add_argument("--dtype", choices=(*FORMATS, AUTO), help=f"format of the weights (default: {own})")
    parser.add_argument("--lm-head-dtype", choices=FORMATS, help="format of lm_head (default: that of --dtype)")
    parser.add_argument("--kv-dtype", choices=KV_DTYPES, default="bf16", help="of the cache (default: bf16)")
    parser.add_argument("--max-kl", type=float, metavar="NATS", help="with --dtype auto: bound on the mean KL to bf16")
    parser.add_argument(
        "--layer-parts", type=positive, metavar="N", help="with --dtype auto: parts of the layers that may differ"
    )
    parser.add_argument("--text", metavar="FILE", help="with --dtype auto: the text that the KL is measured on")


def natural(text: str) -> int:
    """An argument that is an integer of at least 0."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative")
    return value


def positive(text: str) -> int:
    """An argument that is an integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value
