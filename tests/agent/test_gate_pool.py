"""The gate in processes of their own, and what leaves it: a refusal takes nothing along, and ends no process."""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from amk.adversary.confusion import schedule_of
from amk.adversary.subjects import subject
from amk.agent.device.supervisor import WORKER
from amk.agent.gate import certify
from amk.agent.gate import process as gate_process
from amk.agent.gate.admitting import packed, unpacked
from amk.agent.gate.candidate import Candidate, Impossible, Workshop
from amk.agent.gate.certify import Certifier, Judgement
from amk.agent.gate.gate import Gate, Judged
from amk.agent.gate.pipeline import Pipeline
from amk.agent.gate.pool import PROCESS, GatePool
from amk.agent.journal.events import Gated
from amk.checker.programs import Rejected
from amk.lowering import bound
from amk.lowering import kernel as kernels
from amk.models.model import load_model
from amk.planner.settings import FAST, NAIVE
from amk.processes import python_module, worker_environment
from amk.report.diagnostic import AmkError
from amk.schedule_ir.schedule import Schedule
from amk.simulator.predict import Simulator
from amk.targets.target import load_target
from tests.agent.rules import fences_kept
from tests.engine.test_admission import built


@dataclass(frozen=True)
class Trap:
    """A source that does something to whoever reads it."""

    work: Callable[..., object]
    argument: int

    def __reduce__(self) -> tuple[Callable[..., object], tuple[int]]:
        return self.work, (self.argument,)


DEADLY, STOPPING, SLOW = Trap(os._exit, 3), Trap(signal.raise_signal, signal.SIGSTOP), Trap(time.sleep, 60)
QUICK = (sys.executable, str(Path(__file__).with_name("quick_gate.py")))


def candidate(number: int, source: Any = "") -> Candidate:
    schedule = schedule_of(subject("fenced", 2, 2, 1).document)
    return Candidate(FAST, schedule, source, f"{number:064d}")


def judged(pool: GatePool, sources: Sequence[Any]) -> list[Gated]:
    """What the pool says to candidates with these sources."""
    pipeline = Pipeline(pool)
    try:
        for number, source in enumerate(sources):
            pipeline.enter(number, candidate(number, source))
        return [pipeline.take(number)[0] for number in range(len(sources))]
    finally:
        pool.close()


@pytest.mark.turns(24)
@pytest.mark.parametrize(
    ("trap", "words", "deadline"),
    [(DEADLY, "ended, 3 times", 600.0), (STOPPING, "was stopped, 3 times", 600.0), (SLOW, "longer than 1.5 s", 1.5)],
)
def test_what_ends_its_process_costs_the_others_nothing(
    workshop: Workshop, trap: Trap, words: str, deadline: float
) -> None:
    """Among others that are under way; a process that stands still or is late is ended like one that ends."""
    pool = GatePool(workshop, fences_kept, jobs=2, deadline=deadline, command=QUICK)
    found = judged(pool, ["", trap, "", ""])
    assert [g.index for g in found] == list(range(4))
    refused = [g for g in found if g.verdict != "passed"]
    assert [g.index for g in refused] == [1] and {g.codes for g in refused} == {("AMK709",)}
    assert all(words in g.detail for g in refused)


@pytest.mark.turns(4)
def test_one_that_is_killed_or_stopped_from_outside_is_replaced(workshop: Workshop) -> None:
    """Whatever it does at that moment: every candidate is judged once, and passes. A process that has just judged is
    there to be struck; none is struck before all that the last one left are judged."""
    pool = GatePool(workshop, fences_kept, jobs=1, command=QUICK)
    found: list[Judged] = []
    for signum in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
        pending = [pool.submit(number, candidate(number)) for number in range(len(found), len(found) + 13)]
        pending[0].result(300)
        pool._seats[0]._popen.send_signal(signum)  # type: ignore[union-attr]
        found += [future.result(300) for future in pending]
    pool.close()
    assert [g.index for g, _ in found] == list(range(39)) and all(ready is not None for _, ready in found)


