"""The gate in processes of their own, and what leaves it: a refusal takes nothing along, and ends no process."""

import os
import pickle
from concurrent.futures import Future
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest

from amk.adversary.confusion import schedule_of
from amk.adversary.subjects import subject
from amk.agent.admitting import packed, unpacked
from amk.agent.candidate import Candidate, Impossible, Workshop
from amk.agent.gate import Gate
from amk.agent.gate_pool import GatePool
from amk.agent.pipeline import Pipeline
from amk.checker.programs import Rejected
from amk.planner.settings import FAST
from amk.report.diagnostic import AmkError
from amk.schedule_ir.model import load_model
from amk.schedule_ir.target import load_target
from tests.agent.rules import fences_kept
from tests.engine.test_admission import built


class Deadly(str):
    """A source that ends whoever reads it."""

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return os._exit, (3,)


def candidate(number: int, source: str = "") -> Candidate:
    schedule = schedule_of(subject("fenced", 2, 2, 1).document)
    return Candidate(FAST, schedule, source, f"{number:064d}")


def test_what_ends_its_process_costs_the_others_nothing(workshop: Workshop) -> None:
    """Twice, among others that are under way; the pool goes on."""
    pipeline = Pipeline(GatePool.of(workshop, 2, runs=False))
    deadly = (1, 4)
    try:
        for number in range(6):
            pipeline.enter(number, candidate(number, Deadly() if number in deadly else ""))
        found = [pipeline.take(number)[0] for number in range(6)]
    finally:
        pipeline.gate.close()
    assert [g.index for g in found] == list(range(6))
    assert all(found[n].verdict == "uncompilable" and "process" in found[n].detail for n in deadly)
    alive = {(g.verdict, g.codes) for g in found if g.index not in deadly}
    assert len(alive) == 1 and "process" not in found[0].detail


def test_what_a_process_is_started_with_fits_in_a_pipe() -> None:
    """However many programs the driver remembers: whoever starts a process that ends at once would wait for ever."""
    full = Workshop(load_model("smollm2-135m"), load_target("h200"), 512)
    sizes = [len(ForkingPickler.dumps(full))]
    assert not isinstance(full.make(FAST), Impossible)
    sizes.append(len(ForkingPickler.dumps(full)))
    assert sizes[0] == sizes[1] < 16_384
    assert pickle.loads(pickle.dumps(full)).key(FAST) == full.key(FAST)


@pytest.mark.parametrize("runs", [True, False])
def test_a_certificate_that_the_checker_refuses_is_a_verdict(runs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a code of its own; where nothing is going to run nobody asks."""
    schedule, cubin, _ = built()
    made = Candidate(FAST, schedule, "", "0" * 64)
    workshop: Any = None
    gate = Gate(workshop, fences_kept, lambda _: cubin, runs=runs)
    gated, ready = gate.judge(0, made)
    assert gated.verdict == "passed" and ready is not None and bool(ready.kernel) == runs

    def refuse(*_: object) -> None:
        raise Rejected("race: in 'h_out'")

    monkeypatch.setattr("amk.checker.certificate.Proof.memory", refuse)
    gated, ready = gate.judge(0, made)
    if runs:
        assert (gated.verdict, gated.codes, ready) == ("unknown", ("AMK215",), None) and "h_out" in gated.detail
    else:
        assert ready is not None, "nothing is loaded, so nobody is asked; `export` asks"


def test_a_kernel_arrives_as_it_was_admitted() -> None:
    schedule, cubin, _ = built()
    kernel = unpacked(packed(schedule, cubin))
    assert kernel.schedule == schedule and kernel.code == cubin and kernel.certificate["schedule"]


def test_what_was_not_admitted_is_not_taken() -> None:
    """An object that is no kernel, and a kernel whose code was exchanged on the way."""
    schedule, cubin, _ = built()
    kernel = unpacked(packed(schedule, cubin))
    object.__setattr__(kernel, "code", b"another")
    for data in (pickle.dumps(Future), pickle.dumps(kernel)):
        with pytest.raises(AmkError) as caught:
            unpacked(data)
        assert caught.value.diagnostics[0].code == "AMK606"
