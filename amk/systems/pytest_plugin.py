"""A pytest plugin: a failing test shows what `amk.verify` said about the systems that are not SAFE in it.

Property: a passing test and its output are as without the plugin. Loaded by pytest itself where amk is installed;
`-p amk.systems.pytest_plugin` otherwise. Costs nothing until a test asks for a verdict.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from amk.systems.observed import observed

if TYPE_CHECKING:
    from amk.systems.open_loop import LoopVerdict
    from amk.systems.verdict import Verdict

MOST_VERDICTS = 3
"""Verdicts of one test that are told."""
_KEY = pytest.StashKey[list["Verdict | LoopVerdict"]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    with observed() as verdicts:
        item.stash[_KEY] = verdicts
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    if report.when == "call" and report.failed:
        wrong = [verdict for verdict in item.stash.get(_KEY, []) if not verdict.safe]
        report.sections += [(f"amk verify: {v.system.name}", v.explain()) for v in wrong[:MOST_VERDICTS]]
    return report
