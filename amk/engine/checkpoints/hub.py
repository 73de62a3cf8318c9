"""Checkpoints by the name of a repository on the Hugging Face hub, through `huggingface_hub` where it is installed.

Only what a model needs is fetched: configuration, safetensors, tokenizer and chat template. Its own cache keeps them;
HF_HUB_OFFLINE=1, HF_HOME, HF_ENDPOINT and HF_TOKEN mean what they mean there.
"""

from __future__ import annotations

import re
from pathlib import Path

from amk.engine.refusal import bad_weights

FILES = ["*.json", "*.safetensors", "*.jinja"]
IGNORED = ["consolidated*", "*/*.safetensors"]
"""A second copy of the weights in another layout, and those of other programs."""
_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(@[\w.-]{1,64})?", re.ASCII)


def is_hub_id(text: str) -> bool:
    """'owner/name', or 'owner/name@revision'; says nothing about whether there is one."""
    return _ID.fullmatch(text) is not None and ".." not in text and not text.lower().endswith(".gguf")


def fetch(name: str) -> Path:
    """The local directory of a repository's snapshot; AMK013 where it cannot be had, saying why."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise bad_weights(
            None,
            f"{name!r} is no path, and looks like a repository of the Hugging Face hub",
            "that needs the package huggingface_hub, which is not installed",
            help="pip install huggingface_hub, or pass the path of a directory with the model",
        ) from None
    repository, _, revision = name.partition("@")
    try:
        found = Path(
            snapshot_download(repository, revision=revision or None, allow_patterns=FILES, ignore_patterns=IGNORED)
        )
    except Exception as error:  # the package's errors, those of its HTTP client, and those of the file system
        reason = str(error).strip().splitlines()
        raise bad_weights(
            None,
            f"{name!r} cannot be fetched from the Hugging Face hub, and its cache has no complete copy",
            *(line[:300] for line in reason[:1]),
            help="check the name, the network and HF_TOKEN, or pass the path of a directory with the model",
        ) from error
    if not (found / "config.json").is_file():
        raise bad_weights(
            None,
            f"the repository {name!r} has no config.json",
            help="of a repository of GGUF files download one (`hf download OWNER/NAME FILE.gguf`) and pass its path",
        )
    return found
