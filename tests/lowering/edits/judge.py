"""What becomes of an edit: it changes no PTX, does not compile, is refused by the read-back, differs when the emulator
runs it, or survives."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from amk.lowering import headers
from amk.lowering.compile import _PROGRAM_NAME, DEFAULT_OPTIONS, _call, _nvrtc, _text, cuda_include_directories
from amk.lowering.emit import emit
from amk.lowering.kernel import read_back
from amk.models.model_spec import LayerSlice, ModelSpec
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST, NAIVE, PHASED, Settings
from amk.report.diagnostic import AmkError
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.weights.weight_format import FormatName
from tests.lowering.edits.emulated import REQUESTS, Request, difference
from tests.lowering.edits.further import ALONE, FROM_WARP_1, FURTHER, UnitFault
from tests.lowering.edits.rules import SOURCE, Edit, edits
from tests.tiny import tiny

RAGGED = tiny("tiny-ragged", hidden=192, ffn=352, heads=3, kv_heads=1, vocab=331, qkv_bias=True, qk_norm=True)
NEOX = tiny("tiny-neox", family="gpt_neox", qkv_bias=True, activation="gelu", parallel=True, rotary_dim=8)
HELD = replace(PHASED, warps=4, run_ahead=True, slots=2, held_refills=1.0, first_refills=0.5, kv_block=16)
NINE = replace(FAST, batch=9, kv_block=16, scales_apart=True)
SUBJECTS: dict[str, tuple[str, Settings, FormatName, ModelSpec]] = {
    "tagged": ("h200", replace(FAST, handoff="tagged"), "bf16", tiny()),
    "fenced": ("h200", NAIVE, "bf16", tiny()),
    "copies": ("l4", NAIVE, "int8", tiny()),
    "drawing": ("h200", replace(FAST, sampling="top-k-top-p"), "int4-g128-zp", tiny()),
    "batch": ("h200", replace(FAST, batch=2, kv_block=16), "bf16", tiny()),
    "codes": ("h200", replace(FAST, batch=2, kv_block=16), "int4-g128-zp", tiny()),
    "parts": ("h200", replace(FAST, batch=2, kv_block=16, k_parts=6, chunk_bytes=512), "bf16", tiny(layers=1, ffn=384)),
    "many codes": (
        "h200",
        replace(FAST, batch=9, kv_block=16, scales_apart=True),
        "int8",
        tiny(layers=1, heads=2, kv_heads=1),
    ),
    "family": ("h200", HELD, "bf16", NEOX),
    "slice": ("h200", replace(FAST, handoff="tagged"), "bf16", tiny(slice=LayerSlice(first=1, of=4))),
    "head": (
        "h200",
        replace(FAST, handoff="tagged"),
        "bf16",
        tiny(layers=1, vocab=331, slice=LayerSlice(first=3, of=4, head=True)),
    ),
    "rows": ("h200", replace(FAST, rows=3, warps=4, kv_block=16, handoff="tagged"), "bf16", tiny(heads=8, head_dim=32)),
    "given": (
        "h200",
        replace(FAST, rows=3, headless=True, warps=2, kv_block=16, handoff="tagged"),
        "bf16",
        tiny(layers=1),
    ),
    "divided": (
        "h200",
        replace(
            FAST,
            rows=17,
            headless=True,
            x_parts=2,
            k_parts=2,
            k_splits=2,
            warps=2,
            kv_block=32,
            chunk_bytes=512,
            handoff="mixed",
        ),
        "bf16",
        tiny(layers=1, heads=2, kv_heads=1, hidden=128, ffn=128),
    ),
    "halves": ("h200", replace(FAST, kv_dtype="fp8", kv_block=16, scales_apart=True), "fp8", RAGGED),
}
"""Kernels that together run every header: both hand-offs and rings, codes, drawing, batches, parts, rows, columns
divided among workers, a slice, a last layer with output head, and rows without one."""


_UNIT = re.compile(rf"_amk_kernel_cu_[0-9a-f]{{8}}_{os.getpid()}")
"""What names of the translation unit carry of its text and of the process; the digits behind that are a length."""


def _described(name: str) -> tuple[str, Settings, FormatName, ModelSpec, tuple[Request, ...]]:
    return FURTHER[name] if name in FURTHER else (*SUBJECTS[name], REQUESTS)


@cache
def subject(name: str) -> Schedule:
    gpu, settings, kept, model, _ = _described(name)
    workers = settings.workers or max(4, settings.batch * model.kv_heads)
    schedule = plan(model, load_target(gpu), settings=settings, formats=formats(kept), max_context=128, workers=workers)
    return from_warp_1(schedule) if name in FROM_WARP_1 else schedule


def from_warp_1(schedule: Schedule) -> Schedule:
    """The same roles a warp further on, behind one that does nothing."""
    roles = tuple(role.model_copy(update={"first": role.first + 1}) for role in schedule.roles)
    launch, warps = schedule.launch, schedule.launch.warps + 1
    fit = schedule.target.regs_per_sm // 4 // -(-warps // 4) // 32 // 8 * 8  # of one of the four parts of an SM
    launch = launch.model_copy(update={"warps": warps, "registers": min(launch.registers, fit)})
    return schedule.model_copy(update={"roles": roles, "launch": launch})


@cache
def texts(name: str) -> dict[str, str]:
    """The headers that the subject's kernel includes, and its own text."""
    source = ALONE[name].text if name in ALONE else emit(subject(name))
    return {SOURCE: source, **headers.closure(source)}


