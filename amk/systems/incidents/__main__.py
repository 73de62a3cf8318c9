"""`python -m amk.systems.incidents [NAME]`: the published bugs, or what `amk verify` says about one of them."""

from __future__ import annotations

import sys

from amk.systems.incidents import load
from amk.systems.verdict import judged


def main(names: list[str]) -> int:
    incidents = load()
    unknown = [name for name in names if name not in incidents]
    if unknown or not names:
        for incident in incidents.values():
            print(f"{incident.name}\n    {incident.report} ({incident.hardware})\n    {incident.about}")
        return 2 if unknown else 0
    for name in names:
        print(judged(incidents[name].system(False).flat()).explain())
        print(judged(incidents[name].system(True).flat()).explain())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
