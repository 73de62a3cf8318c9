"""`amk mcp`: the search's gate and records for coding agents, over standard input and output."""

import argparse

from amk.report.diagnostic import AmkError, Diagnostic


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options: what a client may do is fixed."""


def run(arguments: argparse.Namespace) -> int:
    try:
        from amk.agent.remote.mcp_server import server
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("mcp"):
            raise
        raise AmkError(Diagnostic("AMK701", "the mcp package is not installed", help="pip install amk[mcp]")) from error
    server().run("stdio")
    return 0
