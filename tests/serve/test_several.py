"""Answers that are computed at once: the server has as many threads as the model has sequences."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

import amk
from amk.engine.backends.forward import Part
from amk.engine.generation.completion import Completion, Options
from amk.engine.generation.speculation import Method
from amk.serve.decoding import Decoding, Request
from amk.serve.metrics import Metrics
from amk.serve.settings import Limits
from tests.engine import tiny_chat
from tests.serve.serving import NAME, serving


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> amk.LanguageModel:
    directory = tiny_chat.write(tmp_path_factory.mktemp("several") / "tiny")
    return amk.load(directory, device="interpreter", batch=2, max_context=64)


def answers(decoding: Decoding, prompts: list[list[int]], options: Options) -> list[Completion]:
    """Of requests that are sent together."""

    async def all_of_them() -> list[Completion]:
        loop = asyncio.get_running_loop()
        requests = [Request(f"client {n}", prompt, options, loop) for n, prompt in enumerate(prompts)]
        for request in requests:
            decoding.submit(request)
        return [await _last(request) for request in requests]

    return asyncio.run(all_of_them())


async def _last(request: Request) -> Completion:
    while True:
        event = await asyncio.wait_for(request.events.get(), 60)
        if isinstance(event, Completion):
            return event
        assert not isinstance(event, amk.AmkError), event


@pytest.mark.turns(4)
def test_requests_are_computed_at_once_and_answered_as_alone(model: amk.LanguageModel) -> None:
    prompts, options = [[5, 6, 7], [9], [11, 12], [3, 4, 5, 6]], Options(max_tokens=6)
    alone = [model.generate(prompt, max_tokens=6).tokens for prompt in prompts]
    decoding = Decoding(model, Limits(), Metrics())
    both = threading.Barrier(2, timeout=30)
    extend = model._backend.extend
    met: list[int] = []

    def together(*arguments: object) -> list[int]:
        if len(met) < 2:  # neither of the first two is answered before the other is being computed
            met.append(both.wait())
        return extend(*arguments)  # type: ignore[arg-type]

    model._backend.extend = together  # type: ignore[method-assign]
    try:
        found = answers(decoding, prompts, options)
    finally:
        del model._backend.extend
    assert [each.tokens for each in found] == alone
    assert sorted(met) == [0, 1]
    assert decoding.ready and decoding.stop(10)


@pytest.mark.turns(4)
@pytest.mark.parametrize("method", [None, "lookup", "draft"])
def test_clients_of_the_device_cpu_share_passes(directory: Path, tmp_path: Path, method: Method | None) -> None:
    """The official client, more of them than texts at once: answers are those of one text at a time."""
    asked: list[dict[str, Any]] = [
        {"prompt": "AB" * n, "max_tokens": 8 + n, "temperature": n % 2, "seed": n, "logprobs": n % 3}
        for n in range(1, 9)
    ]
    sizes = list[int]()
    options: dict[str, Any] = {} if method is None else {"speculate": method, "draft_tokens": 3}
    if method == "draft":
        options["draft"] = tiny_chat.write(tmp_path / "draft", noise=0.02)
    with serving(directory, batch=3, **options) as running, amk.load(directory, device="cpu") as alone:
        backend = running.device._backend
        forward, backend._patience = (
            backend._forward,
            0.3,
        )  # a pass of the tiny model is shorter than an event loop's turn
        read = forward.read

        def counted(parts: Sequence[Part]) -> Any:
            if not sizes:
                time.sleep(0.5)  # the first answer would be over before the others have asked
            sizes.append(len(parts))
            return read(parts)

        forward.read = counted
        with openai.OpenAI(base_url=running.url, api_key="any", max_retries=0) as client, ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda each: client.completions.create(model=NAME, **each), asked))
        for request, each in zip(asked, found, strict=True):
            wanted = alone.generate(request["prompt"], **{k: v for k, v in request.items() if k != "prompt"})
            assert each.choices[0].text == wanted.text
            assert each.usage is not None and each.usage.completion_tokens == len(wanted.tokens)
            logprobs = each.choices[0].logprobs
            assert logprobs is not None and wanted.logprobs is not None
            assert logprobs.token_logprobs == pytest.approx([one.logprob for one in wanted.logprobs], abs=1e-4)
        assert running.metric("amk_tokens_total", kind="drafted") > 0 or method is None
    assert max(sizes) == 3 and sum(size > 1 for size in sizes) > 5
