"""Fixtures of the tests that need a GPU; without one they are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from amk.lowering.launch import Device
from amk.report.diagnostic import AmkError, Exit


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    try:
        opened = Device.open()
    except AmkError as error:
        if error.exit_code is not Exit.NO_GPU:
            raise
        pytest.skip(str(error))
    yield opened
    opened.close()
