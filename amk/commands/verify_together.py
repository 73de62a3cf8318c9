"""`amk verify A B ...`: are the schedules SAFE, and may their launches take turns on one text."""

import argparse
from dataclasses import replace
from pathlib import Path

from amk.commands.output import print_json
from amk.commands.schedule_file import read_schedule
from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.report.render import as_json
from amk.schedule_ir.codec import located, schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.validator.together import apart, crowded, handed_over, one_packing
from amk.validator.verify import verify

OF_ONE = ("witness", "certificate", "emit_system", "emit_promela", "emit_smt", "fix", "output", "fix_seconds")
"""Options that are about one schedule."""
ADVICE = {
    "/model": "give schedules of one model, as --model of `amk plan`", "/batch": "plan both with one --batch",
    "/live": "plan both with --live, or both without", "/kv/dtype": "plan both with one --kv-dtype",
    "/target": "plan both for one GPU, as --gpu of `amk plan`",
}  # fmt: skip
"""By the place of what keeps two schedules apart."""
EXITS = {"SAFE": Exit.SAFE, "UNSAFE": Exit.UNSAFE, "UNKNOWN": Exit.UNKNOWN}


def run(arguments: argparse.Namespace) -> int:
    if options := [name for name in OF_ONE if getattr(arguments, name)]:
        raise AmkError(Diagnostic("AMK005", f"--{options[0].replace('_', '-')} is for one schedule, several are given"))
    files: list[Path] = [arguments.schedule, *arguments.others]
    findings: list[Diagnostic] = []
    schedules: list[Schedule] = []
    statuses: list[str] = []
    for file in files:
        schedule, positions = read_schedule(file)
        verdict = verify(schedule, timeout_s=arguments.timeout, solver=arguments.solver)
        findings += [located(d, str(file), positions) for d in verdict.diagnostics]
        for before, earlier in zip(files, schedules, strict=False):
            differences = [located(d, str(file), positions) for d in apart(schedule, earlier)]
            advice = _advice_on_memory(schedule, earlier)
            for d in differences:
                help_text = ADVICE.get((d.where and d.where.path) or "", advice)
                findings.append(replace(d, message=f"{d.message} (of {file} and {before})", help=help_text))
            statuses += ["UNSAFE"] * bool(differences)
        schedules.append(schedule)
        statuses.append(verdict.status)
    alone = all(status == "SAFE" for status in statuses)  # the layout of another's weights may not be defined
    if alone and (full := crowded(schedules)):
        findings += full
        statuses.append("UNSAFE")
    status = "UNSAFE" if "UNSAFE" in statuses else "UNKNOWN" if "UNKNOWN" in statuses else "SAFE"
    shared = alone and all(one_packing(schedules[0], other) for other in schedules[1:])
    if arguments.format == "json":
        names = [schedule_hash(schedule) for schedule in schedules]
        diagnostics = [as_json(d) for d in findings]
        print_json({"verdict": status, "schedules": names, "weights_shared": shared, "diagnostics": diagnostics})
        return int(EXITS[status])
    arguments.findings.tell(findings)
    print(f"{status}  {len(schedules)} schedules of {schedules[0].model.name} together")
    if status == "SAFE":
        rows = ", ".join(f"{schedule.rows} from {file}" for schedule, file in zip(schedules, files, strict=True))
        print(f"  tokens a step: {rows}")
        words = ", ".join(handed_over(schedules[0]))
        print(f"  handed over at the end of a launch: the caches, and {words} of the launch state")
        print("  packed weights:", "the same bytes" if shared else "laid out differently, each has its own")
    elif findings:
        print(f"  `amk explain {findings[0].code}` says more")
    return int(EXITS[status])


def _advice_on_memory(one: Schedule, other: Schedule) -> str:
    """How buffers that both name come to be alike."""
    contexts = one.kv.context, other.kv.context
    if contexts[0] != contexts[1]:
        larger, smaller = max(contexts), min(contexts)
        return f"plan both with one --max-context: the caches have {larger:,} and {smaller:,} positions"
    return "plan both from one --model, --dtype and --kv-dtype"
