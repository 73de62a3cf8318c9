"""The MCP server through the SDK's own client: reads everything, suggests, decides nothing."""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from amk.agent.journal import inbox as inbox_module

pytest.importorskip("mcp")

from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from amk.agent.gate.candidate import Workshop, workshop_of
from amk.agent.gate.design import in_words
from amk.agent.journal.events import Noted, Proposed
from amk.agent.journal.inbox import Suggestion
from amk.agent.journal.state import State
from amk.agent.remote import limits, mcp_server
from amk.agent.remote.limits import Searches
from amk.agent.remote.mcp_server import Server
from amk.agent.run.suggestions import Queue
from amk.agent.tools import calls
from amk.agent.tools.desk import Desk
from amk.agent.tools.refused import RefusedError
from amk.agent.tools.trial import DesignRequest, Trial
from amk.commands import autoresearch
from amk.schedule_ir.schedule import Schedule
from amk.simulator.constants import FILE_BYTES, constants_for, load_constants
from amk.targets.target import load_target
from tests.agent.conftest import MakeLoop, looped
from tests.agent.test_design import GONE

OF_A_RUN = {tool.name for tool in calls.ALL}
OF_THE_SERVER = {"list_runs", "check_settings", "start_run", "stop_run", "follow_run", "export_best"}
CHANGES = {"submit_proposal", "write_note", "start_run", "stop_run", "export_best"}


@dataclass(frozen=True)
class Run:
    folder: Path
    state: State


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory, workshop: Workshop) -> Run:
    """A run that has ended."""
    loop = looped(workshop, tmp_path_factory.mktemp("runs") / "run", evals=4)
    loop.run()
    loop.journal.close()
    return Run(loop.journal.folder, loop.state)


@pytest.fixture
def finished(night: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A copy of it, where runs are looked for."""
    monkeypatch.setenv("AMK_RUNS", str(tmp_path))
    return Run(Path(shutil.copytree(night.folder, tmp_path / "run")), night.state)


def talk(work: Callable[[Client], Awaitable[Any]], server: Server | None = None) -> Any:
    async def main() -> Any:
        async with Client(mcp_server.server(server)) as client:
            return await work(client)

    return asyncio.run(main())


def call(name: str, server: Server | None = None, /, **arguments: Any) -> Any:
    async def work(client: Client) -> Any:
        return await client.call_tool(name, arguments)

    return talk(work, server)


def refused(answer: Any) -> str:
    assert answer.is_error
    return str(answer.content[0].text)


def test_tools_say_what_they_do_and_none_decides() -> None:
    """The tools of a run are those that a language model has, with the run's name; no argument is a result."""

    async def work(client: Client) -> Any:
        return (await client.list_tools()).tools

    tools = {t.name: t for t in talk(work)}
    assert set(tools) == OF_A_RUN | OF_THE_SERVER
    for name, tool in tools.items():
        assert tool.annotations is not None and tool.annotations.read_only_hint is (name not in CHANGES)
        assert tool.description and ("run" in tool.input_schema["properties"]) is (
            name in OF_A_RUN | {"stop_run", "follow_run", "export_best"}
        )
        assert tool.input_schema["additionalProperties"] is False
        words = " ".join(tool.input_schema["properties"]).lower()
        assert not any(word in words for word in ("verdict", "measure", "score", "dollars", "certificate")), name


def test_runs_can_be_read(finished: Run) -> None:
    (listed,) = call("list_runs").structured_content["result"]
    assert listed["run"] == "run" and listed["simulated"] and listed["evaluations"] == 4
    assert "warps" in call("read_overview", run="run").structured_content["knobs"]
    trials = call("read_trials", run="run").structured_content["result"]
    assert [t["index"] for t in trials] == [t.index for t in finished.state.trials]
    outline = call("read_schedule", run="run").structured_content["result"]
    assert "loop of 30" in outline and "waits best" in outline


def test_what_a_run_wrote_is_a_resource(finished: Run) -> None:
    (finished.folder / "results.tsv").write_text("id\tscore\n")

    async def work(client: Client) -> Any:
        templates = (await client.list_resource_templates()).resource_templates
        read = await client.read_resource("amk://runs/run/results.tsv")
        with pytest.raises(MCPError, match="no report") as missing:
            await client.read_resource("amk://runs/run/report.html")
        assert missing.value.error.code == INVALID_PARAMS, "what the protocol says of a resource that is not there"
        with pytest.raises(MCPError):
            await client.read_resource("amk://runs/..%2F..%2Fetc/results.tsv")
        return templates, (await client.list_resources()).resources, read.contents[0].text

    templates, listed, text = talk(work)
    assert {t.name for t in templates} == set(mcp_server.RESOURCES) and text == "id\tscore\n"
    assert [str(each.uri) for each in listed] == ["amk://runs/run/results.tsv"], "what is there"


def test_a_proposal_waits_for_the_gate(finished: Run) -> None:
    answer = call("submit_proposal", run="run", changes={"run_ahead": True}, why="prefetch", parent=-1)
    handle = answer.structured_content["handle"]
    assert call("read_proposal", run="run", handle=handle).structured_content["state"] == "waiting"
    inbox = inbox_module.Inbox(finished.folder / inbox_module.INBOX)
    (suggestion,) = inbox.take(finished.state.handles)
    assert suggestion.settings["run_ahead"] is True and suggestion.handle == handle


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read_overview", {"run": "../../etc"}),
        ("read_proposal", {"run": "run", "handle": "../x"}),
        ("read_schedule", {"run": "run", "part": "step", "name": "../x"}),
        ("read_schedule", {"run": "run", "proposal": 99}),
        ("read_times", {"run": "run", "position": -1}),
        ("submit_proposal", {"run": "run", "changes": {"warps": 7}}),
        ("submit_proposal", {"run": "run", "changes": {"verdict": "SAFE"}}),
        ("submit_proposal", {"run": "run", "edits": [{"do": "call", "name": "os.system"}]}),
        ("write_note", {"run": "run", "text": "x" * 5000}),
        ("explain_code", {"run": "run", "code": "../AMK201"}),
        ("explain_edit", {"run": "run", "kind": "__class__"}),
        ("check_settings", {"model": "nope", "gpu": "h200", "changes": {}}),
        ("check_settings", {"model": "smollm2-135m", "gpu": "h200", "changes": {}, "dtype": "int7"}),
        ("check_settings", {"model": "smollm2-135m", "gpu": "h200", "changes": {}, "start": "best"}),
        ("stop_run", {"run": "run"}),
        ("submit_proposal", {"run": "run", "settings": {"run_ahead": True}}),
        ("start_run", {"model": "smollm2-135m", "gpu": "l4", "evals": 2}),
        ("list_runs", {"newest": True}),
    ],
)
def test_bad_requests_are_errors_of_the_tool(finished: Run, name: str, arguments: dict[str, Any]) -> None:
    assert call(name, **arguments).is_error
    assert not list((finished.folder / inbox_module.INBOX).glob("*"))


