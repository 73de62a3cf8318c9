"""The strictness account of a recorded neighbourhood: what is refused and no run refutes, with the reasons.

    python -m tests.adversarial.strictness tests/records/proof/neighbourhood.json > tests/records/proof/strictness.md

Exit 1 if edits of a code and field stand that nobody has given a reason: they may be refused needlessly.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from amk.adversary.neighbourhood.reasons import Reason, reason_of
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
*Stand* are those that one run of the judge did not refute, with the reasons by the field that was edited: `unseen`
where the judge's machine cannot show it, `policy` where amk asks it of every schedule whatever runs show. Not refuting
proves nothing. *Not run*: the machine cannot start them.

| code | meaning | run | refuted | stand | not run | why | most of them |
|---|---|---|---|---|---|---|---|
"""


def rendered(record: dict[str, Any], name: str) -> tuple[str, list[str]]:
    """(the page, codes and fields that stand without a reason)."""
    rows = sorted(record["counts"]["account"].items(), key=lambda item: (-_stand(item[1]), item[0]))
    page = HEAD.format(edits=record["counts"]["edits"], record=name)
    kinds: Counter[str] = Counter()
    for code, row in rows:
        fields = sorted(row["fields"].items(), key=lambda item: (-item[1], item[0]))
        most = ", ".join(f"{field} {count:,}" for field, count in fields[:3])
        numbers = [f"{n:,}" for n in (row["judged"], row["refuted"], _stand(row), row["unrun"])]
        reasons: Counter[Reason] = Counter()
        for field, count in fields:
            reasons[reason_of(code, field)] += count
            kinds[reason_of(code, field).kind] += count
        why = "; ".join(_why(reason, count, len(reasons)) for reason, count in reasons.most_common())
        page += f"| {' | '.join([code, TITLES.get(code, ''), *numbers, why, most])} |\n"
    page += f"\n{kinds['unseen']:,} stand unseen, {kinds['policy']:,} by policy, {kinds['open']:,} without a reason.\n"
    page += "\nKnown to be refused needlessly:\n\n" + "".join(
        f"* {code}: {what}. Kept: {why}.\n" for code, what, why in NEEDLESS
    )
    return page, [f"{code} {f}" for code, row in rows for f in row["fields"] if reason_of(code, f).kind == "open"]


def _why(reason: Reason, count: int, of: int) -> str:
    number = f"{count:,} " if of > 1 else ""
    return f"{number}{reason.kind}: {reason.text}"


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
