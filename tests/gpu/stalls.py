"""Where the warps of a step are, by op, from samples of the program counter.

    ncu --profile-from-start off --clock-control none --cache-control none --warp-sampling-interval 0 \
        --metrics group:smsp__pcsamp_warp_stall_reasons -o FOLDER/samples \
        python -m tests.gpu.stalls run MODEL PLAN FOLDER
    ncu --import FOLDER/samples.ncu-rep --page source --csv > FOLDER/samples.csv
    python -m tests.gpu.stalls table FOLDER      # needs nvdisasm

`run` launches the kernel of a plan of `tests.gpu.time_rows` with line numbers in its machine code, a few tokens at
position 512, on a GPU. Nsight Compute samples the launch until its buffer is full; no other program may use the GPU.
`table` gives each instruction to the outermost op from which it was inlined, and prints the share of each op in percent
of all samples, the share of its register moves, and the bytes of its code.
"""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

POSITION, TOKENS, WARM = 512, 4, 3
LEAST = 0.5
"""Percent of the samples of an op that has a row."""
INSTRUCTION = 16
"""Bytes of one."""
_FILE = re.compile(r'//## File "([^"]*)", line')
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,6})\*/\s")


def run(model: str, plan: str, folder: Path) -> None:
    import torch

    from amk.api.devices import target_here
    from amk.bench.table.ablated import AblatedKernel
    from amk.bench.table.ablation import SYMBOL
    from amk.lowering.compile import DEFAULT_OPTIONS, compile_cuda
    from amk.lowering.emit import KERNEL, emit
    from amk.models.model import load_model
    from amk.targets.target import load_target
    from tests.gpu.time_rows import subjects

    (subject,) = subjects(load_model(model), load_target(target_here()), (plan,)).values()
    schedule, options = subject.schedule, (*DEFAULT_OPTIONS, "--generate-line-info")
    source = f"#define {KERNEL} {SYMBOL}\n{emit(schedule)}"
    cubin = compile_cuda(source, schedule.target.arch, options=options).cubin
    (folder / "kernel.cubin").write_bytes(cubin)
    subject.load_cache()
    contestant = AblatedKernel(subject.engine, "lines", cubin).contestant(POSITION, TOKENS)
    for turn in range(WARM + 1):
        contestant.prepare()
        torch.cuda.synchronize()
        if turn == WARM:
            torch.cuda.cudart().cudaProfilerStart()
        contestant.run()
        subject.engine.stream.synchronise()
    torch.cuda.cudart().cudaProfilerStop()
    subject.engine.check()


def places(cubin: Path) -> Iterator[str]:
    """Of each instruction, in order, the file from which it was inlined into the kernel; "kernel" for its own."""
    tool = shutil.which("nvdisasm")
    if tool is None:
        sys.exit("nvdisasm is not on PATH")
    text = subprocess.run([tool, "-gi", "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
    chain: list[str] = []
    fresh = True
    for line in text.splitlines():
        if found := _FILE.search(line):
            chain = [*([] if fresh else chain), Path(found[1]).name]
            fresh = False
        elif _INSTRUCTION.match(line):
            inlined = [name for name in chain if name.endswith(".cuh")]
            yield inlined[-1].removesuffix(".cuh") if inlined else "kernel"
            fresh = True


def table(folder: Path) -> None:
    lines = csv.reader((folder / "samples.csv").read_text().splitlines())
    rows = [
        (source, int(count or 0)) for place, source, count, *_ in (x for x in lines if len(x) > 2) if place[:2] == "0x"
    ]
    samples, moves, code = (Counter[str]() for _ in range(3))
    for (source, count), place in zip(rows, places(folder / "kernel.cubin"), strict=True):
        samples[place] += count
        moves[place] += count if "MOV" in source else 0
        code[place] += INSTRUCTION
    total = samples.total()
    print("| op | samples, % | of them moves | code, KB |\n|---|---|---|---|")
    for place, count in samples.most_common():
        if 100 * count / total >= LEAST:
            shares = f"{100 * count / total:.1f} | {100 * moves[place] / total:.1f}"
            print(f"| {place} | {shares} | {code[place] / 1024:.0f} |")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", model, plan, folder]:
            run(model, plan, Path(folder))
        case ["table", folder]:
            table(Path(folder))
        case _:
            sys.exit(__doc__)
