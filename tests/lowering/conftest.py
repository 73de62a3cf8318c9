"""Compilations of the tests go to a cache of their own."""

from collections.abc import Iterator

import pytest

from amk.lowering import cache


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    directory = tmp_path_factory.mktemp("cubin")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "default_directory", lambda: directory)
        yield
