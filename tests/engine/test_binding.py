"""What is launched is what was read back: text, PTX, cubin and the bytes for the driver are tied by hash."""

from __future__ import annotations

import ast
import json
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import amk
from amk.engine.admission.admission import AdmittedKernel
from amk.lowering import bound, headers, seal
from amk.lowering import cache as disk
from amk.lowering.compile import Compiled, compile_cuda
from amk.lowering.emit import emit
from amk.lowering.kernel import bind, build
from amk.lowering.stamp import stamp_of, stamped
from amk.planner.decode import plan
from amk.planner.settings import NAIVE
from amk.report.diagnostic import AmkError, Exit
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.validator.export.of_schedule import evidence
from tests.tiny import tiny

SYNC, RING = "amk/sync.cuh", "amk/ring.cuh"
FORGERIES = {
    "release": (SYNC, "red.release.gpu", "red.relaxed.gpu"),
    "acquire": (SYNC, "ld.acquire.gpu.global.u32", "ld.relaxed.gpu.global.u32"),
    "refill fence": (RING, "if (kFence && read) sync::fence_proxy_async_shared();", ""),
    "a value": ("amk/context.cuh", "P::kRmsEps", "0.5f"),
}
"""Header, text, other text: the last one leaves every synchronising instruction as it was."""


@cache
def schedule() -> Schedule:
    return plan(tiny(layers=1), load_target("h200"), settings=NAIVE, max_context=128, workers=4)


@cache
def proof() -> object:
    return evidence(schedule())


