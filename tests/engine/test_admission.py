"""A schedule that is not SAFE does not run."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest

from amk.checker.programs import Rejected
from amk.cli import main
from amk.engine.admission.admission import AdmittedKernel, admit, admitted, certificates, started, why_not_admitted
from amk.engine.backends.cuda_engine import check_loaded
from amk.engine.checkpoints.open_checkpoint import open_checkpoint
from amk.engine.load import plan_for_cpu
from amk.lowering.compile import compile_cuda
from amk.lowering.cubin import Resources
from amk.lowering.emit import emit
from amk.lowering.kernel import build
from amk.lowering.stamp import stamp_of, stamped
from amk.planner.decode import plan
from amk.planner.settings import NAIVE
from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.schedule_ir.codec import save_schedule, schedule_hash
from amk.schedule_ir.schedule import Loop, Node, Schedule, Step
from amk.targets.target import load_target
from amk.validator import verify as verdict
from amk.validator.export.of_schedule import evidence
from amk.validator.verify import verify
from tests.engine.tiny import tiny_model, tiny_plan
from tests.tiny import tiny


def without(schedule: Schedule, unwanted: Callable[[Step], bool]) -> Schedule:
    """The schedule with some of its steps left out."""

    def body(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        kept = (n for n in nodes if isinstance(n, Loop) or not unwanted(n))
        return tuple(n.model_copy(update={"body": body(n.body)}) if isinstance(n, Loop) else n for n in kept)

    programs = tuple(p.model_copy(update={"body": body(p.body)}) for p in schedule.programs)
    return schedule.model_copy(update={"programs": programs})


def test_plans_are_admitted() -> None:
    for handoff in ("fenced", "tagged"):
        schedule = tiny_plan(tiny_model(), handoff=handoff)
        verdict = admit(schedule)
        assert verdict.safe and verdict.deterministic and verdict.evidence is None
        assert verdict.stats["workers"] == schedule.launch.workers and verdict.stats["incidences"] > 0
        assert verdict.proofs and all(proof.outcome == "proved" for proof in verdict.proofs)


@pytest.mark.turns(12)
def test_a_second_start_asks_the_checker_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the entry was edited, cut short, or is of another schedule: then the proof is made anew."""
    monkeypatch.setenv("AMK_CACHE", str(tmp_path))
    schedule, verified = tiny_plan(tiny_model(layers=1)), []
    monkeypatch.setattr(verdict, "verify", lambda *arguments, **more: verified.append(1) or verify(*arguments, **more))
    first = started(schedule)
    assert verified == [1] and started(schedule) == first and verified == [1]
    (entry,) = (tmp_path / "certificates").iterdir()
    good = entry.read_text()
    other = evidence(tiny_plan(tiny_model(layers=1), handoff="fenced"))
    for number, text in enumerate(
        ("{}", good[:-9], "[[]]", json.dumps(other), good.replace('"times": [[', '"times": [[9')), 2
    ):
        entry.write_text(text)
        assert text != good and started(schedule) == first and len(verified) == number
        assert entry.read_text() == good


@pytest.mark.turns(12)
def test_no_kept_certificate_admits_a_schedule_that_is_not_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMK_CACHE", str(tmp_path))
    safe = tiny_plan(tiny_model(), handoff="fenced")
    racing = without(safe, lambda step: any(wait.counter == "act" for wait in step.waits))
    certificates.keep(schedule_hash(racing), evidence(safe) | {"schedule": schedule_hash(racing)})
    with pytest.raises(AmkError) as caught:
        started(racing)
    assert caught.value.exit_code == Exit.UNSAFE and caught.value.diagnostics[0].code == "AMK302"


def test_a_race_is_refused_with_the_code_of_unsafe() -> None:
    with pytest.raises(AmkError) as caught:
        admit(
            without(tiny_plan(tiny_model(), handoff="fenced"), lambda step: any(w.counter == "act" for w in step.waits))
        )
    assert caught.value.exit_code == Exit.UNSAFE
    assert caught.value.diagnostics


