"""`amk serve`: the model behind OpenAI's HTTP interface."""

from __future__ import annotations

import argparse
import importlib.util
from dataclasses import fields, replace

from amk.api.loading import open_files
from amk.commands.format_arguments import positive
from amk.commands.model_arguments import add_model_arguments, add_texts, choose_device, opened
from amk.commands.sampling import add_sampling_defaults, sampling_options
from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.serve.settings import KEYS_VARIABLE, Limits, keys_of

PACKAGES = ("starlette", "uvicorn", "prometheus_client", "llguidance")
DEFAULT_POSITIONS = 4096
"""Positions of a plan unless told otherwise."""
_LIMITS = {
    "waiting": "requests in the queue",
    "waiting_of_one": "of them, those of one client",
    "body_bytes": "bytes of a request",
    "tokens": "tokens of an answer",
    "body_seconds": "seconds until a request has arrived",
    "queue_seconds": "seconds until an answer begins",
    "answer_seconds": "seconds of an answer",
    "read_seconds": "seconds until a client takes what it was sent",
    "grace_seconds": "seconds for answers that run when the server is told to stop",
    "connections": "connections at a time",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_sampling_defaults(parser)
    add_texts(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1)")
    parser.add_argument("--port", type=_port, default=8000, help="0 takes a free one (default: 8000)")
    parser.add_argument("--name", help="what requests call the model (default: its own name)")
    parser.add_argument(
        "--open", action="store_true", help=f"serve other machines without API keys (keys are in {KEYS_VARIABLE})"
    )
    group = parser.add_argument_group("limits")
    for field in fields(Limits):
        kind = positive if isinstance(field.default, int) else _seconds
        option = f"--max-{field.name.replace('_', '-')}"
        group.add_argument(option, type=kind, metavar="N", help=f"{_LIMITS[field.name]} (default: {field.default:,})")


def run(arguments: argparse.Namespace) -> int:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        message = f"serving needs {', '.join(missing)}, which are not installed"
        raise AmkError(Diagnostic("AMK019", message, help="pip install 'amk[serve]'"))
    from amk.serve.app import Server
    from amk.serve.run import LOOPBACK, listen, serve

    keys, defaults = keys_of(), sampling_options(arguments)
    if arguments.host not in LOOPBACK and not keys and not arguments.open:
        message = f"whoever reaches {arguments.host} could use the model"
        raise AmkError(Diagnostic("AMK005", message, help=f"set {KEYS_VARIABLE}, or pass --open"))
    values = {field.name: getattr(arguments, f"max_{field.name}") for field in fields(Limits)}
    limits = replace(Limits(), **{name: value for name, value in values.items() if value is not None})
    listening = listen(arguments.host, arguments.port, limits)
    device = choose_device(arguments)
    files = open_files(arguments.model)
    with opened(arguments, device, files, DEFAULT_POSITIONS, None, arguments.batch) as model:
        ended = serve(Server(model, arguments.name or model.spec.name, limits, keys, defaults), listening)
    return Exit.SAFE if ended else Exit.INTERNAL


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text} is not 0 to 65535")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return value
