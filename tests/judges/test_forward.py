"""The forward pass, the formats and the choice of tokens against independent definitions of all three."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amk.judges.choice import Drawing, chosen, gumbel
from amk.judges.forward import ForwardPass, angles_per_position
from amk.judges.weights import E4M3, RandomWeights, kept_in_fp8, meaning, shapes
from amk.models.model import load_model
from amk.models.model_spec import ModelSpec, RopeScaling
from amk.models.rope import rope_frequencies
from amk.schedule_ir.ranking import gumbel as machine_gumbel
from amk.weights.quantised import nearest
from amk.weights.weight_format import FORMATS, FormatName, weight_format
from tests.reference.codes import e4m3, nearest_e4m3, numbers
from tests.reference.llama_numpy import Config, Decoder, Llama3Scaling
from tests.reference.sampling_numpy import probabilities

TOKENS = [3, 17, 5, 30, 2, 17]


def model(**changes: Any) -> ModelSpec:
    fields: dict[str, Any] = {
        "name": "small", "source": "made for tests", "layers": 2, "hidden": 32, "ffn": 48, "heads": 4, "kv_heads": 2,
        "head_dim": 16, "vocab": 37, "max_context": 64, "rms_eps": 1e-5, "rope_theta": 1e4,
    }  # fmt: skip
    return ModelSpec(**(fields | changes))


MODELS = {
    "llama": model(),
    "llama 3.1": model(rope_scaling=RopeScaling(factor=8, low_freq_factor=1, high_freq_factor=4, original_context=16)),
    "tied": model(tied_embeddings=True),
    "qwen 2.5": model(qkv_bias=True, kv_heads=1),
    "qwen 3": model(qk_norm=True, head_dim=32),
}


NEOX: dict[str, Any] = {
    "family": "gpt_neox", "kv_heads": 4, "head_dim": 8, "qkv_bias": True, "activation": "gelu", "parallel": True,
    "rotary_dim": 4,
}  # fmt: skip


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    "changes", [{}, {"parallel": False}, {"qkv_bias": False, "activation": "gelu-tanh", "rotary_dim": None}], ids=str
)
def test_logits_of_gpt_neox_are_those_of_transformers(changes: dict[str, Any]) -> None:
    """Its heads lie in turn in one tensor, the rotated elements of a head in front: spelled out element by element."""
    torch = pytest.importorskip("torch", reason="the comparison needs torch")
    transformers = pytest.importorskip("transformers", reason="the comparison needs transformers")
    spec = model(**NEOX | changes)
    dim, turned = spec.head_dim, spec.rotary_dim or spec.head_dim
    config = transformers.GPTNeoXConfig(
        vocab_size=spec.vocab, hidden_size=spec.hidden, intermediate_size=spec.ffn, num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads, max_position_embeddings=spec.max_context, layer_norm_eps=spec.rms_eps,
        rope_parameters={"rope_type": "default", "rope_theta": spec.rope_theta, "partial_rotary_factor": turned / dim},
        use_parallel_residual=spec.parallel, attention_bias=spec.qkv_bias,
        hidden_act="gelu" if spec.activation == "gelu" else "gelu_new",
    )  # fmt: skip
    network = transformers.GPTNeoXForCausalLM(config).double().eval()
    arrays, state = RandomWeights(spec).arrays, {}
    pairs = [(j, j + dim // 2) for j in range(dim // 2)]
    rotated = [a for a, _ in pairs[: turned // 2]] + [b for _, b in pairs[: turned // 2]]
    order = rotated + [element for element in range(dim) if element not in rotated]
    for i in range(spec.layers):
        for kind in ("weight", "bias") if spec.qkv_bias else ("weight",):
            q, k, v = (arrays[f"l{i}.{'w' if kind == 'weight' else 'b'}{x}"] for x in "qkv")
            rows = [
                part[head * dim + element]
                for head in range(spec.heads)
                for part, places in ((q, order), (k, order), (v, range(dim)))
                for element in places
            ]
            state[f"gpt_neox.layers.{i}.attention.query_key_value.{kind}"] = np.array(rows)
    names = {
        "attn_norm": "input_layernorm.weight", "attn_shift": "input_layernorm.bias", "bo": "attention.dense.bias",
        "ffn_norm": "post_attention_layernorm.weight", "ffn_shift": "post_attention_layernorm.bias",
        "wo": "attention.dense.weight", "w_up": "mlp.dense_h_to_4h.weight", "b_up": "mlp.dense_h_to_4h.bias",
        "w_down": "mlp.dense_4h_to_h.weight", "b_down": "mlp.dense_4h_to_h.bias", "embed": "gpt_neox.embed_in.weight",
        "final_norm": "gpt_neox.final_layer_norm.weight", "final_shift": "gpt_neox.final_layer_norm.bias",
        "lm_head": "lm_head.weight" if "lm_head.weight" in network.state_dict() else "embed_out.weight",
    }  # fmt: skip
    for own, array in arrays.items():
        layer, _, part = own.rpartition(".")
        if part in names:
            state[(f"gpt_neox.layers.{layer[1:]}." if layer else "") + names[part]] = array
    network.load_state_dict({name: torch.tensor(array, dtype=torch.float64) for name, array in state.items()})
    with torch.no_grad():
        expected = network(torch.tensor([TOKENS])).logits[0].numpy()
    np.testing.assert_allclose(logits_of(spec, TOKENS), expected, rtol=1e-5, atol=1e-5)


def logits_of(spec: ModelSpec, tokens: list[int]) -> np.ndarray:
    run = ForwardPass(spec, RandomWeights(spec).arrays)
    return np.array([run.feed(token) for token in tokens])


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_another_decoder(name: str) -> None:
    spec = MODELS[name]
    s = spec.rope_scaling
    scaling = s and Llama3Scaling(s.factor, s.low_freq_factor, s.high_freq_factor, s.original_context)
    config = Config(spec.layers, spec.heads, spec.kv_heads, spec.head_dim, spec.rms_eps, spec.rope_theta, scaling)
    decoder = Decoder(config, RandomWeights(spec).arrays, np.float64)
    expected = [decoder.forward([token]) for token in TOKENS]
    np.testing.assert_allclose(logits_of(spec, TOKENS), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str) -> None:
    torch = pytest.importorskip("torch", reason="the comparison needs torch")
    transformers = pytest.importorskip("transformers", reason="the comparison needs transformers")
    spec = MODELS[name]
    family = "Qwen3" if spec.qk_norm else "Qwen2" if spec.qkv_bias else "Llama"
    s = spec.rope_scaling
    scaling = s and {
        "rope_theta": spec.rope_theta, "rope_type": "llama3", "factor": s.factor, "low_freq_factor": s.low_freq_factor,
        "high_freq_factor": s.high_freq_factor, "original_max_position_embeddings": s.original_context,
    }  # fmt: skip
    config = getattr(transformers, f"{family}Config")(
        vocab_size=spec.vocab, hidden_size=spec.hidden, intermediate_size=spec.ffn, num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads, num_key_value_heads=spec.kv_heads, head_dim=spec.head_dim,
        max_position_embeddings=spec.max_context, rms_norm_eps=spec.rms_eps, rope_theta=spec.rope_theta,
        tie_word_embeddings=spec.tied_embeddings, **({"rope_scaling": scaling} if scaling else {}),
    )  # fmt: skip
    torch.manual_seed(0)
    network = getattr(transformers, f"{family}ForCausalLM")(config).double().eval()
    names = {
        "attn_norm": "input_layernorm", "wq": "self_attn.q_proj", "wk": "self_attn.k_proj", "wv": "self_attn.v_proj",
        "wo": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "w_gate": "mlp.gate_proj",
        "w_up": "mlp.up_proj", "w_down": "mlp.down_proj", "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm",
    }  # fmt: skip
    state = {}
    for own, array in RandomWeights(spec).arrays.items():
        layer, _, part = own.partition(".")
        if part.startswith("b"):
            theirs = f"model.layers.{layer[1:]}.self_attn.{part[1]}_proj.bias"
        elif part:
            theirs = f"model.layers.{layer[1:]}.{names[part]}.weight"
        else:
            theirs = {"embed": "model.embed_tokens", "final_norm": "model.norm", "lm_head": "lm_head"}[own] + ".weight"
        state[theirs] = torch.tensor(array, dtype=torch.float64)
    missing, unexpected = network.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    with torch.no_grad():
        expected = network(torch.tensor([TOKENS])).logits[0].numpy()
    np.testing.assert_allclose(logits_of(spec, TOKENS), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["llama3.1-8b", "llama3.2-1b", "qwen3-8b", "llama3-70b"])
def test_angles_are_those_of_the_rotary_table(name: str) -> None:
    spec = load_model(name)
    np.testing.assert_allclose(angles_per_position(spec), rope_frequencies(spec), rtol=1e-13)


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", MODELS)
def test_a_text_goes_on_from_its_cache(name: str) -> None:
    spec = MODELS[name]
    first = ForwardPass(spec, RandomWeights(spec).arrays)
    for token in TOKENS[:3]:
        first.feed(token)
    later = ForwardPass(spec, RandomWeights(spec).arrays)
    later.resume(first.cache())
    assert later.position == 3
    found = [later.feed(token) for token in TOKENS[3:]]
    np.testing.assert_array_equal(found, logits_of(spec, TOKENS)[3:])


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "bf16"])
def test_codes_mean_what_their_format_says(form: FormatName) -> None:
    kind = weight_format(form)
    rows = np.random.default_rng(1).standard_normal((8, 160)).astype(np.float32)
    codes = nearest(rows, kind)
    expected = numbers(kind.codes, kind.group, codes.codes, codes.scales, codes.zeros)
    np.testing.assert_allclose(meaning(codes, form), expected, rtol=1e-12)


def test_fp8_numbers_and_rounding() -> None:
    assert [float(v) for v in E4M3] == [e4m3(code) for code in range(256)]
    values = np.random.default_rng(2).standard_normal(500) * 100
    np.testing.assert_array_equal(kept_in_fp8(values), nearest_e4m3(values))
    ties = np.array([17.0, 19.0, -17.0, 1000.0, 2.0**-10])
    assert kept_in_fp8(ties).tolist() == [16.0, 20.0, -16.0, 448.0, 0.0]


@pytest.mark.parametrize("seed", [0, 5, 2**64 - 1])
def test_noise_is_that_of_the_schedule(seed: int) -> None:
    expected = machine_gumbel((seed & 0xFFFFFFFF, seed >> 32), 9, range(40))
    np.testing.assert_allclose(gumbel(seed, 9, 40), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("drawing", [Drawing(0.8, seed=1), Drawing(1.0, 5, seed=2), Drawing(1.5, 20, 0.7, 3)])
def test_draws_follow_the_filters_and_say_when_they_are_in_doubt(drawing: Drawing) -> None:
    rng, doubts = np.random.default_rng(3), 0
    for position in range(60):
        logits = rng.standard_normal(40) * 2
        kept = probabilities(logits, drawing.temperature, drawing.top_k, drawing.top_p) > 0
        scores = np.where(kept, logits / drawing.temperature + gumbel(drawing.seed, position, 40), -np.inf)
        token, sure = chosen(logits, position, drawing)
        assert token == int(scores.argmax())
        doubts += not sure
    assert doubts < 15
    assert not chosen(np.array([1.0, 1.0, 0.0]), 0)[1]
    tie = np.array([5.0, 4.0, 4.0, 0.0])
    assert chosen(tie, 0, Drawing(1.0, 2, seed=1))[0] in (0, 1, 2)


def test_tensors_depend_on_name_and_shape_only() -> None:
    small, wide = RandomWeights(model()), RandomWeights(model(vocab=41))
    assert set(small.arrays) == set(shapes(model()))
    np.testing.assert_array_equal(small.arrays["l1.wq"], wide.arrays["l1.wq"])
    assert not np.array_equal(small.arrays["l0.wq"], small.arrays["l1.wq"])
    with pytest.raises(ValueError, match="too large"):
        RandomWeights(load_model("llama3-8b"))
