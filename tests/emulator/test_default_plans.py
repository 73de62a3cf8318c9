"""Kernels with the geometry of default plans run without a fault, and show one that no tiny kernel does.

All default plans: `python -m tests.validator.evidence --only defaults`.
"""

from __future__ import annotations

import pytest

from amk.lowering import headers
from tests.emulator import default_runs
from tests.emulator.default_plans import Default, asking, shrunk_to, traits, whole
from tests.emulator.default_runs import WAYS, faults_of

EIGHT = "llama3-8b"
SIXTEEN = Default(EIGHT, request=asking(batch=16)), {"hidden": 4096, "ffn": 256, "kv_heads": 1, "workers": 4}
CASES: dict[str, tuple[Default, dict[str, int]]] = {
    "sixteen sequences": SIXTEEN,
    "two sequences": (
        Default(EIGHT, request=asking(batch=2)), {"hidden": 4096, "ffn": 256, "kv_heads": 1, "workers": 2},
    ),
    "sixty-four rows without output head": (
        Default(EIGHT, request=asking(rows=64, headless=True)), {"hidden": 256, "kv_heads": 1, "workers": 2},
    ),
    "codes of four bits": (
        Default(EIGHT, forms=("int4-g128-zp", "int4-g128-zp")), {"hidden": 4096, "kv_heads": 1, "workers": 2},
    ),
    "biases and copies of lanes": (Default("qwen2.5-0.5b", "l4"), {"kv_heads": 1, "workers": 2}),
}  # fmt: skip
TURNS, LATE = WAYS[:2]


@pytest.mark.turns(20)
@pytest.mark.parametrize("way", [TURNS, LATE], ids=lambda way: way.name)
@pytest.mark.parametrize("name", CASES)
def test_a_step_of_a_shrunk_default_plan_has_no_fault(name: str, way: default_runs.Way) -> None:
    default, shape = CASES[name]
    faults, counts = faults_of(shrunk_to(default, **shape), way)
    assert (faults, counts["races given up"]) == ([], 0)


def test_a_shrunk_plan_stages_as_the_default_plan_does() -> None:
    """Half of 4,096 columns of sixteen sequences: lanes share a row, which no tiny plan's lanes do."""
    default, shape = SIXTEEN
    own = {trait for trait in traits(whole(default)) if trait.startswith("stage_norm")}
    assert own and own <= traits(shrunk_to(default, **shape))
    assert all("columns 2048" in trait and "vectors 16" in trait for trait in own)


@pytest.mark.turns(24)
def test_lanes_that_read_what_another_one_writes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values do not tell: what the others read they do not use."""
    closure = headers.closure

    def read_by_all(source: str) -> dict[str, str]:
        found = closure(source)
        own = found["amk/rows.cuh"]
        changed = own.replace("if (kMany && adds && lane % kSame == 0) {", "if (kMany && adds) {")
        return found | {"amk/rows.cuh": changed if changed != own else pytest.fail("nothing changed")}

    monkeypatch.setattr(headers, "closure", read_by_all)
    default_runs._compiled.cache_clear()
    default, shape = SIXTEEN
    faults, _ = faults_of(shrunk_to(default, **shape), LATE)
    default_runs._compiled.cache_clear()
    assert faults and faults[0].startswith("race: worker 0, warp 0: lane 0 writes shared memory")
