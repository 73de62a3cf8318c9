"""Writes what READMEs show of records: `python -m tests.readme`; `--stale` lists the records instead."""

import sys

from tests.readme import pages, records

if "--stale" in sys.argv[1:]:
    print(records.report(), end="")
else:
    for path, text in pages.PARTS.items():
        path.write_text(text(), encoding="utf-8")
