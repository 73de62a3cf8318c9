"""Claims about the launch, each at its limit: what just fits is SAFE with a certificate, one more is refused by verify,
the oracle and the checker.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from amk.adversary.edits import Edit, Json, apply, at, find, named, steps
from amk.adversary.subjects import subject
from amk.judges.oracle.judge import rule
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import parse_schedule
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import RESERVED_SMEM_PER_BLOCK, STATIC_SMEM_PER_BLOCK
from amk.validator.export.certificate import NotSafe
from amk.validator.export.of_schedule import certify_schedule
from amk.validator.static.resources import CompiledResources, check_resources
from amk.validator.verify import verify

SMALL: Json = subject("fenced", 2, 2, 1).document
TARGET: Json = SMALL["target"]


def edited(*edits: Edit) -> Schedule:
    return parse_schedule(json.dumps(apply(SMALL, list(edits))[0]).encode(), "test")[0]


def launch(**fields: Any) -> list[Edit]:
    return [Edit("replace", ("launch", name), value) for name, value in fields.items()]


def target(**fields: Any) -> list[Edit]:
    return [Edit("replace", ("target", name), value) for name, value in fields.items()]


def moved(buffer: str, offset: int) -> list[Edit]:
    """The shared buffer elsewhere, and shared memory up to its end and more."""
    more = launch(shared_bytes=SMALL["launch"]["shared_bytes"] + 65_536)
    return [*more, Edit("replace", (*named(SMALL, "buffers", buffer), "offset"), offset)]


def barrier(**fields: Any) -> list[Edit]:
    return [Edit("replace", (*find(SMALL, "barrier"), "op", name), value) for name, value in fields.items()]


def every_barrier(number: int) -> list[Edit]:
    return [Edit("replace", (*path, "op", "id"), number) for path, s in steps(SMALL) if s["op"]["op"] == "barrier"]


def place(buffer: str) -> int:
    return int(at(SMALL, named(SMALL, "buffers", buffer))["offset"])


END = -(-SMALL["launch"]["shared_bytes"] // 1024) * 1024
BYTES = sum(b.bytes for b in edited().buffers if b.space == "global")
BESIDE = RESERVED_SMEM_PER_BLOCK + STATIC_SMEM_PER_BLOCK
HALF = TARGET["smem_per_sm"] // 2 - BESIDE
FIFTH = TARGET["smem_per_sm"] // 5 // 128 * 128 - BESIDE
BLOCK = TARGET["smem_per_block"] - STATIC_SMEM_PER_BLOCK
FEATURES = sorted(TARGET["features"])

LIMITS = {
    "cooperative": ("AMK402", launch(cooperative=True), launch(cooperative=False)),
    "workers": ("AMK402", target(sms=2), target(sms=1)),
    "threads of an SM": (
        "AMK402", launch(ctas_per_sm=2, registers=64) + target(max_threads_per_sm=128),
        launch(ctas_per_sm=2, registers=64) + target(max_threads_per_sm=127),
    ),
    "blocks of an SM": (
        "AMK402", launch(ctas_per_sm=3, registers=64) + target(max_blocks_per_sm=3),
        launch(ctas_per_sm=3, registers=64) + target(max_blocks_per_sm=2),
    ),
    "registers of an SM, in units of 256 a warp": (
        "AMK402", launch(registers=200) + target(regs_per_sm=4 * 6400),
        launch(registers=201) + target(regs_per_sm=4 * 6400),
    ),
    "registers of a quarter of an SM": (  # 10 warps of 6,144 are less than 65,536, but a quarter holds 2 of them
        "AMK402", launch(ctas_per_sm=5, registers=168), launch(ctas_per_sm=5, registers=169),
    ),
    "shared memory of an SM, in units of 128 bytes": (
        "AMK402", launch(ctas_per_sm=5, registers=64, shared_bytes=FIFTH),
        launch(ctas_per_sm=5, registers=64, shared_bytes=FIFTH + 1),
    ),
    "named barriers of an SM": (  # ids up to the largest count: 8 blocks of 8, or of 9, where an SM has 64
        "AMK402", launch(ctas_per_sm=8, registers=64) + every_barrier(7),
        launch(ctas_per_sm=8, registers=64) + every_barrier(8),
    ),
    "shared memory of an SM": (
        "AMK402", launch(ctas_per_sm=2, registers=64, shared_bytes=HALF),
        launch(ctas_per_sm=2, registers=64, shared_bytes=HALF + 1),
    ),
    "shared memory of a block": (
        "AMK401", launch(shared_bytes=BLOCK), launch(shared_bytes=BLOCK + 1),
    ),
    "shared memory of the launch": (
        "AMK401", launch(shared_bytes=max(b.bytes + (b.offset or 0) for b in edited().buffers if b.space == "shared")),
        launch(shared_bytes=max(b.bytes + (b.offset or 0) for b in edited().buffers if b.space == "shared") - 1),
    ),
    "device memory": ("AMK011", target(hbm_bytes=BYTES), target(hbm_bytes=BYTES - 1)),
    "copy engine": (
        "AMK601", target(features=FEATURES), target(features=[f for f in FEATURES if f != "bulk_copy"]),
    ),
    "alignment of mbarriers": ("AMK406", moved("full", END + 16), moved("full", END + 4)),
    "mbarriers by themselves": ("AMK301", moved("full", END), moved("full", place("x"))),
    "slots by themselves": ("AMK301", moved("ring", END), moved("ring", place("x"))),
    "warps of a named barrier": ("AMK404", barrier(agents=2), barrier(agents=1)),
    "roles of a named barrier": (
        "AMK404", barrier(id=2), [Edit("insert", find(SMALL, "barrier"), {"op": at(SMALL, find(SMALL, "barrier"))["op"]
                                                                         | {"role": "w0", "agents": 1}})],
    ),
}  # fmt: skip


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_where_it_is_said_to_be(name: str) -> None:
    code, fits, fails = LIMITS[name]
    good, bad = edited(*fits), edited(*fails)
    assert verify(good).safe and rule(good, 2).status == "SAFE" and certify_schedule(good)
    verdict = verify(bad)
    assert verdict.status == "UNSAFE" and verdict.diagnostics[0].code == code
    assert rule(bad, 2).status == "UNSAFE"
    with pytest.raises(NotSafe):
        certify_schedule(bad)


def codes(compiled: CompiledResources, **fields: Any) -> list[str]:
    return [d.code for d in check_resources(edited(*launch(**fields)), compiled)]


def test_the_compiled_kernel_is_held_to_the_same_limits() -> None:
    """Registers as the schedule allows, static shared memory beside that of the launch, on an SM and in a block."""
    assert codes(CompiledResources(registers=96), registers=96) == []
    assert codes(CompiledResources(registers=97), registers=96) == ["AMK403"]
    room = TARGET["smem_per_block"] - 4096
    assert codes(CompiledResources(64, static_shared=4096), shared_bytes=room) == []
    assert "AMK401" in codes(CompiledResources(64, static_shared=4097), shared_bytes=room)
    two = {"ctas_per_sm": 2, "registers": 64, "shared_bytes": HALF + STATIC_SMEM_PER_BLOCK - 512}
    assert codes(CompiledResources(64, static_shared=512), **two) == []
    assert codes(CompiledResources(64, static_shared=513), **two) == ["AMK402"]


@pytest.mark.parametrize(
    "edits",
    [launch(warps=33), barrier(id=16), [Edit("replace", ("streams", 0, "full"), None)]],
    ids=["a block of 1,056 threads", "a seventeenth barrier", "bulk copies without mbarriers"],
)
def test_what_no_device_has_is_not_well_formed(edits: list[Edit]) -> None:
    with pytest.raises(AmkError):
        verify(edited(*edits))
