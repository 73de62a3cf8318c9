"""The command line: one table of commands, and the one place that turns outcomes into exit codes.

0 SAFE or success, 1 UNSAFE, 2 usage or unreadable input, 3 UNKNOWN, 4 internal error, 5 no usable GPU;
130 interrupted, 141 when the reader of the output went away. Machine output is on stdout, everything else on stderr.
"""

import argparse
import errno
import importlib
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from typing import TextIO

from amk.commands.output import Findings, add_format
from amk.report.diagnostic import FORMATS, AmkError, Diagnostic, Exit, Format, Where, because
from amk.version import __version__

INTERRUPTED = 130
PIPE_CLOSED = 141


@dataclass(frozen=True)
class Command:
    """A command lives in `module`, which has `add_arguments(parser)` and `run(arguments) -> int`."""

    module: str
    help: str


COMMANDS = {
    "models": Command("amk.commands.models", "list the known models, or show what is read from a path"),
    "targets": Command("amk.commands.targets", "list the known GPUs and their limits"),
    "autoresearch": Command("amk.commands.autoresearch", "search for a faster certified schedule"),
    "runs": Command("amk.commands.runs", "list the stored searches"),
    "report": Command("amk.commands.report", "write the HTML report of a search"),
    "export": Command("amk.commands.export", "write the best schedule of a search"),
    "mcp": Command("amk.commands.mcp", "serve plans, verdicts and searches to coding agents (MCP)"),
    "plan": Command("amk.commands.plan", "make a schedule for a model and a GPU"),
    "edit": Command("amk.commands.edit", "make a list of edits to a schedule"),
    "diff": Command("amk.commands.diff", "list the edits that turn one schedule into another"),
    "simulate": Command("amk.commands.simulate", "predict the time of a token, without a GPU"),
    "compile": Command("amk.commands.compile", "compile a schedule to machine code, without a GPU"),
    "emulate": Command("amk.commands.emulate", "run a schedule's PTX on the CPU, without a GPU"),
    "generate": Command("amk.commands.generate", "generate text on a GPU or on the CPU"),
    "chat": Command("amk.commands.chat", "talk with a model in the terminal"),
    "serve": Command("amk.commands.serve", "serve a model with OpenAI's HTTP interface"),
    "matrix": Command("amk.commands.matrix", "plan, verify and compile every model for every target"),
    "quantize": Command("amk.commands.quantize", "measure what each weight format costs in accuracy"),
    "bench": Command("amk.commands.bench", "measure a decode step beside torch on this machine's GPU"),
    "calibrate": Command("amk.commands.calibrate", "measure what the simulator needs on this machine's GPU"),
    "schema": Command("amk.commands.schema", "print the JSON Schema of a schedule"),
    "explain": Command("amk.commands.explain", "explain a diagnostic code"),
    "verify": Command("amk.commands.verify", "prove a schedule safe, or show how it fails"),
    "import": Command("amk.commands.import_system", "read other projects' kernels as systems for `amk verify`"),
    "trace": Command("amk.commands.trace", "draw a schedule, a witness or a recorded launch as a timeline"),
    "check-certificate": Command("amk.commands.check_certificate", "check the evidence for SAFE independently"),
    "replay": Command("amk.commands.replay", "run a witness and see whether it holds"),
    "adversarial": Command("amk.commands.adversarial", "judge schedules that are wrong on purpose"),
    "doctor": Command("amk.commands.doctor", "report what this machine can do"),
}

ONE_THREAD = frozenset({"verify", "check-certificate", "adversarial"})
"""Commands that multiply no large matrices: starting a pool of BLAS threads only costs them time."""


UNFIT = frozenset({errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS})
"""What the system says of a name that was given, or of where it leads, before a file is opened."""

SPIN = "4"
"""BLAS threads without work sleep after some 2^SPIN cycles; by default they keep their cores busy for long."""


