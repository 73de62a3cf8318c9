"""Targets: every figure is consistent with its architecture, and names are found."""

import pytest
from pydantic import ValidationError

from amk.report.diagnostic import AmkError
from amk.targets.target import PER_CARD, PER_SM, RESERVED_SMEM_PER_BLOCK, Target, load_target, targets

NAMES = ("a10g", "a100-40gb", "a100-80gb", "l4", "l20", "l40s", "rtx4090", "h100", "h200", "b200", "rtx5090")

# CUDA Programming Guide, Compute Capabilities: KiB per SM, threads per SM, blocks per SM.
LIMITS = {
    (8, 0): (164, 2048, 32),
    (8, 6): (100, 1536, 16),
    (8, 9): (100, 1536, 24),
    (9, 0): (228, 2048, 32),
    (10, 0): (228, 2048, 32),
    (12, 0): (100, 1536, 24),
}
MARKETED_GB = dict(zip(NAMES, (24, 40, 80, 24, 48, 48, 24, 80, 141, 192, 32), strict=True))


def test_all_targets_are_there() -> None:
    assert tuple(target.name for target in targets()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_limits_are_those_of_the_architecture(name: str) -> None:
    target = load_target(name)
    kib, threads, blocks = LIMITS[target.capability]
    assert target.smem_per_sm == kib * 1024
    assert target.smem_per_block == target.smem_per_sm - RESERVED_SMEM_PER_BLOCK
    assert (target.max_threads_per_sm, target.max_blocks_per_sm, target.regs_per_sm) == (threads, blocks, 65536)


@pytest.mark.parametrize("name", NAMES)
def test_memory_is_what_a_driver_reports_not_the_marketing_size(name: str) -> None:
    target = load_target(name)
    assert 0.9 * MARKETED_GB[name] < target.hbm_bytes / 2**30 < MARKETED_GB[name]
    assert target.read_ceiling_gbps < target.hbm_gbps


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_names_its_source(name: str) -> None:
    sources = load_target(name).sources
    assert set(sources) == {"limits", "sms", "hbm_bytes", "hbm_gbps", "read_ceiling_gbps"}
    assert all(len(source) > 10 for source in sources.values())


@pytest.mark.parametrize("name", NAMES)
def test_features_follow_the_architecture(name: str) -> None:
    target = load_target(name)
    major, minor = target.capability
    assert target.has("cp_async") and target.has("mma")
    assert target.has("fp8") == ((major, minor) >= (8, 9))
    assert target.has("bulk_copy") == target.has("cluster") == (major >= 9)
    assert target.has("wgmma") == (target.arch == "sm_90a")
    assert target.has("tcgen05") == (target.arch == "sm_100a")


def test_only_the_h200_read_ceiling_is_measured() -> None:
    assert [t.name for t in targets() if t.read_ceiling_measured] == ["h200"]
    assert load_target("h200").read_ceiling_gbps == 4650


def test_names_and_aliases_are_unique_and_ignore_case() -> None:
    known = [each.lower() for target in targets() for each in (target.name, *target.aliases)]
    assert len(set(known)) == len(known)
    assert load_target("A100") is load_target("a100-80GB")


@pytest.mark.parametrize("name", ["h300", "", "../h100", "x" * 100_000, "h100\0"])
def test_unknown_targets(name: str) -> None:
    with pytest.raises(AmkError) as caught:
        load_target(name)
    assert caught.value.diagnostics[0].code == "AMK010"
    assert caught.value.diagnostics[0].help


def test_close_names_are_suggested() -> None:
    with pytest.raises(AmkError) as caught:
        load_target("rtx-4080")
    assert "rtx4090" in str(caught.value.diagnostics[0].help) or "rtx-4090" in str(caught.value.diagnostics[0].help)


def test_missing_feature_is_amk601() -> None:
    load_target("h200").require("bulk_copy", "the weight ring")
    with pytest.raises(AmkError, match="AMK601"):
        load_target("a100").require("bulk_copy", "the weight ring")


def test_a_target_cannot_be_changed_and_refuses_unknown_fields() -> None:
    target = load_target("l4")
    with pytest.raises(ValidationError, match="frozen"):
        target.sms = 1  # type: ignore[misc]
    with pytest.raises(ValidationError, match="Extra inputs"):
        Target.model_validate({**target.model_dump(), "tflops": 1})


@pytest.mark.parametrize("name", NAMES)
def test_a_file_cannot_claim_more_of_a_gpu_than_is_known(name: str) -> None:
    target = load_target(name)
    assert target.as_known() == target
    for limit in (*PER_SM, *PER_CARD):
        more, less = (target.model_copy(update={limit: getattr(target, limit) + by}) for by in (1, -1))
        assert more.as_known() == target and less.as_known() == less
        own = more.model_copy(update={"name": "mine"})
        assert own.as_known() == (own if limit in PER_CARD else target.model_copy(update={"name": "mine"}))
    for alias in (*target.aliases, name.upper()):
        called = target.model_copy(update={"name": alias, "sms": target.sms + 1, "hbm_bytes": 2 * target.hbm_bytes})
        found = called.as_known()
        assert (found.sms, found.hbm_bytes) == (target.sms, target.hbm_bytes), alias
    every = target.model_copy(
        update={"features": ("cp_async", "mma", "fp8", "bulk_copy", "cluster", "wgmma", "tcgen05")}
    )
    assert set(every.as_known().features) == set(target.features)


@pytest.mark.parametrize("arch", ["sm_90", "sm_75", "sm_103a"])
def test_another_architecture_has_no_more_than_a_known_one(arch: str) -> None:
    known = load_target("h200") if arch == "sm_90" else load_target("b200")
    claims = {"name": "mine", "arch": arch, "smem_per_block": 1 << 30, "smem_per_sm": 1 << 30, "regs_per_sm": 1 << 20}
    found = load_target("h200").model_copy(update=claims).as_known()
    limits = ("smem_per_block", "smem_per_sm", "regs_per_sm")
    assert [getattr(found, limit) for limit in limits] == [getattr(known, limit) for limit in limits]