def test_an_argument_that_a_tool_has_not_is_named(finished: Run) -> None:
    text = call("submit_proposal", run="run", settings={"run_ahead": True}).content[0].text
    assert "no argument settings" in text and "changes" in text


def planned(request: DesignRequest) -> Schedule:
    """What an `Asked` is about, planned here."""
    from amk.agent.gate.candidate import Candidate
    from amk.agent.gate.design import Design

    workshop = workshop_of(request.run)
    candidate = workshop.make(Design(workshop.space(request.run.start).parse(request.settings)))
    assert isinstance(candidate, Candidate)
    return candidate.schedule


def test_settings_are_judged_as_they_are_asked_for(finished: Run) -> None:
    """Those of a run with its start, context, formats and batch, and the verdict is the validator's."""
    asked: list[DesignRequest] = []

    def look(one: DesignRequest) -> Trial:
        asked.append(one)
        return Trial(verdict="UNSAFE", codes=["AMK201"])

    server = Server(look=look)
    trial = next(t for t in finished.state.trials if t.key is not None and t.proposed.parent == -1)
    changes = {k: v for k, v in trial.proposed.settings.items() if isinstance(v, int | str)}
    result = call("try_design", server, run="run", changes=changes, parent=-1).structured_content
    assert result["verdict"] == "UNSAFE" and result["codes"] == ["AMK201"]
    assert asked[-1].run == finished.state.run and asked[-1].settings["warps"] == trial.proposed.settings["warps"]
    for more in ({"dtype": "int8"}, {"batch": 2, "start": "naive"}):
        call("check_settings", server, model="smollm2-135m", gpu="h200", changes={}, **more)
    assert "int8" in planned(asked[-2]).model_dump_json() and planned(asked[-1]).batch == 2


