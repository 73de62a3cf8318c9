"""Hostile files: each gets one diagnostic, in bounded time and memory."""

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amk.report.diagnostic import AmkError
from amk.report.json_file import MAX_DEPTH, parse_json, read_json


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "AMK001"),
        (b"{", "AMK001"),
        (b'{"a": 1,', "AMK001"),
        (b"\xff\xfe\x00", "AMK001"),
        (bytes(range(256)), "AMK001"),
        (b"[" * 100_000, "AMK003"),
        (b'{"a":' * 100_000, "AMK003"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "AMK003"),
        (b"NaN", "AMK006"),
        (b'{"a": -Infinity}', "AMK006"),
        (b"[1e999]", "AMK006"),
        (b'{"a": 1, "a": 2}', "AMK007"),
        (b"9" * 100_000, "AMK005"),
    ],
    ids=range(13),
)
def test_each_kind_of_bad_json(content: bytes, code: str) -> None:
    with pytest.raises(AmkError) as caught:
        parse_json(content, "f.json")
    (found,) = caught.value.diagnostics
    assert found.code == code
    assert found.where is not None and found.where.file == "f.json"


def test_syntax_errors_have_a_line_and_column() -> None:
    with pytest.raises(AmkError) as caught:
        parse_json(b'{\n  "a": 1\n  "b": 2\n}', "f.json")
    where = caught.value.diagnostics[0].where
    assert where is not None and (where.line, where.column) == (3, 3)


@pytest.mark.parametrize("content", [b'"' + b'\\"' * 500_000, b'"' * 999_999, b"\\" * 1_000_000, b'"\\' * 500_000])
def test_unterminated_strings_cost_linear_time(content: bytes) -> None:
    start = time.process_time()
    with pytest.raises(AmkError):
        parse_json(content, "f.json")
    assert time.process_time() - start < 2


def test_brackets_inside_strings_are_not_nesting() -> None:
    text = "[" * 1000 + '\\"' + "{" * 1000
    assert parse_json(f'["{text}", [1]]'.encode(), "f.json") == [text.replace('\\"', '"'), [1]]


def test_depth_limit_is_exact() -> None:
    assert parse_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, "f.json")


@given(st.binary(max_size=200))
def test_random_bytes_never_escape_as_another_exception(content: bytes) -> None:
    try:
        parse_json(content, "f.json")
    except AmkError as error:
        assert error.exit_code == 2


def test_size_is_checked_before_reading(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    start = time.process_time()
    with pytest.raises(AmkError, match="AMK002"):
        read_json(path, 1 << 20)
    assert time.process_time() - start < 1


def test_files_that_block_or_never_end_are_not_read(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, Path("/dev/zero"), tmp_path, tmp_path / "absent", Path("a\0b")):
        with pytest.raises(AmkError, match="AMK001"):
            read_json(path, 1 << 20)


def test_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "bom.json"
    path.write_bytes(b"\xef\xbb\xbf[1]")
    assert read_json(path, 100) == [1]
