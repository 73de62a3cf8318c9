"""The worker's runner without a GPU: what it keeps, frees and checks; the kernel is torch's own answer."""

from __future__ import annotations

import base64
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

from amk.agent.device.wire import Check, Load
from amk.planner.decode import plan
from amk.planner.settings import Settings
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from tests.tiny import PLAIN

torch = pytest.importorskip("torch", reason="the worker's oracle is torch")

from amk.agent.device import gpu_runner  # noqa: E402  after torch is known to be there
from amk.bench.tools import device_packing, subject, torch_model  # noqa: E402

CONTEXT = 64
POSITIONS = (1, 17, 63)


@dataclass
class Kernel:
    schedule: Schedule


@dataclass
class Echo(subject.Subject):
    """Runs on the CPU: the logits of the kernel are the bf16 oracle's, or nothing of the kind."""

    wrong: bool = False
    freed: list[Any] = field(default_factory=list)

    def load_cache(self) -> None:
        """There is no engine."""

    def tokens(self, token: int) -> Any:
        return torch.tensor([(token + 7 * s) % PLAIN.vocab for s in range(self.schedule.batch)])

    def logits(self, token: int, pos: int) -> Any:
        """Wrong ones are wrong for the last sequence of a batch only."""
        exact = self.torch_logits(token, pos, torch.bfloat16).clone()
        last = exact if exact.ndim == 1 else exact[-1]
        last.copy_(last.flip(0) if self.wrong else last)
        return exact

    def free(self) -> None:
        self.freed.append(self)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`free` is the device memory there is, `freed` the programs let go."""
    instance = gpu_runner.GpuRunner()
    instance.free, instance.freed = [2**40], []  # type: ignore[attr-defined]
    weights = torch_model.TorchWeights.random(PLAIN, 1, device="cpu")

    def unpacked(data: bytes) -> Kernel:
        return Kernel(Schedule.model_validate_json(data))

    def random(kernel: Kernel, seed: int, weights: Any, stream: Any, packed: Any) -> Echo:
        assert torch.equal(packed, device_packing.packed_weights(kernel.schedule, weights))
        shape = (PLAIN.layers, kernel.schedule.caches, CONTEXT, PLAIN.head_dim)
        caches = [torch.zeros(shape, dtype=torch.bfloat16) for _ in range(2)]
        engine: Any = None
        return Echo(kernel.schedule, engine, weights, *caches, weights, weights, freed=instance.freed)  # type: ignore[attr-defined]

    generator, draw = torch.Generator, torch.randint
    monkeypatch.setattr(gpu_runner, "unpacked", unpacked)
    monkeypatch.setattr(gpu_runner.Subject, "random", random)
    monkeypatch.setattr(torch_model.TorchWeights, "random", lambda model, seed: weights)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (instance.free[0], 2**40))  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: instance.freed.append("cache"))  # type: ignore[attr-defined]
    monkeypatch.setattr(torch, "Generator", lambda device: generator())
    monkeypatch.setattr(torch, "randint", lambda most, size, generator, device: draw(most, size, generator=generator))
    return instance


def load(runner: Any, slot: str, number: int, **settings: Any) -> None:
    chosen = Settings(**({"warps": 4, "hint_slack": number % 5} | settings))
    schedule = plan(PLAIN, load_target("h200"), settings=chosen, max_context=CONTEXT, workers=2 * chosen.batch + 1)
    text = schedule.model_dump_json()
    kernel = base64.b64encode(text.encode()).decode()
    runner.load(Load(nonce=1, slot=slot, seed=number, schedule=text, kernel=kernel, key=f"{number:064d}"))


def test_room_is_made_only_where_there_is_too_little(runner: Any) -> None:
    load(runner, "a", 0)
    load(runner, "b", 1)
    assert len(runner.packings.by_key) == 1 and not runner.freed
    runner.free[0] = 0
    load(runner, "b", 2)
    assert not runner.packings.by_key and runner.freed[-1] == "cache" and isinstance(runner.freed[0], Echo)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_check_compares_every_position_with_the_oracle(runner: Any, batch: int) -> None:
    load(runner, "a", 0, batch=batch)
    load(runner, "b", 1, batch=batch)
    question = Check(nonce=1, slot="a", positions=POSITIONS, seed=7)
    found = runner.check(question)
    assert [check.pos for check in found] == list(POSITIONS)
    assert all(check.finite and check.repeated and 0 < check.error < 0.1 for check in found)
    assert all(check.error == pytest.approx(check.oracle_error, rel=0.5) for check in found)
    references = runner.references
    runner.subjects["b"].wrong = True
    assert all(check.error > 0.5 for check in runner.check(question.model_copy(update={"slot": "b"})))
    assert runner.references is references, "both slots are asked the same"
    runner.check(question.model_copy(update={"seed": 8}))
    assert runner.references is not references


@pytest.mark.turns(4)
def test_the_worker_loads_the_compiler_before_torch() -> None:
    """Torch brings an NVRTC of its own, whose code is not that of the gate's processes, which have no torch."""
    program = """
import sys
from amk.agent.device import worker
from amk.lowering import compile
order = []
compile.compiler_build = lambda: order.append("torch" in sys.modules)
runner = worker.gpu_runner()
assert order == [False] and "torch" in sys.modules, order
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
