"""SmolLM2-135M-Instruct on the GPU: 20 prompts, 64 greedy tokens each, against torch with bf16 weights in fp32.

The reference is written here, from the model card and the checkpoint's tensors; it shares no code with the planner, the
ops or the packing. AMK_SMOLLM2 names the GGUF file where it cannot be fetched.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amk.engine.checkpoints.checkpoint import Checkpoint
from amk.engine.checkpoints.open_checkpoint import open_checkpoint
from amk.lowering.launch import Device
from amk.targets.target import Target
from tests.prompts import PROMPTS

pytestmark = [pytest.mark.gpu, pytest.mark.checkpoint]

TOKENS = 64


@pytest.fixture(scope="module")
def checkpoint(checkpoint_path: Path) -> Checkpoint:
    return open_checkpoint(checkpoint_path)


class Reference:
    """Llama in torch: bf16 weights, everything else in `dtype`; one call reads a whole text."""

    def __init__(self, checkpoint: Checkpoint, dtype: Any) -> None:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = False
        self.dtype, self.spec = dtype, checkpoint.spec
        bf16 = {name: torch.from_numpy(checkpoint.tensor(name)).cuda() for name in checkpoint.shapes}
        self.w = {n: (t if "norm" in n else t.bfloat16()).to(dtype) for n, t in bf16.items()}

    def norm(self, x: Any, weight: Any) -> Any:
        x32 = x.float()
        return (x32 * (x32.pow(2).mean(-1, keepdim=True) + self.spec.rms_eps).rsqrt() * weight.float()).to(self.dtype)

    def logits(self, tokens: list[int]) -> Any:
        """[len(tokens), vocab] after each token."""
        import torch

        spec, w, count = self.spec, self.w, len(tokens)
        pairs = torch.arange(spec.head_dim // 2, dtype=torch.float64)
        angle = torch.outer(torch.arange(count, dtype=torch.float64), spec.rope_theta ** (-2 * pairs / spec.head_dim))
        cos, sin = (torch.cat([f(angle)] * 2, -1).to("cuda", self.dtype) for f in (torch.cos, torch.sin))

        def turned(x: Any) -> Any:
            a, b = x.chunk(2, -1)
            return x * cos + torch.cat([-b, a], -1) * sin

        def heads(x: Any, number: int) -> Any:
            return x.view(count, number, spec.head_dim).transpose(0, 1)

        h = w["embed"][torch.tensor(tokens, device="cuda")]
        mask = torch.ones(count, count, dtype=torch.bool, device="cuda").tril()
        for i in range(spec.layers):
            x = self.norm(h, w[f"l{i}.attn_norm"])
            q = turned(heads(x @ w[f"l{i}.wq"].T, spec.heads))
            k = turned(heads(x @ w[f"l{i}.wk"].T, spec.kv_heads))
            v = heads(x @ w[f"l{i}.wv"].T, spec.kv_heads)
            k, v = (t.repeat_interleave(spec.heads // spec.kv_heads, 0) for t in (k, v))
            scores = (q @ k.transpose(1, 2)).float() * spec.head_dim**-0.5
            share = scores.masked_fill(~mask, float("-inf")).softmax(-1).to(self.dtype)
            h = h + (share @ v).transpose(0, 1).reshape(count, -1) @ w[f"l{i}.wo"].T
            x = self.norm(h, w[f"l{i}.ffn_norm"])
            gate = torch.nn.functional.silu(x @ w[f"l{i}.w_gate"].T)
            h = h + (gate * (x @ w[f"l{i}.w_up"].T)) @ w[f"l{i}.w_down"].T
        return self.norm(h, w["final_norm"]) @ w.get("lm_head", w["embed"]).T


def torch_weights(checkpoint: Checkpoint) -> Any:
    """The checkpoint in the layout of the benchmark's torch model, from which the kernel's buffers are filled."""
    import torch

    from amk.bench.tools.torch_model import TorchWeights

    spec = checkpoint.spec

    def bf16(*names: str) -> Any:
        return torch.from_numpy(np.concatenate([checkpoint.tensor(name) for name in names])).cuda().bfloat16()

    layers = range(spec.layers)
    norms = [checkpoint.tensor(f"l{i}.{part}_norm") for i in layers for part in ("attn", "ffn")]
    matrices = {
        "qkv": [bf16(f"l{i}.wq", f"l{i}.wk", f"l{i}.wv") for i in layers],
        "o": [bf16(f"l{i}.wo") for i in layers],
        "gate_up": [bf16(f"l{i}.w_gate", f"l{i}.w_up") for i in layers],
        "down": [bf16(f"l{i}.w_down") for i in layers],
        "lm_head": [bf16("embed" if spec.tied_embeddings else "lm_head")],
    }
    norm = torch.from_numpy(np.stack([*norms, checkpoint.tensor("final_norm")])).cuda()
    return TorchWeights(spec, bf16("embed"), norm, matrices)


def test_twenty_prompts(
    checkpoint: Checkpoint,
    checkpoint_path: Path,
    torch_gpu: Device,
    gpu: Target,
    record_property: Callable[[str, object], None],
) -> None:
    import torch

    from amk.bench.tools.accuracy import relative_error, within_tolerance
    from amk.engine.tokenizers.open_tokenizer import open_tokenizer
    from tests.gpu.subjects import loaded, planned

    tokenizer = open_tokenizer(checkpoint_path, checkpoint.spec.vocab)
    exact, rounded = Reference(checkpoint, torch.float32), Reference(checkpoint, torch.bfloat16)
    differ = total = 0
    errors: list[tuple[float, float]] = []
    with loaded(planned(checkpoint.spec, gpu, 1024), torch_weights(checkpoint)) as subject:
        for prompt in PROMPTS:
            ids = tokenizer.encode_chat([{"role": "user", "content": prompt}])
            subject.engine.request(ids)
            chosen = subject.engine.step(len(ids) - 1 + TOKENS).tolist()[len(ids) - 1 :]
            last = torch.from_numpy(subject.engine.read("logits", np.float32, checkpoint.spec.vocab)).cuda()
            with torch.no_grad():
                read = [*ids, *chosen[:-1]]
                wanted = exact.logits(read)[len(ids) - 1 :].double()
                theirs = rounded.logits(read)[len(ids) - 1 :].double()
            errors.append((relative_error(last, wanted[-1]), relative_error(theirs[-1], wanted[-1])))
            for step, token in enumerate(chosen):
                gap = float(wanted[step].max() - wanted[step, token])
                noise = float((theirs[step] - wanted[step]).abs().max())
                assert gap <= 2 * noise, f"{prompt!r}, token {step}: gap {gap:.3g}, rounding {noise:.3g}"
                differ += gap > 0
            total += len(chosen)
            if prompt == PROMPTS[0]:
                assert "Paris" in tokenizer.decode(chosen)
    # One position's error is a matter of luck on either side; over the prompts it is not.
    own, torchs = np.sqrt(np.mean(np.square(errors), axis=0)).tolist()
    for name, value in (("tokens", total), ("differ", differ), ("rms_error", own), ("torch_bf16_rms_error", torchs)):
        record_property(name, value)
    assert within_tolerance(own, torchs), f"error {own:.3e}, torch's bf16 {torchs:.3e}"
    assert differ <= total // 20, f"{differ} of {total} tokens differ from the fp32 reference"