def main(argv: Sequence[str] | None = None, begin: Callable[[], object] = lambda: None) -> int:
    """Run one command and return its exit code; argparse ends usage errors with SystemExit(2) itself. begin: called as
    soon as the command is imported and its words are understood."""
    _reconfigure("backslashreplace", sys.stdout, sys.stderr)
    _reconfigure("surrogateescape", sys.stdin)
    words = sys.argv[1:] if argv is None else list(argv)
    findings = Findings(_form(words), sys.stdout, sys.stderr)
    if words[:1] and words[0] in ONE_THREAD:  # both are read when numpy is first imported
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", SPIN)
    try:
        code = _run(words, findings, "--debug" in words, begin)
        findings.close()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()
        return PIPE_CLOSED
    except OSError as error:
        if not _unwritten(error):
            raise
        _discard_stdout()
        message = f"the output could not be written: {error.strerror}"
        found = Diagnostic("AMK001", message, help="make room, or send it elsewhere")
        return _report(Findings("full", sys.stderr, sys.stderr), (found,), Exit.INPUT, False)


def _run(words: Sequence[str], findings: Findings, debug: bool, begin: Callable[[], object]) -> int:
    """The command's exit code; what ends it is told. A log on stdout keeps everything else off it."""
    arguments = _parser(words).parse_args(words)
    arguments.findings = findings
    quiet = redirect_stdout(sys.stderr) if findings.form == "sarif" else nullcontext()
    try:
        command = importlib.import_module(COMMANDS[arguments.command].module)
        begin()
        with quiet:
            return int(command.run(arguments))
    except AmkError as error:
        return _report(findings, error.diagnostics, error.exit_code, debug)
    except Exception as error:  # the boundary: whatever was not foreseen is an internal error
        if isinstance(error, BrokenPipeError) or _unwritten(error):
            raise
        if isinstance(error, OSError) and error.filename is not None and error.errno in UNFIT:
            where = Where(file=os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else None)
            return _report(findings, (Diagnostic("AMK001", str(error.strerror), where=where),), Exit.INPUT, debug)
        return _report(findings, (_internal(error),), Exit.INTERNAL, debug)


def _report(findings: Findings, diagnostics: Sequence[Diagnostic], code: Exit, debug: bool) -> int:
    """Tell them; call it while handling the error. The exit code stands even when nobody can read them."""
    if debug:
        traceback.print_exc()
    try:
        findings.tell(diagnostics)
    except OSError:
        _discard_stdout()
    return int(code)


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Every command is listed, but only the module of the chosen one is imported."""
    parser = argparse.ArgumentParser(
        prog="amk",
        description="LLM decode as one verified persistent CUDA kernel.",
        epilog="exit codes: 0 SAFE or success, 1 UNSAFE, 2 usage or input, 3 UNKNOWN, 4 internal error, 5 no GPU",
    )
    parser.add_argument("--version", action="version", version=f"amk {__version__}")
    _add_debug(parser)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((word for word in words if not word.startswith("-")), None)
    for name, command in COMMANDS.items():
        sub = subparsers.add_parser(
            name, help=command.help, description=f"{command.help[0].upper()}{command.help[1:]}."
        )
        _add_debug(sub)
        if name == chosen:
            importlib.import_module(command.module).add_arguments(sub)
            if "--format" not in sub.format_usage():
                add_format(sub)
    return parser


def _add_debug(parser: argparse.ArgumentParser) -> None:
    help_text = "show the traceback when an error ends the command"
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=help_text)


def _internal(error: Exception) -> Diagnostic:
    return Diagnostic(
        "AMK901",
        f"{type(error).__name__}: {error}",
        facts=(because("this is a defect of the program; no verdict was given"),),
        help="run the same command with --debug for the traceback, and report it with the input",
    )


def _unwritten(error: Exception) -> bool:
    """Whether output found no room. Errors of files that are opened by name have the name."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
    return isinstance(error, OSError) and error.filename is None and error.errno in full


def _form(words: Sequence[str]) -> Format:
    """The form of diagnostics that `--format` asks for; read from the words because parsing may be what failed."""
    asked = [word.removeprefix("--format=") for word in words if word.startswith("--format=")]
    asked += [value for option, value in itertools.pairwise(words) if option == "--format"]
    return next((form for form in FORMATS if form in asked), "full")


def _reconfigure(errors: str, *streams: TextIO) -> None:
    """A terminal that cannot show a character gets its escape instead of a UnicodeEncodeError. Bytes that are no text
    in the encoding of standard input reach the tokenizer, which refuses them (AMK005)."""
    for stream in streams:
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(errors=errors)


def _discard_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not fail again."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


if __name__ == "__main__":
    sys.exit(main())
