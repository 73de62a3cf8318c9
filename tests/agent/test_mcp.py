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
        assert not any(word in words for word in ("verdict", "measure", "score", "dollars", "certificate")), name


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


def test_the_settings_of_a_run_are_judged_as_it_plans_them(finished: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start, its context, its formats and its batch, not those of the default plan."""
    judged: list[Any] = []

    def judging(schedule: Any) -> Judgement:
        judged.append(schedule)
        return Judgement("SAFE")

    monkeypatch.setattr(mcp_server, "_certifier", lambda _: judging)
    trial = next(t for t in finished.state.trials if t.key is not None)
    found = call("check_settings", run="run", changes=trial.proposed.settings).structured_content
    assert found["kernel"] == trial.key
    for more in ({"dtype": "int8"}, {"batch": 2, "start": "naive"}):
        told = call("check_settings", model="smollm2-135m", gpu="h200", changes={}, **more).structured_content
        assert told["verdict"] == "SAFE", told
    assert "int8" in judged[-2].model_dump_json() and judged[-1].batch == 2
    for wrong in ({"dtype": "int7"}, {"start": "best"}):
        assert call("check_settings", model="smollm2-135m", gpu="h200", changes={}, **wrong).is_error
    assert call("check_settings", changes={}).is_error


def submit(changes: dict[str, Any]) -> Any:
    return call("submit_proposal", run="run", changes=changes, why="x")


def test_a_client_can_neither_flood_a_search_nor_end_it(
    finished: Loop, make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """400 times the same, what was tried, what cannot be planned, and more than may wait: refused at submission."""
    assert not submit({"run_ahead": True}).is_error
    assert "waits already" in submit({"run_ahead": True}).content[0].text
    tried = next(t for t in finished.state.trials if t.evaluated)
    assert f"proposal {tried.index}" in submit(dict(tried.proposed.settings)).content[0].text
    assert "kernel of the start" in submit({}).content[0].text
    monkeypatch.setattr(runs, "MOST_WAITING", 1)
    assert "wait already" in submit({"stage_bytes": 1}).content[0].text or submit({"warps": 4}).is_error
    monkeypatch.setattr(runs, "MOST_WAITING", 32)
    monkeypatch.setattr(runs, "MOST_SUBMITTED", 1)
    assert "which is the limit" in submit({"warps": 4}).content[0].text


def test_what_lies_in_the_inbox_is_no_reason_to_end(make_loop: MakeLoop, tmp_path: Path) -> None:
    """400 identical suggestions, and 400 that are outside the space, put there without the server."""
    loop = make_loop(evals=6)
    inbox = runs.Inbox(loop.journal.folder / runs.INBOX)
    loop.inbox = lambda: inbox.take(loop.state.handles)
    for number in range(400):
        inbox.put({"warps": 4}, "again")
        inbox.put({"warps": -number}, "nonsense")
    assert "evaluations are used up" in loop.run() and loop.state.evals == 6
    mine = [t for t in loop.state.trials if t.proposed.proposer == "mcp"]
    assert (
        1 <= len(mine) <= runs.MOST_WAITING
        and sum(t.gated is not None and t.gated.verdict == "duplicate" for t in mine) == 0
    )


def test_over_standard_input_and_output(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": ":".join(sys.path), "AMK_RUNS": str(tmp_path), "PATH": os.environ["PATH"]}
    server = StdioServerParameters(command=sys.executable, args=["-m", "amk", "mcp"], env=environment)

    async def main() -> Any:
        async with Client(stdio_client(server)) as client:
            return await client.call_tool("explain_code", {"code": "201"})

    assert "AMK201" in asyncio.run(main()).content[0].text