def compiled(name: str, edit: Edit | None = None) -> str | None:
    """The PTX of a subject's kernel; None if it does not compile."""
    files = dict(texts(name))
    if edit is not None:
        files[edit.file] = edit.of(files[edit.file])
    return built(files.pop(SOURCE), files, "sm_90a" if name in ALONE else subject(name).target.arch)


def built(source: str, files: Mapping[str, str], arch: str) -> str | None:
    """The PTX of a text with these headers; None if it does not compile."""
    nvrtc, names, contents = _nvrtc(), [n.encode() for n in files], [t.encode() for t in files.values()]
    program = _call(nvrtc, "nvrtcCreateProgram", source.encode(), _PROGRAM_NAME.encode(), len(files), contents, names)
    try:
        virtual = arch.replace("sm", "compute")
        flags = [f"--gpu-architecture={virtual}", *DEFAULT_OPTIONS, *(f"-I{p}" for p in cuda_include_directories())]
        status = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])[0]
        done = status == nvrtc.nvrtcResult.NVRTC_SUCCESS
        return _UNIT.sub("_amk_kernel_cu_", _text(nvrtc, program, "nvrtcGetPTX")) if done else None
    finally:
        nvrtc.nvrtcDestroyProgram(program)


original = cache(compiled)


def judge(names: tuple[str, ...], edit: Edit) -> tuple[str, str]:
    """(subject, what became of the edit there): "does not compile", a diagnostic code, "emulator: " and what it saw, or
    "survived", in the first subject that notices it, or the last whose PTX it changes; "equal PTX" if there is none.
    """
    found = "", "equal PTX"
    for name in names:
        ptx = compiled(name, edit)
        if ptx is None:
            assert original(name) is not None, f"{name} does not compile as it is"
            return name, "does not compile"
        if ptx != original(name):
            found = name, of_changed(name, ptx)
            if found[1] != "survived":
                return found
    return found


def of_changed(name: str, ptx: str) -> str:
    """What refuses PTX that differs from the subject's."""
    if name in ALONE:
        run = ALONE[name].run
        expected = run(original(name) or "")
        try:
            return "survived" if (run(ptx) == expected).all() else "emulator: memory"
        except UnitFault as fault:
            return f"emulator: {fault}"
    try:
        read_back(subject(name), ptx)
    except AmkError as error:
        return error.diagnostics[0].code
    seen = difference(name, subject(name), original(name) or "", ptx, _described(name)[4])
    return "survived" if seen is None else f"emulator: {seen}"


def beside(edit: Edit) -> tuple[str, ...]:
    """The kernels beside the sample's subjects that have the file which an edit changes."""
    alone = tuple(name for name, unit in ALONE.items() if unit.file == edit.file)
    return alone + tuple(name for name in FURTHER if edit.file != SOURCE and edit.file in texts(name))


def all_edits() -> list[tuple[tuple[str, ...], Edit]]:
    """Every edit, with the subjects whose kernel has the text that it changes. Emitted text is each subject's own."""
    found: dict[Edit, list[str]] = {}
    for name in SUBJECTS:
        for edit in edits(texts(name)):
            found.setdefault(edit, []).append(name)
    return [(tuple(names), edit) for edit, names in found.items()]
