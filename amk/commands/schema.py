"""`amk schema`: the JSON Schema of a schedule, or of a flat system."""

import argparse

from amk.commands.output import print_json
from amk.schedule_ir.schedule import Schedule


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", action="store_true", help="of a flat system (`amk verify system.json`)")
    parser.epilog = "What the schema cannot say (references, bounds that depend on others) is checked by `amk verify`."


def run(arguments: argparse.Namespace) -> int:
    if arguments.system:
        from amk.systems.document import schema as system_schema

        print_json(system_schema())
        return 0
    schema = Schedule.model_json_schema()
    print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
    return 0
