"""How many machine instructions a warp executes for one chunk of weights.

A product's chunk loop is the innermost loop of the machine code that holds a tensor-core instruction and the copy
that refills a slot. What an inner loop repeats while a slot has not arrived yet is not counted. Rare branches are
counted, so the result is an upper bound for a chunk that has arrived. Each of the four schedulers of an SM issues one
instruction a clock, which bounds how fast an SM can drain resident chunks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

SCHEDULERS = 4
"""Warp schedulers of an SM from sm_80 on, each of one instruction a clock (CUDA C++ Programming Guide)."""

_LABEL = re.compile(r"^(\.L_x_\d+):")
_LINE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[0-9T]\s+)?([A-Z][A-Z0-9_.]*)([^;]*)")
_TARGET = re.compile(r"\.L_x_\d+")
_TENSOR = ("HMMA", "IMMA", "QMMA")
_REFILL = ("UBLKCP", "LDGDEPBAR")


@dataclass(frozen=True)
class ChunkLoop:
    """instructions: upper bound for a resident chunk. products: tensor-core instructions among them."""

    instructions: int
    products: int

    def drain_gbps(self, chunk_bytes: int, clock_ghz: float) -> float:
        """10^9 bytes per second that an SM drains if nothing but the issue of instructions limits it."""
        return SCHEDULERS * chunk_bytes * clock_ghz / self.instructions


def chunk_loops(listing: str) -> tuple[ChunkLoop, ...]:
    """The chunk loops of a listing of one kernel, in its order: one for every product of the step."""
    opcodes, loops = _parsed(listing)
    found = []
    for loop in loops:
        inner = [other for other in loops if _within(other, loop)]
        body = opcodes[loop[0] : loop[1] + 1]
        if not (_any(body, _TENSOR) and _any(body, _REFILL)):
            continue
        if any(_any(opcodes[a : b + 1], _TENSOR) for a, b in inner):
            continue
        repeated = {at for a, b in inner for at in range(a, b + 1)}
        products = sum(opcode in _TENSOR for opcode in body)
        found.append(ChunkLoop(loop[1] + 1 - loop[0] - len(repeated), products))
    return tuple(found)


def _parsed(listing: str) -> tuple[list[str], list[tuple[int, int]]]:
    """Opcodes up to their first dot, and the loops: (first, last) instruction of every backward branch."""
    opcodes: list[str] = []
    labels: dict[str, int] = {}
    loops: set[tuple[int, int]] = set()
    for line in listing.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(opcodes)
        elif instruction := _LINE.match(line):
            opcodes.append(instruction[1].split(".")[0])
            loops |= {(begin, len(opcodes) - 1) for begin in _backward(instruction[1], instruction[2], labels)}
    return opcodes, sorted(loops)


def _backward(opcode: str, operands: str, labels: dict[str, int]) -> Iterator[int]:
    target = _TARGET.search(operands) if opcode.split(".")[0] == "BRA" else None
    if target is not None and target[0] in labels:
        yield labels[target[0]]


def _within(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return inner != outer and outer[0] <= inner[0] and inner[1] <= outer[1]


def _any(opcodes: list[str], names: tuple[str, ...]) -> bool:
    return any(opcode in names for opcode in opcodes)
