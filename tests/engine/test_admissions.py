"""A start takes from earlier ones what its user and program sealed, just so, and checks everything else."""

from __future__ import annotations

import base64
import functools
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amk.checker import certificate as checker
from amk.engine.admission import admissions, certificates
from amk.engine.admission.admission import AdmittedKernel, started
from amk.lowering import bound, kernel, seal
from amk.planner.decode import plan
from amk.planner.settings import NAIVE
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.version import __version__
from tests.tiny import tiny


class Starts:
    """Starts as if each were a process of its own; `checks` and `builds` count what the last one did."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.checks, self.builds, self._patch = folder, 0, 0, patch
        check, build = checker.check_certificate, kernel.build
        patch.setenv("AMK_CACHE", str(folder))
        patch.setattr(checker, "check_certificate", lambda *arguments: self._count("checks") or check(*arguments))
        patch.setattr(kernel, "build", lambda *arguments, **more: self._count("builds") or build(*arguments, **more))

    def _count(self, what: str) -> None:
        setattr(self, what, getattr(self, what) + 1)

    def start(self, schedule: Schedule) -> AdmittedKernel:
        self._patch.setattr(bound, "_BOUND", set())
        self.checks = self.builds = 0
        admitted = started(schedule)
        admitted.loadable()
        return admitted

    def entry(self, schedule: Schedule, kind: str = "admitted") -> Path:
        return self.folder / kind / f"{schedule_hash(schedule)}.json"


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Starts:
    return Starts(tmp_path, monkeypatch)


def small(workers: int = 4) -> Schedule:
    return plan(tiny(layers=1), load_target("h200"), settings=NAIVE, max_context=128, workers=workers)


def edited(file: Path, **changes: Callable[[Any], Any]) -> None:
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | {name: change(record[name]) for name, change in changes.items()}))


def flipped(text: str) -> str:
    """A cubin with one bit of its middle changed."""
    code = bytearray(base64.b64decode(text))
    code[len(code) // 2] ^= 1
    return base64.b64encode(code).decode()


@pytest.mark.turns(4)
def test_a_second_start_checks_and_builds_nothing(starts: Starts) -> None:
    first = starts.start(small())
    assert starts.checks == 1 and starts.builds >= 1
    assert starts.start(small()) == first
    assert (starts.checks, starts.builds) == (0, 0)
    starts.start(small(workers=5))
    assert starts.checks == 1 and starts.builds >= 1, "another schedule"


@pytest.mark.turns(32)
@pytest.mark.parametrize(
    "spoil", ["cubin", "seal", "letters", "deep", "pipe", "cut", "certificate", "other schedule", "other key"]
)
def test_an_entry_that_was_not_sealed_so_is_not_used(
    starts: Starts, spoil: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = small()
    first = starts.start(schedule)
    entry = starts.entry(schedule)
    if spoil == "cubin":
        edited(entry, cubin=flipped)
    elif spoil == "seal":
        edited(entry, seal=lambda text: ("0" if text[0] != "0" else "1") + text[1:])
    elif spoil == "letters":
        edited(entry, seal=lambda text: "\ud800" + text[1:])
    elif spoil == "deep":
        entry.write_text("[" * 100_000)
    elif spoil == "pipe":
        entry.unlink()
        os.mkfifo(entry)  # whoever reads it waits
    elif spoil == "cut":
        entry.write_text(entry.read_text()[:-9])
    elif spoil == "certificate":
        edited(starts.entry(schedule, "certificates"), times=lambda times: times[:-1])
    elif spoil == "other schedule":
        other = small(workers=5)
        starts.start(other)
        shutil.copy(starts.entry(other), entry)
    else:
        monkeypatch.setattr(seal, "key_file", lambda: tmp_path / "other" / "compiled.key")
    assert starts.start(schedule) == first
    assert starts.checks >= 1 and starts.builds >= 1
    starts.start(schedule)
    assert (starts.checks, starts.builds) == (0, 0), "the entry was made anew"


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the program that stands for it."""
    copy = tmp_path / "amk"
    shutil.copytree(admissions.ROOT, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(admissions, "ROOT", copy)
    monkeypatch.setattr(admissions, "hashed", functools.cache(admissions.hashed.__wrapped__))
    restarted(monkeypatch)
    return copy


def restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the process began now."""
    monkeypatch.setattr(admissions, "IMPORTED_NS", time.time_ns() + 10**9)  # the clock of files is a coarse one
    admissions.hashed.cache_clear()


@pytest.mark.turns(16)
@pytest.mark.parametrize("change", ["version.py", "lowering/cuda/sync.cuh", "new.py", "package"])
def test_a_changed_program_checks_again(
    starts: Starts, change: str, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own source, a header of the kernel, a file that was added, or another numpy."""
    schedule = small()
    starts.start(schedule)
    starts.start(schedule)
    assert starts.checks == 0, "a copy is the same program"
    if change == "package":
        versions = admissions._version
        monkeypatch.setattr(admissions, "_version", lambda name: "1.0" if name == "numpy" else versions(name))
    else:
        with (copied / change).open("a") as file:
            file.write(f"// {__version__}\n")
    restarted(monkeypatch)
    starts.start(schedule)
    assert starts.checks == 1 and starts.builds >= 1


@pytest.mark.turns(4)
def test_a_process_older_than_its_sources_seals_nothing(
    starts: Starts, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What decided there is not what the next process would hash. Also where the file has an old time, as installers
    set it, and where the hash was made before the change."""
    schedule, file = small(), copied / "version.py"
    monkeypatch.setattr(admissions, "IMPORTED_NS", max(path.stat().st_ctime_ns for path in copied.rglob("*.*")))
    assert admissions.program_hash() is not None
    time.sleep(0.02)
    file.write_text(file.read_text() + "# mended\n")
    os.utime(file, ns=(0, 0))
    for _ in range(2):
        starts.start(schedule)
        assert starts.checks == 1 and not starts.entry(schedule).exists()
        admissions.hashed.cache_clear()
    restarted(monkeypatch)
    starts.start(schedule)
    assert starts.checks == 1, "the new program decides for itself"
    starts.start(schedule)
    assert starts.checks == 0


@pytest.mark.turns(4)
def test_a_certificate_as_deep_as_can_be_read_costs_a_new_proof(starts: Starts) -> None:
    """Some depths can be read and not be written again."""
    schedule = small()
    first = starts.start(schedule)
    for depth in range(sys.getrecursionlimit() - 60, sys.getrecursionlimit(), 1):
        starts.entry(schedule, "certificates").write_text("[" * depth + "]" * depth)
        certificate, sealed = certificates.load(schedule_hash(schedule)), admissions.load(schedule_hash(schedule))
        assert sealed is not None
        assert not admissions.is_admitted(schedule_hash(schedule), certificate, *sealed)
    assert starts.start(schedule) == first and starts.checks >= 1


def test_a_kernel_with_a_seal_that_does_not_hold_is_checked(starts: Starts) -> None:
    admission = starts.start(small())
    assert admission.code == AdmittedKernel(small(), admission.certificate, admission.code, "0" * 64).code
    assert starts.checks == 2


def test_without_a_packaged_compiler_nothing_is_sealed(starts: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler from elsewhere may change without a version."""
    monkeypatch.setattr(admissions, "program_hash", lambda: None)
    starts.start(small())
    starts.start(small())
    assert starts.checks == 1 and not starts.entry(small()).exists()
