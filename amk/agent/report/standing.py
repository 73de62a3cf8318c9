"""How the proposers of a run stand: what each was asked, what came of it, what it cost. Shown live, by `amk runs`, in
the report and to agents."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import exp

from amk.agent.journal.state import State, Trial

MODEL = "llm"


@dataclass(frozen=True)
class Standing:
    """refused: by the gate, duplicates and impossible ones included. faster: product of the speedups that were kept.
    seconds: of devices. dollars: of the language model. doing: what a proposer that may fail is at, "" if it cannot."""

    proposer: str
    proposals: int
    refused: int
    evaluated: int
    kept: int
    faster: float
    seconds: float
    dollars: float = 0.0
    doing: str = ""

    @property
    def accepted(self) -> str:
        """Share of the judged proposals that passed the gate."""
        judged = self.refused + self.evaluated
        return f"{100 * self.evaluated / judged:.0f}%" if judged else "-"

    @property
    def cells(self) -> tuple[str, ...]:
        money = f"${self.dollars:.4f}" if self.proposer == MODEL else ""
        return (
            self.proposer, str(self.proposals), self.accepted, str(self.evaluated), str(self.kept),
            f"{self.faster:.3f}x", f"{self.seconds:.1f}", money, self.doing,
        )  # fmt: skip


HEADER = ("proposer", "proposals", "passed", "evaluated", "kept", "faster", "device s", "cost", "state")


def standings(state: State) -> list[Standing]:
    """One for each proposer that proposed, and for the language model of a run that has one; in order of use."""
    by_name: dict[str, list[Trial]] = {}
    for trial in state.trials:
        by_name.setdefault(trial.proposed.proposer, []).append(trial)
    if state.conversations or (state.run is not None and state.run.llm_model is not None):
        by_name.setdefault(MODEL, [])
    return [_standing(state, name, trials) for name, trials in by_name.items()]


def _standing(state: State, name: str, trials: list[Trial]) -> Standing:
    kept = [t for t in trials if t.decided is not None and t.decided.outcome == "kept"]
    model = name == MODEL
    return Standing(
        name,
        len(trials),
        sum(t.gated is not None and t.gated.verdict != "passed" for t in trials),
        sum(t.evaluated for t in trials),
        len(kept),
        exp(sum(t.decided.log_gain or 0.0 for t in kept if t.decided is not None)),
        sum(sum(m.seconds for m in t.measured.values()) + sum(f.seconds for f in t.faults) for t in trials),
        state.dollars if model else 0.0,
        doing(state) if model else "",
    )


def doing(state: State) -> str:
    """The state of the language model in words: how often it was asked, what it answered, when it is asked again."""
    if not state.conversations:
        return "not asked yet" if not state.llm_open else "first answer awaited"
    counts = Counter(a.outcome for a in state.conversations)
    faults = sum(len(a.faults) for a in state.conversations)
    outcomes = ", ".join(f"{n} {what}" for what, n in counts.most_common())
    last = state.conversations[-1]
    money = f"${state.dollars_reserved:.4f} reserved" if state.llm_open else ""
    again = ""
    if last.wait != 0:
        again = f"last: {last.detail or last.outcome}"
        wait = "not again in this session" if last.wait is None else f"again after {last.wait:.0f} s"
        again += f"; {wait}"
    wrong = f"{faults} calls or attempts failed" if faults else ""
    parts = (f"{len(state.conversations)} conversations: {outcomes}", wrong, again, money)
    return "; ".join(part for part in parts if part)