@cache
def forged(what: str) -> Compiled:
    """The kernel of `schedule` from an edited header, under the schedule's stamp."""
    header, old, new = FORGERIES[what]
    read: Callable[[str], str] = headers.read_header
    assert old in read(header)

    def edited(name: str) -> str:
        return read(name).replace(old, new) if name == header else read(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(headers, "read_header", edited)
        text = stamped(emit(schedule()), schedule())
        code = compile_cuda(text, schedule().target.arch, use_cache=False)
    assert stamp_of(code.cubin) == stamp_of(code.ptx) == schedule_hash(schedule())
    return code


@pytest.fixture
def other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was built here yet."""
    monkeypatch.setattr(bound, "_BOUND", set())


@pytest.mark.turns(32)
@pytest.mark.parametrize("what", FORGERIES)
def test_a_forged_cubin_with_the_right_stamp_is_refused(what: str) -> None:
    code = forged(what)
    with pytest.raises(AmkError) as caught:
        AdmittedKernel(schedule(), proof(), code.cubin)
    assert (caught.value.diagnostics[0].code, caught.value.exit_code) == ("AMK608", Exit.UNSAFE)
    with pytest.raises(AmkError, match=r"AMK60[78]"):
        AdmittedKernel(schedule(), proof(), code.ptx)


@pytest.mark.usefixtures("other_process")
@pytest.mark.parametrize("trace", [False, True])
def test_what_the_compiler_makes_of_the_schedule_is_taken(trace: bool) -> None:
    """Also by a process that did not build it, plain and with trace marks, which differ."""
    code = compile_cuda(stamped(emit(schedule(), trace=trace), schedule()), schedule().target.arch)
    assert AdmittedKernel(schedule(), proof(), code.cubin).loadable() == code.cubin
    bind(schedule(), code.ptx)


def test_the_process_that_loads_binds_again() -> None:
    """Code that was exchanged after admission, or on the way from another process, does not reach the driver."""
    admitted = AdmittedKernel(schedule(), proof(), build(schedule()).compiled.cubin)
    arrived = pickle.loads(pickle.dumps(admitted))
    assert arrived.loadable() == admitted.code
    object.__setattr__(arrived, "code", forged("release").cubin)
    for kernel_ in (arrived, pickle.loads(pickle.dumps(arrived))):
        assert kernel_.code != admitted.code == kernel_.loadable()


def test_the_engine_gives_the_driver_what_is_loadable() -> None:
    """The one place that loads the code of a schedule takes it from `loadable`, and checks what that code uses."""
    text = (Path(amk.__file__).parent / "engine/backends/cuda_engine.py").read_text()
    bound = [ast.unparse(n.value) for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Assign) and _is_code(n)]
    assert bound == ["self.admitted.loadable()"]
    assert "check_loaded(self.admitted, code, kernel)" in text


def _is_code(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "code" for target in node.targets)


@pytest.mark.turns(4)
def test_code_of_one_schedule_is_not_bound_to_another() -> None:
    other = schedule().model_copy(update={"name": "another"})
    with pytest.raises(AmkError, match="AMK608"):
        bind(other, build(schedule()).compiled.cubin)


@pytest.mark.turns(4)
@pytest.mark.usefixtures("other_process")
def test_a_cubin_smuggled_into_the_cache_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its digest may be right, as whoever writes the file can compute one; only the key's owner can seal."""
    monkeypatch.setattr(disk, "default_directory", lambda: tmp_path)
    good = build(schedule()).compiled
    (entry,) = tmp_path.iterdir()
    bad = forged("release")
    stored = disk.load(tmp_path, entry.stem)
    assert stored is not None and stored.cubin == good.cubin
    with monkeypatch.context() as patch:
        patch.setattr(seal, "key_file", lambda: tmp_path / "elsewhere" / "compiled.key")
        disk.store(tmp_path, entry.stem, disk.CacheEntry(bad.cubin, good.ptx, good.log, {}))
        stored = disk.load(tmp_path, entry.stem)
        assert stored is not None and stored.cubin == bad.cubin, "it stands there, sealed by another key"
    assert disk.load(tmp_path, entry.stem) is None
    assert build(schedule()).compiled.cubin == good.cubin


def test_an_entry_under_another_name_is_a_miss(tmp_path: Path) -> None:
    disk.store(tmp_path, "a" * 64, disk.CacheEntry(b"code", "ptx", "log", {}))
    record = json.loads((tmp_path / f"{'a' * 64}.json").read_text())
    (tmp_path / f"{'b' * 64}.json").write_text(json.dumps(record))
    assert disk.load(tmp_path, "a" * 64) is not None and disk.load(tmp_path, "b" * 64) is None
    for unsealed in (record | {"seal": ""}, record | {"seal": None}, {k: v for k, v in record.items() if k != "seal"}):
        (tmp_path / f"{'a' * 64}.json").write_text(json.dumps(unsealed))
        assert disk.load(tmp_path, "a" * 64) is None


def test_the_key_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept and private; one that others own or can read, or that cannot be kept, is replaced by one of this process."""
    path = tmp_path / "data" / "compiled.key"
    monkeypatch.setattr(seal, "key_file", lambda: path)
    found = seal.seal("text")
    assert path.stat().st_mode & 0o777 == 0o600 and len(path.read_bytes()) == 32
    seal._key.cache_clear()
    assert seal.is_sealed("text", found) and not seal.is_sealed("text ", found)
    with monkeypatch.context() as patch:
        patch.setattr(seal.os, "geteuid", lambda: path.stat().st_uid + 1)
        seal._key.cache_clear()
        assert not seal.is_sealed("text", found), "root reads the keys of others"
    for spoil in (lambda: path.chmod(0o644), lambda: path.write_bytes(b"short"), lambda: path.write_bytes(b"")):
        path.chmod(0o600)
        spoil()
        seal._key.cache_clear()
        assert not seal.is_sealed("text", found)
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr(seal, "key_file", lambda: blocked / "below")
    assert seal.is_sealed("text", seal.seal("text"))


LOADERS = {
    "engine/backends/cuda_engine.py": ["code"],
    "bench/baselines/phase_graph.py": ["cubin"],
    "bench/table/ablated.py": ["self.cubin"],
    "bench/calibration/micro.py": ["compile_cuda(text, device.arch).cubin"] * 2,
    "bench/tools/ceiling.py": ["compile_cuda(SOURCE, device.arch).cubin"],
    "engine/device_packing.py": ["code"],
    "prefill/device_matrices.py": ["compiled.cubin"],
}
"""Who gives code to the driver, and which. All but the first load code of their own, compiled on the spot."""


@pytest.mark.turns(12)
def test_only_the_engine_loads_the_kernel_of_a_schedule() -> None:
    root, found = Path(amk.__file__).parent, dict[str, list[str]]()
    for path in sorted(path for path in root.rglob("*.py") if "emulator" not in path.parts):  # a Module of its own
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "Module":
                found.setdefault(str(path.relative_to(root)), []).append(ast.unparse(node.args[1]))
    assert found == LOADERS
    driver = [p for p in root.rglob("*.py") if "cuModuleLoad" in p.read_text() or "cuLibraryLoad" in p.read_text()]
    assert [str(p.relative_to(root)) for p in driver] == ["lowering/launch.py"]
