"""Answers that are computed at once: the server has as many threads as the model has sequences."""

from __future__ import annotations

import asyncio
import threading

import pytest

import amk
from amk.engine.generation.completion import Completion, Options
from amk.serve.decoding import Decoding, Request
from amk.serve.metrics import Metrics
from amk.serve.settings import Limits
from tests.engine import tiny_chat


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


def test_requests_are_computed_at_once_and_answered_as_alone(model: amk.LanguageModel) -> None:
    prompts, options = [[5, 6, 7], [9], [11, 12], [3, 4, 5, 6]], Options(max_tokens=6)
    alone = [model.generate(prompt, max_tokens=6).tokens for prompt in prompts]
    decoding = Decoding(model, Limits(), Metrics())
    both = threading.Barrier(2, timeout=30)
    extend = model._backend.extend
    met: list[int] = []

    def together(*given: object) -> list[int]:
        if len(met) < 2:  # neither of the first two is answered before the other is being computed
            met.append(both.wait())
        return extend(*given)  # type: ignore[arg-type]

    model._backend.extend = together  # type: ignore[method-assign]
    try:
        found = answers(decoding, prompts, options)
    finally:
        del model._backend.extend
    assert [each.tokens for each in found] == alone
    assert sorted(met) == [0, 1]
    assert decoding.ready and decoding.stop(10)
