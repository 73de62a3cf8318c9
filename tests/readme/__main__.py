"""Writes what pages show of records: `python -m tests.readme`.

`--stale [COMMIT]` first finds which records are stale at a commit, HEAD if none is named, and lists them.
"""

import sys

from tests.readme import pages, records

if "--stale" in sys.argv[1:]:
    records.refresh((sys.argv[sys.argv.index("--stale") + 1 :] or ["HEAD"])[0])
    print(records.report(), end="")
for path, text in pages.PARTS.items():
    path.write_text(text(), encoding="utf-8")
