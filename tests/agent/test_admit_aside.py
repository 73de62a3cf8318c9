"""Admission in a process of its own: a kernel that is refused there takes nothing along. What has no certificate never
gets that far."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import pytest

from amk.adversary.confusion import schedule_of
from amk.adversary.subjects import subject
from amk.agent.admit_aside import admit, begin
from amk.agent.candidate import Candidate, Workshop
from amk.agent.gate import Gate
from amk.checker.programs import Rejected
from amk.planner.settings import FAST
from amk.report.diagnostic import AmkError
from amk.schedule_ir.target import load_target
from tests.agent.rules import fences_kept
from tests.tiny import tiny


def test_a_refusal_comes_back_and_the_process_goes_on() -> None:
    schedule = schedule_of(subject("fenced", 2, 2, 1).document).model_dump_json()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), begin, (os.getpid(),)) as pool:
        for refused in [pool.submit(admit, schedule, "{}", b"") for _ in range(2)]:
            with pytest.raises(AmkError) as caught:
                refused.result(timeout=60)
            assert caught.value.diagnostics[0].code == "AMK206"


@pytest.mark.parametrize("runs", [True, False])
def test_the_gate_asks_the_checker(runs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule judged SAFE of which it accepts no certificate is refused there, with a code of its own."""
    workshop = Workshop(tiny(layers=1), load_target("h200"), context=128)
    made = workshop.make(replace(FAST, warps=2, workers=4))
    assert isinstance(made, Candidate)
    gate = Gate(workshop, fences_kept, lambda _: b"machine code", runs=runs)
    gated, ready = gate.judge(0, made)
    assert gated.verdict == "passed" and ready is not None and bool(ready.certificate) == runs

    def refuse(*_: object) -> None:
        raise Rejected("race: in 'h_out'")

    monkeypatch.setattr("amk.checker.certificate.Proof.memory", refuse)
    gated, ready = gate.judge(0, made)
    if runs:
        assert (gated.verdict, gated.codes, gated.detail) == ("unknown", ("AMK215",), "race: in 'h_out'")
        assert ready is None
    else:
        assert ready is not None, "nothing is loaded, so nobody is asked; `export` asks"