def test_settings_are_judged_with_the_context_that_a_run_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the command, up to the model's own, or one that is asked for: a cache of 131,072 positions is another."""
    asked: list[DesignRequest] = []
    started: list[list[str]] = []

    def look(one: DesignRequest) -> Trial:
        asked.append(one)
        return Trial(verdict="SAFE")

    def start(searches: Searches, words: list[str], *rest: Any) -> str:
        started.append(words)
        raise limits.LimitError("not here")

    monkeypatch.setattr(Searches, "start", start)
    server, parser = Server(look=look), argparse.ArgumentParser()
    autoresearch.add_arguments(parser)
    for model, context, more in (("llama3.2-1b", 8192, {}), ("smollm2-135m", 2048, {"context": 2048})):
        call("check_settings", server, model=model, gpu="h200", changes={}, **more)
        assert asked[-1].run.context == context and asked[-1].run.positions[-1] < context
        call("start_run", server, model=model, gpu="h200", **more)
        chosen = parser.parse_args(started[-1])
        assert chosen.max_context == context
    assert parser.get_default("max_context") == mcp_server.CONTEXT
    assert "2 positions" in refused(call("start_run", server, model="smollm2-135m", gpu="h200", context=1))


@pytest.mark.turns(16)
def test_a_design_is_looked_at_in_a_process_of_its_own(finished: Run) -> None:
    """A verdict and a simulated time; of several edits those that the refusal is about; what is no schedule."""
    slots = {"do": "set", "of": "stream", "name": "weights", "field": "slots", "value": 3}
    early = {"do": "remove", "node": "decode/t/l/wait.qkv"}
    result = call("try_design", run="run", edits=[slots], parent=-1).structured_content
    assert result["verdict"] == "SAFE" and len(result["simulated_ms"]) == 3 and result["matters"] == []
    assert result["known"] == "" and "start" in call("try_design", run="run", parent=-1).structured_content["known"]
    result = call("try_design", run="run", edits=[slots, early], parent=-1).structured_content
    assert result["verdict"] == "UNSAFE" and "AMK302" in result["told"] and result["explained"]
    assert result["matters"] == in_words([json.dumps(early)])
    result = call("try_design", run="run", edits=[GONE, slots], parent=-1).structured_content
    assert result["verdict"] == "IMPOSSIBLE" and result["matters"] == in_words([json.dumps(GONE)])


def submit(changes: dict[str, Any]) -> Any:
    return call("submit_proposal", run="run", changes=changes, why="x", parent=-1)


