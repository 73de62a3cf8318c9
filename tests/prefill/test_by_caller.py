"""A model of transformers reads a prompt into amk's cache: what lies there, and who is given it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from amk.engine.backends.cpu_engine import CpuEngine  # noqa: E402  after torch is known to be there
from amk.engine.backends.forward import ForwardPass  # noqa: E402
from amk.engine.backends.forward_backend import ForwardBackend  # noqa: E402
from amk.engine.backends.live_backend import LiveBackend  # noqa: E402
from amk.engine.backends.room import OfOneText  # noqa: E402
from amk.engine.backends.rows_backend import RowsBackend  # noqa: E402
from amk.engine.backends.schedule_backend import ScheduleBackend  # noqa: E402
from amk.engine.checkpoints.checkpoint import Checkpoint  # noqa: E402
from amk.engine.checkpoints.open_checkpoint import open_checkpoint  # noqa: E402
from amk.prefill.by_caller import CallersPrompts, rows_of  # noqa: E402
from amk.report.diagnostic import AmkError  # noqa: E402
from amk.schedule_ir.sampling import GREEDY  # noqa: E402
from amk.schedule_ir.schedule import CacheDtype, Schedule  # noqa: E402
from amk.weights.bfloat import F32  # noqa: E402
from tests.engine import against_transformers as known  # noqa: E402
from tests.engine.tiny import tiny_plan  # noqa: E402

TEXT = known.PROMPT[:9]
READ = len(TEXT) - 1


@pytest.fixture(scope="module", params=known.TYPES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return known.checkpoint(tmp_path_factory.mktemp("models") / request.param, request.param)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return known.checkpoint(tmp_path_factory.mktemp("models") / "llama", "llama")


def theirs(path: Path, dtype: Any = torch.float32) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype)


def in_bf16(model: Any) -> Any:
    """Its matrices as a schedule packs them."""
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data = parameter.data.bfloat16().float()
    return model


def forward(source: Checkpoint) -> ForwardBackend:
    return ForwardBackend(ForwardPass(source, 32))


def engine(source: Checkpoint, kv_dtype: CacheDtype = "bf16", **settings: Any) -> CpuEngine:
    known_by = (kv_dtype, *sorted(settings.items()))
    if known_by not in PLANS:
        PLANS[known_by] = tiny_plan(source.spec, workers=5, warps=2, context=32, kv_dtype=kv_dtype, **settings)
    return CpuEngine(PLANS[known_by], source)


PLANS: dict[Any, Schedule] = {}
"""Of the llama's spec."""
BACKENDS: dict[str, Callable[..., Any]] = {
    "forward pass": forward,
    "two texts": lambda source: ForwardBackend(ForwardPass(source, 32), 2),
    "schedule": lambda source, **more: ScheduleBackend(engine(source, **more)),
    "rows": lambda source, **more: RowsBackend(engine(source, rows=4, **more)),
    "sequences": lambda source, **more: LiveBackend(engine(source, batch=2, live=True, **more)),
}


class Place:
    """Lets a model write, and keeps what it then finds: keys and values, [2, layers, KV heads, tokens, head_dim]."""

    def __init__(self, prompts: CallersPrompts | None, tokens: list[int], fill: float = 0.0) -> None:
        self._prompts, self._tokens, self._fill = prompts, tokens, fill

    def __call__(self, place: Any, sequence: int) -> bool:
        rows = rows_of(place, sequence)
        assert rows is not None
        if self._prompts is None:
            for each in (memory for layer in rows for memory in layer):
                each[:, : len(self._tokens)] = self._fill
        elif not self._prompts.read(self._tokens, place, sequence):
            return False
        both = zip(*([memory[:, : len(self._tokens)] for memory in layer] for layer in rows), strict=True)
        self.found = np.array([np.stack([memory.numpy() for memory in each]) for each in both])
        return True


def kept(backend: Any, tokens: list[int]) -> F32:
    """What a backend itself has of a text that it has just read."""
    place = backend._texts[0] if isinstance(backend, ForwardBackend) else backend.engine
    rows = rows_of(place, 0)
    assert rows is not None
    return np.array([np.stack([layer[which][:, : len(tokens)].numpy() for layer in rows]) for which in (0, 1)])


@pytest.mark.parametrize("block", [None, 5])
def test_every_family_leaves_what_amk_would(directory: Path, block: int | None) -> None:
    source = open_checkpoint(directory)
    alone, lent = forward(source), forward(source)
    expected = alone.logits(TEXT)
    place = Place(CallersPrompts(theirs(directory), source.spec, block), TEXT[:-1])
    text = [OfOneText(TEXT[0]), *TEXT[1:]]
    assert lent.lend(text[:-1], place)
    np.testing.assert_allclose(place.found, kept(alone, TEXT[:-1]), atol=1e-5)
    np.testing.assert_allclose(lent.logits(text), expected, atol=1e-4)
    assert lent.cached == READ


