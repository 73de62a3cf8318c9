"""The language model's path over real HTTP with the real client: failures, budgets, secrets, and no idle GPU."""

import contextlib
import io
import itertools
import json
import math
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("anthropic")

from amk import cli
from amk.agent.decide.feedback import fate
from amk.agent.device.measure import Job
from amk.agent.device.simulated import SimulatedBackend
from amk.agent.gate.certify import Judgement
from amk.agent.gate.gate import Ready
from amk.agent.journal import budget
from amk.agent.journal.events import Limits, LlmReserved
from amk.agent.journal.inbox import Suggestion
from amk.agent.journal.state import State
from amk.agent.journal.store import Journal
from amk.agent.propose.base import Proposer
from amk.agent.propose.llm import Edits, Llm, history_text, suggestions, traced_schedule
from amk.agent.propose.local import Local
from amk.agent.propose.prices import PRICES, Price, price_of
from amk.agent.propose.random_draw import RandomDraw
from amk.agent.propose.replay import Replay
from amk.agent.propose.transport import Cassette, Failure, Reply, Request, Transport
from amk.agent.report.html import render
from amk.agent.report.live import View
from amk.agent.report.standing import doing, standings
from amk.report.diagnostic import AmkError
from tests.agent.conftest import MakeLoop, start_run
from tests.agent.llm_stub import Script, error, ok, serving

KEY = "sk-ant-secret-0123456789"
PRICE = PRICES["claude-haiku-4-5"]
REQUEST = Request("claude-haiku-4-5", "system", "prompt", Edits.model_json_schema(), 200)
GOOD = json.dumps({"proposals": [{"why": "deeper", "changes": [{"knob": "run_ahead", "value": True}]}]})


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "llm") as found:
        start_run(found, SimulatedBackend("h200"), Limits(dollars=1.0))
        yield found


def transport(journal: Journal, url: str, **more: Any) -> tuple[Transport, list[float]]:
    pauses: list[float] = []
    found = Transport(journal, PRICE, api_key=KEY, base_url=url, pause=pauses.append, **{"timeout": 5.0, **more})
    return found, pauses


def ask(journal: Journal, answers: list[Any], **more: Any) -> tuple[Reply | Failure, Script, list[float]]:
    script = Script(answers)
    with serving(script) as url:
        found, pauses = transport(journal, url, **more)
        return found.ask(REQUEST), script, pauses


def outcomes(journal: Journal) -> list[str]:
    return [s.outcome for s in journal.state.llm_settled]


def test_an_answer_is_read_and_settled_at_its_cost(journal: Journal) -> None:
    reply, script, _ = ask(journal, [ok(GOOD)])
    assert reply == Reply(GOOD, live=True)
    assert journal.state.dollars == pytest.approx((1000 * 1.0 + 100 * 5.0) / 1e6)
    assert not journal.state.llm_open and journal.state.tokens == 1100
    sent = script.requests[0]
    assert "temperature" not in sent and sent["system"][0]["cache_control"] == {"type": "ephemeral"}
    assert sent["output_config"]["format"]["type"] == "json_schema"


def test_429_waits_as_long_as_asked_and_tries_again(journal: Journal) -> None:
    limited = (429, {"retry-after": "7"}, error("rate_limit_error"), 0.0)
    reply, script, pauses = ask(journal, [limited, ok(GOOD)])
    assert isinstance(reply, Reply) and pauses == [7.0] and len(script.requests) == 2
    assert outcomes(journal) == ["http 429", "answered"]


def test_a_wait_without_reason_is_not_taken(journal: Journal) -> None:
    reply, script, pauses = ask(journal, [(429, {"retry-after": "86400"}, error("rate_limit_error"), 0.0)])
    assert isinstance(reply, Failure) and pauses == [] and len(script.requests) == 1


def test_500_is_tried_a_bounded_number_of_times(journal: Journal) -> None:
    reply, script, pauses = ask(journal, [(500, {}, error("api_error"), 0.0)])
    assert isinstance(reply, Failure) and reply.kind == "InternalServerError"
    assert len(script.requests) == 3 and pauses == [1.0, 2.0] and journal.state.dollars == 0


