"""What kernels are off by is rounding, and the judge allows that much and no more."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from amk.adversary.edits import Json
from amk.adversary.neighbourhood.bases import TAGGED, base
from amk.emulator.decode import EmulatedEngine
from amk.emulator.machine.machine import Order
from amk.judges import numpy_run
from amk.judges.emulated_run import EmulatedKernel
from amk.judges.forward import Floats, ForwardPass, Rows, as_it_is
from amk.judges.judge import DEVICE_TOLERANCE, Text, _forms, judged, requests
from amk.judges.request import Request, Shown
from amk.judges.rounding import PASSES, Rounded, _Noise, allowed
from amk.judges.weights import E4M3, RandomWeights, kept_in_fp8
from amk.lowering.compile import compile_ptx
from amk.lowering.emit import emit
from amk.planner.settings import Settings
from amk.schedule_ir.sampling import GREEDY
from amk.schedule_ir.schedule import Schedule
from tests.adversarial.layouts import FENCED, planned
from tests.cases import cases

DEEP: dict[str, Callable[[], Json]] = {
    "three heads": lambda: planned(FENCED, 5, 3, heads=3, kv_heads=3),
    "three heads, tagged": lambda: planned(TAGGED, 5, 3, heads=3, kv_heads=3),
    "rows, fp8 cache": lambda: planned(replace(TAGGED, rows=2, kv_dtype="fp8"), 5, 4),
    "rows of codes, fp8 cache, fenced": lambda: planned(replace(FENCED, rows=2, kv_dtype="fp8"), 5, 4, "int8"),
}


def schedule_of(document: Json) -> Schedule:
    return Schedule.model_validate_json(json.dumps(document))


def printed(schedule: Schedule) -> str:
    return compile_ptx(emit(schedule), schedule.target.arch)


@pytest.mark.turns(16)
@pytest.mark.parametrize("name", DEEP)
def test_kernels_of_deep_models_are_not_refuted(name: str) -> None:
    """Their logits differ from exact ones by up to a tenth of the largest, and more."""
    schedule, kernel = schedule_of(DEEP[name]()), EmulatedKernel(printed)
    for request, order in islice(requests(schedule), cases(2, 5)):
        ruling = judged(schedule, request, order, kernel, DEVICE_TOLERANCE)
        assert ruling.status == "not refuted", (request, ruling)


@pytest.mark.turns(16)
def test_errors_of_a_token_that_is_repeated_add_up() -> None:
    """Its vectors are rounded in the same way each time, here in sixteen rows that read it again and again."""
    document = base("sixteen rows") | {"accepts": True}
    document["model"] = document["model"] | {"tied_embeddings": True}
    schedule = schedule_of(document)
    request, order = next((request, order) for request, order in requests(schedule) if len(request.ends) == 4)
    assert len(set(request.guesses)) == 2, "guesses repeat one token"
    ruling = judged(schedule, request, order, EmulatedKernel(printed), DEVICE_TOLERANCE)
    assert ruling.status == "not refuted", ruling


def test_equal_numbers_are_off_by_equal_amounts() -> None:
    noise, other = _Noise(2.0**-8, 0), _Noise(2.0**-8, 1)
    numbers = np.random.default_rng(1).standard_normal(10_000)
    off = noise(numbers) / numbers - 1
    assert (noise(numbers[::-1]) == noise(numbers)[::-1]).all() and (noise(numbers) != other(numbers)).mean() > 0.99
    assert np.abs(off).max() <= 2.0**-8 * (1 + 1e-9) and abs(off.mean()) < 2.0**-8 / 30
    assert abs(off.std() - 2.0**-8 / np.sqrt(3)) < 2.0**-8 / 50, "drawn evenly"
    assert (noise(np.zeros(3)) == 0).all()


def _off_by(share: float, text: Text) -> Callable[..., Shown]:
    """The numpy machine, with one logit of the last launch off by that share of what is allowed."""

    def machine(
        schedule: Schedule, weights: RandomWeights, request: Request, order: str, before: list[Rows] | None
    ) -> Shown:
        shown = numpy_run.run(schedule, weights, request, order, before)
        read = request.texts[0] + tuple(int(token) for token in np.concatenate(shown.tokens)[1:, 0])
        read = read[: sum(request.launches)]
        right = text.after(read)[0]
        place = int(np.argmin(right))
        shown.logits[-1][0, place] = right[place] + share * text.slack(read) * np.abs(right).max()
        return shown

    return machine


@pytest.mark.parametrize("name", ["fenced", "int8, fp8 cache", "four layers, tagged, room"])
def test_what_is_off_by_more_than_rounding_is_refuted(name: str) -> None:
    schedule, request = schedule_of(base(name)), Request(((7, 20),), (3, 1))
    text = _text_of(schedule)
    for share, status in ((0.95, "not refuted"), (1.05, "refuted")):
        ruling = judged(schedule, request, "round-robin", _off_by(share, text), DEVICE_TOLERANCE)
        assert ruling.status == status and ruling.kind in ("", "logits"), (share, ruling)


def _text_of(schedule: Schedule) -> Text:
    return Text(schedule.model, _forms(schedule), schedule.kv.dtype == "fp8", DEVICE_TOLERANCE)


def test_what_is_allowed_depends_on_the_text_alone() -> None:
    """Not on what was asked before; and it is little where there is one layer and much where errors grow."""
    schedule = schedule_of(base("fenced"))
    one, other = _text_of(schedule), _text_of(schedule)
    one.after((7, 20, 33, 6))
    other.after((1, 2))
    assert one.slack((7, 20)) == other.slack((7, 20))
    shallow, deep = (_text_of(schedule_of(planned(FENCED, layers, 3, heads=3, kv_heads=3))) for layers in (1, 5))
    assert shallow.slack((7, 20, 8, 11)) < 0.06 < 0.11 < deep.slack((7, 20, 8, 11))


def test_a_machine_that_rounds_nothing_has_one_pass() -> None:
    model = schedule_of(base("fenced")).model
    tensors = RandomWeights(model).stored(lambda _: "bf16")
    exact, rounded = (Rounded(model, tensors, as_it_is, unit) for unit in (0.0, 2.0**-8))
    assert len(exact.passes) == 1 and len(rounded.passes) == PASSES + 1
    answers = [one.feed(7) for one in (*exact.passes, *rounded.passes)]
    assert (answers[0] == answers[1]).all() and len({answer.tobytes() for answer in answers}) == PASSES + 1
    assert allowed(answers[:1], 2e-3) == 2e-3 < allowed(answers[1:], 2e-3)


def to_bf16(values: Floats) -> Floats:
    """The nearest number with eight bits, of two that are as near the even one."""
    fraction, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(fraction * 256), exponent - 8))


class AsTheKernel(ForwardPass):
    """The forward pass with the kernel's roundings in their places: a vector is rounded before it is divided by its
    root mean square, which is taken of hidden states as they were handed over; partial sums of splits, too, are handed
    over. handed: what that makes of numbers. nudge: factor of the largest number of the first vector that is read."""

    handed: Callable[[Floats], Floats] = staticmethod(as_it_is)
    block = splits = 1
    nudge = 1.0

    def _llama_block(self, layer: int, stream: Floats) -> Floats:
        stream = stream + self._times(f"l{layer}.wo", self._attention(layer, self._scaled(stream, layer, "attn")))
        inner, scale = self._scaled(stream, layer, "ffn")
        gate, up = (self._get(f"l{layer}.w_{name}") @ inner * scale for name in ("gate", "up"))
        return stream + self._times(f"l{layer}.w_down", gate / (1 + np.exp(-gate)) * up)

    def _scaled(self, stream: Floats, layer: int, name: str) -> tuple[Floats, float]:
        stream = stream if (layer, name) == (0, "attn") else self.handed(stream)
        read = self.read(stream * self._get(f"l{layer}.{name}_norm"))
        if (layer, name) == (0, "attn"):
            read[np.argmax(np.abs(read))] *= self.nudge
        return read, self._scale(stream)

    def _scale(self, stream: Floats) -> float:
        return float(1 / np.sqrt(stream @ stream / stream.size + self.model.rms_eps))

    def logits_of(self, stream: Floats) -> Floats:
        stream = self.handed(stream)
        return self._times("lm_head", stream * self._get("final_norm")) * self._scale(stream)

    def _attention(self, layer: int, values: tuple[Floats, float]) -> Floats:  # type: ignore[override]
        (read, scale), model, position = values, self.model, len(self._cache[layer])
        q, k, v = ((self._get(f"l{layer}.w{letter}") @ read * scale).reshape(-1, model.head_dim) for letter in "qkv")
        keys = np.array([self._turned(head, position) for head in k])
        self._cache[layer].append((self.cached_as(keys), self.cached_as(v)))
        return np.concatenate([self._mixed(layer, self._turned(head, position), n) for n, head in enumerate(q)])

    def _mixed(self, layer: int, query: Floats, number: int) -> Floats:
        served = number * self.model.kv_heads // self.model.heads
        keys, values = (np.array([row[which][served] for row in self._cache[layer]]) for which in (0, 1))
        scores = keys @ query / np.sqrt(query.size)
        split = np.arange(len(scores)) // self.block % self.splits
        total, mixed = 0.0, np.zeros_like(query)
        for own in (split == s for s in sorted(set(split.tolist()))):
            powers = np.exp(scores[own] - scores[own].max())
            share = np.exp(scores[own].max() - scores.max())
            mixed += self.handed(powers @ values[own]) * share
            total += powers.sum() * share
        return mixed / total


def as_the_kernel(schedule: Schedule, nudge: float = 1.0) -> AsTheKernel:
    kept = kept_in_fp8 if schedule.kv.dtype == "fp8" else to_bf16
    reference = AsTheKernel(schedule.model, RandomWeights(schedule.model).stored(lambda _: "bf16"), kept, to_bf16)
    reference.handed = to_bf16 if any(b.tagged and b.name == "h_mid" for b in schedule.buffers) else as_it_is
    reference.block, reference.splits, reference.nudge = schedule.kv.block, schedule.kv.splits, nudge
    return reference


WAYS: dict[str, Settings] = {
    "fenced": FENCED, "tagged": TAGGED, "fenced, fp8 cache": replace(FENCED, rows=2, kv_dtype="fp8"),
    "tagged, fp8 cache": replace(TAGGED, rows=2, kv_dtype="fp8"),
}  # fmt: skip
SHAPES: tuple[Json, ...] = (
    {"heads": 3, "kv_heads": 3}, {"heads": 2, "kv_heads": 1}, {"heads": 4, "kv_heads": 2, "head_dim": 16},
    {"heads": 3, "kv_heads": 1, "head_dim": 64},
)  # fmt: skip
NEAR = 1e-5
"""Of the largest logit: sums of floats in another order."""


@pytest.mark.turns(32)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_kernels_are_off_by_their_roundings(way: str, shape: Json) -> None:
    """With roundings where the kernel has them, and its own cache, float64 gives the kernel's logits. Where a number
    lies between two of bf16 so that the order of a sum decides, they differ by what one bit of one number can do."""
    schedule = schedule_of(planned(WAYS[way], 5, 4, **shape))
    engine = EmulatedEngine(schedule, RandomWeights(schedule.model), printed(schedule))
    text = tuple((7 + 13 * n) % schedule.model.vocab for n in range(8))
    engine.request_batch((text,), (), GREEDY, len(text))
    passes = [as_the_kernel(schedule, 1 + share * 2.0**-8) for share in (0, -2, -1, 1, 2)]
    apart, one_bit = list[float](), 0.0
    for step in range(len(text) // schedule.rows):
        assert engine.launch(1, Order(seed=step)).ended
        cache = cached(engine)
        for row, found in enumerate(engine.logits().astype(np.float64).reshape(schedule.rows, -1)):
            position = step * schedule.rows + row
            for one in passes:
                one.resume([(keys[:position], values[:position]) for keys, values in cache])
            right, *nudged = (one.feed(text[position]) for one in passes)
            one_bit = max(one_bit, *(float(np.abs(other - right).max() / np.abs(right).max()) for other in nudged))
            apart.append(float(np.abs(found[: right.size] - right).max() / np.abs(right).max()))
    assert sorted(apart)[1] <= NEAR and max(apart) <= 2 * one_bit, (apart, one_bit)


def cached(engine: EmulatedEngine) -> Rows:
    """The kernel's keys and values of every layer."""
    model, schedule = engine.schedule.model, engine.schedule
    shape = (model.layers, model.kv_heads, schedule.kv.context, model.head_dim)
    found = []
    for name in ("k_cache", "v_cache"):
        if schedule.kv.dtype == "fp8":
            numbers = E4M3[engine.machine.read(name, np.uint8, int(np.prod(shape)))]
        else:
            bits = engine.machine.read(name, np.uint16, int(np.prod(shape))).astype(np.uint32)
            numbers = (bits << 16).view(np.float32).astype(np.float64)
        found.append(numbers.reshape(shape).transpose(0, 2, 1, 3))
    return list(zip(*found, strict=True))
