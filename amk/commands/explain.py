"""`amk explain CODE`: what a diagnostic code means and how to fix it."""

import argparse

from amk.commands.output import add_format, print_json, print_table
from amk.report.diagnostic import TITLES, AmkError, Diagnostic, area, explanation, normalise


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("code", nargs="?", help="a code such as AMK201; without it, all codes are listed")
    add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.code is None:
        return _list(arguments.format)
    code = normalise(arguments.code)
    if code not in TITLES:
        message = f"'{arguments.code}' is not a diagnostic code"
        raise AmkError(Diagnostic("AMK009", message, help="`amk explain` without a code lists all of them"))
    if arguments.format == "json":
        print_json({"code": code, "area": area(code), "title": TITLES[code], "explanation": explanation(code)})
    else:
        print(explanation(code), end="")
    return 0


def _list(form: str) -> int:
    if form == "json":
        print_json({"codes": [{"code": code, "area": area(code), "title": title} for code, title in TITLES.items()]})
    else:
        print_table(("code", "area", "title"), [(code, area(code), title) for code, title in TITLES.items()])
    return 0
