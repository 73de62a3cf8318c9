"""`amk targets`: the known GPUs and their limits."""

import argparse

from amk.commands.output import add_format, print_json, print_table
from amk.targets.target import Target, load_target, targets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", nargs="*", help="names to show, with sources, instead of all known targets")
    add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    chosen = [load_target(name) for name in arguments.target] or list(targets())
    if arguments.format == "json":
        print_json({"targets": [target.model_dump(mode="json") for target in chosen]})
        return 0
    header = ("name", "arch", "SMs", "smem/block", "L2", "memory", "GB/s", "read ceiling", "features")
    print_table(header, [_row(target) for target in chosen])
    for target in chosen if arguments.target else ():
        print(f"\n{target.title}: sources")
        for figure, source in target.sources.items():
            print(f"  {figure}: {source}")
    return 0


def _row(target: Target) -> tuple[str, ...]:
    return (
        target.name,
        target.arch,
        str(target.sms),
        f"{target.smem_per_block / 2**10:.0f} KiB",
        f"{target.l2_bytes / 2**20:g} MiB",
        f"{target.hbm_bytes / 2**30:.2f} GiB",
        f"{target.hbm_gbps:.0f}",
        f"{target.read_ceiling_gbps:.0f} {'measured' if target.read_ceiling_measured else 'assumed'}",
        " ".join(target.features),
    )
