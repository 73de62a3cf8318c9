"""Measurements that travel: the simulator learns from them, and from nothing that was changed on the way."""

import json
import shutil
import subprocess
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from amk import cli
from amk.bench.table.measurement import Measurement, measurement
from amk.bench.table.row import Row
from amk.bench.table.shared import MOST_BYTES, Shared, read, seal_of, shared, write
from amk.bench.tools.times import Times
from amk.commands import learned as learned_of
from amk.commands import measured_runs as measured_runs_of
from amk.commands.bench_share import share
from amk.models.model import load_model
from amk.planner import decode as planner_of
from amk.planner.champions import Champion, champions
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.replan import tuned_changes
from amk.planner.settings import FAST, NAIVE, Settings
from amk.planner.space import Space
from amk.planner.tuned import chosen
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import schedule_hash
from amk.simulator.calibrate import Fit, Run, fit
from amk.simulator.constants import Constants, constants_for, load_constants
from amk.simulator.predict import step_ms
from amk.targets.target import load_target

PROVENANCE = {
    "command": "amk bench --record /home/somebody/x.json", "commit": "0123", "date": "2026-01-01", "amk": "0.1.0",
    "hardware": {"name": "NVIDIA L4", "uuid": "GPU-secret", "sm_clock_mhz": "2040"},
}  # fmt: skip
SLOWER = 6.0
"""What a hand-off takes on the card, over what the simulator thinks."""


def row(case: Measurement, ms: float, correct: bool = True) -> Row:
    return Row(
        key=case.key, times=Times(ms, ms, ms), baselines={}, bytes=1, ceiling_gbps=250.0, error=0.0, torch_error=0.0,
        kl=0.0, argmax_agrees=True, reproducible=True, correct=correct,
    )  # fmt: skip


def replace_row(content: Shared, number: int, **fields: Any) -> Shared:
    """The content with other fields of a row, sealed anew."""
    document = content.model_dump(mode="json")
    document["rows"][number]["row"] |= fields
    return Shared.model_validate(document | {"seal": seal_of(document)})


@pytest.fixture(scope="module")
def cases() -> list[Measurement]:
    model, target = load_model("smollm2-135m"), load_target("l4")
    plans = [plan(model, target, settings=settings, max_context=2048) for settings in (FAST, NAIVE)]
    return [measurement(schedule, 1500) for schedule in plans]


@pytest.fixture
def sent(cases: list[Measurement], tmp_path: Path) -> Path:
    """What a card whose hand-offs are slower sends."""
    known = constants_for(load_target("l4"))
    real = known.model_copy(update={"hop_us": known.hop_us * SLOWER, "l2_us": known.l2_us * SLOWER})
    rows = [row(case, step_ms(case.schedule, case.key.pos, real)) for case in cases]
    path = tmp_path / "l4.json"
    share(Namespace(share=path, sign=None), cases, rows, PROVENANCE)
    return path


