"""The steps that choose a token by drawing it, from the agents' largest logits on."""

from __future__ import annotations

from amk.planner.steps import Writer
from amk.schedule_ir.ops import WaitOp
from amk.schedule_ir.ops.census import CensusOp
from amk.schedule_ir.ops.draw import DrawOp
from amk.schedule_ir.ops.gather import GatherOp
from amk.schedule_ir.ops.narrow import NarrowOp
from amk.schedule_ir.ops.peak import PeakOp
from amk.schedule_ir.ops.report import ReportOp
from amk.schedule_ir.ops.select_draw import SelectDrawOp
from amk.schedule_ir.sampling import SEARCHES
from amk.schedule_ir.schedule import Signal, Step, Wait


def draw_steps(author: Writer) -> list[Step]:
    """Everything between the hand-off of the largest logits and the next token."""
    rounds, candidates = SEARCHES[author.settings.sampling], author.workers * author.settings.warps
    peak = PeakOp(role="all", round=rounds.start, candidates=candidates, best_value="best_value", pick="pick")
    draw = DrawOp(
        role="all", round=rounds.stop, logits="logits", sampling="sampling", pick="pick", draw_value="draw_value",
        draw_index="draw_index",
    )  # fmt: skip
    select = SelectDrawOp(
        role="all", candidates=candidates, best_value="draw_value", best_index="draw_index", request="request",
        prompt="prompt", output="output",
    )  # fmt: skip
    # The rounds have barriers of their own; without them one keeps the warp group that reads words apart from the one
    # that writes words.
    return [
        Step(op=peak),
        *([] if rounds else [author.barrier()]),
        *(step for number in rounds for step in _round(author, number)),
        *author.publish(draw, (author.signal("draw"),)),
        *author.wait("draw", (0,)),
        Step(op=select),
    ]


def _round(author: Writer, number: int) -> list[Step]:
    """Count, agree on the totals, choose the interval. The hand-off is fenced in every plan: counts have no tags."""
    warps, workers = author.settings.warps, author.workers
    census = CensusOp(role="all", round=number, logits="logits", sampling="sampling", pick="pick", tally="tally")
    report = ReportOp(role="w0", round=number, tally_agents=warps, tally="tally", counted="counted")
    gather = GatherOp(role="all", round=number, counted="counted", gathered="gathered")
    narrow = NarrowOp(
        role="all", round=number, gather_agents=warps, gathered="gathered", sampling="sampling", pick="pick"
    )
    done = Wait(counter="census", index=(number,), at_least={"t": workers, "1": workers})
    return [
        Step(op=census),
        author.barrier(),
        Step(op=report, signals=(Signal(counter="census", index=(number,)),)),
        Step(op=WaitOp(role="w0"), waits=(done,)),
        author.barrier(),
        Step(op=gather),
        author.barrier(),
        Step(op=narrow),
    ]
