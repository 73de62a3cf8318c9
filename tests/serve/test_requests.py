"""Requests that are wrong, hostile or too large are refused in OpenAI's words, and the server goes on."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amk.serve.prompts import Prompts, unread
from amk.serve.requests import ChatRequest, CompletionRequest, sampling_defaults
from amk.serve.settings import Limits
from tests.serve.serving import NAME, PATIENCE, Running, serving

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "HI"}]
CALL = {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
WITH_A_CALL = [*USER, {"role": "assistant", "tool_calls": [CALL]}]


def test_health_and_metrics(running: Running) -> None:
    assert running.ask("GET", "/health")[0] == running.ask("GET", "/health/ready")[0] == 200
    running.post(COMPLETE, prompt="A", max_tokens=2)
    text = running.ask("GET", "/metrics")[2].decode()
    for name in ("amk_requests_total", "amk_tokens_total", "amk_first_token_seconds_bucket", "amk_waiting 0.0"):
        assert name in text


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"null", 400),
        (b"\xff\xfe", 400),
        (b'{"model": "tiny"}', 400),
        (b"[" * 100_000, 400),
        (b'{"model": "tiny", "prompt": "A", "max_tokens": 1e400}', 400),
        (b'{"model": "tiny", "prompt": "A", "temperature": NaN}', 400),
        (b'{"model": "tiny", "prompt": "\\ud800"}', 400),
        (b'{"model": "tiny", "prompt": "A", "unknown": 1}', 400),
        (b'{"model": "tiny", "prompt": [1, 999]}', 400),
        (b'{"model": "tiny", "prompt": []}', 400),
        (b'{"model": "tiny", "prompt": ""}', 400),
        (b'{"model": "tiny", "prompt": "A", "logit_bias": {"999": 1}}', 400),
        (b'{"model": "tiny", "prompt": "A", "logit_bias": {"999": 1}, "stream": true}', 400),
        (b'{"model": "tiny", "prompt": "A", "stop": [""]}', 400),
        (b'{"model": "other", "prompt": "A"}', 404),
    ],
)
def test_malformed_bodies(running: Running, body: bytes, status: int) -> None:
    found, headers, content = running.ask("POST", COMPLETE, body)
    assert found == status and headers["content-type"] == "application/json"
    error = json.loads(content)["error"]
    assert error["message"] and error["type"] == "invalid_request_error"
    assert running.post(COMPLETE, prompt="A", max_tokens=1)[0] == 200


def test_other_ways_to_ask_wrongly(running: Running) -> None:
    assert running.ask("POST", CHAT, b"{}", {"content-type": "text/plain"})[0] == 415
    assert running.ask("GET", CHAT)[0] == 405
    assert running.ask("GET", "/v1/embeddings")[0] == 404
    assert running.ask("GET", "/v1/models/other")[0] == 404
    status, found = running.post(CHAT, messages=USER, response_format={"type": "json_schema"})
    assert status == 400 and "json_schema is missing" in found["error"]["message"]


def test_oversized_bodies(directory: Path) -> None:
    with serving(directory, Limits(body_bytes=2000)) as running:
        large = json.dumps({"model": NAME, "prompt": "A" * 3000}).encode()
        assert running.ask("POST", COMPLETE, large)[0] == 413
        with socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE) as client:
            head = f"POST {COMPLETE} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            client.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
            client.sendall(b"400\r\n" + b"A" * 1024 + b"\r\n" + b"400\r\n" + b"A" * 1024 + b"\r\n")
            assert b" 413 " in client.recv(1000)
        assert running.post(COMPLETE, prompt="A", max_tokens=1)[0] == 200


def test_a_body_that_does_not_arrive(directory: Path) -> None:
    with serving(directory, Limits(body_seconds=0.05)) as running, running.opened() as client:
        client.sendall(f"POST {COMPLETE} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n".encode())
        client.sendall(b"Content-Length: 100\r\n\r\n{")
        received = b""
        while b" 408 " not in received:
            part = client.recv(65536)
            assert part, received
            received += part


def test_a_client_that_goes_inside_its_body_is_no_fault(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(directory) as running:
        with socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE) as client:
            client.sendall(f"POST {COMPLETE} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n".encode())
            client.sendall(b"Content-Length: 100\r\n\r\n{")
        running.wait_for("amk_requests_total", 1, path=COMPLETE, status="499")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
         "messages.0.content.0.type", "should be 'text'"),
        ({"messages": USER, "stop": ["x"] * 17}, "stop", "at most 16 items"),
        ({"messages": USER, "stop": 3}, "stop", "valid string"),
        ({"messages": USER, "parallel_tool_calls": False}, "parallel_tool_calls", "should be True"),
        ({"messages": USER, "top_logprobs": 2}, None, "top_logprobs asks for logprobs"),
        ({"messages": USER, "chat_template_kwargs": {"messages": []}}, None, "chat_template_kwargs has messages"),
        ({"messages": USER, "chat_template_kwargs": {"think": True}}, "chat_template_kwargs.think", "does not read it"),
        ({"messages": [USER[0] | {"foo": 1}]}, "messages.0.foo", "does not read it"),
        ({"messages": [USER[0] | {"name": "BOB"}]}, "messages.0.name", "does not read it"),
        ({"messages": [*USER, USER[0] | {"audio": {"id": "1"}}]}, "messages.1.audio", "does not read it"),
        ({"messages": [USER[0] | {"tool_calls": [CALL]}]}, "messages.0", "tool_calls are the assistant's"),
        ({"messages": USER, "max_tokens": 2, "max_completion_tokens": 2}, None, "max_tokens and max_completion_tokens"),
        ({"messages": USER, "max_completion_tokens": 5000}, "max_completion_tokens", "at most 4,096 tokens"),
        ({"messages": USER, "max_tokens": 4097}, "max_tokens", "at most 4,096 tokens"),
        ({"messages": [{"role": "user"}]}, "messages.0", "content is missing"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0", "content is missing"),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": []}]}, "messages.0", "content is missing"),
        ({"messages": USER, "stream_options": {"include_usage": True}}, None, "stream is not true"),
        ({"messages": USER, "response_format": {"type": "text", "json_schema": {"schema": {}}}}, "response_format",
         "json_schema says nothing about an answer of the type text"),
        ({"messages": USER, "response_format": {"type": "json_object", "definition": "start: 'a'", "syntax": "regex"}},
         "response_format", "definition, syntax says nothing"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_is_wrong(running: Running, fields: dict[str, Any], param: str, message: str) -> None:
    status, found = running.post(CHAT, **fields)
    assert status == 400 and message in found["error"]["message"] and found["error"]["param"] == param


def test_tools_that_no_template_would_tell_are_refused(running: Running) -> None:
    tools = [{"type": "function", "function": {"name": "now", "parameters": {}}}]
    status, found = running.post(CHAT, messages=USER, max_tokens=1, tools=tools)
    assert status == 400 and "no place for tools" in found["error"]["message"]
    assert running.post(CHAT, messages=USER, max_tokens=1, tools=tools, tool_choice="none")[0] == 200
    status, found = running.post(CHAT, messages=WITH_A_CALL, max_tokens=1)
    assert status == 400 and "no place for calls of tools" in found["error"]["message"]


FOR_OBJECTS = "{% for call in messages[1].tool_calls %}{{ call.function.arguments | tojson }}{% endfor %}"
FOR_TEXTS = "{% for call in messages[1].tool_calls %}{{ 'X' + call.function.arguments }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "arguments", "prompt"),
    [
        (FOR_OBJECTS, '{"A": [1, "B"]}', '{"A": [1, "B"]}'),
        (FOR_TEXTS, '{"A":1}', 'X{"A":1}'),
    ],
)
def test_arguments_of_calls_are_told_once(
    running: Running, template: str, arguments: str, prompt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = replace(running.model.tokenizer, chat_template=template)
    monkeypatch.setattr(running.server, "_prompts", Prompts(tokenizer))
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": arguments}}
    messages = [*USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    status, found = running.post(CHAT, messages=messages, max_tokens=1)
    assert status == 200, found
    assert found["usage"]["prompt_tokens"] == len(tokenizer.process.encode(prompt, special=False))
    body = ChatRequest.model_validate({"model": NAME, "messages": messages})
    for_template = [message.for_template() for message in body.messages]
    assert Prompts(tokenizer).chat(for_template, None, None) == tokenizer.process.encode(prompt, special=False)


@pytest.mark.parametrize("arguments", ["", '{"A', "3", "[" * 100_000])
def test_arguments_of_calls_are_json_objects(running: Running, arguments: str) -> None:
    function = {"name": "now", "arguments": arguments}
    messages = [*USER, {"role": "assistant", "tool_calls": [CALL | {"function": function}]}]
    status, found = running.post(CHAT, messages=messages, max_tokens=1)
    assert status == 400 and found["error"]["param"] == "messages.1.tool_calls.0.function.arguments"
    assert "not a JSON object" in found["error"]["message"]


@pytest.mark.parametrize(
    ("template", "message", "more", "expected"),
    [
        ("{{ message.content }}", {"refusal": None, "annotations": []}, {}, None),
        ("{{ message.content }} {{ call.name }}", {"name": "BOB"}, {}, "messages.0.name"),
        ("{{ message.name }}", {"name": "BOB"}, {}, None),
        ("{{ messages[0]['name'] }}", {"name": "BOB"}, {}, None),
        ("{{ m.get('name') }}", {"name": "BOB"}, {}, None),
        ("{% set t = message.reasoning_content %}", {"reasoning": "A"}, {}, None),
        ("{{ m.content }}", {"reasoning": "A"}, {}, "messages.0.reasoning"),
        ("{% if enable_thinking %}", {}, {"enable_thinking": False}, None),
        ("{% if enable_thinking %}", {}, {"thinking": False}, "chat_template_kwargs.thinking"),
    ],
)
def test_what_a_template_does_not_read(
    template: str, message: dict[str, Any], more: dict[str, Any], expected: str | None
) -> None:
    assert unread(template, [USER[0] | message], more) == expected


def test_what_a_developer_says_is_what_the_system_says(running: Running) -> None:
    said = [running.post(CHAT, messages=[{"role": role, "content": "A"}, *USER], max_tokens=9, temperature=0)[1]
            for role in ("system", "developer")]  # fmt: skip
    assert said[0]["choices"] == said[1]["choices"]
    assert said[0]["usage"]["prompt_tokens"] == said[1]["usage"]["prompt_tokens"]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.turns(4)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_value_of_a_field_is_a_fault_of_the_server(running: Running, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from((ChatRequest, CompletionRequest)))
    body: dict[str, Any] = {"max_tokens": 2} | ({"messages": USER} if kind is ChatRequest else {"prompt": "A"})
    field = data.draw(st.sampled_from(sorted(set(kind.model_fields) - {"model", "stream"})))
    status, found = running.post(CHAT if kind is ChatRequest else COMPLETE, **body | {field: data.draw(values)})
    assert status in (200, 400), found


@pytest.mark.parametrize(
    ("suggested", "options", "fields", "expected"),
    [
        ({}, {}, {}, (1.0, 0, 1.0)),
        ({"temperature": 0.5, "top_k": 7}, {}, {}, (0.5, 7, 1.0)),
        ({"temperature": 0.5, "top_k": 7}, {"temperature": 0.8}, {}, (0.8, 7, 1.0)),
        ({"temperature": 0.5}, {"temperature": 0.0, "top_k": 3}, {}, (0.0, 0, 1.0)),
        ({"temperature": 0.0}, {"top_p": 0.9}, {}, (1.0, 0, 0.9)),
        ({}, {"temperature": 0.0, "top_k": 3}, {"temperature": 2.0}, (2.0, 3, 1.0)),
        ({}, {"top_k": 3, "top_p": 0.5}, {"top_k": 0, "top_p": 1.0}, (1.0, 0, 1.0)),
    ],
)
def test_a_field_counts_before_an_option_and_that_before_a_suggestion(
    suggested: dict[str, Any], options: dict[str, Any], fields: dict[str, Any], expected: tuple[float, int, float]
) -> None:
    request = CompletionRequest(model=NAME, prompt="A", **fields)
    found = request.options(8, sampling_defaults(suggested, options))
    assert (found.temperature, found.top_k, found.top_p) == expected


def test_a_seed_is_the_request_s_or_the_server_s_or_another_every_time() -> None:
    request, defaults = CompletionRequest(model=NAME, prompt="A"), sampling_defaults({}, {"seed": 5})
    assert request.options(8, defaults).seed == 5
    assert CompletionRequest(model=NAME, prompt="A", seed=0).options(8, defaults).seed == 0
    assert request.options(8, sampling_defaults({}, {})).seed != request.options(8, sampling_defaults({}, {})).seed


def test_equal_requests_to_a_server_with_a_seed_have_equal_answers(directory: Path) -> None:
    with serving(directory, defaults={"temperature": 2.0, "seed": 1}) as running:
        asked: list[dict[str, Any]] = [{}, {}, {"seed": 2}]
        texts = [running.post(COMPLETE, prompt="A", max_tokens=8, **each)[1]["choices"][0]["text"] for each in asked]
    assert texts[0] == texts[1] != texts[2]
