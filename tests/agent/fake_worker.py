"""A worker without a GPU: a runner that behaves, or misbehaves in the way its first argument names.

The program that it loads first is the incumbent and behaves; others misbehave, whichever slot they are in. A file named
by the second argument remembers across processes how often something happened.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from amk.agent.device import worker
from amk.agent.device.wire import Answer, Block, Check, Load, PositionCheck

MS = 1.0
"""Slower than any floor of the test's model."""


class FakeRig:
    def __init__(self, way: str, memory: Path) -> None:
        self.way, self.memory = way, memory
        self.aborted = False
        self.keys: dict[str, str] = {}
        self.incumbent = ""
        self.blocks = 0
        self.gain = 0.9 if way.startswith("fast") else 1.0

    def open(self) -> str:
        if self.way == "no_device":
            os._exit(3)
        return f"fake device {os.environ['CUDA_VISIBLE_DEVICES']}"

    def load(self, question: Load) -> None:
        self.incumbent = self.incumbent or question.key
        self.keys[question.slot] = question.key

    def cheats(self, slot: str) -> bool:
        return self.keys[slot] != self.incumbent

    def check(self, question: Check) -> Sequence[PositionCheck]:
        found = [
            PositionCheck(pos=p, error=0.01, oracle_error=0.01, finite=True, repeated=True) for p in question.positions
        ]
        return self.cheat_check(found) if self.cheats(question.slot) else found

    def cheat_check(self, checks: list[PositionCheck]) -> list[PositionCheck]:
        after = self.blocks > 0
        changes: dict[str, dict[str, object]] = {
            "nan": {"error": float("nan")}, "infinite": {"finite": False, "error": -1.0}, "wrong": {"error": 0.5},
            "negative_error": {"error": -0.5}, "unrepeatable": {"repeated": False},
            "wrong_at_last": {"error": 0.5}, "stale_output": {"finite": False, "error": -1.0},
        }  # fmt: skip
        if self.way == "right_then_wrong" and after:
            return [checks[0].model_copy(update={"error": 0.9}), *checks[1:]]
        if self.way == "skips_checks":
            return checks[:1]
        if self.way == "wrong_at_last":
            return [*checks[:-1], checks[-1].model_copy(update={"error": 0.5})]
        return [f.model_copy(update=changes.get(self.way, {})) for f in checks]

    def block(self, question: Block) -> tuple[Sequence[Sequence[float]], int]:
        self.blocks += 1
        cheats = self.cheats(question.slot)
        if cheats:
            self.misbehave()
        ms = MS * (self.gain if cheats else 1.0)
        if self.way == "slow_place" and question.slot == "b":
            ms *= 1.5
        if self.way == "slow_incumbent" and not cheats and self.blocks > 8:
            ms *= 2
        times = [[ms] * question.steps for _ in question.positions]
        tokens = question.steps * len(question.positions)
        time.sleep(ms * tokens / 1e3)
        if cheats:
            times, tokens = self.cheat_block(times, tokens)
        return times, tokens

    def cheat_block(self, times: list[list[float]], tokens: int) -> tuple[list[list[float]], int]:
        ways: dict[str, object] = {
            "zero_time": lambda t: [[0.0] * len(x) for x in t],
            "negative_time": lambda t: [[-1.0] * len(x) for x in t],
            "nan_time": lambda t: [[float("nan")] * len(x) for x in t],
            "below_floor": lambda t: [[1e-4] * len(x) for x in t],
            "fewer_samples": lambda t: [x[:-1] for x in t],
            "fewer_positions": lambda t: t[:-1],
            "fast_at_one": lambda t: [[x * (0.2 if i == 0 else 1.6) for x in s] for i, s in enumerate(t)],
            "tiny_time": lambda t: [[0.06] * len(x) for x in t],
        }
        if self.way == "skips_work":
            return times, tokens // 2
        if self.way == "tiny_time":
            time.sleep(2.0)
        found = ways.get(self.way, lambda t: t)(times)  # type: ignore[operator]
        return found, tokens

    def misbehave(self) -> None:
        if self.way == "once" and self.memory.exists():
            return
        fault = getattr(self, f"fault_{self.way}", None)
        if fault is not None:
            fault()

    def fault_spin(self) -> None:
        while not self.aborted:
            pass

    def fault_deaf_spin(self) -> None:
        while True:
            time.sleep(0.01)

    def fault_segfault(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def fault_once(self) -> None:
        self.memory.write_text("x")
        os.kill(os.getpid(), signal.SIGSEGV)

    def fault_exit0(self) -> None:
        os._exit(0)

    def fault_bad_canary(self) -> None:
        os._exit(7)

    def fault_stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def fault_memory(self) -> None:
        hoard = []
        while True:
            hoard.append(b"x" * (32 << 20))
            time.sleep(0.01)

    def fault_raises(self) -> None:
        raise RuntimeError("CUDA out of memory")

    def fault_chatter(self) -> None:
        print('{"nonce": 1, "times": [[0.001]]}' * 100, flush=True)

    def fault_child(self) -> None:
        if os.fork() == 0:
            self.memory.write_text(str(os.getpid()))
            time.sleep(600)
        time.sleep(600)

    def canary(self) -> bool:
        return self.way != "bad_canary"

    def abort(self) -> None:
        self.aborted = True


def before_serving(way: str, answers: int, memory: Path) -> None:
    """Ways that need the pipe or the process itself."""
    early = {
        "forged": b'{"nonce": 12345, "device": "forged"}\n',
        "verdict": b'{"nonce": 1, "verdict": "SAFE", "kept": true}\n',
        "endless": b"x" * (1 << 15),
    }
    if way in early:
        os.write(answers, early[way])
    if way == "environment":
        memory.write_text(repr(dict(os.environ)))
    if way == "other_program":
        plain = worker.answer

        def swapped(runner: worker.Runner, line: str) -> Answer:
            found = plain(runner, line)
            return found.model_copy(update={"key": "0" * 64}) if found.key else found

        worker.answer = swapped


if __name__ == "__main__":
    chosen, kept = sys.argv[1], Path(sys.argv[2])
    before_serving(chosen, int(sys.argv[4]), kept)
    worker.serve(FakeRig(chosen, kept), sys.argv[3:])
