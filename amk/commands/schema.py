"""`amk schema`: the JSON Schema of a schedule."""

import argparse

from amk.commands.output import print_json
from amk.schedule_ir.schedule import Schedule


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "What the schema cannot say (references, bounds that depend on others) is checked by `amk verify`."


def run(arguments: argparse.Namespace) -> int:
    schema = Schedule.model_json_schema()
    print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
    return 0
