"""What is kept is what the filters say, and what is drawn follows the probabilities of what is kept."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from amk.report.diagnostic import AmkError, Exit
from amk.schedule_ir.ranking import gumbel, keys, scores
from amk.schedule_ir.sampling import GREEDY, MODES, Mode, Sampling, require
from amk.schedule_ir.schedule import mode_of
from tests.cases import cases
from tests.engine.tiny import tiny_model, tiny_plan
from tests.reference.sampling_numpy import Array, probabilities
from tests.schedule_ir.drawing import Drawing

VOCAB = 83


@cache
def drawing(mode: Mode, workers: int = 4, warps: int = 4) -> Drawing:
    return Drawing(tiny_plan(tiny_model(vocab=VOCAB), workers=workers, warps=warps, sampling=mode))


def some_logits(seed: int) -> Array:
    """Several shapes: spread out, peaked, coarse (many ties), all equal, far from zero, both zeros."""
    draw = np.random.default_rng(seed)
    base = draw.standard_normal(VOCAB)
    shapes = (base * 4, base * 30, np.round(base * 2), np.full(VOCAB, 2.5), base - 500, np.where(base > 0, 0.0, -0.0))
    logits: Array = shapes[seed % len(shapes)].astype(np.float32)
    return logits


FILTERS = [(0, 1.0), (1, 1.0), (7, 1.0), (82, 1.0), (83, 1.0), (10**6, 1.0), (0, 0.9), (0, 1e-6), (0, 0.999999),
           (0, 0.5), (5, 0.5), (40, 0.95), (3, 0.34)]  # fmt: skip


@pytest.mark.turns(4)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("top_k", "top_p"), FILTERS)
def test_the_filters_keep_what_an_independent_one_keeps(top_k: int, top_p: float, seed: int) -> None:
    logits, temperature = some_logits(seed), (0.6, 1.0, 2.5)[seed % 3]
    sampling = Sampling(temperature, top_k, top_p, seed)
    token, keep = drawing("top-k-top-p")(logits, sampling, pos=seed)
    wanted = probabilities(logits, temperature, top_k, top_p) > 0
    found = keys(logits) >= keep
    # A sum that meets p to rounding may fall either way: then one more or one fewer level is right as well.
    near = [probabilities(logits, temperature, top_k, p) > 0 for p in (top_p * (1 - 2e-6), min(1, top_p * (1 + 2e-6)))]
    if top_p == 1:
        # fp64 calls rows of weight below 1e-300 removed; nothing is.
        kth = np.sort(logits)[-min(top_k or VOCAB, VOCAB)]
        wanted, near = logits >= kth, []
    assert any((found == answer).all() for answer in (wanted, *near))
    assert found[token]


@pytest.mark.parametrize("mode", ["temperature", "top-k", "top-p"])
def test_a_plan_with_fewer_filters_draws_the_same_tokens(mode: Mode) -> None:
    sampling = Sampling(0.8, 9 if mode == "top-k" else 0, 0.7 if mode == "top-p" else 1.0, 3)
    for seed in range(8):
        logits = some_logits(seed)
        assert drawing(mode)(logits, sampling, seed)[0] == drawing("top-k-top-p")(logits, sampling, seed)[0]


@pytest.mark.turns(4)
def test_the_token_does_not_depend_on_the_plan() -> None:
    sampling = Sampling(1.3, 20, 0.9, 2**63 + 5)
    for seed in range(8):
        logits = some_logits(seed)
        found = {drawing("top-k-top-p", *shape)(logits, sampling, seed) for shape in ((4, 4), (2, 1), (13, 8), (3, 2))}
        assert len(found) == 1


@pytest.mark.turns(16)
@pytest.mark.parametrize("live", [False, True])
def test_a_sequence_of_a_batch_draws_what_it_draws_alone(live: bool) -> None:
    """Whatever the others are, and how they draw: so what holds of the draws of one sequence holds of each."""
    together = Drawing(tiny_plan(tiny_model(vocab=VOCAB), workers=6, batch=3, live=live, sampling="top-k-top-p"))
    wishes = [Sampling(0.8, 9, 0.7, 5), GREEDY, Sampling(1.3, 0, 0.95, 2**63), Sampling(0.6, 20, seed=1)]
    for seed in range(12):
        logits = [some_logits(seed + s) for s in range(3)]
        samplings = [wishes[(seed + s) % len(wishes)] for s in range(3)]
        positions = [seed + 7 * s if live else seed for s in range(3)]
        alone = [drawing("top-k-top-p")(*each) for each in zip(logits, samplings, positions, strict=True)]
        assert together.together(logits, samplings, positions) == alone


def test_temperature_zero_takes_the_largest_logit_the_lowest_row_among_equals() -> None:
    for seed in range(6):
        logits = some_logits(seed)
        assert drawing("top-k-top-p")(logits, GREEDY, seed)[0] == int(np.argmax(logits))
    assert drawing("temperature")(np.round(some_logits(2)), GREEDY, 1)[0] == int(np.argmax(np.round(some_logits(2))))


def test_a_cold_draw_takes_the_largest_logit() -> None:
    logits = some_logits(0)
    assert all(drawing("temperature")(logits, Sampling(1e-3, seed=s), s)[0] == int(np.argmax(logits)) for s in range(9))


def chi_square_is_plausible(counts: Array, chance: Array) -> bool:
    """Pearson's statistic over cells of at least 5 expected draws (the rest pooled) within 5 sigma of its mean."""
    expected = chance * counts.sum()
    large = expected >= 5
    cells = [*zip(counts[large], expected[large], strict=True), (counts[~large].sum(), expected[~large].sum())]
    cells = [(c, e) for c, e in cells if e > 0]
    statistic = sum((c - e) ** 2 / e for c, e in cells)
    freedom = len(cells) - 1
    return bool(counts[chance == 0].sum() == 0 and statistic < freedom + 5 * math.sqrt(2 * max(freedom, 1)) + 5)