@pytest.mark.checkpoint
def test_generate_refuses_before_anything_runs(
    smollm2_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule = plan_for_cpu(open_checkpoint(smollm2_path).spec, 64)
    file = tmp_path / "unsafe.json"
    save_schedule(without(schedule, lambda step: any(s.counter == "attn" for s in step.signals)), file)
    words = ["generate", "--model", str(smollm2_path), "--prompt", "Hi", "--schedule", str(file)]
    words += ["--device", "interpreter"]
    assert main(words) == Exit.UNSAFE
    captured = capsys.readouterr()
    assert captured.out == "" and "error[AMK" in captured.err


@cache
def built() -> tuple[Schedule, bytes, str]:
    schedule = plan(tiny(layers=1), load_target("h200"), settings=NAIVE, max_context=128, workers=4)
    compiled = build(schedule).compiled
    return schedule, compiled.cubin, compiled.ptx


@cache
def proof() -> dict[str, Any]:
    found: dict[str, Any] = evidence(built()[0])
    return found


def test_safe_without_an_accepted_certificate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever would run it or recommend it, with the checker's reason and not as one that is unsafe."""
    schedule, cubin, _ = built()
    assert why_not_admitted(schedule) is None and admitted(schedule, cubin).certificate == proof()

    def refuse(*_: object) -> None:
        raise Rejected("race: in 'h_out'")

    monkeypatch.setattr("amk.checker.certificate.Proof.memory", refuse)
    with pytest.raises(AmkError) as caught:
        admitted(schedule, cubin)
    found = caught.value.diagnostics[0]
    assert (found.code, found.message, caught.value.exit_code) == ("AMK215", "race: in 'h_out'", Exit.UNKNOWN)
    assert why_not_admitted(schedule) == "AMK215: race: in 'h_out'"


def refusal(schedule: Schedule, certificate: object, code: bytes | str) -> Diagnostic:
    with pytest.raises(AmkError) as caught:
        AdmittedKernel(schedule, certificate, code)
    assert caught.value.exit_code == Exit.UNSAFE
    return caught.value.diagnostics[0]


def test_schedule_certificate_and_cubin_belong_together() -> None:
    schedule, cubin, ptx = built()
    kernel = AdmittedKernel(schedule, proof(), cubin)
    assert kernel.resources is not None and 0 < kernel.resources.registers <= schedule.launch.registers
    assert AdmittedKernel(schedule, proof(), ptx).resources is None
    assert stamp_of(cubin) == stamp_of(ptx) == schedule_hash(schedule)


def test_another_schedule_is_refused() -> None:
    _, cubin, _ = built()
    other = built()[0].model_copy(update={"name": "another"})
    assert refusal(other, proof(), cubin).code == "AMK206"
    found = refusal(other, proof() | {"schedule": schedule_hash(other)}, cubin)
    assert found.code == "AMK606" and schedule_hash(other) in found.facts[0].text


def test_an_edited_certificate_is_refused() -> None:
    schedule, cubin, _ = built()
    edited = json.loads(json.dumps(proof()))
    edited["clocks"]["time"][0][2][0] += 1
    assert refusal(schedule, edited, cubin).message == "clocks: not a post-fixpoint"
    for nothing in (None, {}, proof() | {"times": []}):
        assert refusal(schedule, nothing, cubin).code == "AMK206"


@pytest.mark.turns(4)
def test_other_machine_code_is_refused() -> None:
    schedule, cubin, ptx = built()
    stray = compile_cuda(emit(schedule), schedule.target.arch).cubin
    digest = bytes.fromhex(schedule_hash(schedule))
    assert cubin.count(digest) == 1
    for code in (
        stray,
        cubin.replace(digest, bytes(32)),
        b"no cubin",
        cubin[:400],
        "",
        ptx.replace("amk_schedule", "x"),
    ):
        assert refusal(schedule, proof(), code).code == "AMK606"


def test_ptx_that_synchronises_otherwise_is_refused() -> None:
    schedule, _, ptx = built()
    assert refusal(schedule, proof(), ptx.replace("ld.acquire.gpu", "ld.relaxed.gpu")).code == "AMK607"


@pytest.mark.turns(4)
def test_registers_of_the_cubin_are_what_counts() -> None:
    """The schedule promises 32 registers and is proved for that; its cubin needs more."""
    schedule = built()[0]
    modest = schedule.model_copy(update={"launch": schedule.launch.model_copy(update={"registers": 32})})
    cubin = compile_cuda(stamped(emit(modest), modest), modest.target.arch).cubin
    assert refusal(modest, evidence(modest), cubin).code == "AMK403"


class LoadedKernel:
    """What the driver says about a module."""

    def __init__(self, registers: int, static_smem: int) -> None:
        self.registers, self.static_smem = registers, static_smem

    def matches(self, compiled: Resources) -> bool:
        return self.registers == compiled.registers and self.static_smem == compiled.static_smem


def test_what_the_driver_loaded_is_compared() -> None:
    schedule, cubin, ptx = built()
    kernel = AdmittedKernel(schedule, proof(), cubin)
    used = kernel.resources
    assert used is not None
    check_loaded(kernel, cubin, cast(Any, LoadedKernel(used.registers, used.static_smem)))
    with pytest.raises(AmkError, match="AMK403"):
        check_loaded(kernel, cubin, cast(Any, LoadedKernel(used.registers + 8, used.static_smem)))
    with pytest.raises(AmkError, match="AMK403"):
        check_loaded(AdmittedKernel(schedule, proof(), ptx), ptx, cast(Any, LoadedKernel(256, 1024)))
