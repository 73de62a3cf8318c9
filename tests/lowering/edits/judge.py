"""What becomes of an edit: it changes no PTX, does not compile, is refused by the read-back, or survives."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from amk.lowering import headers
from amk.lowering.compile import _call, _nvrtc, _text, cuda_include_directories
from amk.lowering.emit import emit
from amk.lowering.kernel import read_back
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST, NAIVE, Settings
from amk.report.diagnostic import AmkError
from amk.schedule_ir.schedule import Schedule
from amk.schedule_ir.target import load_target
from amk.schedule_ir.weight_format import FormatName
from tests.lowering.edits.rules import SOURCE, Edit, edits
from tests.tiny import tiny

SUBJECTS: dict[str, tuple[str, Settings, FormatName]] = {
    "tagged": ("h200", FAST, "bf16"),
    "fenced": ("h200", NAIVE, "bf16"),
    "copies": ("l4", NAIVE, "int8"),
    "drawing": ("h200", replace(FAST, sampling="top-k-top-p"), "int4-g128-zp"),
}
"""Kernels that together contain every header: both hand-offs, both kinds of ring, codes, drawing."""


@cache
def subject(name: str) -> Schedule:
    gpu, settings, kept = SUBJECTS[name]
    return plan(
        tiny(layers=2), load_target(gpu), settings=settings, wanted=formats(kept), max_context=128, workers=4
    )  # fmt: skip


@cache
def texts(name: str) -> dict[str, str]:
    """The headers that the subject's kernel includes, and its own text."""
    source = emit(subject(name))
    return {SOURCE: source, **headers.closure(source)}


def compiled(name: str, edit: Edit | None = None) -> str | None:
    """The PTX of a subject's kernel; None if it does not compile."""
    files = dict(texts(name))
    if edit is not None:
        files[edit.file] = edit.of(files[edit.file])
    source, nvrtc, arch = files.pop(SOURCE), _nvrtc(), subject(name).target.arch.replace("sm", "compute")
    names, contents = [n.encode() for n in files], [t.encode() for t in files.values()]
    program = _call(nvrtc, "nvrtcCreateProgram", source.encode(), b"k.cu", len(files), contents, names)
    try:
        flags = [f"--gpu-architecture={arch}", "--std=c++17", *(f"-I{p}" for p in cuda_include_directories())]
        status = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])[0]
        return _text(nvrtc, program, "nvrtcGetPTX") if status == nvrtc.nvrtcResult.NVRTC_SUCCESS else None
    finally:
        nvrtc.nvrtcDestroyProgram(program)


original = cache(compiled)


def judge(name: str, edit: Edit) -> str:
    """What became of the edit in one subject: "equal PTX", "does not compile", a diagnostic code, or "survived"."""
    ptx = compiled(name, edit)
    if ptx is None:
        return "does not compile"
    if ptx == original(name):
        return "equal PTX"
    try:
        read_back(subject(name), ptx)
    except AmkError as error:
        return error.diagnostics[0].code
    return "survived"


def all_edits() -> list[tuple[str, Edit]]:
    """(subject, edit) of every edit, each of the first subject whose kernel has the text; kinds in turn."""
    found: dict[str, tuple[str, Edit]] = {}
    for name in SUBJECTS:
        for edit in edits(texts(name)):
            found.setdefault(edit.name, (name, edit))
    return list(found.values())
