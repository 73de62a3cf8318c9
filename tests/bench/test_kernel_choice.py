"""The kernels that predictions are judged by: different, SAFE, compiled, half of them near the best."""

from amk.bench.kernel_choice import NEAR, chosen, kernels
from amk.planner.search import Problem
from amk.schedule_ir.target import load_target
from tests.tiny import tiny

MODEL = tiny("small", layers=2, hidden=512, ffn=1024, heads=8, kv_heads=4, vocab=4096)
PROBLEM = Problem(MODEL, load_target("h200"), context=512, positions=(100,))


def test_the_choice_is_deterministic_varied_and_half_near_the_best() -> None:
    states = chosen(PROBLEM, 6, seed=1)
    assert [s.key for s in states] == [s.key for s in chosen(PROBLEM, 6, seed=1)]
    assert len({s.key for s in states}) == len(states) >= 6
    best = min(s.ms[0] for s in states)
    near = sum(s.ms[0] <= NEAR * best for s in states)
    assert 0.25 <= near / len(states) <= 0.8


def test_kernels_come_compiled() -> None:
    (one,) = kernels(PROBLEM, 1, seed=1, workers=1)
    assert one.number == 0 and one.admitted.schedule.plan == "search"
