"""Measurements that travel: the simulator learns from them, and from nothing that was changed on the way."""

import base64
import hashlib
import json
import shutil
import subprocess
import zlib
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from amk import cli
from amk.bench.table.measurement import Measurement, measurement
from amk.bench.table.row import Row
from amk.bench.table.schedule_text import MOST_BYTES as MOST_TEXT
from amk.bench.table.schedule_text import MOST_CHARACTERS
from amk.bench.table.shared import (
    MOST_BYTES,
    MOST_ROWS,
    MOST_SCHEDULES,
    Shared,
    read,
    schedules_of,
    seal_of,
    shared,
    write,
)
from amk.bench.tools.times import Times
from amk.commands import learned as learned_of
from amk.commands import measured_runs as measured_runs_of
from amk.commands.bench_share import check_share, share
from amk.models.model import load_model
from amk.planner.decode import plan
from amk.planner.settings import FAST, NAIVE
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import canonical_json
from amk.simulator.calibrate import Fit, Run, fit
from amk.simulator.constants import Constants, constants_for, load_constants
from amk.simulator.predict import step_ms
from amk.targets.target import load_target

PROVENANCE = {
    "command": "amk bench --record /home/somebody/x.json", "commit": "0123", "date": "2026-01-01", "amk": "0.1.0",
    "hardware": {"name": "NVIDIA L4", "uuid": "GPU-secret", "sm_clock_mhz": "2040"},
}  # fmt: skip
SPEED = Path(__file__).parents[1] / "records" / "speed"
RECORD = SPEED / "h200-share.json"
SLOWER = 6.0
"""What a hand-off takes on the card, over what the simulator thinks."""


def row(case: Measurement, ms: float, correct: bool = True) -> Row:
    return Row(
        key=case.key, times=Times(ms, ms, ms), baselines={}, bytes=1, ceiling_gbps=250.0, error=0.0, torch_error=0.0,
        kl=0.0, argmax_agrees=True, reproducible=True, correct=correct,
    )  # fmt: skip


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


def learn(path: Path, gpu: str = "l4") -> int:
    """Exit code of `amk calibrate --learn`, which writes constants only when it is 0."""
    output = path.with_name("constants.json")
    code = cli.main(["calibrate", "--gpu", gpu, "--learn", str(path), "-o", str(output)])
    assert output.exists() is (code == 0)
    return code


@pytest.fixture
def other_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of which nobody may plan, whatever it would plan."""

    def never(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("what was measured is planned anew")

    monkeypatch.setattr(measured_runs_of, "plan", never)


def test_what_this_version_plans_otherwise_is_learned_from(tmp_path: Path, other_plans: None) -> None:
    """Its row names the preset, and the preset's plan is another."""
    model, target, path = load_model("smollm2-135m"), load_target("l4"), tmp_path / "l4.json"
    other = plan(model, target, settings=replace(FAST, kv_block=32), max_context=2048)
    assert other != plan(model, target, max_context=2048)
    case = measurement(other, 1500)
    write(path, shared([(row(case, 2.0), other)], PROVENANCE))
    for runs in (learned_of.believed(path, target, None), measured_runs_of.measured_runs([str(path)])):
        assert [(run.name, run.pos, run.ms) for run in runs] == [("smollm2-135m bf16 fast at 1500", 1500, 2.0)]
        assert runs[0].schedule == other


def test_a_file_of_an_earlier_version_is_learned_from(other_plans: None) -> None:
    """Of the two kernels that an H200 measured this version plans one otherwise."""
    target = load_target("h200")
    runs = learned_of.believed(RECORD, target, None)
    assert [run.pos for run in runs] == [128, 2048, 128, 2048]
    for run, settings, same in ((runs[0], NAIVE, True), (runs[2], FAST, False)):
        assert (run.schedule == plan(run.schedule.model, target, settings=settings, max_context=2052)) is same