def test_a_client_can_neither_flood_a_search_nor_end_it(finished: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same twice, what was tried, what cannot be planned, and more than may wait: refused at submission."""
    assert not submit({"run_ahead": True}).is_error
    assert "waits already" in refused(submit({"run_ahead": True}))
    tried = next(t for t in finished.state.trials if t.evaluated)
    assert f"proposal {tried.index}" in refused(submit(dict(tried.proposed.settings)))
    assert "kernel of the start" in refused(submit({}))
    monkeypatch.setattr(inbox_module, "MOST_WAITING", 1)
    assert "wait already" in refused(submit({"warps": 4}))
    monkeypatch.setattr(inbox_module, "MOST_WAITING", 32)
    monkeypatch.setattr(inbox_module, "MOST_SUBMITTED", 1)
    assert "which is the limit" in refused(submit({"warps": 4}))
    inbox = inbox_module.Inbox(finished.folder / inbox_module.INBOX)
    model = Desk(inbox_module.MODEL, inbox, lambda: finished.state, note=lambda text: None)
    assert model.submit_proposal({"warps": 4}, parent=-1).handle, "what clients submit does not silence the model"
    assert [each.proposer for each in inbox.take({"of a client": "mcp", "another": "mcp"})] == ["llm"]
    monkeypatch.setattr(inbox_module, "MOST_NOTES", 1)
    notes = [Noted(author="mcp", text="a")]
    monkeypatch.setattr(finished.state, "notes", notes)
    assert model.write_note("b") == "written down"
    with pytest.raises(RefusedError, match="which is the limit"):
        Desk("mcp", inbox, lambda: finished.state).write_note("c")


def test_what_the_driver_writes_meanwhile_does_not_end_a_submission(finished: Run) -> None:
    """The driver adds to the state while a conversation reads it: what is gone through is read under its lock."""
    held: list[bool] = []

    @contextmanager
    def lock() -> Iterator[None]:
        held.append(True)
        yield
        held.pop()

    class Written(dict[str, str]):
        def values(self) -> Any:
            assert held, "the driver may write now"
            return super().values()

    state = replace(finished.state, handles=Written(finished.state.handles))
    inbox = inbox_module.Inbox(finished.folder / inbox_module.INBOX)
    desk = Desk(inbox_module.MODEL, inbox, lambda: state, lock=lock)
    assert desk.submit_proposal({"warps": 4}, parent=-1).handle


def test_a_client_has_every_second_turn_while_a_proposer_has_something() -> None:
    state, queue, used = State(), Queue(), []
    files = [Suggestion("mcp", {"warps": n}, handle=f"m{n}") for n in range(6)]
    files.insert(3, Suggestion("llm", {"warps": 9}, handle="l"))
    own = iter([[Suggestion("local", {})], [Suggestion("local", {}), Suggestion("local", {})]])
    while (found := queue.next(state, lambda: files, lambda: next(own, ()))) is not None:
        index = len(state.trials)
        state.apply(Proposed(index=index, proposer=found.proposer, settings={}, handle=found.handle), 0.0)
        used.append(found.proposer)
    assert used == ["mcp", "llm", "mcp", "local", "mcp", "local", "mcp", "local", "mcp", "mcp"]


@pytest.mark.turns(4)
def test_what_lies_in_the_inbox_is_no_reason_to_end(make_loop: MakeLoop) -> None:
    """400 identical suggestions, and 400 that are outside the space, put there without the server."""
    loop = make_loop(evals=6)
    inbox = inbox_module.Inbox(loop.journal.folder / inbox_module.INBOX)
    loop.inbox = lambda: inbox.take(loop.state.handles)
    for number in range(400):
        inbox.put({"warps": 4}, "again")
        inbox.put({"warps": -number}, "nonsense")
    assert "evaluations are used up" in loop.run() and loop.state.evals == 6
    mine = [t for t in loop.state.trials if t.proposed.proposer == "mcp"]
    assert 1 <= len(mine) <= inbox_module.MOST_WAITING
    assert not any(t.gated is not None and t.gated.verdict == "duplicate" for t in mine)


SEARCH = (sys.executable, "-c", "import time; print('run mine on x', flush=True); time.sleep(60)")


def test_a_client_stops_only_what_it_started(finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A started search has an end and no key; one runs at a time; nobody stops another's."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    monkeypatch.setattr(limits, "EXIT_SECONDS", 0.1)
    assert "ANTHROPIC_API_KEY" not in limits.environment() and limits.environment()["AMK_RUNS"] == str(tmp_path)
    searches, smollm2 = Searches(SEARCH), {"model": "smollm2-135m", "gpu": "h200"}
    server = Server(searches=searches)
    assert "minutes" in refused(call("start_run", server, **smollm2, minutes=1e9))
    assert "evaluations" in refused(call("start_run", server, **smollm2, evaluations=0))
    (tmp_path / "mine").symlink_to(finished.folder)
    process = None
    try:
        assert not call("start_run", server, **smollm2).is_error
        (process,) = searches._started.values()
        words = list(process.args)  # type: ignore[arg-type]
        assert "--evals" in words and "--minutes" in words and "llm" not in words
        assert "runs already" in refused(call("start_run", server, **smollm2))
        assert "not started by this client" in refused(call("stop_run", run="mine"))
        assert not call("stop_run", server, run="mine").is_error and process.poll() is not None
        assert searches.last_words("mine") == limits.STOP_REASON, "not what it happened to print last"
    finally:
        if process is not None and process.poll() is None:
            process.kill()


def test_who_followed_a_search_to_its_end_may_begin_the_next(finished: Run, tmp_path: Path) -> None:
    """Its run is over a moment before its process is."""
    (tmp_path / "mine").symlink_to(finished.folder)
    ending = (sys.executable, "-c", "import time; print('run mine on x', flush=True); time.sleep(1)")
    server = Server(searches=Searches(ending))
    for _ in range(2):
        assert not call("start_run", server, model="smollm2-135m", gpu="h200").is_error
        assert call("follow_run", server, run="mine").structured_content["state"] == "finished"


def test_who_connects_anew_has_no_more_searches(finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What clients started is counted as long as it runs, also when its server is gone."""
    monkeypatch.setattr(limits, "RUNNING_OF_ALL", 2)
    (tmp_path / "mine").symlink_to(finished.folder)
    servers = [Server(searches=Searches(SEARCH)) for _ in range(4)]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for server in servers[:2]:
            assert not call("start_run", server, model="smollm2-135m", gpu="h200").is_error
            started += server.searches._started.values()
        assert "2 searches that clients started" in refused(
            call("start_run", servers[2], model="smollm2-135m", gpu="h200")
        )
        started[0].kill()
        started[0].wait(60)
        assert not call("start_run", servers[3], model="smollm2-135m", gpu="h200").is_error
        started += servers[3].searches._started.values()
    finally:
        for process in started:
            process.kill()


COPYING = (
    "import shutil, sys; given = sys.argv[sys.argv.index('--constants') + 1]; shutil.copy(given, given + '.seen');"
    " print('run mine on x', flush=True)"
)


def test_constants_are_given_by_value(finished: Run, tmp_path: Path) -> None:
    """To a search as `--constants`, which leaves no file, and to a look; none about another GPU, and none too long."""
    known = constants_for(load_target("l4"))
    slower = known.model_copy(update={"hop_us": 6 * known.hop_us})
    asked: list[DesignRequest] = []

    def look(one: DesignRequest) -> Trial:
        asked.append(one)
        return Trial(verdict="SAFE")

    server = Server(look=look, searches=Searches((sys.executable, "-c", COPYING)))
    (tmp_path / "mine").symlink_to(finished.folder)
    arguments: dict[str, Any] = {"model": "smollm2-135m", "gpu": "l4", "constants": slower.model_dump(mode="json")}
    assert not call("check_settings", server, **arguments, changes={}).is_error
    assert asked[-1].run.constants == slower
    assert not call("start_run", server, **arguments).is_error
    (seen,) = tmp_path.glob("*.seen")
    assert load_constants(seen) == slower and not list(tmp_path.glob("*.json"))
    for tool, more in (("check_settings", {"changes": {}}), ("start_run", {})):
        assert "constants of l4" in refused(call(tool, server, **arguments | {"gpu": "h200"} | more))
        negative = slower.model_copy(update={"hop_us": -1.0}).model_dump(mode="json")
        assert "hop_us" in refused(call(tool, server, **arguments | {"constants": negative} | more))
    long = slower.model_copy(update={"sources": {"all": "x" * FILE_BYTES}}).model_dump(mode="json")
    assert "bytes" in refused(call("start_run", server, **arguments | {"constants": long}))
    assert len(asked) == 1 and len(server.searches._started) == 1


def test_a_search_that_fails_says_why(finished: Run, tmp_path: Path) -> None:
    failing = "import sys; print('run mine on x', flush=True); sys.exit('error[AMK605]: no compiler')"
    server = Server(searches=Searches((sys.executable, "-c", failing)))
    (tmp_path / "mine").symlink_to(finished.folder)
    assert not call("start_run", server, model="smollm2-135m", gpu="h200").is_error
    (process,) = server.searches._started.values()
    process.wait(60)
    assert str(server.searches.last_words("mine")).endswith("error[AMK605]: no compiler")
    assert server.searches.last_words("run") is None, "another's"


def test_looks_of_a_client_are_limited(finished: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOOKS", 1)
    server = Server(look=lambda request: Trial(verdict="SAFE"))
    arguments = {"run": "run", "changes": {"run_ahead": True}}
    assert not call("try_design", server, **arguments).is_error
    for tool, more in (("try_design", arguments), ("read_times", {}), ("read_timeline", {}), ("export_best", {})):
        assert "limit of a client" in refused(call(tool, server, **({"run": "run"} | more))), tool


def test_a_run_is_followed_with_notifications(finished: Run) -> None:
    heard: list[tuple[float, float | None]] = []

    async def progress(count: float, total: float | None, message: str | None) -> None:
        heard.append((count, total))

    async def work(client: Client) -> Any:
        return await client.call_tool("follow_run", {"run": "run"}, progress_callback=progress)

    assert talk(work).structured_content["state"] != "running"
    assert heard == [(4, 4)]


def test_progress_grows_with_every_notification(finished: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the protocol asks, however often the run is looked at."""
    known = mcp_server.summary("run", "running", finished.state)
    states = iter([0, 0, 1, 1, 1, 3, 3])

    def look(server: Server, run: str) -> mcp_server.RunSummary:
        done = next(states, None)
        more = {"state": "finished"} if done is None else {"evaluations": done}
        return known.model_copy(update={"evaluations": 3} | more)

    monkeypatch.setattr(Server, "_summary", look)
    monkeypatch.setattr(mcp_server, "LOOKS", 0.0)
    heard: list[float] = []

    async def progress(count: float, total: float | None, message: str | None) -> None:
        heard.append(count)

    async def work(client: Client) -> Any:
        return await client.call_tool("follow_run", {"run": "run"}, progress_callback=progress)

    assert talk(work).structured_content["state"] == "finished"
    assert heard == [0, 1, 3]


@pytest.mark.turns(4)
def test_over_standard_input_and_output(finished: Run, tmp_path: Path) -> None:
    environment = {"PYTHONPATH": ":".join(sys.path), "AMK_RUNS": str(tmp_path), "PATH": os.environ["PATH"]}
    server = StdioServerParameters(command=sys.executable, args=["-m", "amk", "mcp"], env=environment)

    async def main() -> Any:
        async with Client(stdio_client(server)) as client:
            return await client.call_tool("explain_code", {"run": "run", "code": "201"})

    assert "AMK201" in asyncio.run(main()).content[0].text
