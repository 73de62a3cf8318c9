"""`amk chat`: a conversation in the terminal; every turn computes only what is new."""

from __future__ import annotations

import argparse
import dataclasses
import sys

from amk.api.loading import open_files
from amk.commands.format_arguments import positive
from amk.commands.model_arguments import add_model_arguments, choose_device, opened
from amk.commands.sampling import add_sampling_arguments, sampling_of
from amk.engine.generation.conversation import Chat
from amk.report.diagnostic import AmkError, Exit

DEFAULT_POSITIONS = 2048
"""Positions of a plan unless told otherwise: a conversation of some pages."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_sampling_arguments(parser)
    parser.add_argument("--system", metavar="TEXT", help="the system message of the conversation")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end an answer before this text")
    parser.add_argument("--max-tokens", type=positive, default=512, help="of one answer (default: 512)")


def run(arguments: argparse.Namespace) -> int:
    """Reads what the user says line by line from standard input until its end."""
    sampling = sampling_of(arguments)
    device = choose_device(arguments)
    with opened(arguments, device, open_files(arguments.model), DEFAULT_POSITIONS, sampling.mode) as model:
        chat = model.chat(arguments.system)
        while (line := _line()) is not None:
            if line.strip():
                options = dataclasses.asdict(sampling) | {"stop": arguments.stop, "max_tokens": arguments.max_tokens}
                _answered(chat, line, options, arguments)
    return Exit.SAFE


def _line() -> str | None:
    """The next line without its end; None at the end of the input. A terminal gets a prompt."""
    if sys.stdin.isatty():
        print("> ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    return line.removesuffix("\n") if line else None


def _answered(chat: Chat, line: str, options: dict[str, object], arguments: argparse.Namespace) -> None:
    """One turn. Ctrl-C ends the answer, which stays in the conversation; a conversation that is full is told."""
    try:
        turn = chat.stream(line, **options)
        try:
            for piece in turn:
                print(piece.text, end="", flush=True)
        except KeyboardInterrupt:
            turn.cancel()
        print()
    except AmkError as error:
        if not sys.stdin.isatty():
            raise
        arguments.findings.tell(error.diagnostics)
