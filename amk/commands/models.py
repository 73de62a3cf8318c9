"""`amk models`: the shipped models, or what is read from a path."""

import argparse

from amk.commands.output import add_format, print_json, print_table
from amk.models.model import ModelSpec, load_model, shipped_models


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="*", help="names or paths to show instead of all shipped models")
    add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    models = [load_model(name) for name in (arguments.model or shipped_models())]
    if arguments.format == "json":
        print_json({"models": [{**model.model_dump(mode="json"), "params": model.params} for model in models]})
        return 0
    header = ("name", "params", "layers", "hidden", "ffn", "heads", "vocab", "context", "source")
    print_table(header, [_row(model) for model in models])
    return 0


def _row(model: ModelSpec) -> tuple[str, ...]:
    return (
        model.name,
        f"{model.params / 1e9:.3f} B",
        str(model.layers),
        str(model.hidden),
        str(model.ffn),
        f"{model.heads}/{model.kv_heads} x {model.head_dim}",
        str(model.vocab),
        str(model.max_context),
        model.source,
    )
