"""Whose bytes and registers are whose: what the host keeps, what copies fill, what an op has for each of its fields.

Property:
    state      what one launch leaves to the next is named by the steps alone that are about it
    rings      the bytes of a ring and of its mbarriers belong to one stream: no other shared buffer lies there, no
               stream uses them twice, and no step names them
    fields     an op has different buffers for different fields: it orders what it does to one field, not to two
    registers  token, position, epoch and end mark belong to one warp, which changes them by its own steps only:
               whenever it uses one, that holds the value of the token that the schedule means
      (R1) the warp has run `begin`, outside the token loop, before the first use;
      (R2) no use follows `select` within one token: those registers are the next token's;
      (R3) a warp that uses registers in the token loop, or after it, runs `select` in every token;
      (R4) `finish` follows `select`: what it stores is what the launch leaves.

An op's field for a constant holds that one: `references` fixes the name, `structure` that of scales, `launch_needs`
that the host fills it. Which bytes of it are read follows from the op alone (`accesses`). A read of a constant where
the op needs what a step computed finds that no step wrote it (`footprint`).

The epoch is used by every wait whose threshold counts tokens and by every access to flag words. Registers belong to one
warp, so program order decides and no interleaving matters; steps outside its role never touch them.

Codes: AMK106 for what is kept for something else, AMK301 for rings, AMK302 for fields, AMK105 for R1, AMK104 for R2 to
R4. Cost: one look at every step as written, for registers one per warp.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from amk.report.diagnostic import Diagnostic
from amk.report.schema import finding
from amk.schedule_ir.memory import Buffer
from amk.schedule_ir.ops.begin import BeginOp
from amk.schedule_ir.ops.finish import FinishOp
from amk.schedule_ir.references import buffer_fields
from amk.schedule_ir.schedule import Schedule, registers_read
from amk.validator.program.trace import Path, Site, all_sites, sites

KEPT: Final = frozenset({"state", "k_cache", "v_cache"})
"""What a launch leaves to the next one, each for the op fields of that name."""


def check_owners(schedule: Schedule) -> list[Diagnostic]:
    """All findings."""
    return [*_fields(schedule), *_rings(schedule)]


def _fields(schedule: Schedule) -> Iterator[Diagnostic]:
    """What steps name."""
    rings = {name: stream.name for stream in schedule.streams for name in (stream.ring, stream.full) if name}
    constants = {buffer.name for buffer in schedule.buffers if buffer.role == "constant"}
    for site in all_sites(schedule):
        op, seen = site.step.op, dict[str, str]()
        for field in buffer_fields(type(op)):
            name: str | None = getattr(op, field)
            if name is None:
                continue
            path = (*site.path, "op", field)
            if name in rings:
                message = f"{field} of {op.op} is '{name}', where copies of '{rings[name]}' land"
                yield finding("AMK301", message, path, "weight copies land there at any time of the launch")
            elif name in KEPT and field != name:
                message = f"{field} of {op.op} is '{name}', which is kept for the next launch"
                yield finding("AMK106", message, path, "what is kept there has one meaning for all launches")
            elif name in seen and name not in constants and not op.in_place.issuperset((seen[name], field)):
                message = f"{op.op} has '{name}' for {seen[name]} and for {field}"
                yield finding("AMK302", message, path, "an op orders its accesses of one field, not those of two")
            seen[name] = field


@dataclass(frozen=True)
class _Use:
    """Bytes [lo, hi) of shared memory and what they are."""

    what: str
    lo: int
    hi: int
    ring: bool
    path: Path


def _use(buffer: Buffer, what: str, ring: bool, path: Path) -> _Use:
    start = buffer.offset or 0
    return _Use(what, start, start + buffer.bytes, ring, path)


def _rings(schedule: Schedule) -> Iterator[Diagnostic]:
    """Copies land at any time of the launch, so nothing else may live in the bytes of rings and mbarriers."""
    shared = {b.name: b for b in schedule.buffers if b.space == "shared"}
    uses, taken = list[_Use](), set[str]()
    for number, stream in enumerate(schedule.streams):
        for field, name in (("ring", stream.ring), ("full", stream.full)):
            if name in shared:
                uses.append(_use(shared[name], f"{field} of '{stream.name}'", True, ("streams", number)))
                taken.add(name)
    uses += [_use(b, f"'{name}'", False, ()) for name, b in shared.items() if name not in taken]
    for one, other in combinations(uses, 2):
        lo, hi = max(one.lo, other.lo), min(one.hi, other.hi)
        if one.ring and lo < hi:
            message = f"{other.what} shares bytes {lo}..{hi - 1} with the {one.what}"
            yield finding("AMK301", message, one.path, "weight copies land there at any time of the launch")
    sources = dict[str, str]()
    for number, stream in enumerate(schedule.streams):
        if sources.setdefault(stream.source, stream.name) != stream.name:
            message = f"'{stream.source}' is the source of '{sources[stream.source]}' and of '{stream.name}'"
            yield finding("AMK106", message, ("streams", number, "source"), "the host packs it for one stream")


MOVES: Final = ("select", "select_draw", "give_hidden", "give_logits", "advance")
"""Ops that move registers on to the next token; messages call them `select`, which all whole models have."""


def check_registers(schedule: Schedule) -> list[Diagnostic]:
    """One finding per step that misuses registers, whatever the number of warps."""
    tagged = {b.name for b in schedule.buffers if b.tagged}
    roles = {r.name: range(r.first, r.first + r.count) for r in schedule.roles}
    found: dict[tuple[str | int, ...], Diagnostic] = {}
    for number, program in enumerate(schedule.programs):
        uses = [(site, sorted(registers_read(site.step, tagged))) for site in sites(program, number)]
        known: set[frozenset[str]] = set()
        for warp in range(schedule.launch.warps):
            playing = frozenset(name for name, warps in roles.items() if warp in warps)
            if playing in known:  # what an earlier warp does wrong is told of that one
                continue
            known.add(playing)
            mine = [use for use in uses if use[0].step.op.role in playing]
            for diagnostic, site in _misuses(mine, warp):
                found.setdefault(site.path, diagnostic)
    return list(found.values())


def _misuses(mine: list[tuple[Site, list[str]]], warp: int) -> Iterator[tuple[Diagnostic, Site]]:
    """mine: the steps of the warp, with the registers that each reads."""
    loaded = chosen = False
    advances = any(site.step.op.op in MOVES and site.around for site, _ in mine)
    for site, names in mine:
        op = site.step.op
        if isinstance(op, BeginOp):
            loaded = True
            if site.around:
                yield _finding("AMK104", f"warp {warp} loads its registers again in every token", site, "R1"), site
            continue
        if names and not loaded:
            yield (
                _finding("AMK105", f"warp {warp} uses {names[0]}, which `begin` has not loaded in it", site, "R1"),
                site,
            )
        elif names and not advances:
            message = f"warp {warp} uses {names[0]}, and no `select` in the token loop moves it on to the next token"
            yield _finding("AMK104", message, site, "R3"), site
        elif names and site.around and chosen:
            message = f"warp {warp} uses {names[0]} after `select`: it is the next token's"
            yield _finding("AMK104", message, site, "R2"), site
        elif isinstance(op, FinishOp) and not chosen:
            where = "in the token loop, before it has chosen a token" if site.around else "before the token loop"
            message = f"warp {warp} stores its registers {where}, as they were when the launch began"
            yield _finding("AMK104", message, site, "R4"), site
        chosen = chosen or op.op in MOVES


RULES = {
    "R1": "registers belong to one warp and are loaded once per launch, by `begin`",
    "R2": "`select` replaces token, position and epoch in the warps that run it",
    "R3": "a warp that does not run `select` stays at the first token of the launch",
    "R4": "the next launch goes on where `finish` says that this one stopped",
}


def _finding(code: str, message: str, site: Site, rule: str) -> Diagnostic:
    return finding(code, message, (*site.path, "op"), RULES[rule])
