"""Torch's model, its static twin for torch.compile and the packing on the device, checked on the CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amk.interpreter.packing import packed_array, packed_arrays
from amk.models.matrices import MATRICES, matrix, tensor_rows
from amk.models.model import load_model
from amk.models.model_spec import ModelSpec
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import Settings
from amk.schedule_ir.layout import chunk_places, stream_layout
from amk.schedule_ir.schedule import CacheDtype, Schedule
from amk.targets.target import load_target
from amk.weights import quantised
from amk.weights.bfloat import round_bf16
from amk.weights.weight_format import FORMATS, FormatName, weight_format
from tests.reference.llama_numpy import Config, Decoder
from tests.tiny import PLAIN, RAGGED, VARIANTS

torch = pytest.importorskip("torch", reason="the benchmark's baselines need torch")

from amk.bench.baselines import compile_baseline  # noqa: E402  after torch is known to be there
from amk.bench.tools import device_packing, torch_model  # noqa: E402

CONTEXT = 16


def names(model: ModelSpec) -> str:
    return model.name


def caches(model: ModelSpec, dtype: Any) -> tuple[Any, Any]:
    shape = (model.layers, model.kv_heads, CONTEXT, model.head_dim)
    return torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)


def as_arrays(weights: Any) -> dict[str, np.ndarray]:
    """The weights under the names of the numpy reference, fp64."""
    model: ModelSpec = weights.model
    arrays = {"embed": weights.embedding, "final_norm": weights.norm[2 * model.layers]}
    arrays["lm_head"] = weights.matrices["lm_head"][0]
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    for i in range(model.layers):
        arrays |= dict(
            zip((f"l{i}.wq", f"l{i}.wk", f"l{i}.wv"), weights.matrices["qkv"][i].split([q, kv, kv]), strict=True)
        )
        arrays |= dict(zip((f"l{i}.w_gate", f"l{i}.w_up"), weights.matrices["gate_up"][i].chunk(2), strict=True))
        arrays |= {f"l{i}.wo": weights.matrices["o"][i], f"l{i}.w_down": weights.matrices["down"][i]}
        arrays |= {f"l{i}.attn_norm": weights.norm[2 * i], f"l{i}.ffn_norm": weights.norm[2 * i + 1]}
        if weights.bias is not None:
            arrays |= dict(zip((f"l{i}.bq", f"l{i}.bk", f"l{i}.bv"), weights.bias[i].split([q, kv, kv]), strict=True))
        if weights.q_norm is not None:
            arrays |= {f"l{i}.q_norm": weights.q_norm[i], f"l{i}.k_norm": weights.k_norm[i]}
    return {name: tensor.double().numpy() for name, tensor in arrays.items()}


@pytest.mark.turns(4)
@pytest.mark.parametrize("model", VARIANTS, ids=names)
def test_torch_decoder_is_the_numpy_decoder(model: ModelSpec) -> None:
    weights = torch_model.TorchWeights.random(model, 3, device="cpu")
    config = Config(model.layers, model.heads, model.kv_heads, model.head_dim, model.rms_eps, model.rope_theta, None)
    expected = Decoder(config, as_arrays(weights), np.float64)
    decoder = torch_model.TorchDecoder(weights, *caches(model, torch.float64), torch.float64)
    for pos, token in enumerate([5, 100, 7]):
        got = decoder.step(torch.tensor([token]), pos, decoder.rope(pos))
        np.testing.assert_allclose(got.numpy(), expected.forward([token]), rtol=1e-9, atol=1e-9)


@pytest.mark.turns(4)
@pytest.mark.parametrize("model", VARIANTS, ids=names)
def test_the_static_step_is_the_plain_step(model: ModelSpec) -> None:
    weights = torch_model.TorchWeights.random(model, 4, device="cpu")
    weights.matrices = {name: [m.double() for m in each] for name, each in weights.matrices.items()}
    weights.embedding = weights.embedding.double()
    plain = torch_model.TorchDecoder(weights, *caches(model, torch.float64), torch.float64)
    static = compile_baseline.StaticModel.of(weights, CONTEXT, torch.float64)
    k, v = caches(model, torch.float64)
    layers = (list(k), list(v))
    for pos, token in enumerate([5, 100, 7]):
        expected = plain.step(torch.tensor([token]), pos, plain.rope(pos))
        got = static.step(torch.tensor([token]), torch.tensor([pos]), layers)
        np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.turns(4)
@pytest.mark.parametrize("model", VARIANTS, ids=names)
def test_a_batch_of_torch_is_its_sequences(model: ModelSpec) -> None:
    """The plain and the static step with three sequences, against each alone; kv heads of one stand together."""
    weights = torch_model.TorchWeights.random(model, 8, device="cpu")
    weights.matrices = {name: [m.double() for m in each] for name, each in weights.matrices.items()}
    weights.embedding = weights.embedding.double()
    static = compile_baseline.StaticModel.of(weights, CONTEXT, torch.float64)
    batch = 3
    together = [torch.cat([cache] * batch, dim=1) for cache in caches(model, torch.float64)]
    layers = tuple([layer.clone() for layer in cache] for cache in together)
    decoder = torch_model.TorchDecoder(weights, together[0], together[1], torch.float64)
    alone = [torch_model.TorchDecoder(weights, *caches(model, torch.float64), torch.float64) for _ in range(batch)]
    for pos, tokens in enumerate([[5, 100, 7], [100, 7, 5], [1, 2, 3]]):
        found = decoder.step(torch.tensor(tokens), pos, decoder.rope(pos))
        compiled = static.step(torch.tensor(tokens), torch.tensor([pos]), layers)
        for row, other, own, token in zip(found, compiled, alone, tokens, strict=True):
            expected = own.step(torch.tensor([token]), pos, own.rope(pos)).numpy()
            np.testing.assert_allclose(row.numpy(), expected, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(other.numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.turns(4)
@pytest.mark.parametrize("model", VARIANTS, ids=names)
@pytest.mark.parametrize("cache_dtype", ["bf16", "fp8"])
def test_places_at_once_are_steps_alone(model: ModelSpec, cache_dtype: CacheDtype) -> None:
    """Each as if it alone were decoded, and the cache stays as it was."""
    weights = torch_model.TorchWeights.random(model, 8, device="cpu")
    gen = torch.Generator().manual_seed(5)
    shape = caches(model, torch.bfloat16)[0].shape
    filled = [torch_model.as_kept(torch.randn(shape, generator=gen).bfloat16(), cache_dtype) for _ in range(2)]
    before = [cache.clone() for cache in filled]
    tokens, positions = (5, 100, 7), (0, 3, CONTEXT - 1)
    places = torch_model.Places(weights, filled[0], filled[1], torch.float64, cache_dtype, positions)
    found = places.logits(torch.tensor(tokens))
    assert all(torch.equal(now, then) for now, then in zip(filled, before, strict=True))
    for row, token, pos in zip(found, tokens, positions, strict=True):
        alone = torch_model.TorchDecoder(weights, *(cache.clone() for cache in filled), torch.float64, cache_dtype)
        expected = alone.step(torch.tensor([token]), pos, alone.rope(pos))
        np.testing.assert_allclose(row.numpy(), expected.numpy(), rtol=1e-9, atol=1e-9)
    (one,) = torch_model.Places(weights, filled[0], filled[1], torch.float64, cache_dtype, (3,)).logits(
        torch.tensor([100])
    )
    np.testing.assert_allclose(one.numpy(), found[1].numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("stored", ["bf16", "int8"])
def test_plans_with_one_packing_share_it(stored: FormatName, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which settings change it is not told by name, but by where every chunk goes and how it is encoded."""

    def schedule_of(**settings: Any) -> Schedule:
        chosen = Settings(**({"warps": 4} | settings))
        return plan(PLAIN, load_target("h200"), settings=chosen, formats=formats(stored), max_context=64, workers=3)

    free, weights = [2**40], torch_model.TorchWeights.random(PLAIN, 6, device="cpu")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free[0], 2**40))
    plain, packings = schedule_of(), device_packing.Packings()
    first = packings.of(plain, weights)
    assert packings.of(schedule_of(hint_slack=2, prefetch_cache=False), weights) is first
    for other in (schedule_of(chunk_bytes=1024), schedule_of(warps=8)):
        found = packings.of(other, weights)
        assert found is not first and torch.equal(found, device_packing.packed_weights(other, weights))
    assert packings.of(plain, weights) is not first and len(packings.by_key) == device_packing.PACKINGS
    free[0] = 0
    packings.of(plain, weights)
    assert device_packing.packing_key(plain) not in packings.by_key


