"""What the processes of a recorded run share: a folder that begins empty and goes with the run."""

from __future__ import annotations

import os
import pickle
import tempfile
import zlib
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

NAME = "AMK_RUN_FOLDER"


@contextmanager
def shared() -> Iterator[None]:
    """Inside, the processes that are started have one folder."""
    with tempfile.TemporaryDirectory(prefix="amk-run-") as folder:
        os.environ[NAME] = folder
        try:
            yield
        finally:
            del os.environ[NAME]


@cache
def _own() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="amk-run-")


def folder() -> Path:
    """That of the run, or one of this process alone."""
    return Path(os.environ.get(NAME) or _own().name)


class Kept(MutableMapping[str, Any]):
    """Values by key, a file each, which other processes see once it is whole. The folder is the run's unless given."""

    def __init__(self, kind: str, path: Path | None = None) -> None:
        self._path = (path or folder()) / kind
        self._path.mkdir(exist_ok=True)

    def _file(self, key: str) -> Path:
        return self._path / sha256(key.encode()).hexdigest()

    def __getitem__(self, key: str) -> Any:
        try:
            return pickle.loads(zlib.decompress(self._file(key).read_bytes()))[1]
        except FileNotFoundError:
            raise KeyError(key) from None

    def __setitem__(self, key: str, value: Any) -> None:
        file = self._file(key)
        temporary = file.with_name(f"{file.name}.{os.getpid()}")
        temporary.write_bytes(zlib.compress(pickle.dumps((key, value)), 1))
        os.replace(temporary, file)

    def __delitem__(self, key: str) -> None:
        self._file(key).unlink()

    def __iter__(self) -> Iterator[str]:
        for file in self._path.iterdir():
            yield pickle.loads(zlib.decompress(file.read_bytes()))[0]

    def __len__(self) -> int:
        return len(list(self._path.iterdir()))


def claimed(name: str, by: str, path: Path | None = None) -> bool:
    """Whether the name is theirs: nobody of the run has claimed it before, or they have and their process died."""
    with tempfile.NamedTemporaryFile("w", dir=path or folder()) as mine:
        mine.write(by)
        mine.flush()
        try:
            os.link(mine.name, _claim(name, path))
        except FileExistsError:
            return _claim(name, path).read_text() == by
    return True


def given_up(name: str, path: Path | None = None) -> None:
    """For the next one to claim."""
    _claim(name, path).unlink()


def _claim(name: str, path: Path | None) -> Path:
    return (path or folder()) / f"claim {sha256(name.encode()).hexdigest()}"
