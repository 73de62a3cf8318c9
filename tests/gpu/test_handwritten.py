"""The schedules written by hand run on the GPU: everything that is asked of a planned kernel is asked of them."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from amk.lowering.launch import Device
from amk.targets.target import Target
from amk.validator.verify import verify
from tests.gpu.test_decode import (  # noqa: F401  collected here too, for the subjects of this module
    test_a_replayed_graph_does_what_launches_do,
    test_given_tokens_are_read_and_end_of_text_is_repeated,
    test_greedy_tokens_are_torchs_or_nearly_tied,
    test_logits_are_as_close_to_fp64_as_torch_bf16,
    test_one_launch_of_n_tokens_is_n_launches_of_one,
    test_two_runs_are_bitwise_equal,
)
from tests.handwritten import split_attention, sync_agent

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=[sync_agent, split_attention], ids=lambda m: m.__name__.rpartition(".")[2])
def subject(request: pytest.FixtureRequest, torch_gpu: Device, gpu: Target) -> Iterator[Any]:
    from tests.gpu.subjects import loaded

    module: ModuleType = request.param
    schedule = module.schedule(gpu.name)
    assert verify(schedule).status == "SAFE"
    with loaded(schedule) as found:
        yield found
