"""The probe of hand-offs, as far as it needs no GPU: it compiles, and its cases fit a block."""

from __future__ import annotations

import pytest

from amk.lowering.compile import compile_cuda


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
