"""Proof obligations for Z3, as SMT-LIB text. The only import of z3.

An obligation is valid iff its script is unsatisfiable; `unknown` and timeouts stay unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["proved", "refuted", "unknown"]


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


def prove(obligations: list[Obligation], timeout_ms: int = 2000) -> list[Proof]:
    """Each obligation on its own, with a time limit each."""
    import z3

    found = []
    for item in obligations:
        solver = z3.Solver()
        solver.set("timeout", timeout_ms)
        solver.from_string(item.script)
        answer = solver.check()
        if answer == z3.unsat:
            found.append(Proof(item, "proved"))
        elif answer == z3.sat:
            found.append(Proof(item, "refuted", str(solver.model())))
        else:
            found.append(Proof(item, "unknown", str(solver.reason_unknown())))
    return found
