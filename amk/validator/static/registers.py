"""Registers: every warp keeps its own token, position, epoch and end mark, and only its own steps change
    them.

Property: whenever a warp uses a register, it holds the value of the token that the schedule means:
  (R1) the warp has run `begin`, outside the token loop, before the first use;
  (R2) no use follows `select` within one token: those registers are the next token's;
  (R3) a warp that uses registers in the token loop, or after it, runs `select` in every token.
The epoch is used by every wait whose threshold counts tokens and by every access to flag words.

Registers belong to one warp, so program order decides and no interleaving matters; steps outside its role never touch
them. Codes: AMK105 for R1, AMK104 for R2 and R3. Cost: one walk over the steps as written per warp.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from amk.report.diagnostic import Diagnostic
from amk.report.schema import finding
from amk.schedule_ir.ops.begin import BeginOp
from amk.schedule_ir.registers import registers_read
from amk.schedule_ir.schedule import Schedule
from amk.validator.program.trace import Site, sites

MOVES: Final = ("select", "select_draw", "give_hidden")
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
        chosen = chosen or op.op in MOVES


RULES = {
    "R1": "registers belong to one warp and are loaded once per launch, by `begin`",
    "R2": "`select` replaces token, position and epoch in the warps that run it",
    "R3": "a warp that does not run `select` stays at the first token of the launch",
}


def _finding(code: str, message: str, site: Site, rule: str) -> Diagnostic:
    return finding(code, message, (*site.path, "op"), RULES[rule])
