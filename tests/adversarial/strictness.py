"""The strictness account of a recorded neighbourhood: what is refused and no run refutes, by code, with the reason.

    python -m tests.adversarial.strictness tests/records/proof/neighbourhood.json > tests/records/proof/strictness.md

Exit 1 if a code stands that nobody has given a reason: it may be a needless refusal.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from amk.adversary.neighbourhood.account import kind_of, reason_of
from amk.report.diagnostic import TITLES

NEEDLESS = (
    (
        "AMK203",
        "most of it (89 of 95 that were looked at): a hint whose counter gains more in a token than its thresholds, so "
        "that it holds before anybody has written; the flag words behind it order everything",
        "the two draw apart until their distance passes 2^31 and the wait no longer holds; no plan has one",
    ),
    (
        "AMK301",
        "a buffer of shared memory that is declared larger than what its ops touch and so reaches into a ring",
        "a ring has its bytes for itself, whatever others touch of theirs",
    ),
    (
        "AMK302",
        "a product that defers more refills than its ring has slots where no warp has so many chunks",
        "what is owed is counted in slots, alike for all warps, whatever each of them has to do; no plan defers more",
    ),
)
"""(code, what is refused although it would run right, why that stays)."""
HEAD = """# What is refused and no run refutes

Of {edits:,} edits of small schedules ({record}), those that are UNSAFE or UNKNOWN, by their first code.
*Stand* are those that one run of the judge did not refute: `unseen` for a reason that the judge's machine
cannot show, `policy` because amk asks it of every schedule whatever runs show. Not refuting proves nothing.
*Not run*: the machine cannot start them.

| code | meaning | run | refuted | stand | not run | why | most of them |
|---|---|---|---|---|---|---|---|
"""


def rendered(record: dict[str, Any], name: str) -> tuple[str, list[str]]:
    """(the page, codes that stand without a reason)."""
    rows = sorted(record["counts"]["account"].items(), key=lambda item: (-_stand(item[1]), item[0]))
    page = HEAD.format(edits=record["counts"]["edits"], record=name)
    for code, row in rows:
        fields = sorted(row["fields"].items(), key=lambda item: (-item[1], item[0]))[:3]
        most = ", ".join(f"{field} {count:,}" for field, count in fields)
        numbers = [f"{n:,}" for n in (row["judged"], row["refuted"], _stand(row), row["unrun"])]
        why = f"{kind_of(code)}: {reason_of(code)}" if _stand(row) else ""
        page += f"| {' | '.join([code, TITLES.get(code, ''), *numbers, why, most])} |\n"
    kinds = {
        kind: sum(_stand(row) for code, row in rows if kind_of(code) == kind) for kind in ("unseen", "policy", "open")
    }
    page += f"\n{kinds['unseen']:,} stand unseen, {kinds['policy']:,} by policy, {kinds['open']:,} without a reason.\n"
    page += "\nKnown to be refused needlessly:\n\n" + "".join(
        f"* {code}: {what}. Kept: {why}.\n" for code, what, why in NEEDLESS
    )
    return page, [code for code, row in rows if _stand(row) and not reason_of(code)]


def _stand(row: dict[str, Any]) -> int:
    return int(row["judged"] - row["refuted"])


def main() -> int:
    path = Path(sys.argv[1])
    page, without = rendered(json.loads(path.read_text()), path.name)
    print(page, end="")
    if without:
        print(f"no reason is given for {', '.join(without)}", file=sys.stderr)
    return int(bool(without))


if __name__ == "__main__":
    sys.exit(main())
