"""From what a user types after `--model` to a ModelSpec."""

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from amk.models.gguf_header import MAGIC
from amk.models.model_gguf import model_from_gguf, model_from_gguf_fields
from amk.models.model_hf import model_from_hf_config, token_ids
from amk.models.model_spec import ModelSpec, RopeScaling
from amk.report.diagnostic import AmkError, Diagnostic, Where
from amk.report.json_file import parse_json, read_bytes, read_json
from amk.report.schema import as_name, closest, schema_error

__all__ = [
    "ModelSpec",
    "RopeScaling",
    "load_model",
    "model_from_gguf_fields",
    "model_from_hf_config",
    "models_directory",
    "shipped_models",
]

MAX_CONFIG_BYTES = 1 << 20
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
"""Ends of the names of files that have weights alone."""


@cache
def models_directory() -> Path:
    """Where the shipped descriptions are: `amk/_data/models` in an installed wheel, `models/` in a checkout."""
    package = Path(str(files("amk")))
    installed = package / "_data" / "models"
    return installed if installed.is_dir() else package.parent / "models"


@cache
def shipped_models() -> tuple[str, ...]:
    """Names of the shipped models, smallest first by weights."""
    names = [path.stem for path in models_directory().glob("*.json")]
    return tuple(sorted(names, key=lambda name: (_shipped(name).params, name)))


def load_model(name_or_path: str) -> ModelSpec:
    """The model named by a shipped name (case ignored) or a path.

    A path is a Hugging Face directory or its `config.json`, a GGUF file or a directory with exactly one, or a file in
    the format of `models/*.json`. AmkError with AMK001 to 008, AMK010 or AMK012 otherwise.
    """
    folded = name_or_path.lower()
    for name in shipped_models():
        if name.lower() == folded:
            return _shipped(name)
    path = Path(name_or_path)
    if "\0" not in name_or_path and _exists(path):
        return _from_path(path)
    if "/" in name_or_path or path.suffix.lower() in (".json", ".gguf"):
        raise AmkError(Diagnostic("AMK001", "no such file or directory", where=Where(file=name_or_path)))
    raise AmkError(
        Diagnostic(
            "AMK010",
            f"model '{name_or_path}' is neither a known name nor an existing path",
            help=closest(name_or_path, shipped_models()) or "`amk models` lists the known names",
        )
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long for the file system, or a directory that may not be searched
        return False


@cache
def _shipped(name: str) -> ModelSpec:
    path = models_directory() / f"{name}.json"
    return _from_own_format(read_json(path, MAX_CONFIG_BYTES), str(path))


def _from_path(path: Path) -> ModelSpec:
    if path.is_dir():
        return _from_directory(path)
    if path.suffix.lower() in WEIGHTS and not _is_gguf(path):
        message, help_text = "this is a file of weights", "give the directory that has it and config.json"
        raise AmkError(Diagnostic("AMK001", message, where=Where(file=str(path)), help=help_text))
    content = read_bytes(path, MAX_CONFIG_BYTES) if not _is_gguf(path) else MAGIC
    if content == MAGIC:
        return model_from_gguf(path)
    values = parse_json(content, str(path))
    if isinstance(values, dict) and "layers" in values and "model_type" not in values:
        return _from_own_format(values, str(path))
    return _from_hf(values, path)


def _from_directory(path: Path) -> ModelSpec:
    config = path / "config.json"
    if config.is_file():
        return _from_hf(read_json(config, MAX_CONFIG_BYTES), config)
    return model_from_gguf(only_gguf(path))


def only_gguf(path: Path) -> Path:
    """The GGUF file of a directory without config.json; AMK001 unless there is exactly one."""
    found = sorted(path.glob("*.gguf"))
    if len(found) == 1:
        return found[0]
    message = f"no config.json and {len(found) or 'no'} GGUF files in this directory"
    raise AmkError(
        Diagnostic("AMK001", message, where=Where(file=str(path)), help="name the file itself" if found else None)
    )


def _is_gguf(path: Path) -> bool:
    """By content or by name; False for anything that is not a regular file."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC or path.suffix.lower() == ".gguf"
    except OSError:
        return False


def _from_own_format(values: Any, file: str) -> ModelSpec:
    try:
        return ModelSpec.model_validate(values)
    except ValidationError as error:
        raise schema_error(error, file) from error


def _from_hf(values: Any, config: Path) -> ModelSpec:
    """End-of-text tokens are those of `generation_config.json` beside the config, if it names any."""
    folder = config.resolve().parent.name
    name = as_name(folder, otherwise="model")
    generation = config.parent / "generation_config.json"
    if isinstance(values, dict) and generation.is_file():
        more = read_json(generation, MAX_CONFIG_BYTES)
        if isinstance(more, dict) and more.get("eos_token_id") is not None:
            values = {**values, "eos_token_id": list(token_ids(more["eos_token_id"]))}
    return model_from_hf_config(values, name, f"{folder} {config.name}", str(config))
