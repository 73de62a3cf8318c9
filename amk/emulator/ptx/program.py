"""A parsed function -> arrays that the interpreter's loop reads: one row of numbers an instruction (see `encode`).

Blocks are laid out as `control_flow` says, and fall through to the next or end in a branch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from amk.emulator.ptx import isa
from amk.emulator.ptx.control_flow import layout
from amk.emulator.ptx.encode import COLUMNS, Encoder
from amk.emulator.ptx.parse import Function, Module, Variable
from amk.emulator.refusal import bad_ptx


@dataclass(frozen=True)
class Program:
    """code [n, COLUMNS]; constants: (row, value) of the rows that never change; static_shared: where dynamic memory
    begins.

    lines [n]: of the PTX. places: the source lines of each instruction, outermost last, () where it says none. files
    [n]: number of the file of the outermost one, 0 where it says none.
    """

    name: str
    target: str
    code: NDArray[np.int32]
    lines: NDArray[np.int32]
    opcodes: tuple[str, ...]
    places: tuple[tuple[int, ...], ...]
    files: tuple[int, ...]
    rows: int
    constants: tuple[tuple[int, int], ...]
    row_names: tuple[str, ...]
    static_shared: int
    const: bytes
    parameters: int
    globals: tuple[tuple[Variable, int], ...]
    max_threads: int | None


def assemble(module: Module, entry: str) -> Program:
    """The program of one entry. AMK801 without that entry or for text that is no PTX, AMK802 for what is not
    executed."""
    if entry not in module.functions:
        raise bad_ptx(1, f"there is no entry {entry}; there are: {', '.join(sorted(module.functions)) or 'none'}")
    function = module.functions[entry]
    encoder = Encoder(module, function)
    words = [encoder.encode(instruction) for instruction in function.code]
    code, numbers = _lay_out(words, function)
    texts = function.code
    end = len(texts)
    return Program(
        name=entry,
        target=module.target,
        code=np.array(code, np.int32).reshape(-1, COLUMNS),
        lines=np.array([texts[n].line if n < end else function.line for n in numbers], np.int32),
        opcodes=tuple(texts[n].opcode if n < end else "ret" for n in numbers),
        places=tuple(place.lines if n < end and (place := texts[n].place) else () for n in numbers),
        files=tuple(place.file if n < end and (place := texts[n].place) else 0 for n in numbers),
        rows=len(encoder.names),
        constants=tuple(encoder.constants),
        row_names=tuple(encoder.names),
        static_shared=encoder.static_shared,
        const=encoder.const,
        parameters=encoder.parameters,
        globals=encoder.globals,
        max_threads=function.max_threads,
    )


def _lay_out(words: list[list[int]], function: Function) -> tuple[list[list[int]], list[int]]:
    """Instructions in the order of `control_flow.layout`, with a branch where a block does not fall through to the
    next.

    Also the number in the text of each; the end of the text counts as a `ret`.
    """
    end = len(words)
    words = [*words, [isa.EXIT, -1] + [0] * (COLUMNS - 2)]
    leaders = {0, end} | {target for target in function.labels.values() if target <= end}
    leaders |= {n + 1 for n, word in enumerate(words[:end]) if word[0] in (isa.BRA, isa.EXIT, isa.TRAP)}
    starts = sorted(leaders)
    number_of = {start: number for number, start in enumerate(starts)}
    stops = [*starts[1:], end + 1]
    successors = []
    for stop in stops:
        last = words[stop - 1]
        out = []
        if last[0] == isa.BRA:
            out.append(number_of[last[3]])
        if (last[0] not in (isa.BRA, isa.EXIT, isa.TRAP) or last[1] >= 0) and stop <= end:
            out.append(number_of[stop])
        successors.append(out)
    order = layout(successors)
    code: list[list[int]] = []
    numbers: list[int] = []
    begins: dict[int, int] = {}
    for place, block in enumerate(order):
        begins[starts[block]] = len(code)
        for n in range(starts[block], stops[block]):
            code.append(list(words[n]))
            numbers.append(n)
        follows = stops[block]
        if successors[block] and follows <= end and number_of[follows] in successors[block]:
            falls = words[stops[block] - 1][0] != isa.BRA or words[stops[block] - 1][1] >= 0
            after = order[place + 1] if place + 1 < len(order) else -1
            if falls and after != number_of[follows]:
                code.append([isa.BRA, -1, 1, follows] + [0] * (COLUMNS - 4))
                numbers.append(stops[block] - 1)
    for word in code:
        if word[0] == isa.BRA:
            word[3] = begins[word[3]]
    return code, numbers
