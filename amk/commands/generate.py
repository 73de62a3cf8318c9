"""`amk generate`: text from a model, streamed as it is chosen."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from amk.api.loading import MOST_TEXTS, open_files
from amk.commands.format_arguments import positive
from amk.commands.model_arguments import add_model_arguments, choose_device, opened
from amk.commands.sampling import add_sampling_arguments, sampling_of
from amk.engine.generation.language_model import LanguageModel, Prompt
from amk.engine.tokenizers.tokenizer import Tokenizer
from amk.report.diagnostic import AmkError, Diagnostic, Exit, Where


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_sampling_arguments(parser)
    parser.add_argument(
        "--prompt", action="append", help="what the user says; - reads it from standard input; several: one batch"
    )
    parser.add_argument("--prompts", metavar="FILE", help="one prompt a line, decoded together as one batch")
    parser.add_argument("--plain", action="store_true", help="continue the prompt as text, without the chat template")
    parser.add_argument("--system", metavar="TEXT", help="the system message before the prompt")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end the answer before this text")
    parser.add_argument("--logprobs", type=int, metavar="N", help="with --json: N alternatives of every token, 0 to 20")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object a line for each answer instead of text; with --format json diagnostics are JSON on "
        "stdout, too, here they stay text on stderr",
    )
    parser.add_argument("--max-tokens", type=positive, default=128, help="stop after so many tokens (default: 128)")


def run(arguments: argparse.Namespace) -> int:
    arguments.json |= arguments.format == "json"
    if arguments.logprobs is not None and not arguments.json:
        raise AmkError(Diagnostic("AMK005", "--logprobs are told with --json"))
    said = texts(arguments)
    sampling = sampling_of(arguments)
    if arguments.plain and arguments.system is not None:
        raise AmkError(Diagnostic("AMK005", "--system is for the chat template, which --plain leaves out"))
    device = choose_device(arguments)
    files = open_files(arguments.model)
    prompts = [_tokens(text, arguments, files.tokenizer) for text in said]
    if len(prompts) > 1 and device not in ("cpu", "emulator"):
        from amk.commands.generate_batch import run_batch

        run_batch(arguments, device, files, prompts)
        return Exit.SAFE
    longest = max(map(len, prompts)) + arguments.max_tokens
    together = min(len(prompts), MOST_TEXTS) if device == "cpu" else 1
    with opened(arguments, device, files, longest, sampling.mode, together) as model:
        _answer(model, said if arguments.plain else prompts, arguments)
    return Exit.SAFE


def _answer(model: LanguageModel, prompts: Sequence[Prompt], arguments: argparse.Namespace) -> None:
    """One answer as it comes; several, or as JSON, when all are there."""
    options = dataclasses.asdict(sampling_of(arguments)) | {"logprobs": arguments.logprobs}
    options |= {"stop": arguments.stop, "max_tokens": arguments.max_tokens}
    if len(prompts) == 1 and not arguments.json:
        for piece in model.stream(prompts[0], **options):
            print(piece.text, end="", flush=True)
        print()
        return
    for number, completion in enumerate(model.generate_all(prompts, **options), 1):
        as_json = json.dumps(dataclasses.asdict(completion), ensure_ascii=False)
        print(as_json if arguments.json else f"[{number}] {completion.text}", flush=True)


def texts(arguments: argparse.Namespace) -> list[str]:
    """What `--prompt` and the lines of `--prompts` say. AMK005 unless there is at least one, AMK014 if one is empty."""
    prompts = [sys.stdin.read() if text == "-" else text for text in arguments.prompt or ()]
    if arguments.prompts is not None:
        try:
            text = Path(arguments.prompts).read_text(encoding="utf-8")
            prompts += text.removesuffix("\n").split("\n") if text else []
        except (OSError, ValueError) as error:
            where = Where(file=str(arguments.prompts))
            why = error.strerror if isinstance(error, OSError) else error
            raise AmkError(Diagnostic("AMK001", f"cannot read: {why}", where=where)) from error
    if not prompts:
        raise AmkError(Diagnostic("AMK005", "give --prompt, or --prompts with a file that has a line"))
    if "" in prompts:
        raise AmkError(Diagnostic("AMK014", f"prompt {prompts.index('') + 1} is empty", help="say something"))
    return prompts


def _tokens(text: str, arguments: argparse.Namespace, tokenizer: Tokenizer) -> list[int]:
    if arguments.plain:
        return tokenizer.encode(text)
    system = [] if arguments.system is None else [{"role": "system", "content": arguments.system}]
    return tokenizer.encode_chat([*system, {"role": "user", "content": text}])
