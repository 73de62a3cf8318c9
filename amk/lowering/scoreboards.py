"""Which instructions of a loop wait for loads that the same pass of the loop has just begun.

Results of loads are waited for by scoreboards, six in all: a load names the one that it holds until its data are there,
and an instruction names those it waits for. Where the compiler gives a load a scoreboard that something else needs
soon, the whole latency of memory is exposed in every pass. Neither PTX nor a listing of `nvdisasm` shows that; the
control bits of the machine code do: bits 41 to 61 of an instruction's upper word are stall (4), yield (1), the
scoreboard of the result (3, 7: none), that of the operands (3), and a mask of those waited for (6). The layout, that of
sm_70 to sm_90, is not documented by NVIDIA: it is what measured kernels agree with (LADDER.md, long contexts).
"""

from __future__ import annotations

import io
import re
import struct
from dataclasses import dataclass

from elftools.elf.elffile import ELFFile

_LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;|^(\.L_x_\d+):", re.MULTILINE)
_BRANCH = re.compile(r"\bBRA\b.*?(\.L_x_\d+)")
NO_SCOREBOARD = 7


@dataclass(frozen=True)
class Issued:
    """An instruction of a kernel: its text, the scoreboard of its result (7: none), and those that it waits for."""

    text: str
    result: int
    waits: frozenset[int]


def loops(listing: str, cubin: bytes, kernel: str) -> list[list[Issued]]:
    """The bodies of the kernel's loops, each ending with its branch back; `listing` is of `disassemble`."""
    code = ELFFile(io.BytesIO(cubin)).get_section_by_name(f".text.{kernel}").data()
    start = listing.index(f"\n.text.{kernel}:")
    issued: list[Issued] = []
    labels: dict[str, int] = {}
    found = []
    for address, text, label in _LINE.findall(listing, start):
        if label:
            labels[label] = len(issued)
            continue
        if int(address, 16) != 16 * len(issued):
            break  # another section
        issued.append(_issued(code, int(address, 16), text))
        target = _BRANCH.search(text)
        if target is not None and target[1] in labels:
            found.append(issued[labels[target[1]] :])
    return found


def _issued(code: bytes, address: int, text: str) -> Issued:
    (upper,) = struct.unpack_from("<Q", code, address + 8)
    control = upper >> 41
    return Issued(text, control >> 5 & 7, frozenset(n for n in range(6) if control >> 11 + n & 1))


def exposed(body: list[Issued], load: str) -> list[tuple[Issued, Issued]]:
    """(load, instruction) for every instruction of one pass that waits for an earlier load of that pass and comes
    before the last one: the later loads are not in flight together with it. load: what the text of loads contains.
    """
    loads = [n for n, one in enumerate(body) if load in one.text]
    pairs = []
    for n in loads:
        held = body[n].result
        waiting = next((one for one in body[n + 1 : loads[-1] + 1] if held in one.waits), None)
        if held != NO_SCOREBOARD and waiting is not None:
            pairs.append((body[n], waiting))
    return pairs
