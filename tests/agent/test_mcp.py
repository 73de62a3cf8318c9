"""The MCP server through the SDK's own client: reads everything, suggests, decides nothing."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp.client.stdio import stdio_client

from amk.agent import mcp_server, runs
from amk.agent.certify import Judgement
from amk.agent.loop import Loop
from tests.agent.conftest import MakeLoop


@pytest.fixture
def finished(make_loop: MakeLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loop:
    monkeypatch.setenv("AMK_RUNS", str(tmp_path))
    monkeypatch.setattr(mcp_server, "installed", lambda: lambda schedule: Judgement("UNSAFE", ("AMK201",), "stuck"))
    loop = make_loop(evals=4)
    loop.run()
    return loop


def talk(work: Callable[[Client], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with Client(mcp_server.server()) as client:
            return await work(client)

    return asyncio.run(main())


def call(name: str, **arguments: Any) -> Any:
    async def work(client: Client) -> Any:
        return await client.call_tool(name, arguments)

    return talk(work)


def test_tools_say_what_they_do_and_none_decides() -> None:
    async def work(client: Client) -> Any:
        return (await client.list_tools()).tools

    tools = {t.name: t for t in talk(work)}
    assert set(tools) == {"list_runs", "read_run", "check_settings", "explain_code", "submit_proposal", "read_proposal"}
    for name, tool in tools.items():
        assert tool.annotations is not None and tool.annotations.read_only_hint is (name != "submit_proposal")
        words = json.dumps(tool.input_schema).lower()
        assert not any(word in words for word in ("verdict", "measure", "score", "dollars", "certificate"))


def test_runs_can_be_read(finished: Loop) -> None:
    (listed,) = call("list_runs").structured_content["result"]
    assert listed["run"] == "run" and listed["simulated"] and listed["evaluations"] == 4
    view = call("read_run", run="run").structured_content
    assert len(view["latest"]) == len(finished.state.trials) and "warps" in view["knobs"]


def test_a_proposal_waits_for_the_gate(finished: Loop) -> None:
    handle = call("submit_proposal", run="run", changes={"run_ahead": True}, why="prefetch").structured_content[
        "handle"
    ]
    assert call("read_proposal", run="run", handle=handle).structured_content["state"] == "waiting"
    inbox = runs.Inbox(finished.journal.folder / runs.INBOX)
    (suggestion,) = inbox.take(finished.state.handles)
    assert suggestion.settings["run_ahead"] is True and suggestion.handle == handle


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read_run", {"run": "../../etc"}),
        ("read_proposal", {"run": "run", "handle": "../x"}),
        ("submit_proposal", {"run": "run", "changes": {"warps": 7}, "why": ""}),
        ("submit_proposal", {"run": "run", "changes": {"verdict": "SAFE"}, "why": ""}),
        ("explain_code", {"code": "../AMK201"}),
        ("check_settings", {"model": "nope", "gpu": "h200", "changes": {}}),
    ],
)
def test_bad_requests_are_errors_of_the_tool(finished: Loop, name: str, arguments: dict[str, Any]) -> None:
    assert call(name, **arguments).is_error
    assert not list((finished.journal.folder / runs.INBOX).glob("*"))


def test_the_verdict_is_the_validators(finished: Loop) -> None:
    found = call("check_settings", model="smollm2-135m", gpu="h200", changes={"warps": 4}).structured_content
    assert found["verdict"] == "UNSAFE" and found["codes"] == ["AMK201"]


def test_over_standard_input_and_output(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": ":".join(sys.path), "AMK_RUNS": str(tmp_path), "PATH": os.environ["PATH"]}
    server = StdioServerParameters(command=sys.executable, args=["-m", "amk", "mcp"], env=environment)

    async def main() -> Any:
        async with Client(stdio_client(server)) as client:
            return await client.call_tool("explain_code", {"code": "201"})

    assert "AMK201" in asyncio.run(main()).content[0].text
