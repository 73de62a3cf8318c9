"""The report that lies in a run's folder, and whether it tells all that the journal has.

Whoever asks for a report whose session has ended gets that one: nothing of it is planned or simulated again.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from amk.agent.journal.state import State
from amk.version import __version__

REPORT = "report.html"
HEAD = 1000


def stamp(state: State) -> str:
    """What a report of all that the journal has now says in its head: nothing is ever taken from a journal, so its
    length tells it. Another version may tell it otherwise."""
    assert state.run is not None
    content = escape(f"{__version__} {state.run.run} {state.events}", quote=True)
    return f'<meta name="amk-journal" content="{content}">'


def kept_report(folder: Path, state: State) -> str | None:
    """The whole report that lies in the run's folder, if it tells all that the journal has."""
    path = folder / REPORT
    try:
        with open(path, encoding="utf-8") as file:
            head = file.read(HEAD)
            return head + file.read() if stamp(state) in head else None
    except (OSError, ValueError):
        return None
