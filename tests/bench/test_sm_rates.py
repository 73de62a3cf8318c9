"""Rates of SMs: what counts of bytes say, and what shares by them could gain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from amk.bench.calibration.sm_rates import SmRates, lines, of_counts, save
from amk.report.diagnostic import AmkError


def rates(gbps: list[list[float]]) -> SmRates:
    return SmRates(gpu="G", uuid="00", smid=tuple(range(len(gbps[0]))), gbps=tuple(map(tuple, gbps)), run={})


def test_counts_become_rates_by_sm() -> None:
    """Blocks come in another order every round; SM numbers need not be dense."""
    smid, gbps = of_counts([[(7, 4_000_000), (2, 2_000_000)], [(2, 1_000_000), (7, 8_000_000)]], 1e-3)
    assert smid == (2, 7) and np.allclose(gbps, [[2.0, 4.0], [1.0, 8.0]])


@pytest.mark.parametrize("second", [[(7, 1), (7, 2)], [(7, 1), (3, 2)], [(7, 1)]])
def test_blocks_that_share_an_sm_are_refused(second: list[tuple[int, int]]) -> None:
    with pytest.raises(AmkError, match="AMK603"):
        of_counts([[(7, 4), (2, 2)], second], 1e-3)


def test_the_gain_is_what_the_slowest_costs() -> None:
    uneven = rates([[10.0, 10.0, 10.0, 6.0], [10.0, 10.0, 10.0, 6.0]])
    assert uneven.gain() == pytest.approx(1 - 6 / 9)
    assert uneven.weights() == pytest.approx((10 / 9, 10 / 9, 10 / 9, 6 / 9))
    assert uneven.repeatable() == pytest.approx(1.0)
    # Equal shares end after 1 / 6, shares by rate after 4 / 36.
    assert pytest.approx(uneven.gain()) == (1 / 6 - 4 / 36) / (1 / 6)
    even = rates([[5.0, 5.0], [5.0, 5.0]])
    assert even.gain() == 0 and even.repeatable() == 0
    noise = rates(np.random.default_rng(0).normal(10, 1, (16, 132)).tolist())
    assert abs(noise.repeatable()) < 0.3


def test_a_record_is_read_back(tmp_path: Path) -> None:
    record = rates([[10.0, 6.0], [9.0, 7.0]])
    save(record, tmp_path / "r.json")
    assert SmRates.model_validate_json((tmp_path / "r.json").read_text()) == record
    assert any("at most 18.8%" in line for line in lines(record))
    with pytest.raises(AmkError, match="AMK001"):
        save(record, tmp_path / "nowhere" / "r.json")
