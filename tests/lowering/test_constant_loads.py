"""Loads through the non-coherent path, which the compiler may move across every wait, are of launch constants alone.

What a load reads is found here by a slice of the text that knows nothing of the read-back: from the registers of its
address to all that can have put a value there, up to loads and to fields of the kernel's parameter.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import pytest

from amk.lowering.abi import abi, member
from amk.lowering.kernel import read_back
from amk.report.diagnostic import AmkError
from tests.lowering.edits.judge import subject
from tests.lowering.test_operands import text

NAMES = ("tagged", "fenced", "copies", "many codes", "halves", "rows")
LOAD = re.compile(r"\bld(?:\.(?:relaxed|acquire|volatile)(?:\.gpu|\.sys)?)?\.global(?!\.nc)")
NON_COHERENT = re.compile(r"\bld\.global\.nc\b")
REGISTER = re.compile(r"%[a-z]+\d+")
NORM, SCALES = "norm", "scale"


@cache
def definitions(name: str) -> dict[str, list[str]]:
    """The lines that write each register."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in text(name).splitlines():
        operands = re.match(r"\t(?:@!?%p\d+ )?[a-z][\w.:]*\s+(\{[^}]*\}|%[a-z]+\d+(?:\|%p\d+)?)\s*,", line)
        for register in REGISTER.findall(operands[1]) if operands else ():
            found[register].append(line)
    return found


@cache
def fields(name: str) -> dict[int, str]:
    """The global buffers by their place in the parameter."""
    return {8 * place: buffer for place, (buffer, _) in enumerate(abi(subject(name)).buffers)}


def read_by(name: str, line: str) -> set[str]:
    """The buffers whose address can be in a load's, by name as in the parameter."""
    (address,) = re.findall(r"\[(%rd\d+)", line)
    seen, left, found = {address}, [address], set[str]()
    while left:
        for origin in definitions(name)[left.pop()]:
            if parameter := re.search(r"ld\.param\.u64.*\[(?:%rd\d+|\w+)(?:\+(\d+))?\]", origin):
                found |= {fields(name)[at] for at in (int(parameter[1] or 0),) if at in fields(name)}
            elif not re.search(r"\t(?:ld|atom)\.", origin):
                new = set(REGISTER.findall(origin)) - seen
                seen |= new
                left += sorted(new)
    return found


def constants(name: str) -> set[str]:
    return {member(buffer.name) for buffer in subject(name).buffers if buffer.role == "constant"}


def loads(name: str) -> Iterator[tuple[str, str]]:
    """(a coherent load, the text in which it takes the non-coherent path), one at a time."""
    lines = text(name).splitlines()
    for number, line in enumerate(lines):
        changed = LOAD.sub("ld.global.nc", line, count=1)
        if changed != line:
            yield line, "\n".join([*lines[:number], changed, *lines[number + 1 :]]) + "\n"


@pytest.mark.parametrize("name", NAMES)
def test_what_takes_the_path_is_constant(name: str) -> None:
    found = [line for line in text(name).splitlines() if NON_COHERENT.search(line)]
    read = [read_by(name, line) for line in found]
    assert all(buffers and buffers <= constants(name) for buffers in read), list(zip(found, read, strict=True))
    apart = any(chunk.apart for stream in subject(name).streams for chunk in stream.chunks.values())
    kinds = {kind for kind in (NORM, SCALES) for buffers in read for buffer in buffers if kind in buffer}
    assert kinds == ({NORM, SCALES} if apart else {NORM}), "norms and the scales of rows take it"


@pytest.mark.turns(2 * len(NAMES))
@pytest.mark.parametrize("name", NAMES)
def test_no_other_load_can_take_it(name: str) -> None:
    """Of the loads one at a time, exactly those of constants pass."""
    passed, refused = set[bool](), 0
    for line, changed in loads(name):
        constant = bool(found := read_by(name, line)) and found <= constants(name)
        try:
            read_back(subject(name), changed)
        except AmkError as error:
            assert error.diagnostics[0].code in ("AMK607", "AMK609") and not constant, (line, str(error))
            refused += 1
        else:
            assert constant, line
            passed.add(constant)
    assert passed == {True} and refused > 20
