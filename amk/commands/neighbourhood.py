"""`amk adversarial --neighbourhood`: every edit of small schedules, judged by runs against a plain forward pass."""

import argparse
import sys
import time

from amk.adversary.neighbourhood.account import account
from amk.adversary.neighbourhood.bases import SMALL_BASES
from amk.adversary.neighbourhood.ledger import Ledger, counts
from amk.adversary.neighbourhood.search import Search, commit
from amk.adversary.neighbourhood.survey import bounded_memory
from amk.commands.output import print_json, print_table
from amk.report.diagnostic import AmkError, Diagnostic, Exit, Where
from amk.report.schema import closest

EVERY = 20.0
"""Seconds between two lines of progress."""
COLUMNS = ("edits", "refused", "same", "SAFE", "UNSAFE", "UNKNOWN", "error", "holes")
MORE = (
    "SAFE, refuted", "SAFE, not refuted", "SAFE, unrun", "SAFE, not certified", "not SAFE, certificate accepted",
    "UNSAFE, refuted", "UNSAFE, not refuted", "UNKNOWN, refuted", "UNKNOWN, not refuted",
)  # fmt: skip


def search(arguments: argparse.Namespace) -> int:
    """Goes on with the file; exit 1 if it holds a schedule that was wrongly passed."""
    for name in arguments.base or ():
        if name not in SMALL_BASES:
            help_ = closest(name, SMALL_BASES) or f"there are {', '.join(SMALL_BASES)}"
            raise AmkError(Diagnostic("AMK005", f"no base is called '{name}'", help=help_))
    try:
        ledger = Ledger(arguments.neighbourhood)
    except OSError as error:
        where = Where(file=str(arguments.neighbourhood))
        raise AmkError(Diagnostic("AMK001", f"cannot be read or written: {error.strerror}", where=where)) from error
    bases = tuple(arguments.base or SMALL_BASES)
    task = Search(bases, ledger, arguments.pairs, arguments.seed, arguments.holes, commit())
    with bounded_memory():
        _go(task, arguments)
    ledger.close()
    if arguments.format == "json":
        print_json(summary(ledger))
    else:
        _print(ledger)
    return int(Exit.UNSAFE if any(line.outcome.hole for line in ledger.lines) else Exit.SAFE)


def _go(task: Search, arguments: argparse.Namespace) -> None:
    reported, begun = time.monotonic(), len(task.ledger.lines)
    for line in task.run(arguments.seconds, arguments.edits):
        if line.outcome.hole or time.monotonic() - reported > EVERY:
            reported, count = time.monotonic(), len(task.ledger.lines)
            passed = f": passes {line.outcome.hole}, {line.outcome.judge}" if line.outcome.hole else ""
            print(
                f"{count - begun} edits, {count} in all; {line.base}, {line.field}{passed}", file=sys.stderr, flush=True
            )


def summary(ledger: Ledger) -> dict[str, object]:
    """Counts by field and by base, the strictness account, and every hole."""
    fields = counts(ledger.lines)
    bases: dict[str, int] = {}
    for line in ledger.lines:
        bases[line.base] = bases.get(line.base, 0) + 1
    return {
        "edits": len(ledger.lines),
        "totals": {name: sum(row.get(name, 0) for row in fields.values()) for name in (*COLUMNS, *MORE)},
        "bases": bases,
        "commits": sorted({line.commit for line in ledger.lines}),
        "fields": fields,
        "account": [
            {
                "code": row.code, "kind": row.kind, "judged": row.judged, "refuted": row.refuted,
                "fields": dict(row.fields.most_common()), "examples": row.examples,
            }
            for row in account(ledger.lines)
        ],
        "holes": [
            {
                "base": line.base, "field": line.field, "kind": line.kind, "edits": line.edits,
                "passes": line.outcome.hole, "judge": line.outcome.judge, "why": line.outcome.why,
            }
            for line in ledger.lines
            if line.outcome.hole
        ],
    }  # fmt: skip


def _print(ledger: Ledger) -> None:
    fields = counts(ledger.lines)
    rows = [[name, *(str(row.get(c, 0)) for c in COLUMNS)] for name, row in fields.items()]
    rows.append(["all", *(str(sum(row.get(c, 0) for row in fields.values())) for c in COLUMNS)])
    print_table(["field", *COLUMNS], rows)
    for name in MORE:
        print(f"{name}: {sum(row.get(name, 0) for row in fields.values()):,}")
    cells = [[r.code, r.kind, str(r.judged), str(r.refuted), str(r.standing)] for r in account(ledger.lines)]
    print_table(["code", "reason", "judged", "refuted", "not refuted"], cells)
    for line in ledger.lines:
        if line.outcome.hole:
            print(f"passes {line.outcome.hole}: {line.base}, {line.field}, {line.kind}: {line.outcome.judge}")
