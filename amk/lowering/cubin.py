"""What a compiled kernel costs: registers, stack, shared memory and spills, without a GPU.

Two independent sources are read and must agree: the cubin itself (attributes in `.nv.info`, the size of
`.nv.shared.<kernel>`) and the text that ptxas prints with `-v`. Spilled bytes stand in the text only.

A record of `.nv.info` is (u8 format, u8 attribute, u16 value); format 4 is followed by `value` bytes. The file-wide
section keys its records by symbol index, `.nv.info.<kernel>` belongs to one kernel. The layout is not documented by
NVIDIA; the cross-check with ptxas is what makes relying on it safe. On sm_90 and later the shared section of a kernel
that uses static shared memory includes the 1 KiB that the system reserves per block, which ptxas does not print.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amk.lowering import refusal
from amk.report.diagnostic import AmkError, shown

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

_FORMAT_SIZED = 4
_ATTR_MAX_THREADS = 0x05
_ATTR_FRAME_SIZE = 0x11
_ATTR_REGISTERS = 0x2F
SYSTEM_SHARED = 1024
_FIRST_ARCH_WITH_SYSTEM_SHARED = 90


@dataclass(frozen=True)
class Resources:
    """Cost of one kernel. Bytes, except `registers` (per thread) and `max_threads` (per block, 0 when not bounded)."""

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    static_smem: int
    max_threads: int


def read_resources(cubin: bytes, log: str, arch: str) -> dict[str, Resources]:
    """Resources of every kernel in `cubin`, by symbol name. `log` is what ptxas printed with -v.

    Raises AMK901 if the ELF file and the log disagree: then the layout assumed here no longer holds.
    """
    printed = parse_ptxas_log(log)
    elf = _read_elf(cubin, arch)
    if printed.keys() != elf.keys():
        raise refusal.internal(f"cubin has kernels {sorted(elf)}, ptxas printed {sorted(printed)}")
    merged: dict[str, Resources] = {}
    for name, found in elf.items():
        text = printed[name]
        ours = (found.registers, found.stack, found.static_smem)
        theirs = (text.registers, text.stack, text.static_smem)
        if ours != theirs:
            raise refusal.internal(
                f"{name}: (registers, stack, shared bytes) are {ours} in the cubin, {theirs} in the ptxas log"
            )
        merged[name] = Resources(
            registers=found.registers,
            spill_stores=text.spill_stores,
            spill_loads=text.spill_loads,
            stack=found.stack,
            static_smem=found.static_smem,
            max_threads=found.max_threads,
        )
    return merged


def elf_resources(cubin: bytes, arch: str) -> dict[str, Resources]:
    """Resources of every kernel as far as the cubin itself tells them: without spills, which only ptxas prints."""
    return _read_elf(cubin, arch)


_ENTRY = re.compile(r"^.*Compiling entry function '([^']+)'.*$", re.MULTILINE)
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?, (\d+) bytes smem)?")


def parse_ptxas_log(log: str) -> dict[str, Resources]:
    """Resources as ptxas prints them, by kernel name; `max_threads` is not printed and reads 0.

    The text of one kernel runs up to the next "Compiling entry function". It lists the kernel first and then the
    functions that were not inlined into it: their spills count as the kernel's, the frame is the kernel's own.
    """
    _, *fields = _ENTRY.split(log)
    found: dict[str, Resources] = {}
    for name, text in zip(fields[::2], fields[1::2], strict=True):
        frames = [tuple(map(int, match.groups())) for match in _FRAME.finditer(text)]
        used = _USED.search(text)
        if not frames or used is None:
            raise refusal.internal(f"no resources of {name} in the ptxas log", shown(text))
        found[name] = Resources(
            registers=int(used[1]),
            spill_stores=sum(frame[1] for frame in frames),
            spill_loads=sum(frame[2] for frame in frames),
            stack=frames[0][0],
            static_smem=int(used[2] or 0),
            max_threads=0,
        )
    return found


def _read_elf(cubin: bytes, arch: str) -> dict[str, Resources]:
    from elftools.elf.elffile import ELFFile  # the driver alone does not wait for it

    elf = ELFFile(io.BytesIO(cubin))
    symbols = [symbol.name for symbol in elf.get_section_by_name(".symtab").iter_symbols()]
    kernels = [s.name.removeprefix(".text.") for s in elf.iter_sections() if s.name.startswith(".text.")]
    by_attribute: dict[int, dict[str, int]] = {_ATTR_REGISTERS: {}, _ATTR_FRAME_SIZE: {}}
    for attribute, payload in _records(elf.get_section_by_name(".nv.info").data()):
        if attribute in by_attribute:
            index, value = struct.unpack("<II", payload)
            by_attribute[attribute][symbols[index]] = value
    found: dict[str, Resources] = {}
    for name in kernels:
        found[name] = Resources(
            registers=by_attribute[_ATTR_REGISTERS][name],
            spill_stores=0,
            spill_loads=0,
            stack=by_attribute[_ATTR_FRAME_SIZE].get(name, 0),
            static_smem=_static_shared(elf, name, arch),
            max_threads=_max_threads(elf, name),
        )
    return found


def _static_shared(elf: ELFFile, kernel: str, arch: str) -> int:
    section = elf.get_section_by_name(f".nv.shared.{kernel}")
    if section is None:
        return 0
    size = int(section["sh_size"])
    reserved = SYSTEM_SHARED if arch_number(arch) >= _FIRST_ARCH_WITH_SYSTEM_SHARED else 0
    return max(0, size - reserved)


def _max_threads(elf: ELFFile, kernel: str) -> int:
    section = elf.get_section_by_name(f".nv.info.{kernel}")
    for attribute, payload in _records(section.data() if section is not None else b""):
        if attribute == _ATTR_MAX_THREADS:
            x, y, z = struct.unpack("<III", payload)
            return int(x * y * z)
    return 0


def _records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(attribute, payload) of the records of one `.nv.info` section; unsized records carry their u16 as payload."""
    offset = 0
    while offset + 4 <= len(data):
        form, attribute, value = struct.unpack_from("<BBH", data, offset)
        offset += 4
        if form == _FORMAT_SIZED:
            yield attribute, data[offset : offset + value]
            offset += value
        else:
            yield attribute, struct.pack("<H", value)