def test_a_file_that_a_card_wrote_is_learned_from() -> None:
    runs = learned_of.believed(SPEED / "h200-share-written.json", load_target("h200"), None)
    assert [(run.schedule.plan, run.pos) for run in runs] == [
        ("naive", 16),
        ("naive", 128),
        ("fast", 16),
        ("fast", 128),
    ]
    assert [run.ms for run in runs] == pytest.approx([0.519, 0.541, 0.347, 0.357], abs=0.001)


def test_what_the_file_says_of_its_target_counts_for_nothing(cases: list[Measurement], tmp_path: Path) -> None:
    """Neither its rates, by which no time would be below the floor, nor its limits."""
    schedule, path = cases[0].schedule, tmp_path / "l4.json"
    target = schedule.target
    fast = target.model_copy(update={"read_ceiling_gbps": 9e5, "hbm_gbps": 9e5, "sms": 2 * target.sms})
    for ms, why in ((0.1, "faster than its bytes"), (2.0, "")):
        sped_up = schedule.model_copy(update={"target": fast})
        write(path, shared([(row(cases[0], ms), sped_up)], PROVENANCE))
        if why:
            with pytest.raises(AmkError, match=why):
                learned_of.believed(path, target, None)
        else:
            assert learned_of.believed(path, target, None)[0].schedule == schedule


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
    schedules = [canonical_json(each).decode() for each in schedules_of(sent, read(sent)).values()]
    assert len(schedules) == 2
    assert not any(word in each for word in ("GPU-secret", "somebody") for each in (text, *schedules))
    assert read(sent).hardware == {"name": "NVIDIA L4", "sm_clock_mhz": "2040"} and len(read(sent).card) == 16


def test_a_file_is_small(sent: Path) -> None:
    """4 KB for a schedule, 400 bytes for a row."""
    assert all(len(text) < 4096 for text in read(sent).schedules.values()) and sent.stat().st_size < 2 * 4096 + 2 * 600
    assert RECORD.stat().st_size < 13_000


def with_times(content: dict[str, Any], **times: float) -> dict[str, Any]:
    first, *rest = content["rows"]
    entry = {"row": first["row"] | {"times": first["row"]["times"] | times}}
    return content | {"rows": [entry, *rest]}


def seal_anew(content: dict[str, Any]) -> dict[str, Any]:
    return content | {"seal": seal_of(content)}


