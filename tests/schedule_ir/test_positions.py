"""Lines, columns and extents of JSON values, also beyond ASCII."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amk.report.json_file import MOST_CHARACTERS, Positions
from amk.report.schema import json_pointer

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
TREES = st.recursive(
    SCALARS, lambda t: st.lists(t, max_size=3) | st.dictionaries(st.text(max_size=4), t, max_size=3), max_leaves=12
)


def values(tree: Any, path: tuple[str | int, ...] = ()) -> dict[str, Any]:
    found = {json_pointer(path): tree}
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in entries:
        found |= values(value, (*path, key))
    return found


@given(TREES, st.sampled_from([None, 1]), st.booleans())
def test_every_value_is_where_its_region_says(tree: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(tree, indent=indent, ensure_ascii=ascii_only)
    positions = Positions(text.encode("utf-8", "surrogatepass"))
    wanted = values(tree)
    assert set(positions) == set(wanted)
    lines = text.split("\n")
    for pointer, value in wanted.items():
        region = positions.region(pointer)
        assert region is not None and region.line == positions[pointer]
        inside = [lines[n - 1] for n in range(region.line, region.end_line + 1)]
        inside[-1] = inside[-1][: region.end_column - 1]
        inside[0] = inside[0][region.column - 1 :]
        assert json.loads("\n".join(inside)) == value
        assert len(region.text) <= MOST_CHARACTERS and region.text.isprintable()


@pytest.mark.parametrize(
    ("pointer", "expected"), [("/a/1", (2, 5)), ("/a/1/nothing", (2, 5)), ("/a", (1, 7)), ("/zzz", (1, 1))]
)
def test_a_missing_value_has_the_place_of_what_is_around_it(pointer: str, expected: tuple[int, int]) -> None:
    region = Positions(b'{"a": [1,\n    22]}').region(pointer)
    assert region is not None and (region.line, region.column) == expected


def test_a_scalar_is_shown_with_its_key() -> None:
    region = Positions(b'{"a": {"scope":"cta"}}').region("/a/scope")
    assert region is not None and region.text == '"scope": "cta"'
