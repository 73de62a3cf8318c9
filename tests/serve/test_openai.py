"""The official client against the server: answers are the model's own, alone or streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import amk
from amk.serve.settings import Keys
from tests.serve.serving import NAME, Running, serving

HELLO: list[Any] = [{"role": "system", "content": "BE BRIEF"}, {"role": "user", "content": "HELLO"}]


@pytest.fixture(scope="module")
def client(running: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=running.url, api_key="any", max_retries=0) as found:
        yield found


def expected(running: Running, prompt: Any, **options: Any) -> amk.Completion:
    with amk.load(running.model.path, device="cpu") as model:
        return model.generate(prompt, **options)


def test_models(client: openai.OpenAI) -> None:
    assert [each.id for each in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).owned_by == "amk"


def test_a_chat_is_the_model_s_answer_whole_and_streamed(client: openai.OpenAI, running: Running) -> None:
    wanted = expected(running, HELLO, max_tokens=12)
    found = client.chat.completions.create(model=NAME, messages=HELLO, max_tokens=12, temperature=0)
    (choice,) = found.choices
    assert (choice.message.content, choice.message.role) == (wanted.text, "assistant")
    assert choice.finish_reason == wanted.finish
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (
        wanted.usage.prompt_tokens,
        len(wanted.tokens),
    )
    chunks = list(
        client.chat.completions.create(
            model=NAME, messages=HELLO, max_completion_tokens=12, temperature=0, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == wanted.text
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == wanted.finish
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == found.usage.total_tokens
    assert len({c.id for c in chunks}) == 1


def test_completions_of_texts_and_tokens(client: openai.OpenAI, running: Running) -> None:
    wanted = [expected(running, prompt, max_tokens=5).text for prompt in ("AB", "CD")]
    found = client.completions.create(model=NAME, prompt=["AB", "CD"], max_tokens=5, temperature=0)
    assert [(choice.index, choice.text) for choice in found.choices] == list(enumerate(wanted))
    tokens = running.model.encode("AB")
    assert (
        client.completions.create(model=NAME, prompt=tokens, max_tokens=5, temperature=0).choices[0].text == wanted[0]
    )
    parts: dict[int, str] = {0: "", 1: ""}
    for chunk in client.completions.create(model=NAME, prompt=["AB", "CD"], max_tokens=5, temperature=0, stream=True):
        parts[chunk.choices[0].index] += chunk.choices[0].text
    assert list(parts.values()) == wanted


def test_logprobs(client: openai.OpenAI, running: Running) -> None:
    wanted = expected(running, HELLO, max_tokens=4, logprobs=2).logprobs
    assert wanted is not None
    found = client.chat.completions.create(
        model=NAME, messages=HELLO, max_tokens=4, temperature=0, logprobs=True, top_logprobs=2
    )
    entries = found.choices[0].logprobs
    assert entries is not None and entries.content is not None
    assert [each.logprob for each in entries.content] == pytest.approx([each.logprob for each in wanted], abs=1e-5)
    assert all(len(each.top_logprobs) == 2 for each in entries.content)
    assert all(bytes(each.bytes or []).decode() == each.token for each in entries.content)
    plain = client.completions.create(model=NAME, prompt="HELLO", max_tokens=4, logprobs=1, temperature=0)
    logprobs = plain.choices[0].logprobs
    assert logprobs is not None and logprobs.token_logprobs is not None and logprobs.tokens is not None
    assert "".join(logprobs.tokens).startswith(plain.choices[0].text)


def test_stop_and_seed_and_bias(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=NAME, prompt="HELLO", max_tokens=8, temperature=0).choices[0].text
    stop = whole[3:5]
    cut = client.completions.create(model=NAME, prompt="HELLO", max_tokens=8, temperature=0, stop=[stop]).choices[0]
    assert (cut.text, cut.finish_reason) == (whole[: whole.index(stop)], "stop")
    drawn = [
        client.completions.create(model=NAME, prompt="HELLO", max_tokens=8, temperature=2, seed=seed).choices[0].text
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    biased = client.completions.create(model=NAME, prompt="A", max_tokens=3, temperature=0, logit_bias={"40": 100})
    assert biased.choices[0].text == "EEE"


def test_a_json_schema_a_grammar_and_an_expression_are_followed(client: openai.OpenAI) -> None:
    schema: Any = {"type": "array", "items": {"enum": ["RED", "BLUE"]}, "minItems": 2, "maxItems": 2}
    form: Any = {"type": "json_schema", "json_schema": {"name": "colours", "schema": schema}}
    found = client.chat.completions.create(
        model=NAME, messages=HELLO, max_tokens=60, temperature=1, seed=3, response_format=form
    )
    content = json.loads(found.choices[0].message.content or "")
    assert len(content) == 2 and set(content) <= {"RED", "BLUE"}
    regex: Any = {"type": "grammar", "syntax": "regex", "definition": "(YES|NO)!{3}"}
    lark: Any = {"type": "grammar", "definition": 'start: ("A" | "B") "C"+ "D"'}
    for grammar, wanted in ((regex, ("YES!!!", "NO!!!")), (lark, ("D",))):
        text = client.chat.completions.create(
            model=NAME, messages=HELLO, max_tokens=30, temperature=1, seed=1, extra_body={"response_format": grammar}
        ).choices[0]
        assert (text.message.content or "").endswith(wanted) and text.finish_reason == "stop"


@pytest.mark.parametrize("schema", [{"type": 7}, {"$ref": "#/none"}])
def test_a_schema_that_cannot_be_used_is_refused(client: openai.OpenAI, schema: Any) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=NAME, messages=HELLO, response_format=form)
    assert refused.value.code == "AMK015"


def test_errors_are_the_client_s_own_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=HELLO)
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=NAME, messages=HELLO, n=2)
    assert refused.value.param == "n"
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=NAME, prompt="A" * 400)
    assert refused.value.code == "AMK014"
    with pytest.raises(openai.BadRequestError, match="frequency_penalty"):
        client.completions.create(model=NAME, prompt="A", frequency_penalty=0.5)


def test_keys(directory: Path) -> None:
    with serving(directory, keys=Keys({"me": "correct horse"})) as running:
        wrong = openai.OpenAI(base_url=running.url, api_key="wrong", max_retries=0)
        with wrong, pytest.raises(openai.AuthenticationError):
            wrong.models.list()
        with openai.OpenAI(base_url=running.url, api_key="correct horse", max_retries=0) as right:
            assert [each.id for each in right.models.list()] == [NAME]
        assert running.ask("GET", "/health")[0] == 200
