"""Admission in a process of its own: a kernel that is refused there takes nothing along."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest

from amk.adversary.confusion import schedule_of
from amk.adversary.subjects import subject
from amk.agent.admit_aside import admit, begin
from amk.report.diagnostic import AmkError


def test_a_refusal_comes_back_and_the_process_goes_on() -> None:
    schedule = schedule_of(subject("fenced", 2, 2, 1).document).model_dump_json()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), begin, (os.getpid(),)) as pool:
        for refused in [pool.submit(admit, schedule, "{}", b"") for _ in range(2)]:
            with pytest.raises(AmkError) as caught:
                refused.result(timeout=60)
            assert caught.value.diagnostics[0].code == "AMK206"