def test_a_version_with_other_defaults_plans_what_was_measured(sent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file names the settings that were chosen; without them it is another kernel, which is not believed."""
    target, default = load_target("l4"), planner_of.tuned

    def later(settings: Settings, *problem: Any) -> Settings:
        found = default(settings, *problem)
        return found if settings.plan == "naive" or chosen(settings, FAST) else replace(found, kv_block=32)

    content = read(sent)
    named = replace_row(content, 0, settings={"kv_block": 64})
    whole = plan(load_model("smollm2-135m"), target, settings=replace(FAST, kv_block=64), max_context=2048)
    named = replace_row(named, 0, schedule=schedule_hash(whole))
    write(sent, named)
    monkeypatch.setattr(planner_of, "tuned", later)
    measured_runs_of._planned.cache_clear()
    assert learned_of.believed(sent, target, None)[0].schedule == whole
    write(sent, content)
    with pytest.raises(AmkError, match="plans another kernel"):
        learned_of.believed(sent, target, None)
    measured_runs_of._planned.cache_clear()


def test_a_shared_row_names_what_the_planner_chose() -> None:
    """Planned anew from its preset and these, it is the same schedule, for every kind of plan that is tuned."""
    for name, form, batch in (
        ("llama3-8b", "int8", 1), ("llama3-8b", "int4-g128", 1), ("llama3-8b", "bf16", 8), ("llama3.2-1b", "bf16", 1)
    ):  # fmt: skip
        schedule = plan(
            load_model(name), load_target("h200"), settings=replace(FAST, batch=batch), formats=formats(form),
            max_context=2048,
        )  # fmt: skip
        found = tuned_changes(schedule)
        preset = replace(FAST, batch=batch)
        named = replace(Space.around(preset).parse(found), plan="fast")
        assert found and named != preset
        again = plan(schedule.model, schedule.target, settings=named, formats=formats(form), max_context=2048)
        assert schedule_hash(again) == schedule_hash(schedule)
    assert tuned_changes(plan(load_model("smollm2-135m"), load_target("l4"), max_context=2048)) == {}


@pytest.mark.parametrize("champion", champions(), ids=lambda each: f"{each.model}-{each.dtype}-{each.batch}")
def test_a_shared_row_of_a_champion_names_its_preset_alone(champion: Champion) -> None:
    model, target, wanted = load_model(champion.model), load_target(champion.target), formats(champion.dtype)
    preset = replace(FAST, batch=champion.batch)
    schedule = plan(model, target, settings=preset, formats=wanted, max_context=2048)
    assert tuned_changes(schedule) == {}
    again = measured_runs_of._planned(model.name, target.name, preset, 2048, champion.dtype)
    assert again == schedule, "whoever learns from it plans the same"
    own = plan(model, target, settings=preset, formats=wanted, max_context=2048, workers=target.sms)
    assert tuned_changes(own), "the planner's plan is told by its settings"


@pytest.mark.turns(4)
def test_the_simulator_learns_from_a_card_that_is_not_here(
    sent: Path,
    cases: list[Measurement],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fit_two(runs: Sequence[Run], start: Constants, progress: Callable[[str], None]) -> Fit:
        return fit(runs, start, ("hop_us", "l2_us"), progress, spread=3.0)  # all sixteen take half a minute

    monkeypatch.setattr(learned_of, "fit_few", fit_two)
    found = tmp_path / "constants.json"
    assert cli.main(["calibrate", "--gpu", "l4", "--learn", str(sent), "-o", str(found)]) == 0
    message = capsys.readouterr().err
    assert "2 measurements" in message and "a seal is no signature" in message
    learned, known = load_constants(found), constants_for(load_target("l4"))
    times = [entry.row.times.ms for entry in read(sent).rows]
    errors = {
        name: max(abs(step_ms(c.schedule, c.key.pos, constants) / ms - 1) for c, ms in zip(cases, times, strict=True))
        for name, constants in (("before", known), ("after", learned))
    }
    assert errors["before"] > 0.02 and errors["after"] < errors["before"] / 3, errors


def test_nothing_of_the_sender_travels_but_the_measurement(sent: Path) -> None:
    text = sent.read_text()
    assert "GPU-secret" not in text and "somebody" not in text and len(text) < 8192
    assert read(sent).hardware == {"name": "NVIDIA L4", "sm_clock_mhz": "2040"} and len(read(sent).card) == 16


def changed(content: dict[str, Any], **times: float) -> dict[str, Any]:
    first, *rest = content["rows"]
    entry = {"row": first["row"] | {"times": first["row"]["times"] | times}}
    return content | {"rows": [entry, *rest]}


def wrong_hash(content: dict[str, Any]) -> dict[str, Any]:
    first, *rest = content["rows"]
    return content | {"rows": [{"row": first["row"] | {"schedule": "0" * 64}}, *rest]}


def resealed(content: dict[str, Any]) -> dict[str, Any]:
    return content | {"seal": seal_of(content)}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda c: changed(c, ms=0.5), "seal"),
        (lambda c: resealed(changed(c, ms=1e-3)), "faster than"),
        (lambda c: resealed(changed(c, ms=float("1e300"))), "less than"),
        (lambda c: resealed(wrong_hash(c)), "another kernel"),
        (lambda c: resealed(c | {"rows": []}), "at least 1"),
        (lambda c: resealed(c | {"code": "import os"}), "code"),
        (lambda c: resealed(c | {"format": 2}), "format"),
    ],
)  # fmt: skip
def test_what_was_changed_on_the_way_is_refused(
    sent: Path, tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]], why: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    sent.write_text(json.dumps(change(json.loads(sent.read_text()))))
    output = tmp_path / "constants.json"
    assert cli.main(["calibrate", "--gpu", "l4", "--learn", str(sent), "-o", str(output)]) == 2
    assert why in capsys.readouterr().err and not output.exists()


def test_another_card_is_not_learned_from(sent: Path, tmp_path: Path) -> None:
    assert cli.main(["calibrate", "--gpu", "h200", "--learn", str(sent), "-o", str(tmp_path / "c.json")]) == 2


def test_wrong_logits_and_large_files_are_refused(cases: list[Measurement], tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    write(path, shared([(row(cases[0], 9.0, correct=False), cases[0].schedule)], PROVENANCE))
    with pytest.raises(AmkError, match="wrong logits"):
        read(path)
    path.write_text(" " * (MOST_BYTES + 1))
    with pytest.raises(AmkError, match="AMK002"):
        read(path)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_a_signature_names_its_sender(sent: Path, tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    for key in (mine, other):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    signers, strangers = tmp_path / "signers", tmp_path / "strangers"
    signers.write_text(f"me@example.com {mine.with_suffix('.pub').read_text()}")
    strangers.write_text(f"you@example.com {other.with_suffix('.pub').read_text()}")
    content: Shared = read(sent)
    with pytest.raises(AmkError, match="not signed"):
        read(sent, signers)
    write(sent, content, mine)
    assert read(sent, signers).seal == content.seal
    for asked, warned in ((signers, False), (None, True)):
        said: list[str] = []
        with pytest.raises(AmkError, match="needs -o"):
            learned_of.learn(Namespace(learn=[sent], signers=asked, output=None), load_target("l4"), said.append)
        assert any("a seal is no signature" in line for line in said) is warned
    with pytest.raises(AmkError, match="none of the signers"):
        read(sent, strangers)
    forged = resealed(changed(json.loads(sent.read_text()), ms=9.0))
    sent.write_text(json.dumps(forged))
    with pytest.raises(AmkError, match="none of the signers"):
        read(sent, signers)