def arch_number(arch: str) -> int:
    """90 for "sm_90a"."""
    match = re.fullmatch(r"sm_(\d+)[a-z]?", arch)
    if match is None:
        raise refusal.unsupported("AMK601", f"not an architecture: {arch!r}; expected a name like sm_80 or sm_90a")
    return int(match[1])


@dataclass(frozen=True)
class Budget:
    """What a kernel may use. `shared_bytes` is static plus dynamic, without the system's own 1 KiB per block."""

    threads: int
    registers: int
    shared_bytes: int
    spill_bytes: int = 0


def check_budget(kernel: str, resources: Resources, dynamic_smem: int, budget: Budget) -> None:
    """Raise AMK403 if registers, spills or block size exceed the budget, AMK401 if shared memory does."""
    if resources.registers > budget.registers:
        raise _over(kernel, "AMK403", "registers a thread", resources.registers, budget.registers)
    spilled = resources.spill_stores + resources.spill_loads
    if spilled > budget.spill_bytes:
        raise _over(kernel, "AMK403", "bytes of register spills", spilled, budget.spill_bytes)
    if resources.max_threads and budget.threads > resources.max_threads:
        raise refusal.unsafe(
            "AMK403",
            f"{kernel} is compiled for at most {resources.max_threads} threads a block, "
            f"it is to run with {budget.threads}",
        )
    shared = resources.static_smem + dynamic_smem
    if shared > budget.shared_bytes:
        raise _over(kernel, "AMK401", "bytes of shared memory a block", shared, budget.shared_bytes)


def _over(kernel: str, code: str, what: str, amount: int, limit: int) -> AmkError:
    return refusal.unsafe(code, f"{kernel} uses {amount} {what}, the budget is {limit}")
