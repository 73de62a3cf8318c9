"""The probe of hand-offs, as far as it needs no GPU: it compiles, and its cases fit a block."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from amk.lowering.compile import compile_cuda
from tests.gpu.handoff_bounds import ROWS, Handoffs, bound_ms, down_by_columns, shared_staging, table


def test_kernels_compile_without_spills_and_cases_fit() -> None:
    pytest.importorskip("torch")
    from tests.gpu.probe_handoffs import CHUNK, SHARED, SOURCE, STREAMS, cases, slots_of

    wanted = list(cases())
    found = compile_cuda(SOURCE.read_text(encoding="utf-8"), "sm_90a").resources
    assert len(set(wanted)) == len(wanted)
    assert {case.kernel for case in wanted} == set(found)
    for case in wanted:
        assert found[case.kernel].stack == 0 and found[case.kernel].static_smem + SHARED <= 227 * 1024
        assert 8 * case.words + slots_of(case) * STREAMS * CHUNK <= SHARED
        assert case.words % (4 * case.cluster) == 0 and slots_of(case) >= min(case.slots, 5)


FIXED = {"local": 0.25, "counting": 2.0, "counting_bulk": 3.0, "gather": 0.5, "multicast": 5.0}


def record() -> dict[str, Any]:
    """Hand-offs of 1 us and 1 ns a word, others of `FIXED` times, 9 us more beside streams; seven clusters of 16."""
    pytest.importorskip("torch")
    from tests.gpu.probe_handoffs import CLUSTERS, cases

    rows = [asdict(case) | {"us": 1 + case.words / 1000} for case in cases()]
    for row in rows:
        row["us"] = FIXED.get(row["kernel"], row["us"]) + (0 if row["slots"] == 0 else 9)
    resident = [{"cluster": cluster, "resident": 7 if cluster == 16 else 132 // cluster} for cluster in CLUSTERS]
    return {"sms": 132, "residency": resident, "rows": rows}


def test_bounds_are_what_the_hand_offs_of_all_layers_save() -> None:
    int8, *_, eight_bits, batch = ROWS
    free = [replace(row, exposed=None) for row in (int8, eight_bits)]
    found = Handoffs(record())
    assert found.words(7168) == pytest.approx(8.168 - 0.25)
    assert bound_ms(found, free[0], shared_staging, 8) == pytest.approx(16 * (3 * (2.024 - 0.5) + 5.096 - 0.5) / 1e3)
    assert bound_ms(found, free[1], down_by_columns, 1) == pytest.approx(32 * (8.168 + 3.048 - 0.25 - 2.0) / 1e3)
    assert bound_ms(found, int8, shared_staging, 8) == int8.exposed
    with pytest.raises(KeyError):
        found.words(1 << 20)
    lines = table(record(), ROWS).splitlines()
    assert all(line.count("|") == 7 for line in lines)
    assert sum("7 clusters are resident, the model has 8 KV heads" in line for line in lines) == 4
    assert any(batch.name in line and "go:" in line for line in lines)
