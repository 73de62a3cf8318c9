"""Plans that searches found are the default where they fit, are what the records say, and are SAFE."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from math import log
from pathlib import Path

import pytest

from amk.models.matrices import label
from amk.models.model import load_model
from amk.planner.champions import Champion, champions
from amk.planner.decode import plan
from amk.planner.formats import Formats, formats
from amk.planner.settings import FAST, NAIVE, Settings
from amk.report.diagnostic import AmkError
from amk.schedule_ir.sampling import Mode
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.validator.verify import verify

CHAMPIONS = champions()
SHORT = 128


def name(champion: Champion) -> str:
    return f"{champion.model}-{champion.dtype}-{champion.batch}"


def formats_of(champion: Champion) -> Formats:
    form, _, head = champion.dtype.partition("-head-")
    return formats(form, head or None)


def preset(champion: Champion) -> Settings:
    return replace(FAST, batch=champion.batch)


def default(champion: Champion, context: int, settings: Settings | None = None, model: str | None = None) -> Schedule:
    spec, wanted = load_model(model or champion.model), formats_of(champion)
    settings = settings or preset(champion)
    return plan(spec, load_target(champion.target), settings=settings, formats=wanted, max_context=context)


def planned(champion: Champion, context: int, settings: Settings | None = None, model: str | None = None) -> Schedule:
    """The planner's own: as many workers are asked for as there are anyway."""
    spec, target, wanted = load_model(model or champion.model), load_target(champion.target), formats_of(champion)
    settings = settings or preset(champion)
    return plan(spec, target, settings=settings, formats=wanted, max_context=context, workers=target.sms)


def is_of(champion: Champion, words: list[str]) -> bool:
    """Whether a search's command is of its problem."""
    options = dict(pairwise(words))
    wanted = label(formats(options["--dtype"], options.get("--lm-head-dtype")))
    names = (options["--model"], options["--gpu"], wanted, int(options.get("--batch", 1)))
    return names == (champion.model, champion.target, champion.dtype, champion.batch)


@pytest.mark.parametrize("champion", CHAMPIONS, ids=name)
def test_a_champion_is_the_best_of_its_record(champion: Champion) -> None:
    runs = json.loads(Path(champion.record).read_text())["runs"]
    (run,) = [each for each in runs if is_of(champion, each["commands"][0].split())]
    confirmed = log(run["times_faster_than_start"])
    best = min(run["lessons"], key=lambda each: abs(each["gain"] - confirmed))
    assert best["gain"] == pytest.approx(confirmed, abs=1e-4), "of what was kept, not of what looked faster in a pilot"
    assert champion.target == best["gpu"] and not best["simulated"]
    assert champion.settings == best["knobs"] == run["changed_from_start"]
    kept = [edit.model_dump(mode="json", exclude_defaults=True) for edit in champion.edits]
    assert len(best["edits"]) == len(kept)
    assert all(
        each.items() >= {k: v for k, v in edit.items() if k != "to"}.items()
        for each, edit in zip(best["edits"], kept, strict=True)
    )
    assert champion.gain == pytest.approx(run["best_found_faster_by"], abs=0.001), "as compared in a fresh process"


@pytest.mark.parametrize("context", [961, 2048, 8192, 32_768])
@pytest.mark.parametrize("champion", CHAMPIONS, ids=name)
def test_a_champion_is_the_default_and_safe(champion: Champion, context: int) -> None:
    context = min(context, load_model(champion.model).max_context)
    schedule, own = default(champion, context), planned(champion, context)
    assert schedule.plan == "fast" and schedule.kv == own.kv
    assert schedule != own
    assert verify(schedule).status == "SAFE"


@pytest.mark.parametrize("champion", CHAMPIONS, ids=name)
@pytest.mark.parametrize(
    "settings",
    [replace(FAST, rows=8), replace(FAST, batch=2), replace(FAST, kv_dtype="fp8"), replace(FAST, hint_slack=4), NAIVE],
    ids=["rows", "batch", "cache of fp8", "a setting", "naive"],
)
def test_what_was_not_measured_stays_the_planners(champion: Champion, settings: Settings) -> None:
    assert default(champion, 2048, settings) == planned(champion, 2048, settings)


@pytest.mark.parametrize("champion", CHAMPIONS, ids=name)
def test_a_cache_of_fewer_splits_has_the_planners_plan(champion: Champion) -> None:
    assert default(champion, SHORT) == planned(champion, SHORT)


@pytest.mark.parametrize("sampling", ["temperature", "top-p"])
@pytest.mark.parametrize("champion", CHAMPIONS, ids=name)
def test_a_plan_that_draws_is_safe_with_a_champion(champion: Champion, sampling: Mode) -> None:
    assert verify(default(champion, 2048, replace(preset(champion), sampling=sampling))).status == "SAFE"


def test_a_model_of_the_same_shape_has_the_champion() -> None:
    champion = next(each for each in CHAMPIONS if each.model == "llama3-8b")
    assert default(champion, 2048, model="llama3.1-8b") != planned(champion, 2048, model="llama3.1-8b")
    assert default(champion, 2048, model="qwen3-8b") == planned(champion, 2048, model="qwen3-8b")


def test_an_entry_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps([{"model": "llama3-8b", "edits": [{"do": "unheard of"}]}]))
    with pytest.raises(AmkError) as error:
        champions(tmp_path / "c.json")
    assert error.value.diagnostics[0].code in ("AMK001", "AMK005")