def test_matrices_that_are_drawn_are_packed_and_compared_as_kept_ones() -> None:
    """A model that does not fit in bf16 has its matrices made when they are asked for, always the same."""
    schedule = plan(RAGGED, load_target("h200"), max_context=64, workers=3, formats=formats("int4-g64"))
    drawn = torch_model.TorchWeights.random(RAGGED, 6, device="cpu", drawn=True)
    kept = replace(drawn, matrices={name: list(drawn.matrices[name]) for name in MATRICES})
    tensors = [rows for name in MATRICES for rows in kept.matrices[name]]
    assert len({float(rows.float().sum()) for rows in tensors}) == len(tensors), "no two matrices are alike"
    expected = device_packing.packed_weights(schedule, kept)
    into = torch.full((expected.numel() // 2 + 64,), 7, dtype=torch.bfloat16)
    found = device_packing.packed_weights(schedule, drawn, into)
    assert torch.equal(found, expected) and found.data_ptr() == into.data_ptr() and (into[-64:] == 7).all()
    for some, all_of in zip(
        device_packing.streamed(schedule, drawn), device_packing.streamed(schedule, kept), strict=True
    ):
        assert isinstance(some.matrices["down"], torch_model.Drawn)
        for name in MATRICES:
            assert len(some.matrices[name]) == len(all_of.matrices[name])
            assert all(torch.equal(*pair) for pair in zip(some.matrices[name], all_of.matrices[name], strict=True))


@pytest.mark.parametrize("settings", [Settings(k_parts=2), Settings(k_parts=2, batch=12, row_groups=2)])
def test_parts_of_the_columns_are_packed_as_on_the_host(settings: Settings) -> None:
    """The device's packing of a matrix in parts, and in chunks of two row groups, is the host's."""
    workers = max(3, settings.batch * PLAIN.kv_heads)
    schedule = plan(PLAIN, load_target("h200"), settings=settings, max_context=64, workers=workers)
    weights = torch_model.TorchWeights.random(PLAIN, 6, device="cpu")
    arrays = as_arrays(weights)

    class Source:
        def tensor(self, name: str, rows: slice = slice(None)) -> np.ndarray:
            return arrays[name][rows].astype(np.float32)

    packed = device_packing.packed_weights(schedule, weights).numpy().view(np.uint16)
    assert stream_layout(schedule, schedule.streams[0]).parts["down"] == 2
    assert schedule.streams[0].row_groups == settings.row_groups
    expected = packed_array(schedule, Source())
    np.testing.assert_array_equal(packed.reshape(expected.shape), expected)


@pytest.mark.turns(4)
def test_the_step_compiles_as_one_graph() -> None:
    torch._dynamo.reset()
    weights = torch_model.TorchWeights.random(RAGGED, 5, device="cpu")
    static = compile_baseline.StaticModel.of(weights, CONTEXT, torch.bfloat16)
    function = torch.compile(static.step, fullgraph=True, dynamic=False, backend="aot_eager")
    results = []
    for step in (function, static.step):
        k, v = caches(RAGGED, torch.bfloat16)
        layers = (list(k), list(v))
        for pos, token in enumerate([5, 100]):
            with torch.no_grad():
                last = step(torch.tensor([token]), torch.tensor([pos]), layers)
        results.append((last.float(), layers[0][1].float()))
    torch.testing.assert_close(results[0], results[1], rtol=2e-2, atol=2e-2)


@pytest.mark.turns(12)
@pytest.mark.parametrize("model", VARIANTS, ids=names)
@pytest.mark.parametrize("form", ["bf16", "fp8"])
def test_many_layers_are_compiled_once(form: FormatName, model: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two graphs, of a layer and of the logits, compute the step."""
    from torch._dynamo.testing import CompileCounter

    from amk.bench.baselines.format_baseline import FormatModel, Fp8Matrix
    from amk.bench.tools.device_quantise import quantised as quantise

    weights = torch_model.TorchWeights.random(model, 5, device="cpu")
    static: Any = compile_baseline.StaticModel.of(weights, CONTEXT, torch.bfloat16)
    if form == "fp8":
        static = FormatModel.of(weights, CONTEXT, torch.bfloat16)
        static.products = {
            name: [Fp8Matrix.of(quantise(rows, weight_format("fp8"))) for rows in each]
            for name, each in weights.matrices.items()
        }
    counter, compiler = CompileCounter(), torch.compile
    monkeypatch.setattr(compile_baseline, "WHOLE", 1)
    monkeypatch.setattr(torch, "compile", lambda step, options, **how: compiler(step, backend=counter, **how))
    results = []
    for step in (compile_baseline.compiled_step(static, {}), static.step):
        cache = tuple([layer.clone() for layer in each] for each in caches(model, torch.bfloat16))
        with torch.no_grad():
            results.append([step(torch.tensor([t]), torch.tensor([p]), cache) for p, t in enumerate((5, 100))])
    assert model.layers > 1 and counter.frame_count == 2
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["qkv", "o", "gate_up", "down", "lm_head"])
def test_every_row_is_packed_where_the_layout_says(name: Any) -> None:
    schedule = plan(RAGGED, load_target("h200"), max_context=64, workers=3)
    weights = torch_model.TorchWeights.random(RAGGED, 6, device="cpu")
    packed = device_packing.packed_weights(schedule, weights).view(torch.bfloat16).float().numpy()
    arrays = as_arrays(weights)
    width = schedule.streams[0].chunk_k
    layout = stream_layout(schedule, schedule.streams[0])
    for (matrix_name, layer, _), places in chunk_places(layout):
        if matrix_name != name:
            continue
        shape = matrix(RAGGED, name)
        chunks = shape.k_chunks(width)
        for group in range(shape.groups):
            runs = tensor_rows(RAGGED, name, layer, group)
            rows = np.concatenate([arrays[tensor][first : first + count] for tensor, first, count in runs])
            for chunk in range(chunks):
                tile = packed[places[group * chunks + chunk]].reshape(width // 32, 8, 32)
                got = tile.transpose(1, 0, 2).reshape(8, width)
                want = rows[:, chunk * width : (chunk + 1) * width]
                np.testing.assert_array_equal(got[: len(rows), : want.shape[1]], want)
                assert not got[len(rows) :].any()


@pytest.mark.parametrize("form", ["int8", "fp8"])
def test_scales_apart_on_the_device_as_on_the_host(form: FormatName) -> None:
    settings = Settings(scales_apart=True)
    schedule = plan(RAGGED, load_target("h200"), settings=settings, max_context=64, workers=3, formats=formats(form))
    weights = torch_model.TorchWeights.random(RAGGED, 6, device="cpu")
    arrays = {name: array.astype(np.float32) for name, array in as_arrays(weights).items()}

    class Source:
        def tensor(self, name: str, rows: slice = slice(None)) -> np.ndarray:
            return arrays[name][rows]

    packed, scales = packed_arrays(schedule, Source())
    np.testing.assert_array_equal(device_packing.packed_weights(schedule, weights).numpy(), packed.view(np.uint8))
    found = device_packing.row_scales(schedule, weights)
    assert set(found) == set(scales) == {f"scales.{name}" for name in MATRICES}
    for name, data in scales.items():
        rows = next(b.shape for b in schedule.buffers if b.name == name)
        assert found[name].shape == data.shape == rows
        np.testing.assert_array_equal(found[name].numpy(), data)


@pytest.mark.parametrize("form", [name for name in FORMATS if name != "bf16"])
def test_quantised_on_the_device_as_on_the_host(form: FormatName) -> None:
    """The packed bytes are those of the host's packing, and what they stand for is what the references compute with."""
    wanted = formats(form, "bf16" if form == "int8" else form)
    schedule = plan(RAGGED, load_target("h200"), max_context=64, workers=3, formats=wanted)
    weights = torch_model.TorchWeights.random(RAGGED, 6, device="cpu")
    arrays = {name: array.astype(np.float32) for name, array in as_arrays(weights).items()}

    class Source:
        def tensor(self, name: str, rows: slice = slice(None)) -> np.ndarray:
            return arrays[name][rows]

    packed = device_packing.packed_weights(schedule, weights).numpy()
    np.testing.assert_array_equal(packed, packed_array(schedule, Source()).view(np.uint8))
    exact, rounded = device_packing.streamed(schedule, weights)
    _, later = device_packing.streamed(schedule, weights, rounded_kept=False)
    for name in MATRICES:
        assert all(map(torch.equal, rounded.matrices[name], later.matrices[name]))
        for got, half, rows in zip(exact.matrices[name], rounded.matrices[name], weights.matrices[name], strict=True):
            want = quantised.rounded(rows.float().numpy(), schedule.streams[0].chunk(name).weights)
            np.testing.assert_array_equal(got.float().numpy(), want)
            np.testing.assert_array_equal(half.float().numpy(), round_bf16(want))


@pytest.mark.parametrize(
    ("layers", "lm_head", "cache_dtype", "pos", "gigabytes"),
    [
        ("bf16", "bf16", "bf16", 0, 15.01),
        ("int8", "int8", "bf16", 0, 7.51),
        ("int4-g128", "int4-g128", "bf16", 0, 3.87),
        ("int4-g128-zp", "bf16", "bf16", 0, 4.677),
        ("bf16", "bf16", "bf16", 8191, 16.08),
        ("bf16", "bf16", "fp8", 8191, 15.55),
    ],
)
def test_the_floor_counts_the_bytes_of_the_formats(
    layers: FormatName, lm_head: FormatName, cache_dtype: Any, pos: int, gigabytes: float
) -> None:
    from amk.bench.table.decode_bench import needed_bytes

    model, settings = load_model("llama3-8b"), Settings(kv_dtype=cache_dtype)
    schedule = plan(model, load_target("h200"), settings=settings, formats=formats(layers, lm_head), max_context=8192)
    assert needed_bytes(schedule, pos) / 1e9 == pytest.approx(gigabytes, abs=0.01)
    assert ("kv-fp8" in schedule.weights_label) == (cache_dtype == "fp8") and schedule.weights_label.startswith(layers)


@pytest.mark.parametrize("model", VARIANTS, ids=names)
def test_the_library_s_attention_over_a_cache_that_ends_at_the_position(model: ModelSpec) -> None:
    weights = torch_model.TorchWeights.random(model, 4, device="cpu")
    weights.matrices = {name: [m.double() for m in each] for name, each in weights.matrices.items()}
    weights.embedding = weights.embedding.double()
    batch, pos = 2, 6
    gen = torch.Generator().manual_seed(9)
    shape = (model.layers, batch * model.kv_heads, pos + 1, model.head_dim)
    filled = [torch.randn(shape, generator=gen, dtype=torch.float64) for _ in range(2)]
    found = {}
    for attention in ("products", "sdpa"):
        static = compile_baseline.StaticModel.of(weights, CONTEXT, torch.float64)
        static.attention = attention
        layers = tuple([layer.clone() for layer in cache] for cache in filled)
        found[attention] = static.step(torch.tensor([5, 100]), torch.tensor([pos]), layers).numpy()
    np.testing.assert_allclose(found["sdpa"], found["products"], rtol=1e-5, atol=1e-5)


def test_variants_of_the_compiled_step() -> None:
    assert len({variant.name for variant in compile_baseline.VARIANTS}) == 4
    assert {variant.length(128) for variant in compile_baseline.VARIANTS} == {129, 192}
    assert {variant.attention for variant in compile_baseline.WITH_GENERATED} == {"products", "sdpa"}


def test_fp8_products_are_what_their_emulation_says() -> None:
    from amk.bench.baselines.format_baseline import Fp8Matrix, rounded_rows
    from amk.bench.tools.device_quantise import quantised as quantise

    gen = torch.Generator().manual_seed(1)
    rows, x = (torch.randn(n, 128, generator=gen).bfloat16() for n in (64, 3))
    product = Fp8Matrix.of(quantise(rows, weight_format("fp8")))
    exact = torch.nn.functional.linear(x, rows).float()
    assert torch.dist(product.times(x).float(), product.emulated(x)) < 0.005 * exact.norm()
    assert 0.01 * exact.norm() < torch.dist(product.emulated(x), exact) < 0.06 * exact.norm()
    coded, scale = rounded_rows(x)
    assert torch.dist(coded.float() * scale, x.float()) < 0.04 * x.float().norm()


@pytest.mark.parametrize("form", ["int4-g128", "int4-g128-zp"])
def test_tinygemm_s_scales_and_zeros_stand_for_the_same_numbers(form: FormatName) -> None:
    from amk.bench.baselines.format_baseline import scales_and_zeros
    from amk.bench.tools.device_quantise import quantised as quantise

    gen = torch.Generator().manual_seed(2)
    rows = quantise(torch.randn(16, 256, generator=gen).bfloat16(), weight_format(form))
    pairs = scales_and_zeros(rows).float()
    assert pairs.shape == (2, 16, 2)
    scale, zero = (pairs[..., i].t().repeat_interleave(128, dim=1) for i in (0, 1))
    found, wanted = (rows.codes.float() - 8) * scale + zero, rows.values(weight_format(form))
    assert torch.dist(found, wanted) < 0.004 * wanted.norm()  # rounding of scales to bf16
