"""Schedules executed on the interpreter decode the tokens of an independent decoder.

Numerics `exact`: weights and embedding rounded to bf16 once, everything computed and stored in float32, which is what
the reference does too; logits then differ only by the order of additions.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from amk.engine.backends.cpu_engine import CpuEngine
from amk.engine.backends.session import Session
from amk.engine.checkpoints.checkpoint import Checkpoint, tensor_shapes
from amk.engine.checkpoints.open_checkpoint import open_checkpoint
from amk.engine.tokenizers.open_tokenizer import open_tokenizer
from amk.engine.tokenizers.tokenizer import Tokenizer
from amk.interpreter.interpret import Copies
from amk.interpreter.order import named_order
from amk.models.model_spec import ModelSpec
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import Settings
from amk.report.diagnostic import AmkError
from amk.schedule_ir.ranking import gumbel, scores
from amk.schedule_ir.sampling import Sampling
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.weights.bfloat import round_bf16
from amk.weights.quantised import nearest
from tests.cases import cases
from tests.engine.tiny import RandomTensors, reference_decoder, tiny_model, tiny_plan
from tests.prompts import PROMPTS
from tests.reference.codes import numbers
from tests.reference.llama_numpy import greedy
from tests.reference.sampling_numpy import probabilities

ORDERS = ("round-robin", "depth-first", "random:1", "random:2", "favour:0", "delay:0", "late-copies", "early-copies")
PROMPT = [3, 17, 5]
TOKENS = 4  # with the prompt, past two blocks of 2 positions

MANY = {"workers": 6, "warps": 6}
"""Enough agents for few interleavings."""

MIXED = formats("int4-g128", "int8") | {"o": "bf16", "down": "int8"}

CASES: dict[str, tuple[ModelSpec, dict[str, Any]]] = {
    "tagged words": (tiny_model(), {}),
    "fenced counters": (tiny_model(), {"handoff": "fenced"}),
    "tied, group of three": (tiny_model(heads=3, kv_heads=1, hidden=96, tied_embeddings=True), {"workers": 5}),
    "bias": (tiny_model(qkv_bias=True), {"workers": 7, "warps": 2}),
    "head norms, idle agents": (tiny_model(qk_norm=True, layers=1), {"workers": 13, "warps": 8, "chunk_bytes": 1024}),
    "int8 in groups, ragged, lm_head bf16": (
        tiny_model(ffn=160),
        {"weights": formats("int8-g64", "bf16"), "chunk_bytes": 1024} | MANY,
    ),
    "int4 with zeros, a scale for a share": (
        tiny_model(ffn=256),
        {"weights": formats("int4-g128-zp"), "chunk_bytes": 1024, "scale_blocks": 16} | MANY,
    ),
    "int4 with zeros": (tiny_model(), {"weights": formats("int4-g128-zp"), "chunk_bytes": 1024} | MANY),
    "fp8, lm_head int8": (tiny_model(qkv_bias=True), {"weights": formats("fp8", "int8")} | MANY),
    "fp8, copies of whole lines": (tiny_model(ffn=1024), {"weights": formats("fp8"), "chunk_bytes": 4096} | MANY),
    "fp8, lm_head int8, scales apart": (
        tiny_model(qkv_bias=True, ffn=160),
        {"weights": formats("fp8", "int8"), "scales_apart": True} | MANY,
    ),
    "fp8 cache": (tiny_model(heads=3, kv_heads=1, hidden=96), {"kv_dtype": "fp8"} | MANY),
    "formats by layers": (
        tiny_model(layers=3, ffn=160),
        {"weights": ((1, formats("int8-g64", "int8")), (2, MIXED)), "workers": 5, "warps": 8},
    ),
    "formats by layers, scales apart": (
        tiny_model(layers=3, ffn=160),
        {"weights": ((1, formats("int8-g64", "int8")), (2, MIXED)), "scales_apart": True, "workers": 5, "warps": 8},
    ),
    "layers in bf16 and in codes": (
        tiny_model(layers=2),
        {"weights": ((1, formats("bf16", "int8")), (1, formats("int4-g128", "int8"))), "workers": 5, "warps": 8}
        | {"handoff": "fenced"},
    ),
    "parts of down wait for their own columns": (tiny_model(ffn=128), {"act_parts": 2, "workers": 5, "warps": 8}),
    "refills first, cache asked for between, heads spread": (
        tiny_model(),
        {"refill_first": True, "refill_early": True, "prefetch_at": "product", "attends": "spread", "pollers": "all"}
        | {"workers": 7, "warps": 2, "slots": 3},
    ),
    "heads served by those that stream least": (
        tiny_model(),
        {"prefetch_at": "published", "attends": "light", "handoff": "narrow", "pollers": "all", "head_handoff": True}
        | {"workers": 7, "warps": 8, "chunk_bytes": 1024},
    ),
    "hints before the warps have met": (tiny_model(), {"hint_at": "drained", "workers": 5, "slots": 3}),
    "hints before sums, parts, looks by all": (
        tiny_model(ffn=128),
        {"hint_at": "summed", "act_parts": 2, "pollers": "all", "refill_first": True, "workers": 5, "warps": 8},
    ),
    "refills of short products one by one": (
        tiny_model(ffn=160),
        {"paced": True, "held_refills": 1.0, "slots": 2, "workers": 5, "warps": 2},
    ),
    "refills owed through QKV": (
        tiny_model(ffn=160),
        {"carried": 1.0, "held_refills": 1.0, "first_refills": 0.0, "slots": 3, "workers": 5, "warps": 2},
    ),
    "arrays overlaid": (tiny_model(), {"overlay": True}),
    "naive": (tiny_model(), {"handoff": "fenced", "head_handoff": False, "run_ahead": False, "wide_epilogue": 0}),
}


MATRIX_OF = {
    "wq": "qkv", "wk": "qkv", "wv": "qkv", "wo": "o", "w_gate": "gate_up", "w_up": "gate_up", "w_down": "down",
    "lm_head": "lm_head",
}  # fmt: skip


def planned(model: ModelSpec, **settings: Any) -> Schedule:
    return tiny_plan(model, **({"kv_block": 2} | settings))


def stored_arrays(schedule: Schedule, arrays: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """The arrays with every quantised matrix replaced by what its codes stand for."""
    out = dict(arrays)
    for name, rows in arrays.items():
        part = name.rpartition(".")[2]
        layer = int(name[1:].partition(".")[0]) if name[1:2].isdigit() else 0
        chunk = schedule.streams[0].chunk(MATRIX_OF[part], layer) if part in MATRIX_OF else None  # type: ignore[arg-type]
        form = chunk.weights if chunk else None
        if form is not None and form.codes != "bf16":
            codes = nearest(rows, form)
            stored = numbers(form.codes, form.group, codes.codes, codes.scales, codes.zeros)
            assert np.abs(stored - rows).max() > 0, "quantising changes something"
            out[name] = stored.astype(np.float32)
    return out


def engine(schedule: Schedule, source: RandomTensors, order: str, copies: Copies) -> CpuEngine:
    return CpuEngine(schedule, source, copies=copies, order=lambda: named_order(order))


@pytest.mark.turns(48)
@pytest.mark.parametrize("name", CASES)
def test_tiny_models_follow_the_reference(name: str) -> None:
    """With every copy an event, in two orders, so that each order has some cases; with whole copies in one or two."""
    model, settings = CASES[name]
    source, schedule = RandomTensors(model), planned(model, **settings)
    number = list(CASES).index(name)
    events = [engine(schedule, source, order, "events") for order in ORDERS[number % cases(4, 1) :: cases(4, 1)]]
    both = ORDERS[2::3][: cases(1 if number % 3 else 2, 2)]
    whole = [engine(schedule, source, order, "whole") for order in both]
    texts = [list(Session(run).generate(PROMPT, TOKENS)) for run in (*events, *whole)]
    arrays = stored_arrays(schedule, source.arrays)
    decoder = reference_decoder(model, arrays, schedule.kv.dtype)
    expected = list(greedy(decoder, PROMPT, (), TOKENS))
    assert min(gap for _, gap in expected) > 1e-3, "the example must not hinge on a tie"
    assert texts[0] == [token for token, _ in expected]
    # greedy ran the last chosen token too, the session did not: compare where both stand.
    decoder = reference_decoder(model, arrays, schedule.kv.dtype)
    logits = decoder.forward([*PROMPT, *texts[0][:-1]])
    assert all(text == texts[0] for text in texts)
    for runs in (events, whole):
        np.testing.assert_allclose(runs[0].logits(), logits, rtol=1e-4, atol=1e-4)
        assert len({run.logits().tobytes() for run in runs}) == 1, "timing changed the result"


@pytest.mark.turns(4)
def test_launches_of_any_length_agree() -> None:
    model = tiny_model()
    source, schedule = RandomTensors(model), planned(model)
    texts = []
    for size in (1, 3, TOKENS):
        run = engine(schedule, source, "random:7", "events")
        texts.append(list(Session(run, slice=size).generate(PROMPT, TOKENS)))
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.turns(4)
def test_a_second_text_starts_from_nothing() -> None:
    model = tiny_model()
    source, schedule = RandomTensors(model), planned(model)
    session = Session(engine(schedule, source, "random:3", "events"))
    first = list(session.generate(PROMPT, 5))
    assert list(session.generate(PROMPT[::-1], 5)) != first
    assert list(session.generate(PROMPT, 5)) == first


def test_the_text_ends_with_an_end_token() -> None:
    model = tiny_model()
    source, schedule = RandomTensors(model), planned(model)
    free = list(Session(engine(schedule, source, "round-robin", "whole")).generate(PROMPT, TOKENS))
    stop = free[3]
    run = engine(schedule, source, "round-robin", "whole")
    text = list(Session(run, slice=TOKENS).generate(PROMPT, TOKENS, eos=[stop]))
    assert text == free[: free.index(stop) + 1]
    assert run.state()["done"] == 1
    assert run.step(2).tolist() == [stop, stop]


DRAWS = [Sampling(0.8, seed=4), Sampling(1.0, 9, seed=5), Sampling(1.4, 0, 0.8, 6), Sampling(1.1, 30, 0.9, 2**64 - 1)]


@pytest.mark.turns(32)
@pytest.mark.parametrize(("sampling", "handoff"), [*((draw, "tagged") for draw in DRAWS), (DRAWS[3], "fenced")])
def test_drawn_texts_follow_the_reference(sampling: Sampling, handoff: str) -> None:
    """Each token has the best noisy score among what an independent filter keeps of an independent decoder's logits."""
    model = tiny_model()
    source, schedule = RandomTensors(model), planned(model, handoff=handoff, sampling=sampling.mode)
    runs = [engine(schedule, source, order, copies) for order, copies in (("random:1", "events"), ("delay:0", "whole"))]
    texts = [list(Session(run, slice=3).generate(PROMPT, TOKENS, sampling=sampling)) for run in runs]
    assert texts[0] == texts[1], "timing changed the draw"
    decoder, expected, read = reference_decoder(model, source.arrays), [], list(PROMPT)
    for pos in range(len(PROMPT) - 1, len(PROMPT) - 1 + TOKENS):
        logits = decoder.forward(read)
        kept = probabilities(logits, sampling.temperature, sampling.top_k, sampling.top_p) > 0
        noise = gumbel((sampling.seed & 0xFFFFFFFF, sampling.seed >> 32), pos, range(model.vocab))
        score = np.where(kept, scores(logits, logits.max(), np.float32(1 / sampling.temperature), noise), -np.inf)
        read = [int(score.argmax())]
        expected += read
    assert texts[0] == expected


