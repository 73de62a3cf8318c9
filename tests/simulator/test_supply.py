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


def run(memory: Supply) -> dict[int, float]:
    """When the drain (n) or the direct reads (-1 - n) of each group ended."""
    ends: dict[int, float] = {}
    now = 0.0
    while (step := memory.horizon()) != NEVER:
        drained, read = memory.advance(step)
        now += step
        ends |= dict.fromkeys(drained, now) | {-1 - n: now for n in read}
    return ends


def test_a_full_ring_drains_at_its_own_rate_and_an_empty_one_at_the_memory_s() -> None:
    memory = supply([1], 10.0)
    memory.ring(0, 100.0, True, NEVER)
    memory.begin_drain(0, 400.0, 40.0)
    # 100 bytes are there and 10 arrive while 40 leave: empty after 100 / 30; the rest at 10.
    empty = 100 / 30
    assert run(memory)[0] == pytest.approx(empty + (400 - 40 * empty) / 10)


def test_what_a_ring_begins_to_ask_for_comes_after_the_latency_of_a_copy() -> None:
    memory = supply([1], 10.0, latency=0.5)
    memory.ring(0, 100.0, True, NEVER)
    memory.begin_drain(0, 400.0, 40.0)
    empty = 0.5 + (100 - 40 * 0.5) / 30
    assert run(memory)[0] == pytest.approx(empty + (400 - 40 * empty) / 10)
    # It has been asking since, so it fills up at the memory's rate, and the next product finds it full.
    memory.begin_drain(0, 50.0, 40.0)
    assert memory.horizon() == pytest.approx(0.5)


def test_a_ring_without_run_ahead_has_nothing_at_the_start() -> None:
    memory = supply([1], 10.0)
    memory.ring(0, 100.0, False, NEVER)
    memory.begin_drain(0, 50.0, 40.0)
    assert run(memory)[0] == pytest.approx(5.0)


def test_the_rest_of_a_modest_flow_goes_to_the_others() -> None:
    memory = supply([1, 2], 30.0)
    for n, amount, most in ((0, 10.0, 2.0), (1, 28.0, 100.0)):
        memory.begin_direct(n, amount, most)
    ends = run(memory)
    assert ends[-1] == pytest.approx(5.0) and ends[-2] == pytest.approx(2.0)  # (30 - 2) / 2 members = 14 each


def test_parts_of_the_chip_do_not_share() -> None:
    memory = supply([1, 1], 10.0, parts=[0, 1])
    memory.begin_direct(0, 10.0, 100.0)
    memory.begin_direct(1, 40.0, 100.0)
    ends = run(memory)
    assert ends[-1] == pytest.approx(1.0) and ends[-2] == pytest.approx(4.0)


def test_one_sm_alone_is_limited() -> None:
    memory = supply([1], 100.0, alone=5.0)
    memory.ring(0, 10.0, False, NEVER)
    memory.begin_drain(0, 50.0, 80.0)
    assert run(memory)[0] == pytest.approx(10.0)


def test_bytes_are_neither_lost_nor_made() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        members = rng.integers(1, 9, 4).tolist()
        memory = supply(members, float(rng.uniform(5, 50)), float(rng.uniform(5, 50)))
        for n in range(4):
            memory.ring(n, float(rng.uniform(10, 100)), True, NEVER)
        before, amounts, moved = memory.level.copy(), rng.uniform(50, 500, 4), np.zeros(4)
        for n in range(4):
            memory.begin_drain(n, float(amounts[n]), float(rng.uniform(5, 60)))
        while (step := memory.horizon()) != NEVER:
            moved += memory.rate[:4] * step
            memory.advance(step)
            assert float(memory.rate[:4] @ np.array(members)) <= memory.bandwidth[0] * (1 + 1e-9)
        assert before + moved - amounts == pytest.approx(memory.level, abs=1e-3)


def test_a_ring_that_holds_refills_back_stands_still_until_it_asks_for_them() -> None:
    memory = supply([1], 50.0)
    memory.ring(0, 100.0, True, NEVER)
    memory.begin_drain(0, 300.0, 40.0, held_bytes=60.0)
    run(memory)
    assert memory.level[0] == pytest.approx(40.0, abs=0.1) and memory.outstanding(0) == pytest.approx(0.0, abs=0.1)
    memory.refill(0)
    assert memory.outstanding(0) == pytest.approx(60.0, abs=0.1)
    run(memory)
    assert memory.level[0] == pytest.approx(100.0, abs=0.1)


def until_drained(memory: Supply) -> None:
    while not memory.advance(memory.horizon())[0]:
        pass


def test_what_is_in_flight_at_a_later_time_is_what_has_not_come_by_then() -> None:
    memory = supply([2], 20.0, latency=0.5)
    memory.ring(0, 100.0, True, NEVER)
    memory.begin_drain(0, 160.0, 40.0)
    until_drained(memory)
    before = memory.outstanding(0)
    assert before > 30 and memory.outstanding(0, 1.0) == pytest.approx(before - 10)
    assert memory.outstanding(0, 100.0) == 0
    amounts = [memory.outstanding(0, later) for later in (1.0, 2.0)]
    for expected in amounts:
        memory.advance(1.0)
        assert memory.outstanding(0) == pytest.approx(expected)


def test_copies_that_were_just_asked_for_begin_to_come_after_their_latency() -> None:
    memory = supply([2], 20.0, latency=0.5)
    memory.ring(0, 100.0, True, NEVER)
    memory.begin_drain(0, 40.0, 40.0, held_bytes=60.0)
    run(memory)
    memory.refill(0)
    before = memory.outstanding(0)
    assert before > 5 and memory.outstanding(0, 0.4) == before
    assert memory.outstanding(0, 0.8) == pytest.approx(before - 3)
