"""Codes that an earlier start left on disk are the ones that this start would make, or they are made again."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from amk.engine import packed_weights
from amk.engine.checkpoints.checkpoint import Checkpoint
from amk.engine.checkpoints.open_checkpoint import open_checkpoint
from amk.interpreter.packing import packed_arrays
from amk.planner.decode import plan
from amk.planner.formats import formats
from amk.planner.settings import FAST, Settings
from amk.quantize.search import searched
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.weights.bfloat import F32, Bits
from amk.weights.quantised import Quantised, Quantiser, nearest
from amk.weights.weight_format import FormatName, WeightFormat
from tests.engine.tiny_model import weights, write_single


def directory(tmp_path: Path, seed: int = 0) -> Path:
    return write_single(tmp_path / "model", weights(seed=seed), "BF16")


def schedule_of(
    checkpoint: Checkpoint, form: FormatName = "int4-g128", context: int = 64, settings: Settings = FAST
) -> Schedule:
    wanted = formats(form)
    return plan(checkpoint.spec, load_target("h200"), settings=settings, formats=wanted, max_context=context, workers=4)


def loaded(
    schedule: Schedule, checkpoint: Checkpoint, place: Path, quantise: Quantiser = searched
) -> tuple[Bits, dict[str, F32]]:
    """The packed buffer, and the scales that stand apart."""
    found: dict[int, Bits] = {}
    scales = packed_weights.packed_weights(
        schedule, checkpoint, lambda first, words: found.__setitem__(first, words.copy()), None, quantise, place
    )
    ordered = [found[first] for first in sorted(found)]
    assert sorted(found) == list(np.cumsum([0, *(len(words) for words in ordered[:-1])]))
    return np.concatenate(ordered), scales


def no_quantiser(rows: F32, form: WeightFormat) -> Quantised:
    raise AssertionError("codes were made")


no_quantiser.__qualname__, no_quantiser.__module__ = searched.__qualname__, searched.__module__


def is_kept(schedule: Schedule, checkpoint: Checkpoint, place: Path) -> bool:
    """Whether a start makes no codes."""
    try:
        loaded(schedule, checkpoint, place, no_quantiser)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("form", ["int4-g128", "int4-g128-zp", "int8", "fp8"])
def test_a_second_start_makes_no_codes_and_has_the_same_bytes(form: FormatName, tmp_path: Path) -> None:
    checkpoint, place = open_checkpoint(directory(tmp_path)), tmp_path / "cache"
    schedule = schedule_of(checkpoint, form)
    assert not is_kept(schedule, checkpoint, place)
    words, scales = packed_arrays(schedule, checkpoint, searched)
    for quantise in (searched, no_quantiser):
        again, scales_again = loaded(schedule, checkpoint, place, quantise)
        assert np.array_equal(again, words)
        assert scales_again.keys() == scales.keys()
        assert all(np.array_equal(scales_again[name], values) for name, values in scales.items())


def test_scales_that_stand_apart_are_kept(tmp_path: Path) -> None:
    checkpoint, place = open_checkpoint(directory(tmp_path)), tmp_path / "cache"
    schedule = schedule_of(checkpoint, "int8", settings=replace(FAST, scales_apart=True))
    words, scales = loaded(schedule, checkpoint, place)
    assert scales and all(np.any(values) for values in scales.values())
    again = loaded(schedule, checkpoint, place, no_quantiser)
    assert np.array_equal(again[0], words) and all(np.array_equal(again[1][name], scales[name]) for name in scales)


def test_what_the_bytes_depend_on_is_in_the_key(tmp_path: Path) -> None:
    checkpoint, place = open_checkpoint(directory(tmp_path)), tmp_path / "cache"
    schedule = schedule_of(checkpoint)
    words, _ = loaded(schedule, checkpoint, place)
    assert is_kept(schedule_of(checkpoint, context=128), checkpoint, place), "the cache's length moves no weight"
    assert not is_kept(schedule_of(checkpoint, "int4-g64"), checkpoint, place)
    assert not is_kept(schedule_of(checkpoint, settings=replace(FAST, warps=6)), checkpoint, place)
    key = packed_weights.key_of(schedule, tmp_path / "model", searched)
    assert key != packed_weights.key_of(schedule, tmp_path / "model", nearest)
    other = open_checkpoint(directory(tmp_path, seed=1))
    assert not is_kept(schedule, other, place)
    assert not np.array_equal(loaded(schedule, other, place)[0], words)


def test_a_file_with_other_bytes_and_the_same_times_is_another(tmp_path: Path) -> None:
    path = directory(tmp_path)
    checkpoint, file = open_checkpoint(path), path / "model.safetensors"
    schedule, about = schedule_of(checkpoint), file.stat()
    key = packed_weights.key_of(schedule, path, searched)
    directory(tmp_path, seed=1)
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert file.stat().st_size == about.st_size and file.stat().st_mtime_ns == about.st_mtime_ns
    assert packed_weights.key_of(schedule, path, searched) != key


@pytest.mark.parametrize("damage", ["cut", "flipped", "no description", "not JSON", "another's", "odd parts"])
def test_a_damaged_entry_is_made_again(damage: str, tmp_path: Path) -> None:
    checkpoint, place = open_checkpoint(directory(tmp_path)), tmp_path / "cache"
    schedule = schedule_of(checkpoint)
    words, _ = loaded(schedule, checkpoint, place)
    (data,), (description,) = place.glob("*.bin"), place.glob("*.json")
    match damage:
        case "cut":
            data.write_bytes(data.read_bytes()[:-2])
        case "flipped":
            content = bytearray(data.read_bytes())
            content[len(content) // 2] ^= 1
            data.write_bytes(content)
        case "no description":
            description.unlink()
        case "not JSON":
            description.write_text("{")
        case "another's":
            description.write_text(json.dumps(json.loads(description.read_text()) | {"key": "other"}))
        case "odd parts":
            record = json.loads(description.read_text())
            record["parts"][0]["shape"] = [3]
            description.write_text(json.dumps(record))
    assert np.array_equal(loaded(schedule, checkpoint, place)[0], words)
    assert is_kept(schedule, checkpoint, place)


def test_only_codes_that_a_quantiser_made_are_kept(tmp_path: Path) -> None:
    checkpoint, place = open_checkpoint(directory(tmp_path)), tmp_path / "cache"
    loaded(schedule_of(checkpoint, "bf16"), checkpoint, place)
    loaded(schedule_of(checkpoint), checkpoint, place, lambda rows, form: nearest(rows, form))
    assert not list(place.glob("*"))


def test_a_disk_without_room_costs_only_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = open_checkpoint(directory(tmp_path))
    schedule = schedule_of(checkpoint)
    words, _ = packed_arrays(schedule, checkpoint, searched)
    (tmp_path / "file").write_text("")
    assert np.array_equal(loaded(schedule, checkpoint, tmp_path / "file" / "below")[0], words)
    monkeypatch.setattr(packed_weights, "MOST_BYTES", words.nbytes - 1)
    assert np.array_equal(loaded(schedule, checkpoint, tmp_path / "small")[0], words)
    assert not list((tmp_path / "small").glob("*"))


class Full:
    """A file on a disk that is full: it takes nothing, and says so again when it is closed."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        path.write_bytes(b"")

    def write(self, data: object) -> None:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        self.write(None)