def test_a_spend_limit_is_not_tried_again(journal: Journal) -> None:
    body = error("rate_limit_error", "enforced_spend_limit_reached")
    reply, script, _ = ask(journal, [(429, {}, body, 0.0)])
    assert isinstance(reply, Failure) and len(script.requests) == 1, reply


def test_a_wrong_key_is_not_tried_again(journal: Journal) -> None:
    reply, script, _ = ask(journal, [(401, {}, error("authentication_error"), 0.0)])
    assert isinstance(reply, Failure) and reply.kind == "AuthenticationError" and len(script.requests) == 1


def test_a_timeout_is_charged_in_full(journal: Journal) -> None:
    reply, _, _ = ask(journal, [(200, {}, {}, 1.0)], timeout=0.15, attempts=2)
    assert isinstance(reply, Failure) and "Timeout" in reply.kind
    assert outcomes(journal) == ["lost", "lost"]
    bound = PRICE.bound(REQUEST.input_bound, REQUEST.max_tokens)
    assert journal.state.dollars == pytest.approx(2 * bound)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (ok("no", stop="refusal"), "refusal"),
        (ok('{"propos', stop="max_tokens"), "truncated"),
        (ok(""), "empty"),
        ((200, {}, b'{"id": "msg', 0.0), "malformed"),
    ],
)
def test_unusable_answers_are_named(journal: Journal, answer: Any, kind: str) -> None:
    reply, _, _ = ask(journal, [answer], attempts=1)
    assert isinstance(reply, Failure) and reply.kind in (kind, "APIResponseValidationError"), reply
    assert not journal.state.llm_open


def test_usage_that_cannot_be_is_charged_in_full(journal: Journal) -> None:
    ask(journal, [ok(GOOD, usage={"input_tokens": -5, "output_tokens": 1})])
    assert journal.state.dollars == pytest.approx(PRICE.bound(REQUEST.input_bound, REQUEST.max_tokens))


def test_dollars_never_exceed_the_budget_in_flight_included(tmp_path: Path) -> None:
    script = Script([ok(GOOD, usage={"input_tokens": 10**9, "output_tokens": 10**9})])
    with Journal(tmp_path) as journal, serving(script) as url:
        bound = PRICE.bound(REQUEST.input_bound, REQUEST.max_tokens)
        start_run(journal, SimulatedBackend("h200"), Limits(dollars=3.5 * bound))
        replies: list[Reply | Failure] = []

        def work() -> None:
            replies.append(transport(journal, url)[0].ask(REQUEST))

        for _ in range(8):
            work()
        assert sum(isinstance(r, Reply) for r in replies) == 3
        assert {r.kind for r in replies if isinstance(r, Failure)} == {"refused_by_budget"}
        assert journal.state.dollars <= 3.5 * bound


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
    with Journal(tmp_path) as journal:
        start_run(journal, SimulatedBackend("h200"), Limits(dollars=1.0))
        assert (
            budget.reserve(
                journal, Limits(dollars=1.0), LlmReserved(call=1, attempt=1, model="m", dollars=0.4, tokens=9)
            )
            is None
        )
    with Journal(tmp_path) as journal:
        budget.settle_lost(journal)
        assert journal.state.dollars == pytest.approx(0.4) and not journal.state.llm_open


