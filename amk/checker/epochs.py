"""(6) From two tokens to all: arithmetic of the awaited counters, and separation of a token's signals from
    the next's.

Signals are writes to the counter: they are separated only by what makes a write visible (`fence`). A token's signal
that flag words alone put before the next token's may still land after it. Hints order nothing but themselves, and
rest on what cannot exist without what (`wait`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from amk.checker.core import Order
from amk.checker.counters import AMOUNT, INSTANCE, ITEM, WARP, WEAK, WORKER, Counters
from amk.checker.programs import Program, require

I64 = npt.NDArray[np.int64]
LAG: Final = 1 << 31


def check_epochs(programs: list[Program], counters: Counters, fence: Order, wait: Order, most: int) -> None:
    """Every counter that something waits for. most: tokens of a launch.

    Step: each wait asks for as much more in the next token as its counter gains in one. Base: in the first token it
    asks for something of this token, or of the one before. Both are affine in the token: two tokens stand for all.
    Values and thresholds are compared by the sign of their 32-bit difference. A wait asks for no more than a token's
    gain, which is below 2^31, so no more is missing when it begins to look. While it is pending the counter goes on to
    the end of the token if the wait holds back the next, to the end of the launch if not.
    """
    token = {w: [item.token for item in p.items] for p in programs for w in p.workers}
    require((counters.init < LAG).all(), "epochs: a counter starts beyond the wrap")
    for instance in np.unique(counters.waits[:, INSTANCE]).tolist():
        signals = counters.signals[counters.signals[:, INSTANCE] == instance]
        waits = counters.waits[counters.waits[:, INSTANCE] == instance]
        ((outside, early, late), (always, first, second)) = (
            [rows[[token[w][j] == n for w, j in rows[:, [WORKER, ITEM]].tolist()]] for n in (-1, 0, 1)]
            for rows in (signals, waits)
        )
        require(len(outside) == 0, "epochs: signalled outside the token loop")
        require(len(always) == 0 and len(first) == len(second), "epochs: waits differ between tokens")
        # rows are in the order of the programs, so a wait has the same place among those of either token
        require((first[:, [WORKER, WARP, WEAK]] == second[:, [WORKER, WARP, WEAK]]).all(), "epochs: waits differ")
        gain, base = int(early[:, AMOUNT].sum()), first[:, AMOUNT] - counters.init[instance]
        require(int(late[:, AMOUNT].sum()) == gain < LAG, "epochs: signals differ between tokens")
        require((second[:, AMOUNT] - first[:, AMOUNT] == gain).all(), "epochs: growth")
        require((base > -gain).all() and (base <= gain).all(), "epochs: of another token")
        strong = (waits[:, WEAK] == 0).any()
        require(_separated(fence if strong else wait, early, late), "epochs: not separated")
        far = gain * most - base.min() >= LAG
        far = far and (gain - base.min() >= LAG or not _separated(wait, first, late))
        require(not far, "epochs: a token or a launch goes beyond the wrap")


def _separated(order: Order, early: I64, late: I64) -> bool:
    """Each of these comes before each of those."""
    p, q = np.repeat(early, len(late), axis=0), np.tile(late, (len(early), 1))
    place = [WORKER, ITEM, WARP]
    return bool(order.before(p[:, place], q[:, place]).all())