@pytest.mark.turns(16)
def test_draws_follow_the_filtered_softmax_over_positions_and_seeds() -> None:
    """The schedule's own steps; logits with ties, filters that bite."""
    logits, counts = some_logits(0) / 3, np.zeros(VOCAB)
    for number in range(800):
        token, _ = drawing("top-k-top-p", 2, 1)(logits, Sampling(0.9, 30, 0.93, seed=number // 200), pos=number % 200)
        counts[token] += 1
    assert chi_square_is_plausible(counts, probabilities(logits, 0.9, 30, 0.93))
    assert not chi_square_is_plausible(counts, probabilities(logits, 1.8, 30, 0.93)), "temperatures are told apart"


@pytest.mark.turns(4)
@pytest.mark.parametrize("spread", [3.0, 0.0, 1.0][: cases(1, 3)])
def test_noise_gives_softmax_probabilities_over_a_vocabulary_of_thousands(spread: float) -> None:
    vocab, number = 4096, 6000
    logits = (np.random.default_rng(1).standard_normal(vocab) * spread).astype(np.float32)
    one, top = np.float32(1), logits.max()
    tokens = [int(scores(logits, top, one, gumbel((7, 9), pos, range(vocab))).argmax()) for pos in range(number)]
    order = np.argsort(-logits, kind="stable")
    rank = np.empty(vocab, np.int64)
    rank[order] = np.arange(vocab) // 64  # 64 cells of 64 rows each
    chance = np.bincount(rank, probabilities(logits, 1.0), minlength=64)
    assert chi_square_is_plausible(np.bincount(rank[tokens], minlength=64).astype(float), chance)


def test_noise_is_a_function_of_seed_position_and_row() -> None:
    whole = gumbel((1, 2), 5, range(1000))
    assert (whole[300:400] == gumbel((1, 2), 5, range(300, 400))).all()
    assert np.isfinite(whole).all() and len(np.unique(whole)) > 990
    for other in (gumbel((1, 3), 5, range(1000)), gumbel((0, 2), 5, range(1000)), gumbel((1, 2), 6, range(1000))):
        assert (other != whole).mean() > 0.99
    assert abs(float(whole.mean()) - 0.5772) < 0.15, "the mean of the standard Gumbel distribution is Euler's constant"


BAD = [{"temperature": v} for v in (math.nan, math.inf, -1.0, -math.inf, 1e-9, 1e9)]
BAD += [{"temperature": 1.0, "top_k": v} for v in (-1, 10**12)]
BAD += [{"temperature": 1.0, "top_p": v} for v in (math.nan, -0.1, 0.0, 1.0001, math.inf)]
BAD += [{"temperature": 1.0, "seed": v} for v in (-1, 2**64)]


@pytest.mark.parametrize("values", BAD, ids=str)
def test_values_outside_their_range_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(AmkError) as refused:
        Sampling(**values)  # type: ignore[arg-type]
    assert refused.value.exit_code is Exit.INPUT
    assert [d.code for d in refused.value.diagnostics] == ["AMK015"]


@pytest.mark.parametrize("mode", MODES)
def test_a_schedule_serves_what_it_was_planned_for(mode: Mode) -> None:
    schedule = tiny_plan(tiny_model(), sampling=mode)
    assert mode_of(schedule) == mode
    require(mode, GREEDY)
    wishes = {"temperature": Sampling(1.0), "top-k": Sampling(1.0, 5), "top-p": Sampling(1.0, 0, 0.5),
              "top-k-top-p": Sampling(1.0, 5, 0.5)}  # fmt: skip
    served = {"greedy": [], "temperature": ["temperature"], "top-k": ["temperature", "top-k"],
              "top-p": ["temperature", "top-p"], "top-k-top-p": list(wishes)}[mode]  # fmt: skip
    for wish, sampling in wishes.items():
        assert sampling.mode == wish
        if wish in served:
            require(mode, sampling)
        else:
            with pytest.raises(AmkError, match="AMK015"):
                require(mode, sampling)
