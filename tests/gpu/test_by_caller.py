"""A model of transformers reads prompts into the kernel's cache. Written without a GPU: no run of it is recorded."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amk
from amk.engine.backends.room import OfOneText
from amk.lowering.launch import Device
from tests.prompts import PROMPTS

pytestmark = [pytest.mark.gpu, pytest.mark.checkpoint]
NEW = 32


@pytest.fixture(scope="module")
def theirs(checkpoint_path: Path, torch_gpu: Device) -> Any:
    from tests.engine.smollm2_in_transformers import in_bfloat16, in_transformers

    return in_bfloat16(in_transformers(checkpoint_path)).cuda()


@pytest.mark.parametrize("options", [{}, {"batch": 2}, {"kv_dtype": "fp8"}], ids=["one", "live", "fp8"])
def test_rows_and_texts(
    theirs: Any, checkpoint_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits behind them are those of a prompt that amk's kernel read, within the rounding of bf16, and most texts stay
    the same. bf16 rows are shared, fp8 ones copied."""
    import torch

    from amk.prefill.by_caller import CallersPrompts, SharedLayer

    shared: list[bool] = []
    update = SharedLayer.update

    def watched(self: Any, *states: Any, **more: Any) -> Any:
        both = update(self, *states, **more)
        shared.append(both[0].data_ptr() == self._rows[0].data_ptr())
        return both

    monkeypatch.setattr(SharedLayer, "update", watched)
    least, equal = 0.05 if "kv_dtype" not in options else 0.2, 0
    with amk.load(checkpoint_path, device="cuda", max_context=512, prefill="kernel", **options) as ours:
        reader = CallersPrompts(theirs, ours.spec)
        for prompt in PROMPTS[:6]:
            tokens = [int(token) for token in ours.encode(prompt)]
            text = [OfOneText(tokens[0]), *tokens[1:]]
            assert ours.lend(text[:-1], partial(reader.read, text[:-1]))
            behind, own = ours.logits(text, last=True), ours.logits(tokens, last=True)
            assert np.abs(behind - own).max() < least * np.abs(own).max()
            ids = torch.tensor([tokens], device="cuda")
            asked = {"attention_mask": torch.ones_like(ids), "max_new_tokens": NEW, "do_sample": False}
            by_theirs, by_amk = (
                theirs.generate(ids, **asked, custom_generate=amk.hf.decode(ours, prompts=by))
                for by in ("transformers", "amk")
            )
            equal += torch.equal(by_theirs, by_amk)
    assert set(shared) == {"kv_dtype" not in options} and equal >= 3
