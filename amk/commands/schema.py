"""`amk schema`: the JSON Schema of a schedule, of a flat system, or of one with loops."""

import argparse

from amk.commands.output import print_json
from amk.schedule_ir.schedule import Schedule


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--system", action="store_true", help="of a flat system (`amk verify system.json`)")
    kind.add_argument("--loops", action="store_true", help="of a system with loops (`amk verify loops.json`)")
    parser.epilog = "What the schema cannot say (references, bounds that depend on others) is checked by `amk verify`."


def run(arguments: argparse.Namespace) -> int:
    if arguments.system:
        from amk.systems.document import schema as system_schema

        print_json(system_schema())
        return 0
    if arguments.loops:
        from amk.systems.loop_document import schema as loop_schema

        print_json(loop_schema())
        return 0
    schema = Schedule.model_json_schema()
    print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
    return 0
