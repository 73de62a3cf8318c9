"""Pairs of values that the gate refuses together are learned from refusals, and wrong explanations given up."""

import pytest

from amk.agent.decide.couples import REFUSALS, Couples, Point

REASON = ("AMK403",)


def point(**values: object) -> Point:
    base: dict[str, object] = {"warps": 4, "ctas": 1, "ahead": False}
    return frozenset((base | values).items())  # type: ignore[arg-type]


PAIR = frozenset({("warps", 12), ("ctas", 2)})


@pytest.fixture
def couples() -> Couples:
    """Either value has passed beside others."""
    return Couples(passed=[point(), point(warps=12), point(ctas=2), point(ahead=True), point(warps=12, ahead=True)])


def test_a_pair_is_avoided_after_as_many_refusals_as_a_value(couples: Couples) -> None:
    for kv in range(REFUSALS):
        assert list(couples.blocked(())) == []
        couples.refused.setdefault(REASON, []).append(point(warps=12, ctas=2, kv=kv))
    assert list(couples.blocked(())) == [PAIR]


def test_what_one_value_explains_is_no_pair(couples: Couples) -> None:
    couples.refused[REASON] = [point(fence=False, kv=kv) for kv in range(REFUSALS)]
    assert list(couples.blocked([frozenset({("fence", False)})])) == []


def test_a_wrong_explanation_is_given_up(couples: Couples) -> None:
    """With `ahead` in all refusals the pair of it and `ctas` could be the cause as well, until more is refused."""
    couples.passed = [point(), *[point(warps=12)] * 9, point(ctas=2)]
    couples.refused[REASON] = [point(warps=12, ctas=2, ahead=True, kv=kv) for kv in range(REFUSALS)]
    (wrong,) = couples.blocked(())
    assert wrong == frozenset({("ahead", True), ("ctas", 2)})
    couples.refused[REASON].append(point(warps=12, ctas=2))
    assert list(couples.blocked(())) == [PAIR]


def test_different_causes_of_one_reason_are_told_apart(couples: Couples) -> None:
    couples.refused[REASON] = [point(warps=12, ctas=2, kv=kv) for kv in range(REFUSALS)]
    couples.refused[REASON] += [point(warps=12, block=256, ahead=bool(kv % 2), kv=kv) for kv in range(REFUSALS)]
    assert set(couples.blocked(())) == {PAIR, frozenset({("warps", 12), ("block", 256)})}