def test_one_that_does_not_start_is_started_again(workshop: Workshop, tmp_path: Path) -> None:
    """The first judgement is of what the search starts from: it used to end with an internal error."""
    for starts, passed in ((2, True), (3, False)):
        counter = tmp_path / str(starts)
        counter.write_text("x" * starts)
        pool = GatePool(workshop, fences_kept, jobs=1, command=(*QUICK, str(counter)))
        (found,) = judged(pool, [""])
        assert (found.verdict == "passed") == passed and (passed or found.codes == ("AMK709",))
    with pytest.raises(AmkError, match="AMK709"):
        pool.certain(settled((found, None)))


def settled(judged: Judged) -> Future[Judged]:
    future: Future[Judged] = Future()
    future.set_result(judged)
    return future


def test_an_error_of_the_gate_is_a_verdict(workshop: Workshop) -> None:
    def broken(schedule: object) -> Judgement:
        raise KeyError("x")

    gated, ready = gate_process.judged(Gate(workshop, broken, lambda _: b""), 0, candidate(0))
    assert (gated.verdict, gated.codes, ready) == ("unknown", ("AMK901",), None) and "KeyError" in gated.detail


def test_closing_ends_every_process_at_once(workshop: Workshop) -> None:
    """Also one that is at work; who waits is told."""
    pool = GatePool(workshop, fences_kept, jobs=2, command=QUICK)
    pending = [pool.submit(number, candidate(number, SLOW)) for number in range(5)]
    pool.submit(5, candidate(5))
    while not all(seat._popen for seat in pool._seats):
        time.sleep(0.01)
    processes, began = [seat._popen for seat in pool._seats], time.monotonic()
    pool.close()
    for future in pending:
        with pytest.raises(CancelledError):
            future.result(10)
    assert all(p is not None and p.wait(30) == -signal.SIGKILL for p in processes) and time.monotonic() - began < 30


@pytest.mark.turns(16)
def test_a_child_has_no_key_and_imports_nothing_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a folder called amk there nor an empty part of PYTHONPATH, which means it."""
    (tmp_path / "amk").mkdir()
    for name in ("__init__", "tell"):
        (tmp_path / "amk" / f"{name}.py").write_text("print('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", *filter(None, sys.path)]))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for command in (PROCESS, WORKER, python_module("amk.tell")):
        done = subprocess.run(
            command, env=worker_environment(os.environ), capture_output=True, text=True, check=False, timeout=300
        )
        assert "imported" not in done.stdout + done.stderr and done.returncode
    script = "import os; print(sorted(os.environ))"
    result = subprocess.run([sys.executable, "-c", script], env=worker_environment(os.environ), capture_output=True)
    assert b"ANTHROPIC" not in result.stdout and b"PATH" in result.stdout
    assert b"OMP_NUM_THREADS" in result.stdout, "many children would load all cores"


def test_what_a_process_is_started_with_fits_in_a_pipe() -> None:
    """However many programs the driver remembers: whoever starts a process that ends at once would wait for ever."""
    full = Workshop(load_model("smollm2-135m"), load_target("h200"), 512)
    sizes = []
    for settings in (FAST, NAIVE):  # the model remembers what the first plan asks of its graph
        assert not isinstance(full.make(settings), Impossible)
        sizes.append(len(ForkingPickler.dumps(full)))
    assert sizes[0] == sizes[1] < 16_384
    assert pickle.loads(pickle.dumps(full)).key(FAST) == full.key(FAST)


@pytest.mark.turns(24)
@pytest.mark.parametrize("runs", [True, False])
def test_a_certificate_that_the_checker_refuses_is_a_verdict(runs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a code of its own; where nothing is going to run nobody asks."""
    schedule, cubin, _ = built()
    program = Candidate(FAST, schedule, "", "0" * 64)
    workshop: Any = SimpleNamespace(simulator=Simulator())
    gate = Gate(workshop, fences_kept, lambda _: cubin, runs=runs)
    gated, ready = gate.judge(0, program)
    assert gated.verdict == "passed" and ready is not None and bool(ready.kernel) == runs
    assert (gated.simulated_ms is not None) == runs, "a report says how the simulator ranked what a device measured"
    assert bool(gated.bottleneck) == runs, "the search does not simulate it once more"

    def refuse(*_: object) -> None:
        raise Rejected("race: in 'h_out'")

    monkeypatch.setattr("amk.checker.certificate.Proof.memory", refuse)
    gated, ready = gate.judge(0, program)
    if runs:
        assert (gated.verdict, gated.codes, ready) == ("unknown", ("AMK215",), None) and "h_out" in gated.detail
    else:
        assert ready is not None, "nothing is loaded, so nobody is asked; `export` asks"


