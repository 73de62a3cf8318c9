"""A random GPT-NeoX checkpoint from its directory to tokens: plain forward pass, schedule on the CPU, transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amk.engine.backends.cpu_engine import CpuEngine
from amk.engine.backends.forward import ForwardPass
from amk.engine.backends.forward_backend import ForwardBackend
from amk.engine.checkpoints.open_checkpoint import open_checkpoint
from amk.weights.bfloat import to_bf16_bits
from tests.engine.tiny import tiny_plan

NEW = 12
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.mark.turns(4)
@pytest.mark.parametrize("changes", [{}, {"use_parallel_residual": False, "hidden_act": "gelu_new"}], ids=str)
def test_logits_and_greedy_tokens_are_those_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    from tests.engine.against_transformers import checkpoint

    directory = checkpoint(tmp_path / "model", "gpt_neox", **changes)
    opened, prompt = open_checkpoint(directory), [3, 17, 40]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        text = theirs.generate(torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False, eos_token_id=None)[0]
        expected = theirs(text[None]).logits[0].numpy()
    tokens = text.tolist()
    engine = CpuEngine(tiny_plan(opened.spec, context=32), opened)
    engine.request(prompt)
    assert engine.step(len(tokens) - 1).tolist() == tokens[1:]
    read = ForwardBackend(ForwardPass(opened, len(tokens))).every(tokens)
    np.testing.assert_allclose(read, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(engine.logits(), expected[-2], rtol=0.05, atol=0.05)
    assert len(set(tokens[3:])) > 1 and np.abs(expected).max() > 1


def test_bits_of_a_file_in_bf16_are_those_of_its_tensors(tmp_path: Path) -> None:
    """Heads of Q, K and V take turns in the file, and are rotated in part."""
    from tests.engine.against_transformers import checkpoint

    directory = checkpoint(tmp_path / "model", "gpt_neox")
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16)
    model.save_pretrained(directory)
    opened = open_checkpoint(directory)
    for name, shape in opened.shapes.items():
        rows = slice(1, shape[0] - 1)
        found = opened.bits(name, rows)
        assert found is not None and opened.stored_as[name] == "BF16"
        np.testing.assert_array_equal(found, to_bf16_bits(opened.tensor(name, rows)), err_msg=name)
