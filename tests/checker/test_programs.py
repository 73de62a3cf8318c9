"""What the checker says of the warps of one worker, against a clock pass over the flat system of that worker alone."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np

from amk.checker.programs import programs_of
from amk.validator.evidence.flat_system import expand
from amk.validator.order.clocks import must_clocks
from amk.validator.order.greedy_run import greedy
from amk.validator.program.trace import BARRIERS
from tests.validator.two_level import random_two_level


def test_what_squads_are_said_to_be_past_they_are_past() -> None:
    """By program order and barriers alone: items that all warps of a class are through with when another starts one."""
    rng, said = Random(11), 0
    for _ in range(40):
        schedule = random_two_level(rng)
        flat = expand(schedule, 0, 2)
        system, total = flat.system, flat.instances.total
        own = (system.wait_counter >= total) & (system.wait_counter < total + BARRIERS * schedule.launch.workers)
        run = greedy(replace(system, wait_threshold=np.where(own, system.wait_threshold, 0)))
        if not run.complete:
            continue  # barriers that no order of the warps gets past
        clocks = must_clocks(run)
        for program, trace, ids in zip(programs_of(schedule), flat.traces, flat.event_id, strict=True):
            starts, over = [], []
            for j, role in enumerate(program.roles):
                for a in role:
                    for b in range(program.warps):
                        upto = program.ahead[j, program.warp_class[a], program.warp_class[b]]
                        mine = [i for i in range(upto) if b in program.roles[i] and (i, b) != (j, a)]
                        over += ids[0, trace.event_of[mine, b]].tolist()
                        starts += [int(ids[0, trace.event_of[j, a]])] * len(mine)
            assert clocks.precedes(np.array(over, np.int64), np.array(starts, np.int64)).all()
            said += len(over)
    assert said > 1000