def test_a_glance_ends_whatever_the_verdict_is_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what keeps no time limit itself; a second one is not held up by the first."""
    began, certified = time.process_time(), []

    def endless(timeout_s: float = certify.TIMEOUT) -> Certifier:
        def asked(schedule: Schedule) -> Judgement:
            while schedule is schedules[0]:
                certified.append(timeout_s)
            return Judgement("SAFE")

        return asked

    schedules = [candidate(0).schedule, candidate(1).schedule]
    monkeypatch.setattr(certify, "installed", endless)
    monkeypatch.setattr(certify, "GLANCE", 0.2)
    ask, before = certify.glancing(), signal.getsignal(signal.SIGPROF)
    assert [ask(each).outcome for each in schedules] == ["UNKNOWN", "SAFE"] and certified[0] == certify.TIMEOUT
    assert time.process_time() - began < 5 and signal.getsignal(signal.SIGPROF) is before
    assert signal.getitimer(signal.ITIMER_PROF)[0] == 0


def test_what_else_runs_here_does_not_change_what_a_glance_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict that waits for its turn on a processor longer than a glance may take is a verdict all the same."""

    def held_up(timeout_s: float = certify.TIMEOUT) -> Certifier:
        def asked(schedule: Schedule) -> Judgement:
            time.sleep(0.5)
            return Judgement("SAFE")

        return asked

    monkeypatch.setattr(certify, "installed", held_up)
    monkeypatch.setattr(certify, "GLANCE", 0.2)
    assert certify.glancing()(candidate(0).schedule).outcome == "SAFE"


def test_a_kernel_arrives_as_it_was_admitted() -> None:
    schedule, cubin, _ = built()
    kernel = unpacked(packed(schedule, cubin))
    assert kernel.schedule == schedule and kernel.code == cubin and kernel.certificate["schedule"]


@pytest.mark.turns(12)
@pytest.mark.parametrize("spoilt", ["", "code", "seal"])
def test_a_worker_binds_by_the_gates_seal(spoilt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process of its own, which knows nothing. What the seal is not of is compiled and read back."""
    schedule, cubin, _ = built()
    built_again: list[Schedule] = []
    build = kernels.build
    monkeypatch.setattr(
        kernels, "build", lambda *arguments, **more: built_again.append(arguments[0]) or build(*arguments, **more)
    )
    arrived = pickle.loads(packed(schedule, cubin))
    assert len(arrived.seal) == 64
    if spoilt == "seal":
        object.__setattr__(arrived, "seal", "0" * 64)
    elif spoilt == "code":
        object.__setattr__(arrived, "code", cubin[:-1] + bytes([cubin[-1] ^ 1]))
    monkeypatch.setattr(bound, "_BOUND", set())
    built_again.clear()
    assert unpacked(pickle.dumps(arrived)).loadable() == cubin
    assert bool(built_again) == bool(spoilt)


def test_what_was_not_admitted_is_not_taken() -> None:
    """An object that is no kernel, and a kernel whose code was exchanged on the way."""
    schedule, cubin, _ = built()
    kernel = unpacked(packed(schedule, cubin))
    object.__setattr__(kernel, "code", b"another")
    for data in (pickle.dumps(Future), pickle.dumps(kernel)):
        with pytest.raises(AmkError) as caught:
            unpacked(data)
        assert caught.value.diagnostics[0].code == "AMK606"
