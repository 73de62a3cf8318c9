from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine import tiny_chat
from tests.serve.serving import Running, serving


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_chat.write(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture(scope="module")
def running(directory: Path) -> Iterator[Running]:
    with serving(directory) as found:
        yield found
