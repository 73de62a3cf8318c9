"""The plain forward pass against the independent decoder: blocks, cache, and matrices that do not fit the memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import dequantize

from amk.engine.backends import forward, forward_backend
from amk.engine.backends.forward import ForwardPass, Part
from amk.engine.backends.forward_backend import ForwardBackend
from amk.engine.checkpoints.checkpoint import Checkpoint, Floats
from amk.engine.checkpoints.gguf_blocks import decode
from amk.models.model_spec import ModelSpec
from amk.report.diagnostic import AmkError
from tests.engine.tiny import RandomTensors, reference_decoder, tiny_model
from tests.reference.llama_numpy import Decoder

TEXT = [int(token) for token in np.random.default_rng(5).integers(0, 83, 40)]


class Arrays(Checkpoint):
    """A model whose tensors are in memory; counts what is read."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec, None)
        self.arrays = RandomTensors(spec).arrays
        self.read = 0

    def _read(self, name: str, start: int, stop: int, out: Floats) -> None:
        self.read += out.size
        out[...] = self.arrays[name][start:stop]


MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias": {"qkv_bias": True},
    "head norms": {"qk_norm": True, "head_dim": 16},
    "tied, group of three": {"tied_embeddings": True, "heads": 6, "kv_heads": 2, "hidden": 96},
}


def expected(spec: ModelSpec, source: Arrays, text: list[int]) -> Floats:
    decoder: Decoder = reference_decoder(spec, source.arrays)
    return np.array([decoder.forward([token]) for token in text])


def backend(source: Arrays, context: int = 64, memory: int | None = None, texts: int = 1) -> ForwardBackend:
    return ForwardBackend(ForwardPass(source, context, memory), texts)


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("memory", [1 << 30, 40_000, 0])
def test_logits_of_every_token(name: str, memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one block, in blocks of 7, and token by token, with all matrices kept, some, or none."""
    spec = tiny_model(**MODELS[name])
    source = Arrays(spec)
    wanted = expected(spec, source, TEXT)
    monkeypatch.setattr(forward, "PIECE", 1 << 12)
    for block in (256, 7, 1):
        monkeypatch.setattr(forward_backend, "BLOCK", block)
        found = backend(source, memory=memory)
        np.testing.assert_allclose(found.every(TEXT), wanted, rtol=2e-4, atol=2e-4)
        np.testing.assert_allclose(found.every(TEXT, 11), wanted[11:], rtol=2e-4, atol=2e-4)
        assert found.cached == 11
    monkeypatch.setattr(forward_backend, "BLOCK", 256)
    last = backend(source, memory=memory).logits(TEXT)
    np.testing.assert_allclose(last, wanted[-1], rtol=2e-4, atol=2e-4)


def test_kept_matrices_are_read_once() -> None:
    source = Arrays(tiny_model(tied_embeddings=True))
    text = backend(source, memory=1 << 30)
    text.logits([1])
    before = source.read
    text.logits([1, 2, 3])
    assert source.read == before, "the embedding comes from the kept head"
    streamed = backend(source, memory=0)
    streamed.logits([1])
    before = source.read
    streamed.logits([1, 2])
    assert source.read - before > source.spec.params * 0.9


def test_a_text_goes_on_from_what_is_kept() -> None:
    spec = tiny_model()
    source = Arrays(spec)
    text = backend(source)
    text.logits(TEXT[:30])
    other = [*TEXT[:11], *TEXT[20:30]]
    np.testing.assert_allclose(text.logits(other), expected(spec, source, other)[-1], rtol=2e-4, atol=2e-4)
    assert text.cached == 11


def test_a_full_cache_is_refused_before_anything_is_read() -> None:
    text = backend(Arrays(tiny_model()), 8)
    text.logits(TEXT[:6])
    with pytest.raises(AmkError, match="AMK014"):
        text.logits(TEXT[:9])
    text.logits(TEXT[:8])
    assert text.cached == 6


def test_a_pass_that_is_interrupted_keeps_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    text = backend(Arrays(tiny_model()))
    wanted = text.logits(TEXT[:30])
    text.logits(TEXT[:10])
    with monkeypatch.context() as patch:
        patch.setattr(text._forward, "read", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            text.logits(TEXT[:20])
    np.testing.assert_allclose(text.logits(TEXT[:30]), wanted, rtol=2e-4, atol=2e-4)
    assert text.cached == 10


def _interrupted(parts: Sequence[Part]) -> NoReturn:
    raise KeyboardInterrupt


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0, Kind.Q5_0, Kind.Q6_K])
def test_decoded_blocks_are_those_of_the_package(kind: Kind) -> None:
    size = {Kind.Q4_0: 18, Kind.Q4_1: 20, Kind.Q8_0: 34, Kind.Q5_0: 22, Kind.Q6_K: 210}[kind]
    elements = 256 if kind is Kind.Q6_K else 32
    random = np.random.default_rng(3)
    raw = random.integers(0, 256, (6, 4 * size), dtype=np.uint8)
    halves = random.uniform(-0.1, 0.1, (6, 4, 2)).astype("<f2").view(np.uint8).reshape(6, 4, 4)
    at = 208 if kind is Kind.Q6_K else 0
    width = 4 if kind is Kind.Q4_1 else 2
    raw.reshape(6, 4, size)[:, :, at : at + width] = halves[:, :, :width]
    for rows in (slice(None), slice(1, 4), np.array([5, 0, 3])):
        out = np.empty((len(raw[rows]), 4 * elements), np.float32)
        decode(raw[rows], kind, out)
        np.testing.assert_array_equal(out, dequantize(raw[rows], kind))


def test_the_machine_says_what_is_available(tmp_path: Path) -> None:
    assert forward.available_memory() > 1 << 20