@pytest.mark.turns(4)
def test_a_drawn_end_token_ends_the_text() -> None:
    model, sampling = tiny_model(), DRAWS[3]
    source, schedule = RandomTensors(model), planned(model, sampling=sampling.mode)
    free = list(Session(engine(schedule, source, "round-robin", "whole")).generate(PROMPT, TOKENS, sampling=sampling))
    stop = free[3]
    run = engine(schedule, source, "round-robin", "whole")
    text = list(Session(run, slice=TOKENS).generate(PROMPT, TOKENS, eos=[stop], sampling=sampling))
    assert text == free[: free.index(stop) + 1]
    assert run.step(2).tolist() == [stop, stop]


def test_a_drawing_schedule_is_greedy_when_asked_and_a_greedy_one_draws_nothing() -> None:
    model = tiny_model()
    source = RandomTensors(model)
    greedily, drawing = planned(model), planned(model, sampling="top-k-top-p")
    texts = [
        list(Session(engine(schedule, source, "round-robin", "whole")).generate(PROMPT, TOKENS))
        for schedule in (greedily, drawing)
    ]
    assert texts[0] == texts[1]
    with pytest.raises(AmkError, match="AMK015"):
        next(Session(engine(greedily, source, "round-robin", "whole")).generate(PROMPT, 1, sampling=DRAWS[0]))


