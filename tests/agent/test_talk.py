"""Conversations with a language model over real HTTP with the real client: tools, failures, budgets, record, replay."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("anthropic")

from amk.agent.device.simulated import SimulatedBackend
from amk.agent.journal import budget
from amk.agent.journal.events import Limits, LlmReserved
from amk.agent.journal.store import Journal
from amk.agent.propose.prices import PRICES, Price, price_of
from amk.agent.propose.talk import Bounds, Cassette, Opening, Skill, Talk
from amk.agent.propose.transport import Transport
from amk.agent.tools.refused import RefusedError
from amk.report.diagnostic import AmkError
from tests.agent.conftest import start_run
from tests.agent.llm_stub import Answer, Script, error, ok, serving, uses

KEY = "sk-ant-secret-0123456789"
PRICE = PRICES["claude-haiku-4-5"]
OPENING = Opening(1, "claude-haiku-4-5", "system", "prompt", 200)
RUNNING = threading.Event()
BOUNDS = Bounds()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "llm") as found:
        start_run(found, SimulatedBackend("h200"), Limits(dollars=1.0))
        yield found


def skills(questions: list[Any] | None = None) -> list[Skill]:
    """A tool that answers, one that refuses, one that is broken."""
    heard = [] if questions is None else questions

    def read(arguments: dict[str, Any]) -> str:
        heard.append(arguments)
        return f"read {arguments['part']}"

    def refuse(arguments: dict[str, Any]) -> str:
        raise RefusedError("it waits already")

    def broken(arguments: dict[str, Any]) -> str:
        raise ZeroDivisionError("a secret of the driver")

    schema = {"type": "object", "properties": {"part": {"type": "string"}}}
    tools = {"read": read, "submit": refuse, "broken": broken}
    return [Skill(name, f"{name} something", schema, run) for name, run in tools.items()]


def converse(
    journal: Journal, answers: list[Answer], bounds: Bounds = BOUNDS, heard: list[Any] | None = None, **more: Any
) -> tuple[Talk, Script, list[float]]:
    script, pauses = Script(answers), []  # type: tuple[Script, list[float]]
    with serving(script) as url:
        way = Transport(journal, PRICE, api_key=KEY, base_url=url, pause=pauses.append, **{"timeout": 5.0, **more})
        return way.converse(OPENING, skills(heard), bounds, RUNNING), script, pauses


def outcomes(journal: Journal) -> list[str]:
    return [s.outcome for s in journal.state.llm_settled]


def results(request: dict[str, Any]) -> list[tuple[str, bool, str]]:
    """Of the tools, as the last message of a request says them."""
    return [
        (block["tool_use_id"], block.get("is_error", False), json.dumps(block["content"]))
        for block in request["messages"][-1]["content"]
    ]


def test_a_conversation_of_several_turns_is_paid_for_turn_by_turn(journal: Journal) -> None:
    heard: list[Any] = []
    talk, script, _ = converse(
        journal, [uses(("read", {"part": "a"})), uses(("read", {"part": "b"})), ok("done")], heard=heard
    )
    assert (talk.kind, talk.turns, dict(talk.tools), talk.faults) == ("answered", 3, {"read": 2}, [])
    assert heard == [{"part": "a"}, {"part": "b"}] and outcomes(journal) == ["answered"] * 3
    assert journal.state.dollars == pytest.approx(3 * (1000 * 1.0 + 100 * 5.0) / 1e6)
    assert not journal.state.llm_open and journal.state.tokens == 3300
    sent = script.requests[-1]
    assert [tool["name"] for tool in sent["tools"]] == ["read", "submit", "broken"]
    assert "temperature" not in sent and sent["system"][0]["cache_control"] == sent["cache_control"]
    assert [len(request["messages"]) for request in script.requests] == [1, 3, 5]


def test_calls_side_by_side_are_all_answered_in_their_order(journal: Journal) -> None:
    """One is refused, one unknown, one broken: each an error to the model and a fault by name; nothing of the driver's
    exception reaches the model."""
    calls = [("read", {"part": "a"}), ("submit", {}), ("rm -rf", {}), ("broken", {}), ("read", {"part": "b"})]
    talk, script, _ = converse(journal, [uses(*calls), ok("done")])
    found = results(script.requests[1])
    assert [bad for _, bad, _ in found] == [False, True, True, True, False]
    assert len({identity for identity, _, _ in found}) == 5 and "waits already" in found[1][2]
    assert "secret" not in json.dumps(script.requests)
    assert talk.kind == "answered" and len(talk.faults) == 3
    for fault, words in zip(sorted(talk.faults), ("broken failed", "it waits", "no tool 'rm -rf'"), strict=True):
        assert words in fault


def test_429_waits_as_long_as_asked_and_tries_again(journal: Journal) -> None:
    limited = (429, {"retry-after": "7"}, error("rate_limit_error"), 0.0)
    talk, script, pauses = converse(journal, [limited, ok("x")])
    assert talk.kind == "answered" and pauses == [7.0] and len(script.requests) == 2
    assert outcomes(journal) == ["http 429", "answered"] and talk.faults == ["attempt 1: http 429"]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ((429, {"retry-after": "86400"}, error("rate_limit_error"), 0.0), "RateLimitError"),
        ((429, {}, error("rate_limit_error", "enforced_spend_limit_reached"), 0.0), "EnforcedSpendLimitReachedError"),
        ((401, {}, error("authentication_error"), 0.0), "AuthenticationError"),
        ((400, {}, error("invalid_request_error"), 0.0), "BadRequestError"),
    ],
)
def test_what_would_fail_again_is_sent_once(journal: Journal, answer: Answer, kind: str) -> None:
    talk, script, pauses = converse(journal, [answer])
    assert talk.kind == kind and pauses == [] and len(script.requests) == 1 and journal.state.dollars == 0


def test_500_is_tried_a_bounded_number_of_times(journal: Journal) -> None:
    talk, script, pauses = converse(journal, [uses(("read", {"part": "a"})), (500, {}, error("api_error"), 0.0)])
    assert talk.kind == "InternalServerError" and talk.turns == 1
    assert len(script.requests) == 4 and pauses == [1.0, 2.0] and len(talk.faults) == 3


def test_a_timeout_is_charged_in_full(journal: Journal) -> None:
    talk, script, _ = converse(journal, [(200, {}, {}, 1.0)], timeout=0.15, attempts=2)
    assert "Timeout" in talk.kind and outcomes(journal) == ["lost", "lost"]
    assert journal.state.dollars >= 2 * PRICE.bound(1500, OPENING.max_tokens) and len(script.requests) <= 2


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (ok("no", stop="refusal"), "refusal"),
        (uses(("read", {"part": "a"}), stop="max_tokens"), "truncated"),
        (uses(("read", {"part": "a"}), stop="model_context_window_exceeded"), "context_full"),
        ((200, {}, b'{"id": "msg', 0.0), "malformed"),
        ((200, {}, b"[1, 2]", 0.0), "malformed"),
        ((200, {}, {"id": "m", "type": "message", "content": 7}, 0.0), "malformed"),
    ],
)
def test_an_answer_that_is_none_ends_the_conversation_by_name(journal: Journal, answer: Answer, kind: str) -> None:
    """And no tool of it is run."""
    heard: list[Any] = []
    talk, _, _ = converse(journal, [answer], heard=heard, attempts=1)
    assert talk.kind == kind and not talk.heard_out and heard == [] and not journal.state.llm_open


@pytest.mark.parametrize("usage", [{"input_tokens": -5, "output_tokens": 1}, {"input_tokens": "many"}])
def test_usage_that_cannot_be_is_charged_in_full(journal: Journal, usage: Any) -> None:
    converse(journal, [ok("x", usage=usage)])
    assert journal.state.dollars >= PRICE.bound(1500, OPENING.max_tokens)


@pytest.mark.parametrize(
    ("bounds", "kind", "turns"),
    [
        (Bounds(turns=3), "turns", 3),
        (Bounds(tokens=2200), "tokens", 2),
        (Bounds(dollars=0.0030), "dollars", 2),
        (Bounds(seconds=0.0), "seconds", 0),
    ],
)
def test_a_conversation_ends_at_its_limit_after_its_last_tools(
    journal: Journal, bounds: Bounds, kind: str, turns: int
) -> None:
    heard: list[Any] = []
    talk, script, _ = converse(journal, [uses(("read", {"part": "a"}))], bounds, heard)
    assert (talk.kind, talk.turns, len(heard), len(script.requests)) == (kind, turns, turns, turns)
    assert talk.heard_out and kind in talk.detail


def test_the_limit_of_the_run_ends_a_conversation_in_the_middle(tmp_path: Path) -> None:
    with Journal(tmp_path / "run") as journal:
        start_run(journal, SimulatedBackend("h200"), Limits(dollars=1.0, calls=2))
        talk, script, _ = converse(journal, [uses(("read", {"part": "a"}))])
        assert talk.kind == "refused_by_budget" and "2 calls" in talk.detail and talk.turns == 2 == len(script.requests)


def test_a_search_that_ends_stops_its_conversations(journal: Journal) -> None:
    stopped = threading.Event()
    script = Script([uses(("read", {"part": "a"}))])
    with serving(script) as url:
        way = Transport(journal, PRICE, api_key=KEY, base_url=url)
        read = replace(skills()[0], run=lambda arguments: str(stopped.set()))
        assert way.converse(OPENING, [read], Bounds(), stopped).kind == "stopped" and len(script.requests) == 1


def test_dollars_never_exceed_the_budget_whatever_is_in_flight(tmp_path: Path) -> None:
    """Eight conversations at once, of a model that bills the most that it may."""
    most = {"input_tokens": 10**9, "output_tokens": 10**9}
    script = Script([uses(("read", {"part": "a"}), usage=most)])
    with Journal(tmp_path / "run") as journal, serving(script) as url:
        start_run(journal, SimulatedBackend("h200"), Limits(dollars=0.03))
        way = Transport(journal, PRICE, api_key=KEY, base_url=url)
        talks: list[Talk] = []

        def work(number: int) -> None:
            talks.append(way.converse(replace(OPENING, number=number), skills(), Bounds(tokens=10**15), RUNNING))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {talk.kind for talk in talks} == {"refused_by_budget"} and len(talks) == 8
        assert 0.02 < journal.state.dollars <= 0.03 and not journal.state.llm_open
        calls = [settled.call for settled in journal.state.llm_settled]
        assert len(set(calls)) == len(calls) == len(script.requests)


def test_reservations_of_many_threads_stay_within_the_budget(journal: Journal) -> None:
    limits = Limits(dollars=1.0)
    granted: list[bool] = []

    def work(number: int) -> None:
        attempt = LlmReserved(call=number, attempt=1, model="m", dollars=0.3, tokens=10)
        granted.append(budget.reserve(journal, limits, attempt) is None)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(granted) == 3 and journal.state.dollars_reserved == pytest.approx(0.9)


def test_what_a_crash_left_reserved_is_charged(tmp_path: Path) -> None:
    attempt = LlmReserved(call=1, attempt=1, model="m", dollars=0.4, tokens=9)
    with Journal(tmp_path) as journal:
        start_run(journal, SimulatedBackend("h200"), Limits(dollars=1.0))
        assert budget.reserve(journal, Limits(dollars=1.0), attempt) is None
    with Journal(tmp_path) as journal:
        budget.settle_lost(journal)
        assert journal.state.dollars == pytest.approx(0.4) and not journal.state.llm_open


def test_a_replay_gives_the_recorded_answers_and_runs_the_tools_again(journal: Journal, tmp_path: Path) -> None:
    tape, answers = tmp_path / "tape.jsonl", [uses(("read", {"part": "a"})), ok("done")]
    first, _, _ = converse(journal, answers, cassette=Cassette(tape, replay=False))
    calls, heard = journal.state.calls, []  # type: tuple[int, list[Any]]
    again = Transport(journal, PRICE, base_url="http://127.0.0.1:9", cassette=Cassette(tape, replay=True))
    replayed = again.converse(OPENING, skills(heard), Bounds(), RUNNING)
    assert replayed == first, replayed.detail
    assert heard == [{"part": "a"}] and journal.state.calls == calls
    assert KEY not in tape.read_text()
    with open(tape, "a") as file:
        file.write('{"conversation": 2, "turn": 1, "answ')  # cut off by a crash
    known = Cassette(tape, replay=True)
    assert known.conversations == 1
    other = Transport(journal, PRICE, cassette=known).converse(replace(OPENING, number=2), skills(), Bounds(), RUNNING)
    assert other.kind == "not_recorded" and journal.state.calls == calls


def test_without_a_key_nothing_is_sent(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    talk = Transport(journal, PRICE).converse(OPENING, skills(), Bounds(), RUNNING)
    assert talk.kind == "no_key" and journal.state.calls == 0


@pytest.mark.parametrize("text", ["1", "a/b", "-1/2", "nan/1", "1/2/3"])
def test_a_price_must_be_one(text: str) -> None:
    with pytest.raises(AmkError, match="AMK706"):
        price_of("x", text)


def test_prices() -> None:
    assert price_of("x", "2/10") == Price(2.0, 10.0) and price_of("claude-haiku-4-5-20251001") == PRICE
    with pytest.raises(AmkError, match="AMK706"):
        price_of("claude-haiku-4-55")
