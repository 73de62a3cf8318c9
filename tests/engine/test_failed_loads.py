"""What `amk.load` raises keeps no memory of a device: whatever call of the driver fails, and if the tokenizer does."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import amk
from amk.api import loading
from amk.engine import device_packing
from amk.engine.backends import cuda_engine
from amk.engine.load import plan_for_cpu
from amk.engine.packed_weights import name_of
from amk.engine.tokenizers.tokenizer import Tokenizer
from amk.models.model_spec import ModelSpec
from amk.quantize.search import searched
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.schedule import Schedule
from amk.weights.quantised import Quantised
from amk.weights.weight_format import WeightFormat
from tests.emulator.host_driver import HostDriver, HostModules, host_device
from tests.engine import tiny_chat


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_chat.write(tmp_path_factory.mktemp("tiny") / "model", layers=1)


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> HostModules:
    found = HostModules()
    monkeypatch.setattr(
        "amk.engine.admission.admission.started", lambda schedule: SimpleNamespace(schedule=schedule, loadable=bytes)
    )
    monkeypatch.setattr(cuda_engine, "Module", found)
    monkeypatch.setattr(cuda_engine, "check_loaded", lambda *_: None)
    monkeypatch.setattr(cuda_engine, "CooperativeLaunch", lambda *_: None)
    monkeypatch.setattr(device_packing, "_has_room", lambda _: False)  # for the kernel that packs
    return found


def small(spec: ModelSpec, device: str, gpu: str | None, options: Any) -> Schedule:
    """A plan of few workers, as for the device interpreter."""
    return plan_for_cpu(spec, 16, options.sampling, options.formats, batch=options.batch, rows=options.rows)


def load_on(driver: HostDriver, directory: Path, patch: pytest.MonkeyPatch, **options: Any) -> amk.LanguageModel:
    patch.setattr("amk.lowering.launch.Device.open", lambda: host_device(driver))
    patch.setattr("amk.api.loading.planned", small)
    patch.setattr("amk.api.states.planned", small)
    return amk.load(directory, device="cuda", gpu="h200", prefill=options.pop("prefill", "kernel"), **options)


KINDS: dict[str, dict[str, Any]] = {
    "one schedule": {},
    "with a draft": {"draft": True, "draft_tokens": 3},
    "layers and output head": {"states": True, "prefill": "auto"},
    "prompts in rows": {"prefill": "rows"},
}


@pytest.mark.turns(4)
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_call_of_the_driver_fails(
    kind: str, directory: Path, modules: HostModules, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = KINDS[kind] | ({"draft": directory} if "draft" in KINDS[kind] else {})
    whole = HostDriver()
    load_on(whole, directory, monkeypatch, **options).close()
    assert whole.calls > 20 and not whole.held and not whole.streams and not modules.open
    for number in range(whole.calls):
        driver = HostDriver(failing=number)
        with pytest.raises(AmkError, match=r"AMK603.*OUT_OF_MEMORY"):
            load_on(driver, directory, monkeypatch, **options)
        assert not driver.held and not driver.streams and not modules.open, f"call {number} of {whole.calls}"


def test_a_tokenizer_that_fails(directory: Path, modules: HostModules, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, counted = HostDriver(), list[int]()

    def fail(*_: Any) -> None:
        counted.append(len(driver.held))
        raise AmkError(Diagnostic("AMK013", "the vocabulary is damaged"))

    monkeypatch.setattr(Tokenizer, "check", fail)
    with pytest.raises(AmkError, match="the vocabulary is damaged"):
        load_on(driver, directory, monkeypatch)
    assert counted[0] > 5, "the weights do not wait for it"
    assert not driver.held and not driver.streams and not modules.open


def test_codes_are_made_behind_the_tokenizer(
    directory: Path, modules: HostModules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All codes of a model can take minutes."""
    did: list[str] = []

    def quantise(rows: np.ndarray, form: WeightFormat) -> Quantised:
        did.append("codes")
        return searched(rows, form)

    monkeypatch.setattr(Tokenizer, "check", lambda *_: did.append("tokenizer"))
    with load_on(HostDriver(), directory, monkeypatch, dtype="int8", quantise=quantise):
        first = did.index("codes")
        assert "tokenizer" in did[:first] and did[-1] == "tokenizer"
        assert did.count("tokenizer") < did.count("codes"), "not for each block of rows"


def test_codes_are_kept_under_the_name_of_their_quantiser(directory: Path) -> None:
    """The cache of packed weights tells them apart by it, and keeps none of one without a name."""
    codes = loading._behind_tokenizer(loading.open_files(directory), None)
    assert (codes.__module__, name_of(codes)) == (searched.__module__, name_of(searched))


def test_options_of_guesses_without_any(directory: Path) -> None:
    for option in ({"draft_tokens": 3}, {"draft_steps": 2}, {"draft_branches": 2}):
        with pytest.raises(AmkError, match=r"AMK005.*are for guesses"):
            amk.load(directory, device="cpu", **option)
