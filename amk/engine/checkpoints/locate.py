"""Where the weights are that `--model NAME|DIR|GGUF` asks for.

A path is used as it is; 'owner/name' that is no path is a repository of the Hugging Face hub. A shipped name is looked
up as a directory or a .gguf file of that name in the directories of AMK_CHECKPOINTS (separated like PATH) and then in
the user's data directory.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import platformdirs

from amk.engine.checkpoints.hub import fetch, is_hub_id
from amk.engine.refusal import bad_weights
from amk.models.model import only_gguf, shipped_models
from amk.report.diagnostic import AmkError, Diagnostic
from amk.report.schema import closest

VARIABLE = "AMK_CHECKPOINTS"


def checkpoint_directories(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """The directories that are searched for the weights of a shipped name, first match wins."""
    directories = [Path(part) for part in environment.get(VARIABLE, "").split(os.pathsep) if part]
    return [*directories, platformdirs.user_data_path("amk", appauthor=False) / "checkpoints"]


def find_checkpoint(name_or_path: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The path to give to `open_checkpoint`; of a directory without config.json its GGUF file.

    Raises AMK013 when the name is known but its weights are nowhere, AMK010 for a name that is neither known nor a
    path, AMK001 for a directory that has neither config.json nor one GGUF file. A shipped name wins over a file of the
    same name in the current directory, as everywhere in amk.
    """
    by_folded = {name.lower(): name for name in shipped_models()}
    name = by_folded.get(name_or_path.lower())
    if name is None:
        return _file_of(_existing(name_or_path))
    searched = checkpoint_directories(environment)
    for directory in searched:
        for found in (directory / name, directory / f"{name}.gguf"):
            if found.exists():
                return _file_of(found)
    raise bad_weights(
        None,
        f"there are no weights for {name}",
        *(f"looked in {directory}" for directory in searched),
        help=f"put a safetensors directory or GGUF file at {searched[-1] / name}[.gguf], or pass its path to --model",
    )


def _file_of(path: Path) -> Path:
    """The GGUF file of a directory without config.json, any other path itself."""
    return only_gguf(path) if path.is_dir() and not (path / "config.json").is_file() else path


def _existing(text: str) -> Path:
    path = Path(text)
    try:
        if path.exists():
            return path
    except (OSError, ValueError):  # too long for the file system, a NUL byte, a directory that may not be searched
        pass
    if is_hub_id(text):
        return fetch(text)
    if "/" in text or path.suffix.lower() == ".gguf":
        raise bad_weights(text, "there is no such file or directory")
    raise AmkError(
        Diagnostic(
            "AMK010",
            f"model {text!r} is neither a known name nor an existing path",
            help=closest(text, shipped_models()) or "`amk models` lists the known names",
        )
    )
