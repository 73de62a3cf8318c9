"""The host does not look at a whole text for every pass: tokens that the cache holds were looked at when they came."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from amk.engine.backends import rows_backend, schedule_backend
from amk.engine.backends.backend import common
from amk.engine.backends.cpu_engine import CpuEngine
from amk.engine.backends.request import request_buffers
from amk.engine.backends.room import OfOneText, Token, check_room, token_numbers
from amk.engine.backends.rows_backend import RowsBackend
from amk.engine.backends.schedule_backend import ScheduleBackend
from amk.report.diagnostic import AmkError
from amk.schedule_ir.sampling import GREEDY
from amk.schedule_ir.schedule import Schedule
from tests.engine.tiny import RandomTensors, tiny_model, tiny_plan

MODEL = tiny_model(layers=1)
TEXT = [(17 * i + 5) % MODEL.vocab for i in range(30)]


def schedule(rows: int, **more: Any) -> Schedule:
    return tiny_plan(MODEL, workers=4, kv_block=4, kv_splits=2, rows=rows, **more)


def backend(rows: int) -> ScheduleBackend:
    engine = CpuEngine(schedule(rows), RandomTensors(MODEL))
    return ScheduleBackend(engine) if rows == 1 else RowsBackend(engine)


def test_the_common_prefix_is_found_whatever_it_is() -> None:
    draw = random.Random(1)
    for _ in range(500):
        size = draw.randrange(12)
        left = [draw.randrange(3) for _ in range(size)]
        right = left[: draw.randrange(size + 1)] + [draw.randrange(3) for _ in range(draw.randrange(4))]
        wanted = next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)
        wanted = min(len(left), len(right)) if wanted is None else wanted
        assert common(left, right) == common(tuple(right), left) == wanted
    own = OfOneText(1)
    assert (common([own, 2], [own, 2]), common([own, 2], [1, 2]), common([1, b"...."], [1, b"...."])) == (2, 0, 2)


@pytest.mark.parametrize("rows", [1, 3])
def test_only_new_tokens_are_looked_at(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looked, numbered = list[int](), list[int]()

    def looks(prompt: Sequence[Token], *others: int, before: int = 0) -> None:
        looked.append(len(prompt) - before)
        check_room(prompt, *others, before=before)

    def numbers(tokens: Sequence[Token]) -> list[int]:
        numbered.append(len(tokens))
        return token_numbers(tokens)

    for module in (schedule_backend, rows_backend):
        monkeypatch.setattr(module, "check_room", looks)
        monkeypatch.setattr(module, "token_numbers", numbers)
    texts = backend(rows)
    texts.logits(TEXT)
    for end in range(len(TEXT) + 1, len(TEXT) + 4):
        texts.logits([*TEXT, *TEXT][:end])
    assert looked == numbered == [len(TEXT), 1, 1, 1]


@pytest.mark.parametrize("rows", [1, 3])
def test_a_new_token_is_looked_at_behind_a_text_that_is_kept(rows: int) -> None:
    texts = backend(rows)
    texts.logits(TEXT)
    with pytest.raises(AmkError, match=f"token {MODEL.vocab} of the prompt"):
        texts.logits([*TEXT, MODEL.vocab])
    with pytest.raises(AmkError, match="AMK014"):
        texts.logits([*TEXT, *TEXT])
    np.testing.assert_allclose(texts.logits(TEXT), backend(rows).logits(TEXT), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 3])
def test_no_other_text_gets_the_rows_of_one_that_is_nobody_else_s(rows: int) -> None:
    texts, own = backend(rows), [OfOneText(TEXT[0]), *TEXT[1:]]
    for text, kept in ((own, 0), ([*own, 3], len(own)), (TEXT, 0), (TEXT, len(TEXT) - 1)):
        texts.extend(text, 1, GREEDY, ())
        assert texts.cached == kept


def test_no_step_reads_a_token_before_it_begins() -> None:
    """So what stands there need not be written: a step reads the same with other tokens in its place."""
    prompts = schedule(3), [TEXT], ()
    whole, rest = (request_buffers(*prompts, starts=(start,))["prompt"] for start in (0, 20))
    assert whole[: len(TEXT)].tolist() == TEXT
    assert rest[20 : len(TEXT)].tolist() == TEXT[20:] and not rest[:20].any()
    batch = request_buffers(schedule(1, batch=2, live=True), [TEXT, TEXT[:9]], (), starts=(4, 8))["prompt"]
    assert [np.flatnonzero(row)[0] for row in batch.reshape(2, -1)] == [4, 8]
    for rows in (1, 3):
        texts = backend(rows)
        fresh = texts.logits(TEXT)
        texts.logits(TEXT[:20])
        assert texts.cached < 20
        np.testing.assert_allclose(texts.logits(TEXT), fresh, rtol=1e-4, atol=1e-5)