def test_device_numerics_round_what_the_kernel_rounds() -> None:
    """bf16 activations and cache move the logits, by no more than bf16 can explain."""
    model = tiny_model()
    source, schedule = RandomTensors(model), planned(model)
    logits = []
    for numerics in ("exact", "device"):
        run = CpuEngine(schedule, source, numerics=numerics)  # type: ignore[arg-type]
        run.request(PROMPT)
        run.step(len(PROMPT))
        logits.append(run.logits())
    error = np.linalg.norm(logits[0] - logits[1]) / np.linalg.norm(logits[0])
    assert 1e-4 < error < 3e-2


Texts = Callable[[str, int, Copies, str], tuple[list[int], list[tuple[int, float]]]]


@pytest.fixture(scope="module")
def checkpoint(smollm2_path: Path) -> Checkpoint:
    return open_checkpoint(smollm2_path)


@pytest.fixture(scope="module")
def texts(checkpoint: Checkpoint, smollm2_path: Path) -> Texts:
    """(prompt, tokens, copies, order) -> the interpreter's tokens, and the reference's with their gaps.

    Of the first layers alone, all of them with `--long`: `tests/cli/test_generate.py` has a text of the whole model.
    """
    spec = checkpoint.spec.model_copy(update={"layers": cases(2, checkpoint.spec.layers)})
    tokenizer: Tokenizer = open_tokenizer(smollm2_path, spec.vocab)
    schedule = plan(spec, load_target("h200"), settings=Settings(warps=4), max_context=128, workers=8)
    arrays: dict[str, NDArray[np.float32]] = {name: checkpoint.tensor(name) for name in tensor_shapes(spec)}
    rounded = {name: round_bf16(array) if array.ndim == 2 else array for name, array in arrays.items()}
    engines: dict[str, CpuEngine] = {}

    def both(prompt: str, tokens: int, copies: Copies, order: str) -> tuple[list[int], list[tuple[int, float]]]:
        if copies not in engines:
            engines.clear()
            engines[copies] = CpuEngine(schedule, checkpoint, copies=copies, order=lambda: named_order(order))
        ids = tokenizer.encode(prompt)
        mine = list(Session(engines[copies], slice=8).generate(ids, tokens))
        return mine, list(greedy(reference_decoder(spec, rounded), ids, (), tokens))

    return both


@pytest.mark.turns(12)
@pytest.mark.checkpoint
def test_smollm2_with_every_copy_an_event(texts: Texts) -> None:
    mine, expected = texts("Once upon", 1, "events", "random:1")
    assert mine == [token for token, _ in expected]


@pytest.mark.turns(16)
@pytest.mark.checkpoint
def test_smollm2_with_whole_streams(texts: Texts) -> None:
    mine, expected = texts("def fibonacci(n):", 2, "whole", "round-robin")
    assert mine == [token for token, _ in expected]


@pytest.mark.checkpoint
@pytest.mark.long
@pytest.mark.parametrize("prompt", PROMPTS)
def test_smollm2_answers_twenty_prompts(
    texts: Texts, prompt: str, record_property: Callable[[str, object], None]
) -> None:
    mine, expected = texts(prompt, 64, "whole", "round-robin")
    record_property("smallest_gap", min(gap for _, gap in expected))
    assert mine == [token for token, _ in expected]
