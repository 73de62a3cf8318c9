"""Edits of the device code by rule: enough of each class, each is one; read-back or emulator refuse these."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from amk.lowering.watchdog import read_log
from amk.schedule_ir.ops import OPS
from amk.schedule_ir.ranking import gumbel, keys
from amk.schedule_ir.schedule import steps_of
from amk.validator.verify import verify
from amk.weights.bfloat import from_bf16_bits
from amk.weights.e4m3 import from_e4m3
from tests.lowering.edits.further import (
    CODES,
    FAR,
    FROM_WARP_1,
    FURTHER,
    LOGITS,
    ROWS,
    TOPS,
    best_of,
    e4m3_of,
    far_cache_row_of,
    far_chunk_of,
    far_row_of,
    full_log_of_stalls,
    keys_of,
    log_of,
    log_of_stalls,
    noise_of,
    polls_of_drains,
    scales_of,
)
from tests.lowering.edits.judge import SUBJECTS, beside, judge, original, subject, texts
from tests.lowering.edits.judge import all_edits as found_edits
from tests.lowering.edits.rules import RULES, SOURCE, Edit
from tests.lowering.edits.run import OF_A_HEADER, SLICES, equivalent, numbered, sample

REFUSED = {
    "half the lanes: amk/cells.cuh": "AMK609",
    "loop of one pass: amk/cells.cuh": "AMK609",
    "next slot: amk/ring.cuh": "AMK609",
    "barrier left out: the emitted text": "AMK607",
    "strength left out: amk/sync.cuh": "AMK607",
    "rounding left open: amk/context.cuh": "AMK610",
    "comparison off by one: amk/ring.cuh": "AMK609",
    "constant one more: amk/ops/gemv.cuh": "emulator: race",
    "literal one more: amk/ops/gemv.cuh": "emulator: tokens",
}
"""The first edit of a rule in a file, in the kernel with tagged words, and what refuses it."""

all_edits = cache(found_edits)


def test_every_rule_finds_something_to_edit() -> None:
    found = all_edits()
    rules = Counter(edit.name.split(":")[0] for _, edit in found)
    assert {rule.name for rule in RULES} == set(rules) and len(found) > 1000
    kinds = {kind.split(":")[0] for kind in Counter(edit.kind for _, edit in found)}
    assert kinds == {"synchronisation", "order", "data", "footprint", "arithmetic"}
    assert len({(edit.name, edit.new, names[0]) for names, edit in found}) == len(found)
    assert SLICES >= len(sample(found)) >= 150
    for names, edit in found:
        assert set(names) <= set(SUBJECTS)
        text = texts(names[0])[edit.file]
        assert edit.of(text) != text


def test_every_header_and_op_is_edited() -> None:
    """A header that is new has rules, and edits in the sample, or a reason here."""
    not_edited = {
        "amk/ablation.cuh": "constants that are false in every kernel of the product",
        "amk/ops/refill.cuh": "calls the ring, which is edited, and does nothing else",
        "amk/ops/select_draw.cuh": "calls select and does nothing else",
        "amk/pack.cuh": "of another kernel: `of_rows`",
        "amk/unpack.cuh": "of another kernel: `of_rows`",
    }
    root = Path(str(resources.files("amk.lowering"))) / "cuda"
    headers = {f"amk/{path.relative_to(root).as_posix()}" for path in root.rglob("*.cuh")}
    sampled = Counter(edit.file for _, edit in sample(all_edits()))
    edited = Counter(edit.file for _, edit in all_edits())
    assert set(not_edited) <= headers and not set(not_edited) & set(edited)
    for header in headers - set(not_edited):
        assert sampled[header] >= min(edited[header], OF_A_HEADER) > 0, header
    bodies = [program.body for name in SUBJECTS for program in subject(name).programs]
    run = {step.op.op for body in bodies for step in steps_of(body)}
    assert run == set(OPS)


def test_the_kernels_that_pack_and_unpack_are_edited() -> None:
    pytest.importorskip("torch")
    from tests.lowering.edits.of_rows import PACK, UNPACK, of_kernel

    for name, header in (("pack", PACK), ("unpack", UNPACK)):
        assert {edit.file for _, edit in of_kernel(name)} == {header}


def test_codes_are_edited_with_one_sequence_with_few_and_with_many() -> None:
    """Each has a product of its own."""
    batches = {subject(name).batch for name, (_, _, kept, _) in SUBJECTS.items() if kept.startswith("int")}
    assert 1 in batches and batches & set(range(2, 9)) and max(batches) > 8


@pytest.mark.turns(12)
@pytest.mark.parametrize("which", REFUSED)
def test_an_edit_is_refused(which: str) -> None:
    edit = next(edit for names, edit in all_edits() if edit.name.startswith(which) and "tagged" in names)
    assert judge(("tagged",), edit) == ("tagged", REFUSED[which])


def test_edits_that_are_called_equivalent_are_there_once() -> None:
    """Those of a rule at least once."""
    named, rules = equivalent()
    places = Counter(numbered().values())
    assert {place: places[place] for place in named} == dict.fromkeys(named, 1)
    for pattern in rules:
        assert any(re.fullmatch(pattern, place) for place in places), pattern


def test_keys_that_a_unit_computes_are_those_of_the_schedule() -> None:
    assert keys_of(original("keys") or "").tolist() == keys(LOGITS).tolist()


def test_numbers_of_e4m3_are_those_of_their_codes() -> None:
    found = from_bf16_bits(e4m3_of(original("e4m3") or "").view(np.uint16))
    known = CODES.view(np.uint8).reshape(-1, 2)[:, 0]
    assert sorted(known.tolist()) == list(range(256)) and (found == from_e4m3(known)).all()


def test_waits_that_are_given_up_are_told_one_behind_the_other() -> None:
    entries = read_log(log_of(original("trips") or "").view(np.uint8))
    assert [(wait.agent, wait.object, wait.threshold, wait.value) for wait in entries] == [(0, 5, 7, 3), (1, 6, 9, 4)]


@pytest.mark.parametrize(
    ("which", "kernel", "sign"),
    [
        ("value one more: amk/sync.cuh:71", "trips", "memory"),
        ("address 4 bytes on: amk/sync.cuh:60:70", "trips", "out of bounds"),
        ("difference for sum: amk/ranking.cuh:20:41", "keys", "memory"),
        ("word 16 more: amk/pairs.cuh:17:78", "e4m3", "memory"),
        ("condition negated: amk/watchdog.cuh:90:5", "records", "memory"),
    ],
)
def test_an_edit_is_seen_where_its_function_runs_alone(which: str, kernel: str, sign: str) -> None:
    edit = next(edit for _, edit in all_edits() if edit.name.startswith(which))
    assert kernel in beside(edit) and judge((kernel,), edit) == (kernel, f"emulator: {sign}")


WATCHDOG, RANKING = "amk/watchdog.cuh", "amk/ranking.cuh"


@pytest.mark.parametrize(
    ("file", "text", "new", "kernel", "sign"),
    [
        (WATCHDOG, "if (stalled >= dog.stall_ns) return static_cast<u32>(Cause::stall);", "", "stalls", "memory"),
        (WATCHDOG, "if (since == 0) since", "since", "stalls", "memory"),
        (WATCHDOG, "poll_relaxed_system(&dog.log->count) != 0", "false", "stalls", "memory"),
        (WATCHDOG, "slot < dog.log->capacity", "slot <= dog.log->capacity", "full log", "out of bounds"),
        (WATCHDOG, "stalled < kDrainNs", "stalled < 0", "drains", "memory"),
        ("amk/ops/argmax_rows.cuh", "at < index)", "at > index)", "best", "memory"),
        ("amk/ops/argmax_rows.cuh", " || (other == value && at < index)", "", "best", "memory"),
        (RANKING, "__fadd_rn(high, low)", "high", "noise", "memory"),
        (RANKING, "0.99999994039535522f", "1.f", "noise", "memory"),
        (
            "amk/ring.cuh",
            "row_at<kBytes>(source, next), kBytes",
            "source + next * kBytes, kBytes",
            "far bulk copy",
            "out of bounds",
        ),
        (
            "amk/ring.cuh",
            "from = row_at<kBytes>(source, next)",
            "from = source + next * kBytes",
            "far copy",
            "out of bounds",
        ),
        ("amk/ops/combine.cuh", "peak = -3.0e38f", "peak = 0.f", "far scores of one", "logits"),
        ("amk/ops/argmax_rows.cuh", "float value = -3.0e38f", "float value = 0.f", "negative logits of one", "tokens"),
        ("amk/ops/select.cuh", "value[r] = -3.4e38f", "value[r] = 0.f", "negative logits", "tokens"),
        ("amk/cache.cuh", "__NV_SATFINITE", "__NV_NOSAT", "keys beyond fp8", "memory"),
        ("amk/cache.cuh", "to[1] = of(v.y)", "to[1] = of(v.x)", "rows of fp8", "tokens"),
        ("amk/vector_layouts.cuh", ">> 23, 15u)", ">> 23, 1u)", "scales", "memory"),
        ("amk/vector_layouts.cuh", "exponent >= 255u ?", "exponent > 255u ?", "scales", "memory"),
        (
            "amk/token_rows.cuh",
            "row_at<P::kHidden>(S::table(c).data, token)",
            "S::table(c).data + token * P::kHidden",
            "far row",
            "memory",
        ),
        ("amk/row_at.cuh", "long long row", "int row", "far cache row", "memory"),
        (
            "amk/row_at.cuh",
            "rows + row * kWidth",
            "rows + static_cast<int>(row) * kWidth",
            "far row of anything",
            "memory",
        ),
        ("amk/cache.cuh", "static_cast<long long>(layer", "static_cast<int>(layer", "far cache row", "memory"),
        ("amk/cache.cuh", "const long long first", "const int first", "far cache row", "memory"),
    ],
)
def test_an_edit_beside_the_rules_is_seen(file: str, text: str, new: str, kernel: str, sign: str) -> None:
    """What runs without stalls, equal logits, rare draws, negative logits, large keys and large buffers do not show."""
    before = texts(kernel)[file]
    assert before.count(text) == 1
    edit = Edit("", text, file, before.index(text), len(text), new)
    assert judge((kernel,), edit) == (kernel, f"emulator: {sign}")


def test_a_wait_that_stalls_stops_the_others_too() -> None:
    entries = read_log(log_of_stalls(original("stalls") or "").view(np.uint8))
    assert [(wait.worker, wait.cause) for wait in entries] == [
        (0, "stalled"),
        (1, "stopped because another agent was"),
    ]
    full = full_log_of_stalls(original("full log") or "")
    assert full[0] == 2 and [wait.worker for wait in read_log(full.view(np.uint8))] == [0]


def test_a_wait_for_a_copy_goes_on_for_a_millisecond() -> None:
    """A poll is a few instructions, and an instruction counts as a nanosecond."""
    assert polls_of_drains(original("drains") or "")[0] > 1_000_000 // 20


def test_chunks_and_rows_behind_two_gigabytes_are_found() -> None:
    for name in ("far bulk copy", "far copy"):
        assert far_chunk_of(original(name) or "").tolist() == list(range(32))
    low, high = far_row_of(original("far row") or "").tolist()
    assert low | high << 32 == 2 * 4096 * 1_000_000
    layer, head, position = FAR
    low, high = far_cache_row_of(original("far cache row") or "").tolist()
    assert low | high << 32 == 2 * 128 * (131_072 * (256 * layer + head) + position) > 1 << 39


def test_the_scales_of_a_block_are_each_other_s_inverse() -> None:
    up, down = scales_of(original("scales") or "").view(np.float32).reshape(2, 32)
    finite = TOPS < 254 << 23
    assert (up[finite] * down[finite] == 1).all() and np.isnan(down[TOPS == 255 << 23]).all()
    assert (TOPS[finite].view(np.float32) * up[finite] < 32512).all()


def test_equal_logits_and_noise_are_those_of_the_interpreter() -> None:
    assert best_of(original("best") or "").tolist() == [min(5 * n % 32 for n in range(1, 32, 3))] * 32
    noise = noise_of(original("noise") or "").view(np.float32)
    expected = np.array([gumbel((11, 0), 0, range(row, row + 1))[0] for row in ROWS.tolist()])
    assert np.isfinite(noise).all()
    np.testing.assert_allclose(noise, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.turns(24)
@pytest.mark.parametrize(
    ("which", "kernel", "sign"),
    [
        ("difference for sum: amk/ops/reduce_splits.cuh:72:34", "far scores", "logits"),
        ("sum for difference: amk/ops/reduce_splits.cuh:91:45", "far scores", "logits"),
        ("difference for sum: amk/ops/combine.cuh:119:52", "many splits", "race"),
        ("loop one shorter: amk/ops/rope_append.cuh:195:9", "four rows", "deadlock"),
        ("loop one shorter: amk/ops/select.cuh:128:5", "ended", "tokens"),
        ("condition negated: amk/rows.cuh:21:7", "plain rows", "logits"),
        ("loop one shorter: amk/rows.cuh:171:13", "plain rows", "undefined"),
        ("difference for sum: amk/staged.cuh:28:31", "uneven halves", "out of bounds"),
        ("constant one more: amk/quantised_gemv.cuh:98:67", "uneven halves", "logits, within rounding"),
        ("word 16 more: amk/codes/int4.cuh:23:77", "uneven halves", "tokens"),
        ("loop one shorter: amk/token_rows.cuh:36:5", "many rows", "undefined"),
        ("constant one more: amk/ops/begin.cuh:18:71", "many rows", "tokens"),
        ("sum for difference: amk/tree.cuh:11:85", "many rows", "tokens"),
        ("constant one more: amk/quantised_batch.cuh:128:94", "scales of layers", "out of bounds"),
        ("difference for sum: amk/quantised_batch.cuh:80:33", "scales of layers", "undefined"),
        ("sum for difference: amk/ops/stage_norm.cuh:79:73", "scales of layers", "out of bounds"),
        ("one more slot: amk/ring.cuh:134:27", "uneven halves", "race"),
        ("difference for sum: amk/ops/finish.cuh:14:72", "live draws", "race"),
        ("condition negated: amk/ranking.cuh:40:3", "live draws", "tokens"),
        ("loop one shorter: amk/ops/layer_norm.cuh:59:7", "norms of a batch", "undefined"),
        ("sum for difference: amk/ops/layer_norm.cuh:36:27", "norms of a batch", "race"),
        ("difference for sum: amk/ops/gelu.cuh:14:29", "norms of a batch", "logits"),
        ("constant one more: amk/staged.cuh:64:58", "runs of scales", "logits"),
        ("loop one shorter: amk/fetches.cuh:116:3", "runs of scales", "AMK609"),
        ("loop one shorter: amk/ops/select.cuh:190:5", "four rows", "memory"),
        ("loop one shorter: amk/ops/select.cuh:109:3", "far splits", "tokens"),
        ("difference for sum: amk/ops/begin.cuh:42:67", "live draws", "tokens"),
        ("difference for sum: amk/ops/stage_norm.cuh:101:45", "two layers of given rows", "race"),
        ("difference for sum: amk/ops/stage_norm.cuh:88:40", "norms in parts", "memory"),
        ("difference for sum: amk/ops/reduce_splits.cuh:54:16", "weights of splits", "tokens"),
        ("sum for difference: amk/ops/argmax_rows.cuh:61:33", "ragged batch", "out of bounds"),
        ("literal one more: amk/ops/advance.cuh:15:19", "one worker", "tokens"),
        ("relation: amk/ops/attend.cuh:187:55", "one worker", "race"),
        ("equality turned: amk/ops/merge.cuh:23:94", "one worker", "out of bounds"),
        ("arms exchanged: amk/ops/reduce_splits.cuh:35:52", "heads in turns", "deadlock"),
        ("arms exchanged: amk/ops/reduce_splits.cuh:71:36", "far scores", "tokens"),
        ("arms exchanged: amk/ops/reduce_splits.cuh:75:33", "shared weights", "tokens"),
        ("arms exchanged: amk/turns.cuh:26:88", "heads in turns", "deadlock"),
        ("relation: amk/turns.cuh:32:16", "heads in turns", "out of bounds"),
        ("sum for difference: amk/ops/advance.cuh:24:46", "one worker", "out of bounds"),
        ("relation: amk/ops/store_sums.cuh:22:16", "odd shares", "race"),
        ("literal one more: amk/ops/give_hidden.cuh:15:46", "codes of a slice", "logits"),
        ("literal one more: amk/ops/take_hidden.cuh:13:64", "codes of a slice", "logits"),
        ("sum for difference: amk/ops/add_residual.cuh:16:33", "codes of a slice", "out of bounds"),
        ("literal one more: amk/ops/give_logits.cuh:24:58", "rows of a head", "logits"),
        ("number of 32 bits: amk/ops/attend.cuh:47:3", "two chains", "logits"),
        ("shift one more: amk/tree.cuh:11:55", "two chains", "logits"),
        ("equality turned: amk/rows.cuh:142:69", "sums of lanes", "out of bounds"),
        ("sum for difference: amk/ops/begin.cuh:22:93", "one worker", "out of bounds"),
        ("equality turned: amk/ops/reduce_splits.cuh:31:34", "splits of halves", "divergence"),
        ("literal one more: amk/ops/layer_norm.cuh:33:38", "norms of a batch", "undefined"),
        ("arms exchanged: amk/ops/add_sums.cuh:16:86", "many shares", "does not compile"),
        ("literal one more: amk/ops/select.cuh:258:21", "rows of one worker", "tokens"),
        ("condition negated: amk/ops/select.cuh:268:5", "many sequences", "tokens"),
        ("loop one shorter: amk/ops/rope_append.cuh:205:9", "late head", "tokens"),
    ],
)
def test_an_edit_is_seen_in_a_kernel_beside_the_sample(which: str, kernel: str, sign: str) -> None:
    edit = next(edit for _, edit in all_edits() if edit.name.startswith(which))
    found = sign if sign.startswith(("AMK", "does not")) else f"emulator: {sign}"
    assert kernel in beside(edit) and judge((kernel,), edit) == (kernel, found)


def test_kernels_beside_the_sample_can_be_planned() -> None:
    for name in FURTHER:
        assert texts(name)[SOURCE]


def test_kernels_whose_agents_begin_at_warp_1_are_safe() -> None:
    for name in FROM_WARP_1:
        found = verify(subject(name))
        assert found.status == "SAFE", (name, found.diagnostics)
        assert {role.first for role in subject(name).roles} == {1}
