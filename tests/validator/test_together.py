"""Schedules that take turns on one text: what one leaves is what the other goes on with, or the pair is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amk.cli import main
from amk.emulator.decode import EmulatedEngine
from amk.engine.backends.cpu_engine import CpuEngine
from amk.interpreter.packing import packed_array, packed_arrays
from amk.lowering.compile import compile_ptx
from amk.lowering.emit import emit
from amk.models.model import load_model
from amk.models.model_spec import ModelSpec
from amk.planner.decode import plan
from amk.planner.formats import Formats, Layered, formats
from amk.planner.settings import FAST
from amk.schedule_ir.codec import canonical_json
from amk.schedule_ir.ops.begin import STATE
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from amk.validator.together import apart, crowded, handed_over, one_packing
from tests.engine.tiny import RandomTensors, tiny_model, tiny_plan

ALIKE: dict[str, Any] = {"workers": 8, "warps": 4}
ROWS: dict[str, Any] = ALIKE | {"rows": 4, "kv_block": 4, "kv_splits": 2}


def pair() -> tuple[Schedule, Schedule]:
    """Four rows a step and one, with other blocks, splits and hand-offs."""
    model = tiny_model()
    return tiny_plan(model, **ROWS), tiny_plan(model, **ALIKE, handoff="fenced", kv_splits=4)


def hand_over(before: CpuEngine, after: CpuEngine) -> None:
    """What `together` says is handed over, and nothing else."""
    for cache in ("k_cache", "v_cache"):
        after._machine.set(cache, before._machine.get(cache))
    state = after.state() | {name: before.state()[name] for name in handed_over(before.schedule)}
    after._machine.set("state", np.array([state[name] for name in STATE], np.int32))


@pytest.mark.turns(4)
def test_schedules_that_take_turns_give_the_text_of_one() -> None:
    rows, one = pair()
    assert apart(rows, one) == apart(one, rows) == []
    model, source = one.model, RandomTensors(one.model)
    prompt = [int(t) for t in np.random.default_rng(1).integers(0, model.vocab, 11)]
    alone = CpuEngine(one, source, copies="whole")
    alone.request(prompt)
    expected = alone.step(len(prompt) + 3).tolist()
    reader, writer = (CpuEngine(schedule, source, copies="whole") for schedule in (rows, one))
    reader.request(prompt)
    writer.request(prompt)
    found = reader.step(1).reshape(-1).tolist()
    hand_over(reader, writer)
    found += writer.step(1).tolist()
    hand_over(writer, reader)
    found += reader.step(1).reshape(-1).tolist()
    hand_over(reader, writer)
    found += writer.step(len(expected) - len(found)).tolist()
    assert found == expected
    assert writer.state()["pos"] == len(expected)
    assert writer.state()["epoch"] < len(expected), "epochs are each schedule's own"


def test_what_does_not_fit_is_named() -> None:
    rows, one = pair()
    model = tiny_model()
    others = {
        "AMK106": [
            tiny_plan(tiny_model(ffn=128), **ALIKE), tiny_plan(model, **ALIKE, kv_dtype="fp8"),
            tiny_plan(model, **ALIKE, batch=2),
        ],
        "AMK103": [tiny_plan(model, **ALIKE, context=40)],
    }  # fmt: skip
    for code, schedules in others.items():
        for other in schedules:
            assert code in {d.code for d in apart(rows, other)} & {d.code for d in apart(other, one)}


def test_scales_that_stand_apart_are_those_of_one_format() -> None:
    """The buffers have one shape whatever the codes are, and one content only for one format."""
    model = tiny_model(layers=2)
    wanted: dict[str, Formats | Layered] = {
        "int8": formats("int8", "bf16"), "fp8": formats("fp8", "bf16"), "grouped": formats("int8-g64", "bf16"),
        "int8 first": ((1, formats("int8", "bf16")), (1, formats("int4-g64", "bf16"))),
        "int8 last": ((1, formats("int4-g64", "bf16")), (1, formats("int8", "bf16"))),
    }  # fmt: skip
    schedules = {name: tiny_plan(model, **ALIKE, weights=each, scales_apart=True) for name, each in wanted.items()}
    fewer = tiny_plan(model, workers=7, warps=4, weights=wanted["int8"], scales_apart=True)
    assert apart(schedules["int8"], fewer) == apart(fewer, schedules["int8"]) == []
    source = RandomTensors(model)
    scales = {name: packed_arrays(schedule, source)[1] for name, schedule in schedules.items()}
    for one, other in permutations(schedules, 2):
        common = scales[one].keys() & scales[other].keys()
        same = all(np.array_equal(scales[one][name], scales[other][name]) for name in common)
        codes = [d.code for d in apart(schedules[one], schedules[other])]
        assert codes == ["AMK106"] + ["AMK103"] * (len(codes) - 1) and (len(codes) == 1) == same, (one, other)
    head = model.sliced(2, 2, head=True)
    int8, fp8 = (tiny_plan(head, **ALIKE, weights=formats(form), scales_apart=True) for form in ("int8", "fp8"))
    assert apart(int8, int8) == [] and [d.code for d in apart(int8, fp8)] == ["AMK106", "AMK103"]


def test_a_text_goes_on_in_the_numbers_that_it_began_with() -> None:
    """Formats of a matrix are compared in every layer."""
    model = tiny_model(layers=2)
    plain, codes = (tiny_plan(model, **ALIKE, weights=formats(form)) for form in ("bf16", "int8"))
    (found,) = apart(plain, codes)
    assert found.code == "AMK106" and "'qkv' of layer 0 is bf16 and int8" in found.message
    last = tiny_plan(model, **ALIKE, weights=((1, formats("bf16")), (1, formats("int8", "bf16"))))
    (found,) = apart(last, plain)
    assert "'qkv' of layer 1 is int8 and bf16" in found.message
    head = tiny_plan(model, **ALIKE, weights=formats("bf16", "int8"))
    (found,) = apart(head, plain)
    assert "'lm_head' of layer 0 is int8 and bf16" in found.message


def test_tables_that_deal_no_weights_do_not_matter() -> None:
    rows, one = pair()
    more = one.model_copy(update={"tables": one.tables | {"other.first": (0,) * one.launch.workers}})
    assert one_packing(rows, more) and one_packing(more, rows)


def test_what_belongs_to_a_text_is_handed_over_for_every_text() -> None:
    model = tiny_model()
    assert handed_over(tiny_plan(model, **ALIKE)) == ("token", "pos", "done")
    assert handed_over(tiny_plan(model, **ALIKE, batch=2)) == ("token", "pos", "done", "token.1")
    live = tiny_plan(model, **ALIKE, batch=2, live=True)
    assert handed_over(live) == ("token", "pos", "done", "token.1", "pos.1")
    assert set(live.state_words) - {*handed_over(live)} == {"epoch"}


def test_launches_of_two_devices_do_not_take_turns() -> None:
    rows, one = pair()
    elsewhere = one.model_copy(update={"target": load_target("a100")})
    assert {d.code for d in apart(rows, elsewhere)} == {d.code for d in apart(elsewhere, rows)} == {"AMK106"}


def test_the_device_holds_all_of_them_at_once() -> None:
    """Packed weights once where they are the same bytes; constants and caches once; hand-offs and outputs of each."""
    rows, one = pair()
    sizes = {name: {b.name: b.bytes for b in s.buffers if b.space == "global"} for name, s in (("r", rows), ("o", one))}
    common = {b.name for b in one.buffers if b.role != "scratch"} - {"state", "output", "logits"}
    both = sum(sizes["r"].values()) + sum(size for name, size in sizes["o"].items() if name not in common)
    other = tiny_plan(tiny_model(), **(ALIKE | {"workers": 7, "handoff": "fenced", "kv_splits": 4}))
    assert not one_packing(rows, other)
    apart_too = (
        both
        - sum(size for name, size in sizes["o"].items() if name not in common)
        + sum(b.bytes for b in other.buffers if b.space == "global" and b.name not in common - {"weights"})
    )
    for partner, needed in ((one, both), (other, apart_too)):
        for room in (needed, needed - 1):
            small = [
                s.model_copy(update={"target": s.target.model_copy(update={"hbm_bytes": room})})
                for s in (rows, partner)
            ]
            assert [d.code for d in crowded(small)] == ["AMK011"] * (room < needed)


def test_weights_are_shared_where_their_bytes_are_the_same() -> None:
    model = tiny_model()
    rows, one = pair()
    assert one_packing(rows, one)
    for changes in ({"workers": 7}, {"warps": 2}, {"k_parts": 3}):
        other = tiny_plan(model, **(ALIKE | changes))
        assert apart(rows, other) == []
        assert not one_packing(rows, other), changes


WIDE = tiny_model(layers=1, hidden=256, ffn=512, heads=8)
EVEN = tiny_model(layers=1, hidden=256, ffn=512, heads=8, vocab=96)
CODED = tiny_model(layers=1, hidden=512, ffn=1024)
PACKINGS: dict[str, tuple[ModelSpec, list[dict[str, Any]], list[dict[str, Any]]]] = {
    "copies, parts": (WIDE, [{}], [{"chunk_bytes": n, "k_parts": k} for n in (512, 1024, 2048) for k in (1, 2, 4)]),
    "shares": (WIDE, [{}, {"workers": 7}, {"workers": 3, "warps": 2}], [{"chunk_bytes": n} for n in (512, 1024)]),
    "rows": (
        WIDE, [{"rows": 4}, {"rows": 4, "workers": 7}],
        [{"chunk_bytes": n, "k_parts": k} for n in (512, 1024) for k in (1, 2)],
    ),
    "without output head": (
        WIDE, [{"rows": 4}, {"rows": 4, "workers": 7}],
        [{"chunk_bytes": n, "headless": yes} for n in (512, 1024) for yes in (False, True)],
    ),
    "row groups": (
        EVEN, [{"rows": 9, "kv_block": 9, "workers": 4}],
        [{"chunk_bytes": n * g, "row_groups": g, "k_parts": k} for n in (512, 1024) for g in (1, 2) for k in (1, 4)],
    ),
    "codes": (
        CODED,
        [{"weights": formats("int8"), "scales_apart": yes} for yes in (True, False)],
        [{"chunk_bytes": n} for n in (512, 1024, 2048)],
    ),
    "codes with scales": (
        CODED, [{"weights": formats("int4-g128", "int8")}], [{"chunk_bytes": n} for n in (512, 1024)],
    ),
    "fp8 beside bf16": (
        CODED, [{"weights": formats("fp8", "bf16"), "scales_apart": True}],
        [{"chunk_bytes": n, "workers": k} for n in (512, 1024) for k in (7, 8)],
    ),
}  # fmt: skip
"""Plans by their settings: those that all have, and those in which they differ."""


@pytest.mark.parametrize("name", PACKINGS)
def test_packings_are_one_exactly_where_the_bytes_are_equal(name: str) -> None:
    """Every pair of plans, whose weights are packed from one source; settings that all pairs have as they come."""
    model, common, own = PACKINGS[name]
    source, packed = RandomTensors(model), list[tuple[Schedule, bytes]]()
    for settings in (a | b for a in common for b in own):
        schedule = tiny_plan(model, **(ALIKE | {"context": 16} | settings))
        packed.append((schedule, packed_array(schedule, source).tobytes()))
    found = {(one_packing(a, b), left == right) for n, (a, left) in enumerate(packed) for b, right in packed[:n]}
    assert found == {(False, False)} | ({(True, True)} if name != "codes with scales" else set())


@pytest.mark.parametrize(
    ("name", "settings", "shared"),
    [
        ("llama3-8b", ({"rows": 8}, {"rows": 16}), True),
        ("llama3-8b", ({}, {"rows": 8}), False),
        ("llama3-8b", ({"k_parts": 4, "chunk_bytes": 2048}, {"rows": 8}), True),
        ("llama3-8b", ({"k_parts": 7}, {"rows": 8, "k_parts": 7}), True),
        ("llama3-8b", ({}, {"rows": 32}), False),
        ("llama3.2-1b", ({}, {"rows": 8}), True),
        ("llama3.2-1b", ({"k_parts": 4}, {"rows": 32}), True),
        ("llama3.2-1b", ({}, {"rows": 16}), False),
    ],
)
def test_which_default_plans_of_an_h200_share_their_weights(
    name: str, settings: tuple[dict[str, Any], dict[str, Any]], shared: bool
) -> None:
    """And what the two need together: with shared weights no more than one of them and the other's hand-offs."""
    model, target = load_model(name), load_target("h200")
    one, other = (plan(model, target, settings=replace(FAST, **each), max_context=4096) for each in settings)
    assert apart(one, other) == [] and one_packing(one, other) == one_packing(other, one) == shared
    alone = sum(b.bytes for b in one.buffers if b.space == "global")
    weights = next(b.bytes for b in other.buffers if b.name == "weights")
    small = target.model_copy(update={"hbm_bytes": alone + weights // 2})
    both = [schedule.model_copy(update={"target": small}) for schedule in (one, other)]
    assert [d.code for d in crowded(both)] == ([] if shared else ["AMK011"])


@pytest.mark.turns(12)
def test_a_kernel_with_smaller_copies_runs_on_the_weights_of_one_with_larger() -> None:
    """In the emulator: rows in copies of 512 bytes, on the bytes that were packed for one row in copies of 1 KB."""
    one = tiny_plan(WIDE, **ALIKE, chunk_bytes=1024)
    rows = tiny_plan(WIDE, **ROWS, chunk_bytes=512)
    assert one_packing(one, rows) and one.streams[0].chunk_bytes == 2 * rows.streams[0].chunk_bytes
    source, prompt = RandomTensors(WIDE), (3, 17, 40, 7, 11, 5, 2, 9)
    results = []
    for schedule, steps in ((one, len(prompt)), (rows, len(prompt) // 4)):
        ptx = compile_ptx(emit(schedule), schedule.target.arch)
        engine = EmulatedEngine(schedule, source, ptx, races=True)
        engine.machine.write("weights", packed_array(one, source))
        engine.request_batch([prompt])
        outcome = engine.launch(steps)
        assert outcome.ended and not outcome.faults
        results.append((engine.output(steps).reshape(-1)[-1], engine.logits().reshape(-1, WIDE.vocab)[-1]))
    (token, logits), (same, alike) = results
    assert token == same
    np.testing.assert_allclose(logits, alike, atol=2.0**-6 * np.abs(logits).max())


def test_the_command_judges_all_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, one = pair()
    files = []
    for name, schedule in (("rows", rows), ("one", one), ("short", tiny_plan(one.model, **ALIKE, context=40))):
        files.append(str(tmp_path / f"{name}.json"))
        Path(files[-1]).write_bytes(canonical_json(schedule))
    assert main(["verify", files[0], files[1]]) == 0
    assert "packed weights: the same bytes" in capsys.readouterr().out
    small = [s.model_copy(update={"target": s.target.model_copy(update={"hbm_bytes": 250_000})}) for s in (rows, one)]
    for name, schedule in zip(("a", "b"), small, strict=True):
        files.append(str(tmp_path / f"{name}.json"))
        Path(files[-1]).write_bytes(canonical_json(schedule))
    assert [main(["verify", file]) for file in files[3:]] == [0, 0]
    capsys.readouterr()
    assert main(["verify", *files[3:]]) == 1
    assert "the buffers of all need" in capsys.readouterr().err
    assert main(["verify", files[0], files[2], "--format", "json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["verdict"] == "UNSAFE"
    assert {d["code"] for d in answer["diagnostics"]} == {"AMK103"}
    longer, shorter = sorted((rows.kv.context, 40), reverse=True)
    advice = f"plan both with one --max-context: the caches have {longer} and {shorter} positions"
    assert {d["help"] for d in answer["diagnostics"]} == {advice}
    assert main(["verify", files[0], files[1], "--certificate", str(tmp_path / "c.json")]) == 2


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"batch": 2}, "--batch"), ({"kv_dtype": "fp8"}, "--kv-dtype"), ({"target": load_target("a100")}, "--gpu"),
    ],
)  # fmt: skip
def test_the_command_says_how_to_plan_a_pair(
    changes: dict[str, Any], advice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = tiny_plan(tiny_model(), **ALIKE)
    other = one.model_copy(update=changes) if "target" in changes else tiny_plan(tiny_model(), **ALIKE, **changes)
    files = [str(tmp_path / f"{name}.json") for name in ("one", "other")]
    for file, schedule in zip(files, (one, other), strict=True):
        Path(file).write_bytes(canonical_json(schedule))
    main(["verify", *files, "--format", "json"])
    found = json.loads(capsys.readouterr().out)["diagnostics"]
    (help_text,) = [d["help"] for d in found if "the schedules differ in" in d["message"]]
    assert advice in help_text


def bytes_of(schedule: Schedule) -> bytes | None:
    """The packed weights; None of a schedule whose weights cannot be packed."""
    try:
        return packed_array(schedule, RandomTensors(schedule.model)).tobytes()
    except ValueError:
        return None


def test_whatever_the_packer_reads_is_compared() -> None:
    """One field of a schedule changed: weights are called the same bytes only where packing makes the same bytes."""
    one = pair()[1]
    (stream,) = one.streams
    changed = {
        name: one.model_copy(update={"streams": (stream.model_copy(update=update),)})
        for name, update in {
            "align": {"chunk_align": 128}, "rows": {"chunk_rows": 16}, "columns": {"chunk_k": 2 * stream.chunk_k},
        }.items()
    }  # fmt: skip
    for table, values in one.tables.items():
        left = {name: column for name, column in one.tables.items() if name != table}
        turned = (*values[1:], values[0])
        changed |= {f"{table} turned": one.model_copy(update={"tables": left | {table: turned}})}
    compared = 0
    for what, other in changed.items():
        called = one_packing(one, other), one_packing(other, one)
        assert called[0] == called[1], what
        same = bytes_of(other) == bytes_of(one)
        assert same or not called[0], what
        compared += not same
    assert compared > 2


def test_memory_of_one_alone_is_no_constant_of_the_other() -> None:
    one = pair()[1]
    buffers = tuple(b.model_copy(update={"role": "scratch"}) if b.name == "rope" else b for b in one.buffers)
    other = one.model_copy(update={"buffers": buffers})
    assert {d.code for d in apart(one, other)} == {d.code for d in apart(other, one)} == {"AMK103"}


def test_schedules_that_are_not_safe_are_judged_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their weights may have no layout."""
    one = pair()[1]
    less = tuple(sorted(set(one.tables) - {"qkv.count", "hidden.first"}))
    broken = [
        one.model_copy(update={"tables": {name: one.tables[name] for name in less}}),
        one.model_copy(update={"streams": (one.streams[0].model_copy(update={"source": "nothing"}),)}),
    ]
    files = []
    for number, schedule in enumerate([one, *broken]):
        files.append(str(tmp_path / f"{number}.json"))
        Path(files[-1]).write_bytes(canonical_json(schedule))
    for pairing in ([0, 1], [1, 0], [2, 0], [1, 2]):
        assert main(["verify", *(files[n] for n in pairing)]) in (1, 2)
        assert "Traceback" not in capsys.readouterr().err
