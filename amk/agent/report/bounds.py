"""How far the best is from what was measured with parts of a kernel left out.

The floor is bytes over bandwidth. `amk bench --ablate --record FILE` measures a closer bound: the copies alone, in the
same rings. It holds for the stream of the plan that was ablated, on the card of that day.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from amk.agent.decide.feedback import fate
from amk.agent.journal.state import START, State
from amk.bench.table.ablation import Ablation
from amk.bench.table.record import ABLATIONS, Record, ablation_of
from amk.report.diagnostic import AmkError, Diagnostic, Where


def bounds(state: State, paths: Sequence[Path]) -> list[str]:
    """A sentence for the newest row of these records that is of the run's model, weights, card, start and batch; AMK001
    for a file that is not there. Says so if there is none."""
    run = state.run
    assert run is not None
    wanted = (run.model, run.weights, run.target, run.start, run.batch)
    found: list[tuple[str, str, Ablation]] = []
    for path in paths:
        if not path.is_file():
            raise AmkError(Diagnostic("AMK001", "there is no such record", where=Where(file=str(path))))
        for entry in Record.open(path, ABLATIONS).entries:
            row, origin = ablation_of(entry["row"]), entry.get("run") or {}
            key = row.key
            if (key.model, key.dtype, key.gpu, key.plan, key.batch) == wanted and row.bound_ms is not None:
                found.append((str(origin.get("date", "")), str(origin.get("commit", "")), row))
    if not found:
        return [f"No row of {', '.join(map(str, paths))} is of this model, card and start."] if paths else []
    date, commit, row = max(found, key=lambda each: each[0])
    return [_sentence(state, row, f"{commit[:8]}, {date[:10]}")]


def _sentence(state: State, row: Ablation, when: str) -> str:
    assert state.run is not None and row.bound_ms is not None
    words = (
        f"A closer bound was measured at position {row.key.pos} ({when}): the copies alone took {row.bound_ms:.4f} ms, "
        f"where the start of that day took {row.ms:.4f} ms and the floor of that run is {row.floor_ms:.4f} ms."
    )
    ms = _of_the_best(state, row.key.pos)
    if ms is None:
        return f"{words} The best was not measured at that position."
    kind = "simulated" if state.run.simulated else "measured"
    above = 100 * (1 - row.bound_ms / ms)
    return f"{words} The best takes {ms:.4f} ms ({kind}): {above:.1f}% of it is above that bound."


def _of_the_best(state: State, pos: int) -> float | None:
    """ms as last seen beside it."""
    assert state.run is not None
    ms = fate(state, state.trials[state.best]).ms if state.best != START else ()
    if state.best == START and state.calibrations:
        ms = state.calibrations[-1].incumbent_ms
    return dict(zip(state.run.positions, ms, strict=False)).get(pos)
