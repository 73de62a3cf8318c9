"""A model that is closed while another thread computes frees its memory when the launch under way has ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Event, Thread

import numpy as np

import amk
from amk.engine.backends.cpu_engine import CpuEngine
from amk.engine.backends.schedule_backend import ScheduleBackend
from tests.engine import tiny_chat
from tests.engine.tiny import RandomTensors, tiny_plan


class Watched(CpuEngine):
    """Says when a launch begins, and ends it when it may."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.begun, self.may_end, self.did = Event(), Event(), list[str]()

    def step(self, tokens: int) -> np.ndarray:
        self.begun.set()
        assert self.may_end.wait(30)
        found = super().step(tokens)
        self.did.append("launch ended")
        return found

    def free(self) -> None:
        self.did.append("freed")


def test_memory_is_freed_behind_the_launch_under_way(tmp_path: Path) -> None:
    plain = amk.load(tiny_chat.write(tmp_path / "tiny"), device="cpu")
    engine = Watched(tiny_plan(plain.spec, kv_splits=1), RandomTensors(plain.spec))
    model = amk.LanguageModel(plain.spec, plain.tokenizer, ScheduleBackend(engine))
    answers: list[Sequence[int]] = []
    asking = Thread(target=lambda: answers.append(model.generate([1, 2], max_tokens=1).tokens))
    asking.start()
    assert engine.begun.wait(30)
    closing = Thread(target=model.close)
    closing.start()
    closing.join(0.2)
    engine.may_end.set()
    asking.join()
    closing.join()
    plain.close()
    assert len(answers[0]) == 1
    assert engine.did[-1] == "freed" and engine.did.count("freed") == 1