def row_with(content: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The content with other fields of its first row, sealed anew."""
    first, *rest = content["rows"]
    return seal_anew(content | {"rows": [{"row": first["row"] | fields}, *rest]})


def key_with(content: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return row_with(content, key=content["rows"][0]["row"]["key"] | fields)


def holding(content: dict[str, Any], text: bytes, digest: str = "") -> dict[str, Any]:
    """The content with this text instead of the first row's schedule, under its own hash unless one is given."""
    old, digest = content["rows"][0]["row"]["schedule"], digest or hashlib.sha256(text).hexdigest()
    packed_text = base64.b64encode(zlib.compress(text)).decode()
    rest = {name: value for name, value in content["schedules"].items() if name != old}
    return row_with(content | {"schedules": rest | {digest: packed_text}}, schedule=digest)


def with_edit(content: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The content with the first row's schedule changed, under the hash of what it became."""
    schedule = json.loads(
        zlib.decompress(base64.b64decode(content["schedules"][content["rows"][0]["row"]["schedule"]]))
    )
    change(schedule)
    return holding(content, json.dumps(schedule, sort_keys=True, separators=(",", ":")).encode() + b"\n")


def texts(content: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """The content with the texts of its schedules changed."""
    return seal_anew(content | {"schedules": {name: change(text) for name, text in content["schedules"].items()}})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda c: with_times(c, ms=0.5), "seal"),
        (lambda c: c | {"schedules": {}}, "at least 1"),
        (lambda c: seal_anew(with_times(c, ms=1e-3)), "faster than"),
        (lambda c: seal_anew(with_times(c, ms=float("1e300"))), "less than"),
        (lambda c: row_with(c, schedule="0" * 64), "not those of its rows"),
        (lambda c: seal_anew(c | {"schedules": c["schedules"] | {"0" * 64: ""}}), "not those of its rows"),
        (lambda c: seal_anew(c | {"rows": []}), "at least 1"),
        (lambda c: seal_anew(c | {"code": "import os"}), "code"),
        (lambda c: seal_anew(c | {"format": 1}), "format 1 has no schedules"),
        (lambda c: seal_anew(c | {"format": 3}), "format"),
        (lambda c: key_with(c, pos=2048), "2048 cache positions"),
        (lambda c: key_with(c, model="llama3-8b"), "model smollm2-135m"),
        (lambda c: key_with(c, dtype="int8"), "dtype bf16"),
        (lambda c: key_with(c, plan="naive"), "plan fast"),
        (lambda c: row_with(c, context=4096), "2048 cache positions"),
        (lambda c: with_edit(c, lambda s: s.update(name="other")) | {"seal": c["seal"]}, "seal"),
        (lambda c: holding(c, b"{}", "0" * 64), "another one than its hash"),
        (lambda c: with_edit(c, lambda s: s["launch"].update(ctas_per_sm=4)), "is UNSAFE (AMK40"),
        (lambda c: with_edit(c, lambda s: s["model"].update(name="__import__('os')")), "AMK008"),
        (lambda c: with_edit(c, lambda s: s.update(code="import os")), "unknown field 'code'"),
        (lambda c: with_edit(c, lambda s: s.update(version=9)), "measure again with this version"),
        (lambda c: with_edit(c, lambda s: s["target"].update(name="l5")), "AMK010"),
        (lambda c: holding(c, b"import os"), "not JSON"),
        (lambda c: holding(c, b"[]"), "a schedule is a JSON object"),
        (lambda c: holding(c, b"[" * 99), "AMK003"),
        (lambda c: holding(c, b" " * (20 << 20)), f"more than {MOST_TEXT:,} bytes"),
        (lambda c: texts(c, lambda text: "A" * (MOST_CHARACTERS + 4)), f"the limit is {MOST_CHARACTERS:,}"),
        (lambda c: texts(c, lambda text: "no base64!"), "not a compressed schedule"),
        (lambda c: texts(c, lambda text: "AAAA"), "not a compressed schedule"),
        (lambda c: texts(c, lambda text: text[:400]), "is cut or goes on"),
        (lambda c: texts(c, lambda text: base64.b64encode(base64.b64decode(text) + b"x").decode()), "cut or goes on"),
        (lambda c: seal_anew(c | {"schedules": {f"{n:064x}": "" for n in range(65)}}), "at most 64"),
    ],
)  # fmt: skip
def test_what_was_changed_on_the_way_is_refused(
    sent: Path, change: Callable[[dict[str, Any]], dict[str, Any]], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sent.write_text(json.dumps(change(json.loads(sent.read_text()))))
    assert learn(sent) == 2
    assert why in capsys.readouterr().err


def test_another_card_is_not_learned_from(sent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert learn(sent, "h200") == 2 and "it is of l4, not h200" in capsys.readouterr().err


def test_more_than_a_file_holds_is_refused_before_it_is_measured(cases: list[Measurement]) -> None:
    schedule = cases[0].schedule
    check_share(cases * (MOST_ROWS // 2))
    long = schedule.model_copy(update={"buffers": schedule.buffers * 100})
    several = [schedule.model_copy(update={"name": f"n{n}"}) for n in range(MOST_SCHEDULES + 1)]
    for schedules, why in (
        ([schedule] * (MOST_ROWS + 1), f"{MOST_ROWS + 1} rows are too many"),
        (several, f"{MOST_SCHEDULES + 1} schedules are too many"),
        ([long], "the limit is"),
    ):
        with pytest.raises(AmkError, match=why):
            check_share([replace(cases[0], schedule=each) for each in schedules])


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
    forged = seal_anew(with_times(json.loads(sent.read_text()), ms=9.0))
    sent.write_text(json.dumps(forged))
    with pytest.raises(AmkError, match="none of the signers"):
        read(sent, signers)
