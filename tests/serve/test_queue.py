"""Whose turn it is, who is refused, and what ends when its client goes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import amk
from amk.engine.generation.completion import Options
from amk.prefill.reader import FROM_TOKENS, TorchPrompts
from amk.report.diagnostic import AmkError, Diagnostic, Exit
from amk.serve.app import Server
from amk.serve.decoding import Decoding, Request
from amk.serve.fair_queue import FairQueue
from amk.serve.metrics import Metrics
from amk.serve.run import listen, serve
from amk.serve.settings import Keys, Limits
from tests.serve.serving import NAME, PATIENCE, Held, Running, serving

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "HI"}]


@given(st.lists(st.sampled_from("abc"), max_size=12), st.sets(st.integers(0, 11), max_size=4))
def test_clients_take_turns_and_each_is_served_in_its_order(clients: list[str], absent: set[int]) -> None:
    queue: FairQueue[int] = FairQueue(100, 100)
    for index, client in enumerate(clients):
        assert queue.put(client, index)
    for index in absent & set(range(len(clients))):
        assert queue.remove(clients[index], index) and not queue.remove(clients[index], index)
    left = [index for index in range(len(clients)) if index not in absent]
    assert len(queue) == len(left)
    taken = [queue.take() for _ in left]
    turns: dict[str, int] = {}
    rounds = []
    for index in taken:
        assert index is not None
        turns[clients[index]] = turns.get(clients[index], 0) + 1
        rounds.append(turns[clients[index]])
    assert rounds == sorted(rounds)  # nobody's second turn comes before another's first
    for client in "abc":
        mine = [index for index in taken if index is not None and clients[index] == client]
        assert mine == sorted(mine)


def test_bounds_of_a_queue() -> None:
    queue: FairQueue[int] = FairQueue(3, 2)
    assert queue.put("a", 1) and queue.put("a", 2) and not queue.put("a", 3)
    assert queue.put("b", 4) and not queue.put("c", 5)
    assert queue.close() == [1, 2, 4] and not queue.put("a", 6) and queue.take() is None


def test_a_fault_in_one_request_is_logged_and_does_not_end_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """A model that has nothing: what asks for its parts fails in a way that nobody foresaw."""

    async def errors() -> list[Any]:
        decoding = Decoding(SimpleNamespace(sequences=1), Limits(), Metrics())  # type: ignore[arg-type]
        requests = [Request("a", [1], Options(), asyncio.get_running_loop()) for _ in range(2)]
        for request in requests:
            decoding.submit(request)
        events = [await asyncio.wait_for(request.events.get(), PATIENCE) for request in requests]
        assert decoding.ready and decoding.stop(PATIENCE)
        return events

    failures = asyncio.run(errors())
    assert ["AMK901" in str(error) for error in failures] == [True, True]
    logged = [record for record in caplog.records if record.exc_info]
    assert len(logged) == 2 and "tokenizer" in caplog.text


def in_thread(running: Running, answers: list[Any], **fields: Any) -> threading.Thread:
    thread = threading.Thread(target=lambda: answers.append(running.post(CHAT, messages=USER, **fields)), daemon=True)
    thread.start()
    return thread


@pytest.mark.turns(4)
def test_a_full_queue_refuses_with_429(directory: Path) -> None:
    with serving(directory, Limits(waiting=1)) as running:
        running.device.hold()
        found: list[Any] = []
        threads = [in_thread(running, found, max_tokens=2)]
        running.wait_for("amk_running", 1)
        threads.append(in_thread(running, found, max_tokens=2))
        running.wait_for("amk_waiting", 1)
        status, headers, _ = running.ask(
            "POST", CHAT, b'{"model": "tiny", "messages": [{"role": "user", "content": "HI"}]}'
        )
        assert status == 429 and headers["retry-after"] == "1"
        running.device.release()
        for thread in threads:
            thread.join(PATIENCE)
        assert [status for status, _ in found] == [200, 200]


@pytest.mark.turns(4)
def test_an_answer_ends_when_its_client_goes(directory: Path) -> None:
    for stream in (True, False):
        with serving(directory) as running:
            running.device.hold()
            client = running.opened(stream=stream, max_tokens=100, logit_bias={"1": -100})
            assert running.device.asked.acquire(timeout=PATIENCE)
            waiting = running.opened(stream=stream, max_tokens=100, logit_bias={"1": -100})
            running.wait_for("amk_waiting", 1)
            waiting.close()
            running.wait_for("amk_cancelled_total", 1)
            assert running.metric("amk_waiting") == 0
            running.device.permit(1)
            assert running.device.asked.acquire(timeout=PATIENCE)
            client.close()
            running.wait_until_noticed()
            running.device.permit(1)
            running.wait_for("amk_cancelled_total", 2)
            running.wait_for("amk_running", 0)
            assert 1 <= running.metric("amk_tokens_total", kind="completion") <= 3
            running.device.release()
            assert running.post(CHAT, messages=USER, max_tokens=2)[0] == 200


def test_draining_lets_the_answer_that_runs_end(directory: Path) -> None:
    with serving(directory) as running:
        running.device.hold()
        found: list[Any] = []
        first = in_thread(running, found, max_tokens=3, temperature=0)
        running.wait_for("amk_running", 1)
        second = in_thread(running, found, max_tokens=3)
        running.wait_for("amk_waiting", 1)
        running.server.decoding.drain()
        second.join(PATIENCE)
        assert found[0][0] == 503 and running.ask("GET", "/health/ready")[0] == 503
        assert running.post(CHAT, messages=USER)[0] == 503
        running.device.release()
        first.join(PATIENCE)
        assert found[1][0] == 200 and found[1][1]["usage"]["completion_tokens"] == 3


def test_answers_that_take_too_long_say_so(directory: Path) -> None:
    with serving(directory, Limits(answer_seconds=1e-9)) as running:
        status, found = running.post(CHAT, messages=USER, max_tokens=50, logit_bias={"1": -100})
        assert status == 503 and "took more than" in found["error"]["message"]
    with serving(directory, Limits(queue_seconds=1e-9)) as running:
        status, found = running.post(CHAT, messages=USER, max_tokens=50, logit_bias={"1": -100})
        assert status == 503 and "waited" in found["error"]["message"]


def in_a_kernel() -> None:
    raise AmkError(Diagnostic("AMK604", "worker 1 waits for counter 2"), Exit.INTERNAL)


def in_a_prompt() -> None:
    """Torch fails, and the device answers no call any more."""

    def synchronise() -> None:
        raise AmkError(Diagnostic("AMK603", "cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS"), Exit.INTERNAL)

    device, stream = SimpleNamespace(make_current=lambda: None), SimpleNamespace(synchronise=synchronise)
    TorchPrompts(SimpleNamespace(device=device, stream=stream)).read([1] * FROM_TOKENS, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(("fault", "code"), [(in_a_kernel, "AMK604"), (in_a_prompt, "AMK603")])
def test_a_device_that_failed_ends_the_server_with_its_error(
    fault: Callable[[], None], code: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is answered is told, whoever waits is refused, and `serve` raises what the command exits with."""

    def stalled(*_: Any) -> Any:
        fault()

    with amk.load(directory, device="cpu") as model:
        held = Held(model._backend)
        monkeypatch.setattr(model, "_backend", held)
        listening = listen("127.0.0.1", 0, Limits())
        server = Server(model, NAME, Limits(), Keys({}))
        running = Running(model, server, listening.getsockname()[1])
        found: list[Any] = []
        held.hold()
        ended = ThreadPoolExecutor(1).submit(serve, server, listening)
        first = in_thread(running, found, max_tokens=3)
        running.wait_for("amk_running", 1)
        second = in_thread(running, found, max_tokens=3)
        running.wait_for("amk_waiting", 1)
        for asked in ("extend", "logits"):
            monkeypatch.setattr(held._backend, asked, stalled)
        held.release()
        with pytest.raises(AmkError, match=code) as failure:
            ended.result(PATIENCE)
        assert failure.value.exit_code == Exit.INTERNAL == 4
        first.join(PATIENCE)
        second.join(PATIENCE)
        assert sorted(status for status, _ in found) == [500, 503]
        with pytest.raises(ConnectionRefusedError):
            running.ask("GET", "/health")
