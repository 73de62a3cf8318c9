"""(6) From two tokens to all: arithmetic of the awaited counters, and separation of a token's signals from the next's.

Signals are writes to the counter: they are separated only by what makes a write visible (`fence`). A token's signal
that tagged words alone put before the next token's may still land after it. Hints order nothing but themselves, and
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

    Values and thresholds are compared by the sign of their 32-bit difference. A wait begins to look when no more is
    missing than it asks for of its token, and while it is pending the counter goes on to the end of the token if the
    wait holds back the next, to the end of the launch if not.
    """
    token = {w: np.array([item.token for item in p.items], np.int64) for p in programs for w in p.workers}

    def token_of(rows: I64) -> I64:
        return np.array([token[w][j] for w, j in rows[:, [WORKER, ITEM]].tolist()], np.int64)

    waits, signals = counters.waits, counters.signals
    wait_token, signal_token = token_of(waits), token_of(signals)
    require((counters.init < LAG).all(), "epochs: a counter starts beyond the wrap")
    for instance in np.unique(waits[:, INSTANCE]).tolist():
        mine, here = signals[:, INSTANCE] == instance, waits[:, INSTANCE] == instance
        rows, tokens = signals[mine], signal_token[mine]
        require((tokens >= 0).all(), "epochs: signalled outside the token loop")
        gain = int(rows[tokens == 0, AMOUNT].sum())
        asked = [np.sort(waits[here & (wait_token == n), AMOUNT]) for n in (-1, 0, 1)]
        require(len(asked[0]) == 0 and len(asked[1]) == len(asked[2]), "epochs: waits differ between tokens")
        base = asked[1] - counters.init[instance]
        require((asked[2] - asked[1] == gain).all() and (base > -gain).all() and (base <= gain).all(), "epochs: growth")
        strong = (waits[here, WEAK] == 0).any()
        early, late = rows[tokens == 0], rows[tokens == 1]
        p, q = np.repeat(early, len(late), axis=0), np.tile(late, (len(early), 1))
        place = [WORKER, ITEM, WARP]
        require((fence if strong else wait).before(p[:, place], q[:, place]).all(), "epochs: not separated")
        far = gain * most - base.min() >= LAG
        if far:
            mine = waits[here & (wait_token == 0)]
            p, q = np.repeat(mine, len(late), axis=0), np.tile(late, (len(mine), 1))
            far = gain - base.min() >= LAG or not wait.before(p[:, place], q[:, place]).all()
        require(not far and base.max() <= LAG, "epochs: a token or a launch goes beyond the wrap")
