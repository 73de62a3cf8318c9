"""Machine code that several processes keep at once is each one's own."""

from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

pytest.importorskip("numba")

from numba.core import caching

from amk.emulator.arithmetic import bits
from amk.emulator.machine_code import KeptCode, in_cache


def test_two_that_keep_different_signatures_at_once_do_not_get_each_other_s(tmp_path: Path) -> None:
    """One looks for a free number, and so does the other before the first has written under it, if it may."""
    looked, named, written = Event(), Event(), Event()

    class First(KeptCode):
        def _save_index(self, overloads: Any) -> None:
            other.start()
            looked.wait(1)
            super()._save_index(overloads)
            named.set()

        def _save_data(self, name: str, data: Any) -> None:
            written.wait(1)
            super()._save_data(name, data)

    class Second(KeptCode):
        def _load_index(self) -> Any:
            found = super()._load_index()
            looked.set()
            named.wait(1)
            return found

        def save(self, key: Any, data: Any) -> None:
            super().save(key, data)
            written.set()

    first, second = (kind(str(tmp_path), "f", "stamp") for kind in (First, Second))
    other = Thread(target=second.save, args=("float", "code for floats"))
    first.save("int", "code for ints")
    other.join()
    kept = KeptCode(str(tmp_path), "f", "stamp")
    assert [kept.load(key) for key in ("int", "float")] == ["code for ints", "code for floats"]


def test_the_emulator_s_functions_are_kept_so() -> None:
    numbas = caching.IndexDataCacheFile
    with in_cache():
        assert caching.IndexDataCacheFile is KeptCode
    assert caching.IndexDataCacheFile is numbas is not KeptCode
    function: Any = bits.compiled(lambda value: value + 1)
    assert isinstance(function._cache._cache_file, KeptCode)
