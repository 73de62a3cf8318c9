"""Clocks of warps that only barriers order, where every barrier is a plain one.

Property: `past_of_rounds` is what `must_clocks` finds of the same events, where `rounds_of` has rounds for them.

A barrier is plain if every round has exactly one arrival of every warp that ever joins it, asks for all of them, and
every warp leaves a round before it arrives at the next one. Then a round waits for its own arrivals and no others:
before its end no warp has arrived more often, so there are as many as it asks for only if all of its own are there.
Whoever leaves knows what all who arrived knew, and that they arrived; that is a plain vector clock.

Cost: a few operations on one cell per warp for every round.
"""

from __future__ import annotations

import numpy as np

from amk.validator.system import I64


def rounds_of(warp: I64, waits: I64, signals: I64) -> I64 | None:
    """[waits] the number of the round that each one ends; None unless all barriers are plain.

    warp: of every event, ascending. waits (event, barrier, threshold), ascending; signals (event, barrier, amount).
    """
    event, number, threshold = waits.T
    if not len(waits) or not np.array_equal(signals, np.stack((event - 1, number, np.ones_like(event)), axis=1)):
        return None
    owner = warp[event]
    several = np.unique(number << 32 | owner) >> 32
    agents = np.bincount(several)[number]
    rank = threshold // agents
    by_warp = np.lexsort((event, number, owner))
    same = (np.diff(number[by_warp]) == 0) & (np.diff(owner[by_warp]) == 0)
    first = np.append(True, ~same)
    _, which, size = np.unique(number << 32 | rank, return_inverse=True, return_counts=True)
    which = which.reshape(-1)
    in_turn = np.where(first, rank[by_warp] == 1, np.diff(rank[by_warp], prepend=0) == 1)
    plain = in_turn.all() and (rank * agents == threshold).all() and (size[which] == agents).all()
    return which if plain else None


def past_of_rounds(warps: int, warp: I64, waits: I64, rounds: I64) -> I64 | None:
    """[events, warps] how many events of each warp come before; None if the warps do not all get to the end."""
    leaving, owner = waits[:, 0], warp[waits[:, 0]]
    index = np.arange(len(warp)) - np.searchsorted(warp, warp)
    members = np.split(np.argsort(rounds, kind="stable"), np.cumsum(np.bincount(rounds))[:-1])
    missing, which = [len(rows) for rows in members], rounds.tolist()
    following = [*(owner[1:] == owner[:-1]).tolist(), False]
    known, past = np.zeros((warps, warps), np.int64), np.zeros((len(warp), warps), np.int64)
    arrived = np.flatnonzero(np.diff(owner, prepend=-1)).tolist()
    ended = 0
    while arrived:
        number = which[arrived.pop()]
        missing[number] -= 1
        if missing[number]:
            continue
        rows, ended = members[number], ended + 1
        of, leave = owner[rows], leaving[rows]
        seen = known[of]
        past[leave - 1] = seen
        seen[np.arange(len(rows)), of] = index[leave]
        known[of] = past[leave] = seen.max(axis=0)
        arrived += [row + 1 for row in rows.tolist() if following[row]]
    past[np.arange(len(warp)), warp] = index
    return past if ended == len(members) else None
