"""50,000 random kernels of all constructs, a part of them at a commit, get the verdict of exploration."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest

from amk.systems.document import to_json
from amk.systems.verdict import judged
from tests.systems.compiled_rules import explored
from tests.systems.joined import joined
from tests.systems.long_rules import CHANGES
from tests.systems.many_rules import Compared, different
from tests.systems.random_rules import Made
from tests.systems.rule_runs import Rules, TooMany
from tests.validator.compiled_explorer import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler")
EACH = 6_250
PARTS = tuple(range(1_000_000, 5_000_000, 500_000))
"""First seeds, far apart. The parts may run at once."""
CERTIFICATES = 16


@pytest.mark.turns(4)
def test_the_compiled_explorer_says_what_the_rules_say() -> None:
    drawn = [Made(Random(seed), CHANGES) for seed in range(250)]
    found, _ = explored(joined(drawn), all_of_it=True)
    compared = 0
    for protocol, wrong in zip(drawn, found, strict=True):
        try:
            assert Rules(to_json(protocol.built().flat()), 2_000).wrong() == wrong, protocol.key
        except TooMany:
            continue
        compared += 1
    assert compared > 200 and len({frozenset(wrong or ()) for wrong in found}) > 8


def test_one_kernel_that_is_wrong_among_right_ones_is_found() -> None:
    drawn = list(islice(different(0, CHANGES), 40))
    many = joined(drawn)
    found, _ = explored(many)
    right = [k for k, wrong in enumerate(found) if not wrong and judged(many.chosen([k]).system).safe]
    wrong = [k for k, wrong in enumerate(found) if wrong]
    assert len(right) > 10 and len(wrong) > 10 and judged(many.chosen(right).system).safe
    for one in wrong[:10]:
        assert judged(many.chosen([*right[:5], one, *right[5:]]).system).verdict == "UNSAFE"


@pytest.mark.turns(len(PARTS))
@pytest.mark.parametrize("first", PARTS)
def test_many_random_kernels_get_the_verdict_of_exploration(first: int) -> None:
    compared = Compared(CERTIFICATES)
    compared.all_of(different(first, CHANGES), EACH)
    counts = compared.counts
    assert not compared.differences
    assert sum(counts[verdict] for verdict in ("SAFE", "UNSAFE", "UNKNOWN", "too large")) == EACH
    assert min(counts["SAFE"], counts["UNSAFE"]) * 3 > EACH and counts["certificates"] > EACH // 50, counts
    assert max(counts["UNKNOWN"], counts["too large"]) * 50 < EACH, counts
