"""The baselines compute the model: the kernels of the graph give the persistent kernel's logits and tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amk.lowering.launch import Device
from amk.models.model_spec import ModelSpec
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST, NAIVE, Settings
from amk.targets.target import Target
from amk.weights.weight_format import FormatName
from tests.tiny import BIASED, NORMED, PLAIN, RAGGED

pytestmark = pytest.mark.gpu

CASES = [
    pytest.param(PLAIN, FAST, "bf16", id="plain"),
    pytest.param(RAGGED, NAIVE, "bf16", id="ragged naive"),
    pytest.param(BIASED, replace(FAST, reduce_from=1), "int8", id="bias, reduced splits, int8"),
    pytest.param(NORMED, replace(FAST, kv_dtype="fp8"), "int4-g64", id="norms, fp8 cache, int4"),
]
TOKENS = 4


@pytest.mark.parametrize(("model", "settings", "form"), CASES)
def test_a_graph_of_kernels_decodes_the_same(
    model: ModelSpec, settings: Settings, form: FormatName, torch_gpu: Device, gpu: Target
) -> None:
    import torch

    from amk.bench.baselines.phase_graph import BLOCKS, PhaseGraph, compiled_phases
    from tests.gpu.subjects import loaded

    if not gpu.has("bulk_copy"):
        pytest.skip("dependent launch needs sm_90")
    schedule = plan(model, gpu, settings=settings, formats=formats(form), max_context=512)
    with loaded(schedule) as subject:
        for blocks in BLOCKS:
            graph = PhaseGraph(subject, *compiled_phases(schedule, blocks), TOKENS)
            for pos in (0, 1, 127, 128, 500):
                subject.load_cache()
                expected = subject.logits(7, pos)
                subject.load_cache()
                found = graph.logits(7, pos)
                assert torch.isfinite(found).all()
                # The same sums in the same order: only what the compiler contracts may differ.
                torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
                subject.load_cache()
                subject.engine.set_state(token=7, pos=pos, done=0)
                tokens = subject.engine.step(TOKENS).tolist()
                subject.load_cache()
                torch.cuda.synchronize()
                graph.place(pos, 7)
                graph.replay()
                subject.engine.stream.synchronise()
                assert graph.tokens(TOKENS) == tokens, f"position {pos}, {blocks} kernels an SM"
            graph.free()


def test_the_int8_product_is_the_product(torch_gpu: Device) -> None:
    import torch

    from amk.bench.baselines.int8_baseline import SHAPES, Int8Matrix

    gen = torch.Generator("cuda").manual_seed(3)
    for rows, width in ((64, 128), (1000, 2048), (331, 192), (77, 14336)):
        weights = torch.randn((rows, width), generator=gen, device="cuda") * width**-0.5
        matrix = Int8Matrix.of(weights)
        x = torch.randn((1, width), generator=gen, device="cuda").bfloat16()
        exact = (matrix.codes.double() * matrix.scales.double()[:, None]) @ x[0].double()
        for shape in SHAPES:
            found = matrix.times(x, shape)[0].double()
            assert float((found - exact).norm() / exact.norm()) < 4e-3, f"{rows} x {width}, {shape}"
