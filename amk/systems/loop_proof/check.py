"""The check of a certificate of a system with loops (README.md here).

Property: it accepts only if the system is safe for all values of its parameters. Each case gives all parameters but at
most one a value. Where one stays open, numbers of laps are covered one by one, by the flat checker, or from some number
of periods on, for each rest, by claims. Total: any JSON gets a verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any, Final

from amk.judges.flat_checker import Verdict
from amk.systems.loop_proof import runs
from amk.systems.loop_proof.contents import Contents
from amk.systems.loop_proof.knowledge import Knowledge, OverCount
from amk.systems.loop_proof.numbers import Refused, need
from amk.systems.loop_proof.order import Order
from amk.systems.loop_proof.periods import PARTS, Line, cut, spelled, unrolled
from amk.systems.loop_proof.phases import Key, plain
from amk.systems.loop_proof.program import Program
from amk.systems.proof import check as check_flat
from amk.systems.proof import out_of_scope
from amk.systems.rule_reading import Refused as RuleRefused

FORMAT: Final = "amk.loop-certificate/1"
MOST_CASES: Final = 32
MOST_LAPS: Final = 1 << 10
"""Numbers of laps that are checked one by one."""
Json = dict[str, Any]


def check(document: Json, evidence: object) -> Verdict:
    """document: the file's JSON with all keys, whose schema has been checked; evidence: any JSON."""
    try:
        _checked(document, evidence)
    except (Refused, RuleRefused) as error:
        return Verdict(False, str(error))
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError, RecursionError) as error:
        return Verdict(False, f"malformed: {type(error).__name__}")
    return Verdict(True, "")


def _checked(document: Json, evidence: object) -> None:
    need(isinstance(evidence, Mapping) and evidence.get("format") == FORMAT, f"expected format {FORMAT}")
    assert isinstance(evidence, Mapping)
    parameters, count = document["parameters"], evidence["open"]
    need(count is None or count in parameters, "the open parameter is none")
    others = [name for name in parameters if name != count]
    need(all(parameters[name]["at_most"] is not None for name in others), "a parameter has any number of values")
    ranges = [range(parameters[name]["at_least"], parameters[name]["at_most"] + 1) for name in others]
    case_of = {tuple(case["values"][name] for name in others): case for case in evidence["cases"]}
    exact = all(isinstance(case["values"], dict) and set(case["values"]) == set(others) for case in case_of.values())
    need(exact, "a case has other parameters")
    cases = 1
    for each in ranges:
        cases *= len(each)
    need(cases <= MOST_CASES and set(case_of) == set(product(*ranges)), "not every case is there")
    for values, case in case_of.items():
        program = Program(document, dict(zip(others, values, strict=True)), count)
        if count is None:
            _flat(program, 0, case["base"])
        else:
            _laps(program, parameters[count], case)


def _flat(program: Program, laps: int, base: Json) -> None:
    """One number of laps."""
    document = spelled(unrolled(program, laps), 0).document()
    verdict = check_flat(document, base[str(laps)])
    need(verdict.accepted, f"{laps} laps: {verdict.reason}")


def _laps(program: Program, bounds: Json, case: Json) -> None:
    """Every number of laps within the bounds."""
    most, laps = bounds["at_most"], case["laps"]
    rests = case["rests"]
    need(type(laps) is int and laps > 0 and (not rests or laps % program.period == 0), "the period is wrong")
    covered: dict[int, int] = {}
    for one in rests:
        covered[one["rest"]] = proved_from(program, laps, one)
    last = max(covered.values(), default=0) if most is None else most
    need(most is not None or set(covered) == set(range(laps)), "not every rest is there")
    need(last - bounds["at_least"] <= MOST_LAPS or most is None, "too many numbers of laps")
    need(last <= MOST_LAPS, "too many numbers of laps")
    for number in range(bounds["at_least"], last + 1):
        if number < covered.get(number % laps, last + 1):
            _flat(program, number, case["base"])


def proved_from(program: Program, laps: int, one: Json) -> int:
    """The number of laps from which on all of this rest are proved."""
    peeled, rest, periods = one["peeled"], one["rest"], one["periods"]
    need(all(type(n) is int for n in (peeled, rest, periods)), "malformed")
    need(0 <= rest < laps and 0 <= peeled <= 8 and 1 < periods <= 64, "malformed")
    program_cut = cut(program, laps, peeled, rest)
    flat = spelled(program_cut, periods)
    need(not out_of_scope(flat.block, flat.orders), "a counter is used beyond its scope")
    found = plain(program_cut, periods, _lines(one["lines"]))
    runs.check(found.cut, periods, one["runs"])
    knowledge = Knowledge(found.cut, _claims(one["claims"]), periods)
    knowledge.check()
    loose = one["loose"]
    need(isinstance(loose, list) and all(type(w) is int for w in loose), "malformed")
    order = Order(found, knowledge, frozenset(loose))
    order.check()
    Contents(order).check()
    return int(laps * (peeled + periods) + rest)


def _key(agent: object, part: object, place: object) -> Key:
    need(type(agent) is int and part in PARTS and type(place) is int, "malformed")
    return agent, part, place  # type: ignore[return-value]


def _lines(raw: Any) -> dict[Key, Line]:
    found: dict[Key, Line] = {}
    for agent, part, place, first, slope in raw:
        need(type(first) is int and type(slope) is int, "malformed")
        found[_key(agent, part, place)] = (first, slope)
    return found


def _claims(raw: Any) -> dict[Key, dict[int, OverCount]]:
    found: dict[Key, dict[int, OverCount]] = {}
    for agent, part, place, row in raw:
        claims = {}
        for w, count, offset in row:
            need(type(w) is int and type(count) is int and (offset is None or type(offset) is int), "malformed")
            claims[w] = OverCount(count, float("-inf") if offset is None else offset)
        found[_key(agent, part, place)] = claims
    return found