def test_a_cache_of_the_same_type_is_not_copied(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """bf16 beside float32 is."""
    from amk.prefill.by_caller import SharedLayer

    seen: list[bool] = []
    update = SharedLayer.update

    def watched(self: Any, *states: Any, **more: Any) -> Any:
        found = update(self, *states, **more)
        seen.append(found[0].data_ptr() == self._rows[0].data_ptr() and found[1].data_ptr() == self._rows[1].data_ptr())
        return found

    monkeypatch.setattr(SharedLayer, "update", watched)
    source = open_checkpoint(llama)
    for dtype, shared in ((torch.float32, True), (torch.bfloat16, False)):
        place = Place(CallersPrompts(theirs(llama, dtype), source.spec), TEXT[:-1])
        assert forward(source).lend(TEXT[:-1], place)
        assert seen == [shared] * source.spec.layers
        seen.clear()


@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("kind", ["schedule", "rows", "sequences"])
def test_schedules_go_on_behind_it(llama: Path, kind: str, kv_dtype: CacheDtype) -> None:
    source = open_checkpoint(llama)
    alone, lent = (BACKENDS[kind](source, kv_dtype=kv_dtype) for _ in range(2))
    reader, text = in_bf16(theirs(llama)), [OfOneText(TEXT[0]), *TEXT[1:]]
    place = Place(CallersPrompts(reader, source.spec), TEXT[:-1])
    assert lent.lend(text[:-1], place)
    expected = alone.logits(TEXT)
    own = kept(alone, TEXT[:-1])
    if kv_dtype == "bf16":
        np.testing.assert_allclose(place.found, own, atol=1e-4)
    else:  # the first layer but for ties; the next sees what attention makes of rounded rows, or of exact ones
        assert np.mean(place.found[:, 0] != own[:, 0]) < 0.01 and np.abs(place.found - own).max() < 0.6
    np.testing.assert_allclose(lent.logits(text), expected, atol=1e-4 if kv_dtype == "bf16" else 0.3)
    assert lent.cached == READ
    assert lent.extend(text, 1, GREEDY, ()) == alone.extend(TEXT, 1, GREEDY, ())


@pytest.mark.parametrize("kind", BACKENDS)
def test_other_texts_are_not_given_these_rows(llama: Path, kind: str) -> None:
    """Not the same prompt either, during the answer and behind it; the answer itself goes on behind them."""
    backend, text = BACKENDS[kind](open_checkpoint(llama)), [OfOneText(TEXT[0]), *TEXT[1:]]
    fresh = backend.logits(TEXT)
    assert backend.lend(text[:-1], Place(None, TEXT[:-1], fill=0.5))
    wrong = backend.logits(text)
    assert np.abs(wrong - fresh).max() > 0.1
    text += backend.extend(text, 1, GREEDY, ())
    went_on = backend.logits(text)
    for _ in range(2):
        np.testing.assert_allclose(backend.logits(TEXT), fresh, atol=1e-5)
    if kind in ("two texts", "sequences"):  # the other seat was theirs
        np.testing.assert_allclose(backend.logits(text), went_on, atol=1e-5)


@pytest.mark.parametrize("kind", ["forward pass", "schedule", "sequences"])
def test_what_nobody_wrote_is_read(llama: Path, kind: str) -> None:
    backend = BACKENDS[kind](open_checkpoint(llama))
    fresh = backend.logits(TEXT)
    assert not backend.lend([OfOneText(TEXT[0]), *TEXT[1:-1]], lambda place, sequence: False)
    np.testing.assert_allclose(backend.logits(TEXT), fresh, atol=1e-5)

    def fails(place: Any, sequence: int) -> bool:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        backend.lend([OfOneText(TEXT[0]), *TEXT[1:-1]], fails)
    np.testing.assert_allclose(backend.logits(TEXT), fresh, atol=1e-5)


def test_a_model_of_other_shapes_is_refused(llama: Path, tmp_path: Path) -> None:
    other = theirs(known.checkpoint(tmp_path / "other", "llama", num_key_value_heads=4))
    source = open_checkpoint(llama)
    with pytest.raises(AmkError, match="AMK012"):
        forward(source).lend(TEXT[:-1], Place(CallersPrompts(other, source.spec), TEXT[:-1]))


def test_memory_that_torch_cannot_reach(llama: Path) -> None:
    """As of a schedule in the emulator."""
    source = open_checkpoint(llama)
    away = SimpleNamespace(schedule=engine(source).schedule)
    assert rows_of(away, 0) is None
    assert not CallersPrompts(theirs(llama), source.spec).read(TEXT, away, 0)
