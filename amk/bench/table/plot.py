"""Charts of measured rows: ms a token against position and against batch, with the floor and every baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

from amk.bench.table.row import Key, Row
from amk.report import chart
from amk.report.chart import Chart, Series
from amk.report.diagnostic import AmkError, Diagnostic

Group = tuple[str, ...]
OWN = "amk"


def drawn(rows: Sequence[Row], *, html: bool) -> str:
    """SVG, or a page with it. AMK005 if there is nothing to draw."""
    figure = charts(rows)
    if not figure:
        raise AmkError(Diagnostic("AMK005", "there are no measured rows to draw"))
    return chart.html("Milliseconds a token", figure) if html else chart.svg(figure)


def charts(rows: Sequence[Row]) -> list[Chart]:
    """One against position for every model, format, plan and batch; one against batch where several were measured."""
    found = []
    for group, mine in _grouped(rows, lambda k: (k.model, k.gpu, k.dtype, k.plan, str(k.batch))).items():
        model, gpu, dtype, plan, batch = group
        together = "" if batch == "1" else f", batch {batch}"
        title = f"{model} {dtype} on {gpu}, {plan} plan{together}"
        found.append(Chart(title, "position", "ms/token", _series(mine, lambda k: k.pos), x_log=True))
    for group, mine in _grouped(rows, lambda k: (k.model, k.gpu, k.dtype, k.plan, str(k.pos))).items():
        if len({row.key.batch for row in mine}) > 1:
            model, gpu, dtype, plan, pos = group
            title = f"{model} {dtype} on {gpu}, {plan} plan, position {pos}"
            found.append(Chart(title, "batch", "ms/step", _series(mine, lambda k: k.batch)))
    return found


def _grouped(rows: Iterable[Row], of: Callable[[Key], Group]) -> dict[Group, list[Row]]:
    found: dict[Group, list[Row]] = {}
    for row in rows:
        found.setdefault(of(row.key), []).append(row)
    return dict(sorted(found.items()))


def _series(rows: Sequence[Row], x: Callable[[Key], int]) -> tuple[Series, ...]:
    """The kernel, each baseline, the floor; where a place was measured several times, the median."""
    names = list(dict.fromkeys(name for row in rows for name in row.baselines))
    own = _points((x(row.key), row.times.ms) for row in rows)
    others = [
        Series(name, _points((x(row.key), row.baselines[name].ms) for row in rows if name in row.baselines))
        for name in names
    ]
    floor = Series("floor", _points((x(row.key), row.floor_ms) for row in rows), bound=True)
    return Series(OWN, own), *others, floor


def _points(pairs: Iterable[tuple[int, float]]) -> tuple[tuple[float, float], ...]:
    found: dict[int, list[float]] = {}
    for x, y in pairs:
        found.setdefault(x, []).append(y)
    return tuple((float(x), median(found[x])) for x in sorted(found))
