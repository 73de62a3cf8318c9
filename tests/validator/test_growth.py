"""Cost grows about linearly with events: the exponent between two sizes, by the processor's clock.

`python -m tests.validator.speed growth` goes to a million events and draws it.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.validator import growth

RECORD = Path(__file__).parents[1] / "records" / "proof" / "verify-speed.json"


def test_the_flat_check_grows_about_linearly() -> None:
    small, large = growth.points((104, 1042), 2)
    assert growth.slope(small, large) <= 1.2 and growth.slope(small, large, "mib") <= 1.0


def test_the_record_goes_to_a_million_events_and_is_about_linear_all_the_way() -> None:
    record = json.loads(RECORD.read_text())["growth"]
    flat = record["flat"]
    assert flat[0]["events"] <= 1000 and flat[-1]["events"] >= 1_000_000
    assert growth.slope(flat[0], flat[-1]) <= 1.2 and growth.slope(flat[2], flat[-1]) <= 1.2
    composed = record["composed, llama3-8b naive"]
    assert growth.slope(composed[0], composed[-1]) <= 1.2
