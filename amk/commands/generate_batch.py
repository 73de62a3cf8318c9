"""`amk generate` with several prompts on a schedule of as many sequences."""

from __future__ import annotations

import argparse

from amk.api.devices import Device, planned
from amk.api.loading import Files
from amk.api.schedules import read_schedule
from amk.commands.model_arguments import packing_bar, plan_wanted, prefill, quantiser
from amk.commands.sampling import sampling_of
from amk.engine.admission.admission import admit
from amk.engine.backends.cuda_engine import CudaEngine
from amk.engine.backends.session import Session, check_prompt
from amk.engine.checkpoints.checkpoint import unread
from amk.engine.generation.generation_config import unheeded
from amk.engine.load import DeviceName, load, rounding
from amk.prefill.reader import prompts_of
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.sampling import require
from amk.schedule_ir.schedule import mode_of


def run_batch(arguments: argparse.Namespace, device: Device, files: Files, prompts: list[list[int]]) -> None:
    """Print the texts one after the other."""
    guessed = arguments.speculate is not None or arguments.draft is not None
    if arguments.stop or arguments.logprobs is not None or arguments.json or guessed:
        message = "--stop, --logprobs, --json, --speculate and --draft are for one prompt, or for --device cpu"
        raise AmkError(Diagnostic("AMK005", message))
    longest = max(map(len, prompts)) + arguments.max_tokens
    if arguments.schedule is not None:
        schedule = read_schedule(arguments.schedule)
    else:
        wanted = plan_wanted(arguments, files, longest, sampling_of(arguments).mode, len(prompts))
        schedule = planned(files.checkpoint.spec, device, arguments.gpu, wanted)
    require(mode_of(schedule), sampling_of(arguments))
    notes = *unheeded(files.path), *unread(files.checkpoint), *rounding(schedule, files.checkpoint)
    if notes:
        arguments.findings.tell(notes)
    if device != "cuda":  # there it is verified as it is loaded
        admit(schedule)
    for prompt in prompts:
        check_prompt(schedule, prompt)
    with packing_bar() as progress:
        on: DeviceName = "cuda" if device == "cuda" else "cpu"
        session = load(schedule, files.checkpoint, on, progress, quantiser(arguments))
    if isinstance(session.engine, CudaEngine):
        session.prompts = prompts_of(session.engine, prefill(arguments))
    try:
        _print(session, prompts, arguments, files)
    finally:
        session.engine.free()


def _print(session: Session, prompts: list[list[int]], arguments: argparse.Namespace, files: Files) -> None:
    """The texts, each under its number: their tokens come interleaved."""
    streams = [files.tokenizer.stream(prompt if arguments.plain else ()) for prompt in prompts]
    parts: list[list[str]] = [[] for _ in prompts]
    for sequence, token in session.generate_batch(
        prompts, arguments.max_tokens, files.checkpoint.spec.eos, sampling_of(arguments)
    ):
        parts[sequence].append(streams[sequence].push(token))
    for number, (part, stream) in enumerate(zip(parts, streams, strict=True), 1):
        print(f"[{number}] {''.join(part)}{stream.finish()}")
