"""Proof obligations as SMT-LIB text, decided by z3, cvc5 or both. The only import of solvers.

An obligation is valid iff its script is unsatisfiable; `unknown` and timeouts stay unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from amk.report.diagnostic import AmkError, Diagnostic, Exit

Outcome = Literal["proved", "refuted", "unknown"]
Solver = Literal["z3", "cvc5", "both"]


@dataclass(frozen=True)
class Obligation:
    """name: what is claimed. code: the diagnostic if it fails. script: SMT-LIB, unsatisfiable iff the claim holds."""

    name: str
    code: str
    script: str


@dataclass(frozen=True)
class Proof:
    """The solver's answer; model: values of a counterexample, as text."""

    obligation: Obligation
    outcome: Outcome
    model: str = ""


def obligation(name: str, code: str, variables: dict[str, str], assume: list[str], claim: str) -> Obligation:
    """Integer variables with their sort's condition as SMT-LIB terms, assumptions, and the claim to be proved."""
    lines = ["(set-logic ALL)"]
    lines += [f"(declare-const {v} Int)" for v in variables]
    lines += [f"(assert {term})" for term in (*variables.values(), *assume) if term]
    lines += [f"(assert (not {claim}))", "(check-sat)"]
    return Obligation(name, code, "\n".join(lines) + "\n")


def prove(obligations: list[Obligation], timeout_ms: int = 2000, solver: Solver = "z3") -> list[Proof]:
    """Each obligation on its own, with a time limit each.

    "both" asks z3 and cvc5: what one refutes or leaves open is not proved. Raises AMK901 if one proves what the
    other refutes, AMK207 for a solver that is not installed.
    """
    if solver != "both":
        ask = _z3 if solver == "z3" else _cvc5
        if find_spec(solver) is None:
            advice = f"pip install '{'amk[cvc5]' if solver == 'cvc5' else 'z3-solver'}'"
            raise AmkError(Diagnostic("AMK207", f"{solver} is not installed", help=advice))
        return [Proof(item, *ask(item.script, timeout_ms)) for item in obligations]
    pairs = zip(prove(obligations, timeout_ms, "z3"), prove(obligations, timeout_ms, "cvc5"), strict=True)
    return [_agreed(first, second) for first, second in pairs]


def _agreed(first: Proof, second: Proof) -> Proof:
    if {first.outcome, second.outcome} == {"proved", "refuted"}:
        message = f"z3 says {first.outcome}, cvc5 says {second.outcome}: {first.obligation.name}"
        raise AmkError(Diagnostic("AMK901", message), Exit.INTERNAL)
    return second if first.outcome == "proved" else first


_PROVED: set[str] = set()
"""Scripts that z3 has proved in this process: a proof holds under any time limit, and schedules share most of them."""
MOST_PROVED = 10_000


def _z3(script: str, timeout_ms: int) -> tuple[Outcome, str]:
    if script in _PROVED:
        return "proved", ""
    import z3

    solver = z3.Solver()
    solver.set("timeout", timeout_ms)
    solver.from_string(script)
    answer = solver.check()
    if answer == z3.unsat:
        if len(_PROVED) < MOST_PROVED:
            _PROVED.add(script)
        return "proved", ""
    if answer == z3.sat:
        return "refuted", str(solver.model())
    return "unknown", str(solver.reason_unknown())


def _cvc5(script: str, timeout_ms: int) -> tuple[Outcome, str]:
    import cvc5

    solver = cvc5.Solver(cvc5.TermManager())
    solver.setOption("tlimit-per", str(timeout_ms))
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, script, "obligation")
    said = ""
    while not (command := parser.nextCommand()).isNull():
        said += command.invoke(solver, parser.getSymbolManager())
    outcomes: dict[str, Outcome] = {"unsat": "proved", "sat": "refuted"}
    return outcomes.get(said.strip(), "unknown"), "" if said.strip() == "unsat" else f"cvc5: {said.strip()}"
