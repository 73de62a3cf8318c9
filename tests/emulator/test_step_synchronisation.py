"""How each step of a kernel synchronises is what the schedule says, and every other way is told with its step."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from amk.cli import main
from amk.commands import emulate
from amk.emulator.decode import Result, run
from amk.emulator.machine.machine import Limits
from amk.emulator.steps import LINE_INFO
from amk.lowering.compile import DEFAULT_OPTIONS, compile_ptx
from amk.lowering.emit import emit
from amk.lowering.stamp import stamped
from amk.planner.decode import plan
from amk.planner.formats import BF16
from amk.planner.settings import FAST
from amk.report.diagnostic import Exit
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from tests.emulator.test_step_footprints import (
    DIVIDED,
    FIVE,
    LAYOUTS,
    NAIVE,
    PARTS,
    ROWS,
    TAGGED,
    TREE,
    TURNS,
    compiled,
    named,
    ran,
)
from tests.engine.tiny import RandomTensors
from tests.tiny import tiny

OWED, FENCED = "int8 sm_90a, refills owed through QKV", "fenced, two splits, fp8 cache"
DRAWN, LIVE = "drawing sm_100a", "live batch of 3 that draws, sm_90a"
LIMITS = Limits(instructions=20_000_000)


@pytest.mark.turns(24)
@pytest.mark.parametrize(
    "name", [TAGGED, NAIVE, ROWS, TREE, PARTS, LAYOUTS, DIVIDED, FIVE, TURNS, OWED, FENCED, DRAWN, LIVE]
)
def test_every_step_synchronises_as_the_schedule_says(name: str) -> None:
    assert [str(one) for one in ran(name).differences] == []


def ran_as(schedule: Schedule, text: str, ptx: str, tokens: int = 2) -> Result:
    source, prompts = RandomTensors(schedule.model), [[3, 17]] * schedule.batch
    return run(schedule, source, ptx, prompts=prompts, tokens=tokens, text=text, limits=LIMITS)


def changed(ptx: str, *edits: tuple[str, str]) -> str:
    """The first place of each pattern is changed."""
    for pattern, new in edits:
        ptx, count = re.subn(pattern, new, ptx, count=1)
        assert count, f"nothing is {pattern}"
    return ptx


def edited(name: str, *edits: tuple[str, str]) -> Result:
    """Of changed PTX of the same schedule."""
    text, ptx = compiled(name)
    return ran_as(named(name), text, changed(ptx, *edits))


def lowered(name: str, pattern: str, new: str) -> Result:
    """Every place of the pattern in the CUDA text is changed."""
    schedule = named(name)
    text, count = re.subn(pattern, new, stamped(emit(schedule), schedule))
    assert count, f"nothing is {pattern}"
    ptx = compile_ptx(text, schedule.target.arch, options=(*DEFAULT_OPTIONS, LINE_INFO))
    return ran_as(schedule, text, ptx)


def report(result: Result) -> set[str]:
    """What differs, and the op of its step."""
    return {f"{one.kind}: {one.what}: {one.op}" for one in result.differences}


SIGNAL = r"(red\.\S+\.gpu\.global\.add\.u32 \[%rd\d+)(\], )%r\d+;"
TARGET = r"(ld\.(?:acquire|relaxed)\.gpu\.global\.u32(?:.*\n){1,9}?\s*setp\.gt\.s32 \s*%p\d+, %r\d+, )-1;"
FILL = r"(mbarrier\.arrive\.expect_tx[^\n]*, )%r\d+;"
COPY = r"((?:.*\n){1,40}?.*cp\.async\.bulk[^\n]*\], )%r\d+(, \[%r\d+\])"
DRAIN = r"(mbarrier\.try_wait(?:.*\n){1,200}?.*)"
PARITY = r"(\.reg \.pred done;\n)\s*(mbarrier\.try_wait\S* done, \[%r\d+\], )(%r\d+)(, %r\d+;)"
OF_WARP_0 = (
    r"\1.reg .b32 turned;\n.reg .pred first;\nmov.u32 turned, %tid.x;\nsetp.lt.u32 first, turned, 32;\n"
    r"selp.u32 turned, 1, 0, first;\nxor.b32 turned, turned, \3;\n\2turned\4"
)
TAGS = r"(setp\.eq\.s32 \s*%p\d+, (%r\d+), )%r\d+;(\s*setp\.eq\.s32 \s*%p\d+, \2, )%r\d+;(\s*and\.pred)"


@pytest.mark.turns(8)
@pytest.mark.parametrize(("name", "op"), [(TAGGED, "store_rows"), (NAIVE, "signal")])
def test_another_amount_is_told(name: str, op: str) -> None:
    result = edited(name, (SIGNAL, r"\1\g<2>2;"))
    assert result.ended
    assert report(result) == {
        f"{kind} {amount} to qkv[{layer},0]: {op}"
        for kind, amount in (("unscheduled: adds", 2), ("unexecuted: adds", 1))
        for layer in range(2)
    }
    assert {(one.worker, one.agent) for one in result.differences} == {(worker, 0) for worker in range(4)}


@pytest.mark.turns(8)
def test_another_counter_is_told() -> None:
    """Of a signal, where the kernel hangs; of signals and waits that agree, where it ends."""
    result = edited(TAGGED, (SIGNAL, r"\1+128\g<2>1;"))
    assert not result.ended and "unscheduled: adds 1 to qkv[1,0]: store_rows" in report(result)
    result = lowered(TAGGED, r"7 \+ c\.l", "2 + c.l")
    assert result.ended and not result.faults
    assert {"unscheduled: adds 1 to split[0,0]: signal", "unexecuted: adds 1 to attn[0]: signal"} <= report(result)
    assert {"unscheduled: waits for split[0,0] >= 4: wait", "unexecuted: waits for attn[0] >= 4: wait"} <= report(
        result
    )


@pytest.mark.turns(8)
@pytest.mark.parametrize("name", [TAGGED, NAIVE])
def test_another_target_is_told(name: str) -> None:
    """A target one lower; one higher, where the kernel hangs, and where two are added, where it ends."""
    result = edited(name, (TARGET, r"\1-2;"))
    assert result.ended
    assert {"unscheduled: waits for qkv[1,0] >= 7: wait", "unexecuted: waits for qkv[1,0] >= 8: wait"} <= report(result)
    assert {(one.op, one.agent) for one in result.differences} == {("wait", 0)}
    result = edited(name, (TARGET, r"\g<1>0;"))
    assert not result.ended and report(result) == {"unscheduled: waits for qkv[0,0] >= 5: wait"}
    result = edited(name, (SIGNAL, r"\1\g<2>2;"), (TARGET, r"\g<1>0;"))
    assert result.ended and "unscheduled: waits for qkv[1,0] >= 9: wait" in report(result)


@pytest.mark.turns(8)
def test_a_target_that_is_higher_than_the_schedules_is_told() -> None:
    """The kernel is that of a schedule whose waits for `attn` ask for one more."""
    schedule, (text, ptx) = named(NAIVE), compiled(NAIVE)
    data = schedule.model_dump(mode="json")
    waits = [w for step in data["programs"][0]["body"][1]["body"][1]["body"] for w in step["waits"]]
    of_attn = [wait for wait in waits if wait["counter"] == "attn"]
    for wait in of_attn:
        wait["at_least"]["1"] -= 1
    result = ran_as(Schedule.model_validate_json(json.dumps(data)), text, ptx)
    assert of_attn and result.ended and not result.faults
    assert {"unscheduled: waits for attn[0] >= 4: wait", "unexecuted: waits for attn[0] >= 3: wait"} <= report(result)


@pytest.mark.turns(8)
def test_signals_and_waits_that_are_left_out_or_repeated_are_told() -> None:
    signal = r"(if \(c\.lane == 0\) amk::sync::signal_relaxed\(globals\.counters \+ \(7 \+ c\.l\) \* 32, 1\);)"
    wait = r"if \(c\.lane == 0\) amk::sync::wait_hint\(dog, c\.warp, 7 [^;]*;"
    result = lowered(TAGGED, signal, r"\1 \1")
    assert result.ended and report(result) == {f"unscheduled: adds 1 to attn[{layer}]: signal" for layer in range(2)}
    result = lowered(TAGGED, signal, "")
    assert not result.ended and report(result) == {"unexecuted: adds 1 to attn[0]: signal"}
    result = lowered(TAGGED, wait, "")
    assert result.ended and report(result) == {
        f"unexecuted: waits for attn[{layer}] >= {target}: wait" for layer in range(2) for target in (4, 8)
    }


@pytest.mark.turns(8)
def test_half_of_a_copy_is_told() -> None:
    """Before all steps and in a product, with a copy that matches; with one that does not the kernel hangs."""
    result = edited(TAGGED, (FILL + COPY, r"\g<1>256;\g<2>256\3"))
    assert result.ended
    assert report(result) == {
        "unscheduled: fills slot 0 with 256 bytes: none", "unexecuted: fills slot 0 with 512 bytes: none",
    }  # fmt: skip
    result = edited(TAGGED, (DRAIN + FILL + COPY, r"\1\g<2>256;\g<3>256\4"))
    assert result.ended and {one.op for one in result.differences} == {"gemv"}
    assert {one.what.partition(" with ")[2] for one in result.differences} == {"256 bytes", "512 bytes"}
    result = edited(TAGGED, (FILL, r"\g<1>256;"))
    assert not result.ended and "unscheduled: expects 256 bytes in slot 0 and copies 512: none" in report(result)


@pytest.mark.turns(8)
def test_a_flipped_parity_is_told() -> None:
    """Of warp 0 in the first product of the only layer: it goes on before copies land, and fills no slot again. In a
    kernel that fills slots again, it hangs or fills one that it has not drained."""
    settings = replace(FAST, warps=2, kv_block=16)
    model = tiny(layers=1, hidden=64, ffn=64, heads=2, kv_heads=1, head_dim=32, vocab=96)
    target = load_target("h200")
    schedule = plan(model, target, settings=settings, formats=BF16, max_context=64, workers=4)
    text = stamped(emit(schedule), schedule)
    ptx = compile_ptx(text, schedule.target.arch, options=(*DEFAULT_OPTIONS, LINE_INFO))
    result = ran_as(schedule, text, changed(ptx, (PARITY, OF_WARP_0)), tokens=1)
    assert result.ended
    assert {(one.op, one.agent) for one in result.differences} == {("gemv", 0)}
    assert {"unscheduled: waits for fill 0 of slot 0: gemv", "unexecuted: waits for fill 1 of slot 0: gemv"} <= report(
        result
    )
    result = edited(TAGGED, (PARITY, OF_WARP_0))
    assert not result.ended and {one.op for one in result.differences} == {"gemv"}


@pytest.mark.turns(8)
def test_another_tag_is_told() -> None:
    """Written and awaited alike; and one that is not looked at."""
    result = lowered(TAGGED, r"(b_h_mid, static_cast<amk::u32>\()1", r"\g<1>5")
    assert result.ended and not result.faults
    assert {"unscheduled: writes tag 5 to h_mid: add_residual", "unexecuted: writes tag 1 to h_mid: add_residual"} <= (
        report(result)
    )
    assert {"unscheduled: awaits tag 8 in h_mid: stage_norm", "unexecuted: awaits tag 4 in h_mid: stage_norm"} <= (
        report(result)
    )
    result = edited(TAGGED, (TAGS, r"\1\2;\3\2;\4"))
    assert result.ended
    assert report(result) >= {"unscheduled: takes tag 4 in split_scale, awaiting none: combine"}


@pytest.mark.turns(8)
def test_a_wait_for_an_earlier_group_is_told() -> None:
    """Slots are filled by groups of copies; the product reads one before its group is over."""
    result = edited(NAIVE, (r"cp\.async\.wait_group \s*3;", "cp.async.wait_group 4;"))
    assert result.ended and {one.op for one in result.differences} == {"gemv"}
    assert "unscheduled: waits for group 0 of copies: gemv" in report(result)


@pytest.mark.turns(4)
def test_the_command_tells_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "tagged.json").write_text(named(TAGGED).model_dump_json())
    asked = ["emulate", str(file), "--footprints", "--position", "5"]
    assert main(asked) == Exit.SAFE
    assert "synchronises as the schedule says" in capsys.readouterr().out
    assert main([*asked, "--format", "json"]) == Exit.SAFE
    assert json.loads(capsys.readouterr().out)["synchronisation"] == []
    unedited = emulate._ptx
    monkeypatch.setattr(emulate, "_ptx", lambda *options: changed(unedited(*options), (SIGNAL, r"\1\g<2>2;")))
    expected = "unscheduled: adds 2 to qkv[0,0]: store_rows, worker 0, agent 0, l 0, n 0, t 0"
    assert main(asked) == Exit.UNSAFE
    assert expected in capsys.readouterr().err
    assert main([*asked, "--format", "json"]) == Exit.UNSAFE
    assert expected in json.dumps(capsys.readouterr())