def test_a_disk_that_fills_up_costs_only_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, place = open_checkpoint(directory(tmp_path)), tmp_path / "cache"
    schedule = schedule_of(checkpoint)
    monkeypatch.setattr(packed_weights.tempfile, "NamedTemporaryFile", lambda **options: Full(place / ".a.tmp"))
    assert np.array_equal(loaded(schedule, checkpoint, place)[0], packed_arrays(schedule, checkpoint, searched)[0])
    assert not list(place.iterdir())


def test_what_a_killed_start_left_goes_after_a_day(tmp_path: Path) -> None:
    checkpoint, place = open_checkpoint(directory(tmp_path)), tmp_path / "cache"
    place.mkdir()
    for name, age in ((".old.tmp", 2 * packed_weights.ABANDONED), (".new.tmp", 60)):
        (place / name).write_bytes(b"x")
        then = time.time() - age
        os.utime(place / name, (then, then))
    loaded(schedule_of(checkpoint), checkpoint, place)
    assert [file.name for file in place.glob(".*.tmp")] == [".new.tmp"]


def test_the_entry_that_was_used_least_recently_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, place = open_checkpoint(directory(tmp_path)), tmp_path / "cache"
    first, second, third = (schedule_of(checkpoint, form) for form in ("int4-g128", "int4-g64", "int8"))
    for number, schedule in enumerate((first, second)):
        loaded(schedule, checkpoint, place)
        for file in place.glob(f"{packed_weights.key_of(schedule, tmp_path / 'model', searched)}.bin"):
            os.utime(file, (number, number))
    assert is_kept(first, checkpoint, place)
    room = sum(file.stat().st_size for file in place.glob("*.bin"))
    room += packed_arrays(third, checkpoint)[0].nbytes
    monkeypatch.setattr(packed_weights, "MOST_BYTES", room - 1)
    loaded(third, checkpoint, place)
    assert [is_kept(schedule, checkpoint, place) for schedule in (first, third, second)] == [True, True, False]
