"""`amk quantize`: what each weight format costs in accuracy, and which formats fit under a bound on it.

The error is measured against the same checkpoint in bf16 over a text. A checkpoint that was itself stored in few bits
says little about formats of as few: its weights lie on a coarse grid already. The synthetic matrices do not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict

from amk.commands.format_arguments import positive
from amk.commands.judging import QUANTISERS, TOKENS, judge_of
from amk.commands.output import add_format, print_json, print_table
from amk.models.matrices import MATRICES
from amk.planner.formats import formats, runs_of
from amk.quantize.choose import PARTS, choose
from amk.quantize.error import SYNTHETIC, TextJudge, matrix_error, output_error, stored_bytes, synthetic
from amk.report.diagnostic import AmkError, Diagnostic
from amk.weights.weight_format import FORMATS, FormatName


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="a checkpoint: a known model, a directory with safetensors or a GGUF file")
    parser.add_argument("--text", metavar="FILE", help="the text that the checkpoint's error is measured on")
    parser.add_argument("--tokens", type=positive, default=TOKENS, help=f"read so many of it (default: {TOKENS})")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS), metavar="NAME")
    parser.add_argument("--lm-head-dtype", choices=FORMATS, help="format of lm_head (default: that of the layers)")
    parser.add_argument("--quantiser", choices=tuple(QUANTISERS), default="search", help="default: search")
    parser.add_argument("--max-kl", type=float, metavar="NATS", help="choose a format for each matrix under this KL")
    parser.add_argument(
        "--layer-parts", type=positive, default=PARTS, metavar="N",
        help=f"with --max-kl: parts of the layers that may differ (default: {PARTS})",
    )  # fmt: skip
    add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    if (arguments.model is None) != (arguments.text is None):
        raise AmkError(Diagnostic("AMK005", "--model and --text go together: the error is measured on a text"))
    if arguments.max_kl is not None and (arguments.model is None or not arguments.max_kl > 0):
        raise AmkError(Diagnostic("AMK005", "--max-kl is a positive number of nats, and needs --model and --text"))
    report: dict[str, object] = {"synthetic": _synthetic(arguments)}
    if arguments.model is not None:
        judge = judge_of(arguments.model, arguments.text, arguments.quantiser, arguments.tokens)
        report["checkpoint"] = _checkpoint(arguments, judge)
        if arguments.max_kl is not None:
            report["choice"] = _choice(arguments, judge)
    if arguments.format == "json":
        print_json(report)
    return 0


def _say(arguments: argparse.Namespace, header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    if arguments.format != "json":
        print_table(header, rows)
        print()


def _synthetic(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Relative error of synthetic matrices, and of their products with a Gaussian vector's worth of inputs."""
    quantise, inputs = QUANTISERS[arguments.quantiser], synthetic("gaussian", 2048, 16, seed=1)
    errors: list[dict[str, object]] = []
    for kind in SYNTHETIC:
        rows = synthetic(kind)
        for form in arguments.formats:
            error, output = matrix_error(rows, form, quantise), output_error(rows, form, inputs, quantise)
            errors.append({"matrix": kind, "format": form, "error": error, "output_error": output})
    cells = [(str(f["matrix"]), str(f["format"]), f"{f['error']:.3e}", f"{f['output_error']:.3e}") for f in errors]
    _say(arguments, ("synthetic matrix", "format", "error", "error of products"), cells)
    return errors


def _checkpoint(arguments: argparse.Namespace, judge: TextJudge) -> list[dict[str, object]]:
    errors: list[dict[str, object]] = []
    for name in arguments.formats:
        form: FormatName = name
        chosen = formats(form, arguments.lm_head_dtype)
        error = judge.error(chosen)
        errors.append({"format": form, "bytes": stored_bytes(judge.model, chosen)} | asdict(error))
        print(f"{form}: KL {error.kl:.3g}", file=sys.stderr)
    header = ("format", "bytes", "mean KL", "most KL", "same argmax", "perplexity", "in bf16")
    cells = [
        (
            str(f["format"]), f"{f['bytes']:,}", f"{f['kl']:.2e}", f"{f['kl_most']:.2e}", f"{f['argmax']:.1%}",
            f"{f['perplexity']:.3f}", f"{f['reference_perplexity']:.3f}",
        )
        for f in errors
    ]  # fmt: skip
    _say(arguments, header, cells)
    return errors


def _choice(arguments: argparse.Namespace, judge: TextJudge) -> dict[str, object]:
    choice = choose(judge, arguments.max_kl, lambda line: print(line, file=sys.stderr), arguments.layer_parts)
    runs = runs_of(choice.forms)
    header = ("layers", *MATRICES)
    rows = [(str(count), *(forms[name] for name in MATRICES)) for count, forms in runs]
    _say(arguments, header, rows)
    _say(arguments, ("bytes", "mean KL"), [(f"{choice.bytes:,}", f"{choice.error.kl:.2e}")])
    layers = [{"layers": count, "forms": dict(forms)} for count, forms in runs]
    return {"forms": layers, "bytes": choice.bytes, "error": asdict(choice.error)}
