"""The keep rule: no false keeps on noise, true gains found."""

from dataclasses import replace
from math import log
from pathlib import Path

import numpy as np
import pytest

from amk.agent.decide import keep as decide
from amk.agent.device.measure import Fault, Job, Samples, hopeless, positions_within, round_ratio
from amk.agent.device.noise import Kind, Noise
from amk.targets.target import load_target
from tests.agent import aa_night
from tests.agent.power import KINDS, kept, paired_test


@pytest.mark.parametrize("kind", KINDS)
def test_a_night_of_identical_candidates_keeps_none(kind: Kind) -> None:
    noise = Noise(kind, 0.006)
    mad = decide.spread(paired_test(noise, 7, 0))
    assert sum(kept(noise, 7, i, 0.0, mad) for i in range(1, 201)) == 0


def test_a_period_of_four_blocks_would_be_a_gain_in_another_order() -> None:
    """Where the four blocks of every round came one after the other, copies would be kept."""
    noise = Noise("period", 0.001)
    drawn = [noise.factors(seed, (0, 24), 4 * 24) for seed in range(60)]
    together = [[round_ratio(tuple((f,) for f in turn[4 * r : 4 * r + 4])) for r in range(24)] for turn in drawn]  # type: ignore[arg-type]
    assert sum(decide.paired_test(ratios, 0.0005, 24, 0).passed for ratios in together) > 6
    assert not any(decide.paired_test(paired_test(noise, seed, 0), 0.0005, 24, 0).passed for seed in range(60))


@pytest.mark.parametrize("kind", KINDS)
def test_a_gain_of_four_percent_is_found(kind: Kind) -> None:
    noise = Noise(kind, 0.006)
    mad = decide.spread(paired_test(noise, 3, 0))
    assert sum(kept(noise, 3, i, log(1.04), mad) for i in range(1, 31)) >= 27


def test_abba_cancels_a_linear_drift() -> None:
    assert round_ratio(((1.0,), (1.1,), (1.2,), (1.3,))) == pytest.approx(0.0, abs=0.01)


def test_too_few_rounds_decide_nothing() -> None:
    assert not decide.paired_test([-0.5] * 23, 0.0, 24, 0).passed


def test_a_significant_gain_below_half_a_percent_is_not_kept() -> None:
    ruling = decide.paired_test([-0.004 + 1e-5 * i for i in range(24)], 0.0001, 24, 0)
    assert not ruling.passed and "below" in ruling.reason and ruling.bound is not None and ruling.bound < 0


def test_a_noisy_device_asks_for_more() -> None:
    assert decide.least_gain(0.0) == pytest.approx(log(1.005)) and decide.least_gain(0.02) == pytest.approx(0.06)
    assert decide.worth(0.0) == pytest.approx(log(1.01)) and decide.worth(0.02) == pytest.approx(0.06)


def test_a_paired_test_ends_at_its_half_and_a_confirmation_never() -> None:
    slow, fast = ((1.0,), (1.2,), (1.2,), (1.0,)), ((1.2,), (1.0,), (1.0,), (1.2,))
    job = Job(0, "paired test", 1, 4, 10, (1,), 0, half=decide.at_half(0.001))
    assert hopeless(job, [slow, slow]) and hopeless(job, [slow, fast]) and not hopeless(job, [fast, fast])
    assert not any(hopeless(job, [slow] * rounds) for rounds in (0, 1, 3, 4))
    assert not hopeless(replace(job, phase="confirm"), [slow, slow])
    assert not hopeless(replace(job, phase="calibrate"), [slow, slow])
    ruling = decide.paired_test([log(1.2)] * 2, 0.001, 4, 0)
    assert not ruling.passed and ruling.log_gain == pytest.approx(-log(1.2)) and "2 of 4 rounds" in ruling.reason


@pytest.mark.turns(16)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_worth_a_keep_is_hardly_ever_lost_at_the_half(kind: Kind) -> None:
    """Beside the whole paired test, at the gain that a keep needs and at one and a half times it."""
    noise = Noise(kind, 0.003)
    mad = decide.spread(paired_test(noise, 5, 0))
    for times, share in ((1.0, 0.05), (1.5, 0.02)):
        tests = [paired_test(noise, 5, i, times * decide.least_gain(mad)) for i in range(1, 301)]
        won = [ratios for ratios in tests if decide.paired_test(ratios, mad, 24, 0).passed]
        lost = [ratios for ratios in won if np.median(ratios[:12]) > decide.at_half(mad)]
        assert len(won) > 60 and len(lost) <= share * len(won)


def test_a_pilot_ends_early() -> None:
    slow = ((1.0,), (1.2,), (1.2,), (1.0,))
    job = Job(0, "pilot", 1, 6, 20, (1,), 0, slower=0.1)
    assert not hopeless(job, [slow]) and hopeless(job, [slow, slow])
    assert not hopeless(replace(job, slower=0.2), [slow, slow])
    assert not hopeless(replace(job, phase="paired test", rounds=24), [slow, slow])


def test_a_round_that_shows_a_great_loss_ends_a_pilot() -> None:
    slow = ((1.0,), (1.2,), (1.2,), (1.0,))
    job = Job(0, "pilot", 1, 6, 20, (1,), 0, at_once=0.1)
    assert hopeless(job, [slow]) and not hopeless(job, []) and not hopeless(replace(job, at_once=0.2), [slow])
    assert not hopeless(replace(job, phase="confirm", rounds=24), [slow])


def test_a_pilot_of_a_noisy_device_is_ended_by_more() -> None:
    assert decide.hopeless(0.0) == pytest.approx(-log(1.005) / 4) and decide.hopeless(0.02) == pytest.approx(-0.015)
    assert decide.hopeless_at_once(0.0) == pytest.approx(log(1.05))
    assert decide.hopeless_at_once(0.01) == pytest.approx(0.1)


@pytest.mark.parametrize("mad", [0.001, 0.003, 0.006])
def test_what_is_worth_a_keep_is_hardly_ever_dropped_early(mad: float) -> None:
    gain = decide.least_gain(mad)
    first = np.random.default_rng(0).normal(-gain, 1.4826 * mad, (20_000, 2))
    dropped = (first.min(axis=1) > decide.hopeless(mad)) | (first[:, 0] > decide.hopeless_at_once(mad))
    assert dropped.mean() < 0.01


def test_medians_are_per_program_and_position() -> None:
    samples = Samples((((1.0, 2.0), (3.0, 4.0), (5.0, 6.0), (1.0, 2.0)),), 1.0)
    assert samples.median_ms("a") == (1.0, 2.0) and samples.median_ms("b") == (4.0, 5.0)
    assert Fault("x").suspect is False


def test_the_objective_is_never_position_zero_alone() -> None:
    assert positions_within(8192) == (1, 128, 2048, 8191)
    assert positions_within(1024) == (1, 128, 1023) and max(positions_within(2)) == 1


@pytest.mark.turns(4)
def test_a_night_of_copies_that_go_straight_to_the_paired_test() -> None:
    """The simulated form of `python -m tests.agent.aa_night`."""
    target = load_target("h200")
    ready = aa_night.subject(target, "smollm2-135m", True)
    positions = positions_within(ready.candidate.schedule.kv.context)
    night = aa_night.Night(aa_night.backend_of(target, True, Path()), ready, positions)
    found = night.run(60, lambda result: None)
    assert found["pairs"] == 60 and found["kept"] == 0 and found["mad"] > 0
