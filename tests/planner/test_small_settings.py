"""Settings at the ends of what a step of several rows can be: a SAFE plan, or a refusal that says what to change."""

from __future__ import annotations

from itertools import product
from typing import Literal

import pytest

from amk.planner.decode import plan
from amk.planner.settings import Handoff, Settings
from amk.report.diagnostic import AmkError
from amk.targets.target import load_target
from amk.validator.verify import verify
from tests.tiny import tiny

H200, SMALL = load_target("h200"), tiny(layers=1)
POINTS = list(product((1, 2, 5), (1, 2, 5, 8), (1, 2, 5, 24)))


@pytest.mark.parametrize(("rows", "kv_block", "context"), POINTS)
def test_rows_have_room_or_are_refused(rows: int, kv_block: int, context: int) -> None:
    """Rows lie in the cache, in two blocks at most; that alone is refused, and what to change is said. Verified are the
    plans that have just room."""
    settings = Settings(rows=rows, kv_splits=3, kv_block=kv_block, warps=2)
    if rows <= min(kv_block, context):
        schedule = plan(SMALL, H200, settings=settings, max_context=context, workers=2)
        assert rows < min(kv_block, context) or verify(schedule).safe
        return
    with pytest.raises(AmkError) as refused:
        plan(SMALL, H200, settings=settings, max_context=context, workers=8)
    (found,) = refused.value.diagnostics
    assert found.code == "AMK016"
    assert str(rows) in (found.help or "")


def test_a_refusal_names_values_that_are_safe() -> None:
    """What the help asks for is enough."""
    settings = Settings(rows=5, kv_splits=3, kv_block=3)
    with pytest.raises(AmkError, match="two blocks"):
        plan(SMALL, H200, settings=settings, max_context=24)
    repaired = Settings(rows=5, kv_splits=3, kv_block=5)
    assert verify(plan(SMALL, H200, settings=repaired, max_context=24)).safe


@pytest.mark.parametrize("several", [{}, {"rows": 2}, {"batch": 2}])
@pytest.mark.parametrize("workers", [4, 5])
def test_columns_are_divided_where_that_is_safe(several: dict[str, int], workers: int) -> None:
    """In a step of several tokens; of one it is refused."""
    settings = Settings(warps=2, k_splits=2, plan="custom", **several)  # type: ignore[arg-type]
    if several:
        assert verify(plan(SMALL, H200, settings=settings, max_context=24, workers=workers)).safe
        return
    with pytest.raises(AmkError, match=r"AMK016.*k_splits"):
        plan(SMALL, H200, settings=settings, max_context=24, workers=workers)


@pytest.mark.parametrize(
    ("handoff", "pollers", "hints"), list(product(("tagged", "mixed"), ("one", "all"), ("all", "act")))
)
def test_steps_without_output_head_are_safe_however_words_are_looked_for(
    handoff: Handoff, pollers: Literal["one", "all"], hints: Literal["all", "act"]
) -> None:
    settings = Settings(warps=2, rows=2, headless=True, handoff=handoff, pollers=pollers, hints=hints, plan="custom")
    assert verify(plan(SMALL, H200, settings=settings, max_context=24, workers=3)).safe
