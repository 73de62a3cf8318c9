"""Bandwidth sharing: max-min fairness, rings that fill and drain, direct reads."""

import numpy as np
import pytest

from amk.simulator.supply import NEVER, Supply


def supply(
    members: list[int], bandwidth: float, alone: float = 1e9, parts: list[int] | None = None, latency: float = 0.0
) -> Supply:
    part = np.array(parts or [0] * len(members))
    total = np.full(int(part.max()) + 1, bandwidth)
    return Supply(np.array(members, float), part, total, alone, latency)


def run(made: Supply) -> dict[int, float]:
    """When the drain (n) or the direct reads (-1 - n) of each group ended."""
    ends: dict[int, float] = {}
    now = 0.0
    while (step := made.horizon()) != NEVER:
        drained, read = made.advance(step)
        now += step
        ends |= dict.fromkeys(drained, now) | {-1 - n: now for n in read}
    return ends


def test_a_full_ring_drains_at_its_own_rate_and_an_empty_one_at_the_memory_s() -> None:
    made = supply([1], 10.0)
    made.ring(0, 100.0, True, NEVER)
    made.begin_drain(0, 400.0, 40.0)
    # 100 bytes are there and 10 arrive while 40 leave: empty after 100 / 30; the rest at 10.
    empty = 100 / 30
    assert run(made)[0] == pytest.approx(empty + (400 - 40 * empty) / 10)


def test_what_a_ring_begins_to_ask_for_comes_after_the_latency_of_a_copy() -> None:
    made = supply([1], 10.0, latency=0.5)
    made.ring(0, 100.0, True, NEVER)
    made.begin_drain(0, 400.0, 40.0)
    empty = 0.5 + (100 - 40 * 0.5) / 30
    assert run(made)[0] == pytest.approx(empty + (400 - 40 * empty) / 10)
    # It has been asking since, so it fills up at the memory's rate, and the next product finds it full.
    made.begin_drain(0, 50.0, 40.0)
    assert made.horizon() == pytest.approx(0.5)


def test_a_ring_without_run_ahead_has_nothing_at_the_start() -> None:
    made = supply([1], 10.0)
    made.ring(0, 100.0, False, NEVER)
    made.begin_drain(0, 50.0, 40.0)
    assert run(made)[0] == pytest.approx(5.0)


def test_the_rest_of_a_modest_flow_goes_to_the_others() -> None:
    made = supply([1, 2], 30.0)
    for n, amount, most in ((0, 10.0, 2.0), (1, 28.0, 100.0)):
        made.begin_direct(n, amount, most)
    ends = run(made)
    assert ends[-1] == pytest.approx(5.0) and ends[-2] == pytest.approx(2.0)  # (30 - 2) / 2 members = 14 each


def test_parts_of_the_chip_do_not_share() -> None:
    made = supply([1, 1], 10.0, parts=[0, 1])
    made.begin_direct(0, 10.0, 100.0)
    made.begin_direct(1, 40.0, 100.0)
    ends = run(made)
    assert ends[-1] == pytest.approx(1.0) and ends[-2] == pytest.approx(4.0)


def test_one_sm_alone_is_limited() -> None:
    made = supply([1], 100.0, alone=5.0)
    made.ring(0, 10.0, False, NEVER)
    made.begin_drain(0, 50.0, 80.0)
    assert run(made)[0] == pytest.approx(10.0)


def test_bytes_are_neither_lost_nor_made() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        members = rng.integers(1, 9, 4).tolist()
        made = supply(members, float(rng.uniform(5, 50)), float(rng.uniform(5, 50)))
        for n in range(4):
            made.ring(n, float(rng.uniform(10, 100)), True, NEVER)
        before, amounts, moved = made.level.copy(), rng.uniform(50, 500, 4), np.zeros(4)
        for n in range(4):
            made.begin_drain(n, float(amounts[n]), float(rng.uniform(5, 60)))
        while (step := made.horizon()) != NEVER:
            moved += made.rate[:4] * step
            made.advance(step)
            assert float(made.rate[:4] @ np.array(members)) <= made.bandwidth[0] * (1 + 1e-9)
        assert before + moved - amounts == pytest.approx(made.level, abs=1e-3)


def test_a_ring_that_holds_refills_back_stands_still_until_it_asks_for_them() -> None:
    made = supply([1], 50.0)
    made.ring(0, 100.0, True, NEVER)
    made.begin_drain(0, 300.0, 40.0, held=60.0)
    run(made)
    assert made.level[0] == pytest.approx(40.0, abs=0.1) and made.outstanding(0) == pytest.approx(0.0, abs=0.1)
    made.refill(0)
    assert made.outstanding(0) == pytest.approx(60.0, abs=0.1)
    run(made)
    assert made.level[0] == pytest.approx(100.0, abs=0.1)


def until_drained(made: Supply) -> None:
    while not made.advance(made.horizon())[0]:
        pass


def test_what_is_in_flight_at_a_later_time_is_what_has_not_come_by_then() -> None:
    made = supply([2], 20.0, latency=0.5)
    made.ring(0, 100.0, True, NEVER)
    made.begin_drain(0, 160.0, 40.0)
    until_drained(made)
    before = made.outstanding(0)
    assert before > 30 and made.outstanding(0, 1.0) == pytest.approx(before - 10)
    assert made.outstanding(0, 100.0) == 0
    told = [made.outstanding(0, later) for later in (1.0, 2.0)]
    for expected in told:
        made.advance(1.0)
        assert made.outstanding(0) == pytest.approx(expected)


def test_copies_that_were_just_asked_for_begin_to_come_after_their_latency() -> None:
    made = supply([2], 20.0, latency=0.5)
    made.ring(0, 100.0, True, NEVER)
    made.begin_drain(0, 40.0, 40.0, held=60.0)
    run(made)
    made.refill(0)
    before = made.outstanding(0)
    assert before > 5 and made.outstanding(0, 0.4) == before
    assert made.outstanding(0, 0.8) == pytest.approx(before - 3)
