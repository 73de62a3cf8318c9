"""The real checkpoint in transformers, decoded by amk behind prompts that either of them reads.

OMP_NUM_THREADS=1 python -m pytest tests/engine/test_smollm2_hf.py --long --record FILE
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amk
from tests.engine.smollm2_in_transformers import in_bfloat16, in_transformers
from tests.prompts import PROMPTS

pytestmark = [pytest.mark.checkpoint, pytest.mark.long]
torch = pytest.importorskip("torch")

NEW, REPEATS = 24, 3
LENGTHS = (64, 256)
Record = Callable[[str, Any], None]


@pytest.fixture(scope="module")
def ours(smollm2_path: Path) -> amk.LanguageModel:
    return amk.load(smollm2_path, device="cpu", max_context=2048)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def theirs(request: pytest.FixtureRequest, smollm2_path: Path) -> Any:
    model = in_transformers(smollm2_path)
    return model if request.param == "float32" else in_bfloat16(model)


def answer(theirs: Any, tokens: list[int], new: int, decode: Any) -> list[int]:
    ids = torch.tensor([tokens])
    asked = {"attention_mask": torch.ones_like(ids), "max_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    return [int(token) for token in theirs.generate(ids, **asked, custom_generate=decode)[0, len(tokens) :]]


def test_greedy_texts(theirs: Any, ours: amk.LanguageModel, record_property: Record) -> None:
    """In float32 all three are equal. In bfloat16 a text turns aside only where that arithmetic does not tell its token
    from the other one: by no more than it is wrong there."""
    named = str(theirs.dtype).removeprefix("torch.")
    equal = {"transformers": 0, "amk": 0}
    for prompt in PROMPTS:
        tokens = ours.tokenizer.encode_chat([{"role": "user", "content": prompt}])
        wanted = answer(theirs, tokens, NEW, None)
        for prompts in equal:
            found = answer(theirs, tokens, NEW, amk.hf.decode(ours, prompts=prompts))  # type: ignore[arg-type]
            equal[prompts] += found == wanted
            if found != wanted:
                at = next(n for n, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1])
                exact = ours.logits([*tokens, *wanted[:at]], last=True)
                with torch.no_grad():
                    rounded = theirs(torch.tensor([[*tokens, *wanted[:at]]])).logits[0, -1].float().numpy()
                assert abs(exact[found[at]] - exact[wanted[at]]) <= 2 * np.abs(rounded - exact).max()
    record_property(f"{named}: of {len(PROMPTS)} texts of {NEW} tokens, equal to transformers', prompts by", equal)
    assert named != "float32" or set(equal.values()) == {len(PROMPTS)}


def test_time_to_the_first_token(theirs: Any, ours: amk.LanguageModel, record_property: Record) -> None:
    """Processor time, the least of some runs; no prompt begins like the one before it."""
    text = ours.encode((Path(__file__).parents[1] / "data" / "public_domain.txt").read_text(encoding="utf-8"))
    begin, named = 0, str(theirs.dtype).removeprefix("torch.")
    for length in LENGTHS:
        ways = {"transformers": "transformers", "amk": "amk", "transformers alone": None}
        spent: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(REPEATS):
            for way, prompts in ways.items():
                begin = (begin + 29) % (len(text) - length + 1)
                tokens = [int(token) for token in text[begin : begin + length]]
                assert len(tokens) == length
                decode = None if prompts is None else amk.hf.decode(ours, prompts=prompts)  # type: ignore[arg-type]
                start = time.process_time()
                answer(theirs, tokens, 1, decode)
                spent[way].append(time.process_time() - start)
        times = {way: round(1000 * min(each)) for way, each in spent.items()}
        record_property(f"{named}: processor ms to the first token behind {length}, prompts by", times)
        assert all(times.values())
