"""`LanguageModel.perplexity` on a random model: its windows, its defaults, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

import amk
from amk.engine.backends.choice import log_softmax
from amk.engine.generation import scoring
from amk.report.diagnostic import AmkError
from tests.engine import tiny_chat

TOKENS = [5, 40, 41, 60, 7, 7, 33, 50, 51, 12, 40, 41, 60, 8]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> amk.LanguageModel:
    return amk.load(tiny_chat.write(tmp_path_factory.mktemp("models") / "tiny"), device="cpu")


@pytest.mark.parametrize(
    ("window", "stride", "predicted"), [(14, 7, 13), (100, 100, 13), (5, 5, 11), (5, 4, 13), (6, 1, 13), (2, 2, 7)]
)
def test_each_window_predicts_what_none_before_it_did(
    tiny: amk.LanguageModel, window: int, stride: int, predicted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "MOST_NODES", 3)
    done: dict[int, float] = {}
    for begin in range(0, len(TOKENS), stride):
        for at in range(begin + 1, min(begin + window, len(TOKENS))):
            if at not in done:
                done[at] = float(log_softmax(tiny.logits(TOKENS[begin:at], last=True))[TOKENS[at]])
    found = tiny.perplexity(TOKENS, window=window, stride=stride)
    assert (found.tokens, found.window, found.stride) == (len(done), window, stride)
    assert found.tokens == predicted
    assert found.logprob == pytest.approx(sum(done.values()), abs=1e-4)
    assert found.value == pytest.approx(np.exp(-np.mean(list(done.values()))))


def test_windows_unless_told_otherwise(tiny: amk.LanguageModel) -> None:
    found = tiny.perplexity("ABCABCA")
    assert (found.tokens, found.window, found.stride) == (6, tiny.context, tiny.context // 2)
    assert found.logprob == pytest.approx(tiny.score("A", "BCABCA")[0].logprob, abs=1e-4)
    assert tiny.perplexity("ABC" * tiny.context).tokens == 3 * tiny.context - 1


@pytest.mark.parametrize(
    ("tokens", "options", "code"),
    [
        ([], {}, "AMK014"), ([5], {}, "AMK014"), ([5, 1000], {}, "AMK014"), (TOKENS, {"window": 1}, "AMK015"),
        (TOKENS, {"window": 129}, "AMK015"), (TOKENS, {"window": 8, "stride": 9}, "AMK015"),
        (TOKENS, {"stride": 0}, "AMK015"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused(
    tiny: amk.LanguageModel, tokens: list[int], options: dict[str, int], code: str
) -> None:
    with pytest.raises(AmkError, match=code):
        tiny.perplexity(tokens, **options)
