"""Every edit has its place, and a handful is killed; all are run by hand (`tests.validator.long_checks edits`)."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from tests.validator.mutants import ROOT, Mutant, asserted, mutants, outcome, source
from tests.validator.mutation_operators import RULES, Scope, places

QUICK = ("K is the meet of producers", "no write after write", "counters start at zero", "relaxed waits order")
LEAST = 140
EXAMPLE = """
class Clocks:
    def lower(self, row, counts):
        if row < self.need and not self.over:
            self.value[row] = max(counts[0], row + 1)
        return self.one(row, "é", 2) if row in counts else self.other | row

KINDS = frozenset({"read"})
"""


def test_at_least_140_edits_differ_and_each_has_its_place() -> None:
    """A change of the validator may take a place away; the message of `source` lists those that are there."""
    sources = {(mutant.path, source(mutant)) for mutant in mutants()}
    assert len(sources) == len({mutant.name for mutant in mutants()}) == len(mutants()) >= LEAST
    for path, text in sources:
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse((ROOT / path).read_text()))


def test_every_rule_is_used() -> None:
    assert {mutant.rule for mutant in mutants()} == set(RULES)


def test_a_place_that_is_gone_is_told_with_the_edit_and_the_places_there_are() -> None:
    mutant = next(m for m in mutants() if m.name == "tight with one spare")
    with pytest.raises(ValueError, match=r"tight with one spare: .*: 0 definitions of Fixpoint\.gone, expected 1"):
        source(replace(mutant, function="Fixpoint.gone"))
    with pytest.raises(ValueError, match=r"tight with one spare: .* of nothing_of_it: 0 places, expected 1"):
        source(replace(mutant, of="nothing_of_it"))
    with pytest.raises(ValueError, match=r"tight with one spare: .*: 3 places, expected 2\n  1: line \d+: .* > "):
        source(replace(mutant, of="", place="1 of 2"))


@pytest.mark.parametrize(
    ("rule", "of", "old", "new"),
    [
        ("comparison one off", "", "row < self.need", "row <= self.need"),
        ("comparison opposite", "counts", "row in counts", "row not in counts"),
        ("condition never true", "over", "row < self.need and not self.over", "False"),
        ("condition always true", "need", "row < self.need and", "True and"),
        ("operand left out", "need", "row < self.need and not self.over", "(row < self.need)"),
        ("operand negated", "other", "self.other | row", "~self.other | row"),
        ("and for or", "other", "self.other | row", "self.other & row"),
        ("other extreme", "", "max(", "min("),
        ("one more", "other", "else self.other | row", "else (self.other + 1) | row"),
        ("one less", "need", "self.need and", "self.need - 1 and"),
        ("zero", "row", "if row <", "if 0 <"),
        ("one", "counts", "max(counts[0]", "max(1"),
        ("argument for call", "max", "max(counts[0], row + 1)", "(row + 1)"),
        ("all for selection", "counts", "counts[0]", "counts"),
        ("statement left out", "value", "self.value[row] = max(counts[0], row + 1)", "pass"),
        ("one branch", "", 'self.one(row, "é", 2) if row in counts else self.other | row', "(self.other | row)"),
        ("element left out", "one", '"é", 2)', '"é")'),
        ("neighbour", "é", '"é"', "2"),
        ("nothing", "", "in counts else", "in () else"),
    ],
)
def test_a_rule_edits_its_place_alone(rule: str, of: str, old: str, new: str) -> None:
    scope = Scope.named(EXAMPLE, "Clocks.lower")
    sources = [place.edited(scope.text) for place in places(scope, rule, of)]
    assert EXAMPLE.count(old) == 1 and EXAMPLE.replace(old, new) in sources


def test_statements_outside_of_functions_have_places() -> None:
    scope = Scope.named(EXAMPLE, "KINDS")
    assert places(scope, "nothing")[0].edited(scope.text) == EXAMPLE.replace('frozenset({"read"})', "frozenset()")


@pytest.mark.turns(16)
@pytest.mark.parametrize("mutant", [m for m in mutants() if m.name in QUICK], ids=lambda m: m.name)
def test_mutants_are_killed(mutant: Mutant) -> None:
    assert outcome(mutant) in ("killed", "crashed", "hung")


def test_an_assertion_that_fails_is_no_crash() -> None:
    summary = "FAILED tests/a.py::test_a - {}\n1 failed in 0.10s\n"
    assert asserted(summary.format("AssertionError: assert 1 == 2")) and asserted(summary.format("assert 1 == 2"))
    assert not asserted(summary.format("KeyError: 'a'")) and not asserted("1 error in 0.10s\n")