def test_record_and_replay(journal: Journal, tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    ask(journal, [ok(GOOD)], cassette=Cassette(tape, replay=False))
    calls = journal.state.calls
    again = Transport(journal, PRICE, cassette=Cassette(tape, replay=True))
    assert again.ask(REQUEST) == Reply(GOOD, live=False) and journal.state.calls == calls
    other = Request("claude-haiku-4-5", "system", "another", {}, 200)
    assert isinstance(found := again.ask(other), Failure) and found.kind == "not_recorded"


def test_without_a_key_nothing_is_sent(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    found = Transport(journal, PRICE).ask(REQUEST)
    assert isinstance(found, Failure) and found.kind == "no_key" and journal.state.calls == 0


def search(
    make_loop: MakeLoop, answers: list[Any], evals: int = 12, rest: Proposer | None = None
) -> tuple[Any, Script, Llm]:
    script, other = Script(answers), rest or RandomDraw()
    with serving(script) as url:
        loop = make_loop(other, evals=evals, dollars=0.5)
        llm = Llm(transport(loop.journal, url)[0], "claude-haiku-4-5", other, Edits.model_json_schema())
        loop.proposer, loop.watch = llm, lambda state: llm.join(0.05)
        loop.run()
        llm.join(5)
    return loop, script, llm


def test_edits_of_a_model_go_through_the_gate(make_loop: MakeLoop) -> None:
    edits = [
        {"why": "<b>faster</b>", "changes": [{"knob": "refill_fence", "value": False}]},
        {"why": "nonsense", "changes": [{"knob": "os.system", "value": "x"}]},
    ]
    rest = Replay(tuple({"wide_epilogue": v} for v in (16, 32, 64, 128, 256, 1024)))
    loop, script, _ = search(make_loop, [ok(json.dumps({"proposals": edits})), ok(GOOD)], 6, rest)
    mine = [t for t in loop.state.trials if t.proposed.proposer == "llm"]
    assert mine[0].gated.verdict == "unsafe" and mine[1].gated.codes == ("outside_space",)
    assert any(t.decided and t.decided.outcome == "kept" for t in mine)
    first, second = (sent["messages"][0]["content"] for sent in script.requests[:2])
    assert "AMK507" in second and "AMK507" not in first
    for prompt in (first, second):
        assert re.search(r"at position 1, predicted by the simulator: \d+\.\d us, floor \d+\.\d us", prompt)
        assert re.search(r"^lm_head: \d+\.\d \(memory \d+", prompt, re.MULTILINE), prompt
    text = render(loop.state, None, None)
    assert "<b>faster</b>" not in text and "&lt;b&gt;faster" in text and "live attempts" in text


def test_each_trial_is_told_as_a_change_to_its_parent_with_its_gain_over_it(make_loop: MakeLoop) -> None:
    """By the true times: whatever was kept since, the sign of every gain is right within its error, and the change is
    the one that was proposed."""
    loop = make_loop(Local(), evals=14)
    loop.run()
    backend, job = loop.backends[0], Job(0, "screen", 1, 0, 0, loop.state.run.positions, 0)
    text = history_text(loop.context())

    def cost(index: int) -> float:
        made = loop.gate.workshop.make(loop.settings_of(index))
        return float(np.mean([math.log(ms) for ms in backend.times(job, Ready(made, b"", Judgement("SAFE")))]))

    measured = kept = slower = 0
    for trial in loop.state.trials:
        told = fate(loop.state, trial)
        base, mine = loop.settings_of(told.parent), loop.settings_of(trial.index)
        assert loop.space.changes(mine, base) == told.edit and told.text in text and told.why in told.text
        if told.gain is not None and told.error is not None:
            measured, slower = measured + 1, slower + (told.gain < 0 and told.parent >= 0)
            true = cost(told.parent) - cost(trial.index)
            assert abs(told.gain - true) < max(3 * told.error, 0.02), told.text
            assert told.ms and told.gain_text in text
        if told.outcome == "kept":
            kept += 1
            assert told.edit and told.gain is not None and told.gain > 0, "what was kept is told as what it changed"
        if told.outcome == "unsafe":
            assert "AMK507" in told.text
    assert measured >= 10 and kept and slower


@pytest.mark.parametrize(
    ("answer", "outcome", "again"),
    [
        (ok("no", stop="refusal"), "refusal", True),
        (ok("not json"), "wrong_form", True),
        ((500, {}, error("api_error"), 0.0), "InternalServerError", True),
        ((401, {}, error("authentication_error"), 0.0), "AuthenticationError", False),
        (None, "no_key", False),
    ],
)
def test_a_failure_is_told_everywhere_and_waited_for(
    make_loop: MakeLoop, answer: Any, outcome: str, again: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the journal, the live view, `amk runs` and the report; and it is not asked again at once."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setenv("AMK_RUNS", str(tmp_path))
    stream = io.StringIO()
    with serving(Script([answer])) as url, View(stream) as view:
        loop = make_loop(RandomDraw(), evals=8, dollars=0.5)
        way = Transport(loop.journal, PRICE) if answer is None else transport(loop.journal, url)[0]
        llm = Llm(way, "claude-haiku-4-5", RandomDraw(), Edits.model_json_schema())

        def watch(state: State) -> None:
            llm.join(5)
            view.show(state)

        loop.proposer, loop.watch = llm, watch
        loop.run()
    state = loop.state
    (asked,) = state.asked
    assert asked.outcome == outcome and (asked.wait is not None and asked.wait >= 15) == again
    assert outcome in doing(state) and outcome in stream.getvalue() and outcome in render(state, None, None)
    loop.journal.close()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert cli.main(["runs", "run"]) == 0
    assert outcome in printed.getvalue() and "0 of" not in printed.getvalue()


def test_a_model_that_earns_nothing_is_asked_less(make_loop: MakeLoop) -> None:
    """Its answers are in form and lead nowhere; a model that earns is asked as before."""
    bad = [
        {"why": "w", "changes": [{"knob": "refill_fence", "value": False}, {"knob": "hint_slack", "value": n}]}
        for n in range(4)
    ]
    loop, script, _ = search(make_loop, [ok(json.dumps({"proposals": bad}))], 24)
    gaps = [b.evals - a.evals for a, b in itertools.pairwise(loop.state.asked)]
    assert 2 <= len(script.requests) <= 6 and gaps == sorted(gaps) and gaps[-1] >= 4, gaps
    standing = next(s for s in standings(loop.state) if s.proposer == "llm")
    assert standing.proposals == 4 * len(loop.state.asked) or standing.proposals >= 4
    assert standing.kept == standing.evaluated == 0 and standing.accepted == "0%"


def test_without_a_prior_nothing_is_told_of_the_simulator(make_loop: MakeLoop) -> None:
    context = make_loop().context()
    run = context.state.run
    assert run is not None and traced_schedule(context) is not None
    context.state.run = run.model_copy(update={"prior": False})
    assert traced_schedule(context) is None


def test_a_fraction_is_a_value() -> None:
    answer = {"proposals": [{"why": "hold fewer", "changes": [{"knob": "held_refills", "value": 0.5}]}]}
    assert suggestions(json.dumps(answer), "llm") == [Suggestion("llm", {"held_refills": 0.5}, "hold fewer")]


FORMS = ("[]", '{"proposals": []}', '{"proposals": [{"changes": 3}]}', '{"a": 1}')


@pytest.mark.parametrize(("text", "evals"), [("not json", 12), *((text, 4) for text in FORMS)])
def test_a_wrong_form_leaves_the_search_to_the_fallback(make_loop: MakeLoop, text: str, evals: int) -> None:
    loop, script, llm = search(make_loop, [ok(text)], evals)
    assert loop.state.evals == evals and {f.kind for f in llm.failures} == {"wrong_form"}
    assert {t.proposed.proposer for t in loop.state.trials} == {"random"}
    assert len(script.requests) <= 4


def test_a_slow_answer_never_holds_up_the_device(make_loop: MakeLoop) -> None:
    script = Script([(200, {}, {}, 60.0)])
    with serving(script) as url:
        loop = make_loop(evals=15, dollars=0.5)
        loop.proposer = Llm(
            transport(loop.journal, url)[0], "claude-haiku-4-5", RandomDraw(), Edits.model_json_schema()
        )
        began = time.monotonic()
        loop.run()
        assert loop.state.evals == 15 and time.monotonic() - began < 59


def test_no_key_anywhere(make_loop: MakeLoop) -> None:
    loop, script, _ = search(make_loop, [(500, {}, error("api_error"), 0.0), ok(GOOD)])
    assert any(KEY in value for headers in script.headers for value in headers.values())
    loop.journal.close()
    for path in loop.journal.folder.rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path
    assert KEY not in render(loop.state, None, None)


@pytest.mark.parametrize("given", ["1", "a/b", "-1/2", "nan/1", "1/2/3"])
def test_a_price_must_be_one(given: str) -> None:
    with pytest.raises(AmkError, match="AMK706"):
        price_of("x", given)


def test_prices() -> None:
    assert price_of("x", "2/10") == Price(2.0, 10.0) and price_of("claude-haiku-4-5-20251001") == PRICE
    with pytest.raises(AmkError, match="AMK706"):
        price_of("claude-haiku-4-55")
