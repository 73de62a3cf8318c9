"""Which schedule a piece of machine code was made from: its sha256, as a constant inside the code.

The source gets one constant of 32 bytes; the compiler keeps it because it is visible outside. It is found again in the
cubin's symbol table, and in PTX as an initialiser.
"""

from __future__ import annotations

import io
import re

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Schedule

SYMBOL = "amk_schedule"
BYTES = 32
_PTX = re.compile(rf"\.b8 {SYMBOL}\[{BYTES}\] = \{{([0-9, ]+)\}}")


def stamped(source: str, schedule: Schedule) -> str:
    """The translation unit with the hash of the schedule."""
    digits = ", ".join(str(byte) for byte in bytes.fromhex(schedule_hash(schedule)))
    return f'{source}\nextern "C" __constant__ unsigned char {SYMBOL}[{BYTES}] = {{{digits}}};\n'


def stamp_of(code: bytes | str) -> str | None:
    """The hash in a cubin (bytes) or PTX (text); None if there is none, or if it is no machine code at all."""
    if isinstance(code, str):
        found = _PTX.search(code)
        return bytes(int(part) for part in found[1].split(",")).hex() if found else None
    try:
        elf = ELFFile(io.BytesIO(code))
        table = elf.get_section_by_name(".symtab")
        symbols = table.get_symbol_by_name(SYMBOL) if table is not None else None
        if not symbols:
            return None
        place = symbols[0]["st_value"]
        content = bytes(elf.get_section(symbols[0]["st_shndx"]).data()[place : place + BYTES])
    except (ELFError, TypeError, ValueError, KeyError, IndexError, UnicodeDecodeError):
        return None
    return content.hex() if len(content) == BYTES else None
