"""The reference decoder against itself and against the plain definitions it must agree with."""

import math
from dataclasses import replace

import numpy as np
import pytest

from amk.models.model import load_model
from amk.models.rope import rope_frequencies as amk_frequencies
from tests.reference.llama_numpy import Config, Decoder, Llama3Scaling, greedy, rope_frequencies

CONFIG = Config(layers=2, heads=4, kv_heads=2, head_dim=8, rms_eps=1e-5, rope_theta=10000.0)
HIDDEN, FFN, VOCAB = 24, 40, 50
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


def weights(config: Config = CONFIG, extras: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"embed": (VOCAB, HIDDEN), "final_norm": (HIDDEN,)}
    for layer in range(config.layers):
        one: dict[str, tuple[int, ...]] = {
            "attn_norm": (HIDDEN,), "wq": (q, HIDDEN), "wk": (kv, HIDDEN), "wv": (kv, HIDDEN), "wo": (HIDDEN, q),
            "ffn_norm": (HIDDEN,), "w_gate": (FFN, HIDDEN), "w_up": (FFN, HIDDEN), "w_down": (HIDDEN, FFN),
        }  # fmt: skip
        more = {"bq": (q,), "bk": (kv,), "bv": (kv,), "q_norm": (config.head_dim,), "k_norm": (config.head_dim,)}
        one |= {name: shape for name, shape in more.items() if name in extras}
        shapes |= {f"l{layer}.{name}": shape for name, shape in one.items()}
    if "lm_head" in extras:
        shapes["lm_head"] = (VOCAB, HIDDEN)
    return {name: random.standard_normal(shape) * 0.3 for name, shape in shapes.items()}


def literal_logits(config: Config, arrays: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """The same model written as loops over positions, heads and pairs, with complex numbers for RoPE."""

    def norm(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return x / math.sqrt(sum(x * x) / len(x) + config.rms_eps) * w

    def project(layer: int, x: np.ndarray, letter: str, position: int) -> list[np.ndarray]:
        y = arrays[f"l{layer}.w{letter}"] @ x + arrays.get(f"l{layer}.b{letter}", 0.0)
        heads = np.split(y, len(y) // config.head_dim)
        if f"l{layer}.{letter}_norm" in arrays:
            heads = [norm(head, arrays[f"l{layer}.{letter}_norm"]) for head in heads]
        if letter == "v":
            return heads
        turn = np.exp(1j * position * rope_frequencies(config))
        half = config.head_dim // 2
        turned = [(head[:half] + 1j * head[half:]) * turn for head in heads]
        return [np.concatenate([pair.real, pair.imag]) for pair in turned]

    xs = [arrays["embed"][token].astype(np.float64) for token in tokens]
    for layer in range(config.layers):
        w = {name.split(".")[1]: array for name, array in arrays.items() if name.startswith(f"l{layer}.")}
        normed = [norm(x, w["attn_norm"]) for x in xs]
        q, k, v = ([project(layer, x, letter, at) for at, x in enumerate(normed)] for letter in "qkv")
        for at in range(len(xs)):
            outs = []
            for head in range(config.heads):
                kv = head * config.kv_heads // config.heads
                scores = [math.exp(q[at][head] @ k[t][kv] / math.sqrt(config.head_dim)) for t in range(at + 1)]
                outs.append(sum(s * v[t][kv] for t, s in enumerate(scores)) / sum(scores))
            xs[at] = xs[at] + w["wo"] @ np.concatenate(outs)
            gate, up = w["w_gate"] @ norm(xs[at], w["ffn_norm"]), w["w_up"] @ norm(xs[at], w["ffn_norm"])
            xs[at] = xs[at] + w["w_down"] @ (gate / (1 + np.exp(-gate)) * up)
    return np.asarray(arrays.get("lm_head", arrays["embed"]) @ norm(xs[-1], arrays["final_norm"]))


@pytest.mark.parametrize(
    "extras", [(), ("bq", "bk", "bv"), ("q_norm", "k_norm"), ("lm_head",)], ids=["plain", "bias", "qk_norm", "untied"]
)
def test_logits_equal_the_literal_definition(extras: tuple[str, ...]) -> None:
    scaled = replace(CONFIG, rope_scaling=Llama3Scaling(8.0, 1.0, 4.0, 64))
    for config in (CONFIG, scaled):
        arrays = weights(config, extras)
        found = Decoder(config, arrays, np.float64).forward(TOKENS)
        np.testing.assert_allclose(found, literal_logits(config, arrays, TOKENS), rtol=1e-10, atol=1e-12)


def test_token_by_token_equals_all_at_once() -> None:
    arrays = weights()
    whole, stepped = Decoder(CONFIG, arrays, np.float64), Decoder(CONFIG, arrays, np.float64)
    for end in range(len(TOKENS)):
        logits = stepped.forward(TOKENS[end : end + 1])
    np.testing.assert_allclose(whole.forward(TOKENS), logits, rtol=1e-12)


@pytest.mark.parametrize("name", ["llama3-8b", "llama3.1-8b", "llama3.2-1b", "qwen2.5-1.5b"])
def test_frequencies_agree_with_the_second_implementation(name: str) -> None:
    spec = load_model(name)
    scaling = spec.rope_scaling
    own = scaling and Llama3Scaling(
        scaling.factor, scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_context
    )
    config = Config(spec.layers, spec.heads, spec.kv_heads, spec.head_dim, spec.rms_eps, spec.rope_theta, own)
    np.testing.assert_allclose(rope_frequencies(config), amk_frequencies(spec), rtol=1e-13)


def test_greedy_stops_and_reports_the_gap() -> None:
    arrays = weights()
    free = list(greedy(Decoder(CONFIG, arrays), TOKENS, (), 6))
    assert len(free) == 6
    assert all(gap >= 0 for _, gap in free)
    stop = free[2][0]
    first = [token for token, _ in free].index(stop)
    assert list(greedy(Decoder(CONFIG, arrays), TOKENS, (stop,), 6)) == free[: first + 1]
