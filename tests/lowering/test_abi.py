"""The kernel's argument: one layout for both sides, and the numbers of counters."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest

from amk.lowering.abi import COUNTER_STRIDE, abi, counter_names, flat_index, member
from amk.lowering.compile import compile_cuda
from amk.lowering.emit import emit
from amk.lowering.kernel import read_back
from amk.planner.decode import plan
from amk.planner.settings import NAIVE
from amk.schedule_ir.memory import Counter
from amk.schedule_ir.schedule import Schedule
from amk.targets.target import load_target
from tests.tiny import BIASED, tiny


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    return plan(BIASED, load_target("h200"), max_context=256, workers=4)


def test_every_global_buffer_has_one_field(schedule: Schedule) -> None:
    layout = abi(schedule)
    wanted = [b.name for b in schedule.buffers if b.space == "global"]
    assert [name for name, _ in layout.buffers] == [f"b_{name}" for name in wanted]
    assert layout.dtype.itemsize == 8 * len(layout.dtype.names or ())


def test_a_buffer_s_name_may_hold_what_a_member_s_may_not(schedule: Schedule) -> None:
    """Whoever packs the argument calls members as the layout does."""
    strange = [b.model_copy(update={"name": "k-cache.0"}) if b.name == "k_cache" else b for b in schedule.buffers]
    layout = abi(schedule.model_copy(update={"buffers": tuple(strange)}))
    assert member("k-cache.0") in (layout.dtype.names or ())


def test_names_that_differ_differ_in_the_kernel(schedule: Schedule) -> None:
    names = ["".join(letters) for letters in product("aZ", *[".-_Zdh"] * 3)]
    assert len({member(name) for name in names}) == len(names)
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", member(name)) for name in names)


@pytest.mark.turns(4)
def test_a_kernel_is_read_back_whose_buffers_are_named_alike(schedule: Schedule) -> None:
    """As each other but for a character that C++ does not have, as other fields of the argument, as other variables."""
    small = plan(tiny(layers=1), load_target("h200"), settings=NAIVE, max_context=128, workers=2)
    renamed = {"h_mid": "h.mid", "h_out": "h-mid", "act": "h_mid", "attn": "counters", "split_scale": "trace"}
    text = small.model_dump_json()
    assert renamed.keys() <= {buffer.name for buffer in small.buffers}
    strange = Schedule.model_validate_json(re.sub(r'"(\w+)"(?!:)', lambda m: f'"{renamed.get(m[1], m[1])}"', text))
    read_back(strange, compile_cuda(emit(strange), strange.target.arch).ptx)


def test_the_compiler_sees_the_host_layout(schedule: Schedule) -> None:
    """Every field is one 8-byte word and the struct has nothing else, so the order alone fixes the offsets."""
    layout = abi(schedule)
    names = layout.dtype.names or ()
    assert [layout.dtype.fields[name][1] for name in names] == list(range(0, 8 * len(names), 8))  # type: ignore[index]
    checks = "".join(f'static_assert(sizeof(Globals::{name}) == 8, "{name}");\n' for name in names)
    struct = layout.struct()
    assert [line.split()[-1].rstrip(";") for line in struct.splitlines() if line.startswith("  ")] == list(names)
    assert compile_cuda('#include "amk/context.cuh"\n' + struct + checks, "sm_90a").cubin


def test_packing_puts_each_value_in_its_field(schedule: Schedule) -> None:
    layout = abi(schedule)
    names = layout.dtype.names or ()
    block = layout.pack({name: 1000 + i for i, name in enumerate(names)})
    assert np.frombuffer(block.tobytes(), "<u8").tolist() == [1000 + i for i in range(len(names))]
    with pytest.raises(KeyError):
        layout.pack({name: 0 for name in names[1:]})


def test_counters_do_not_overlap(schedule: Schedule) -> None:
    layout = abi(schedule)
    numbers = [layout.counter_base[c.name] + i for c in schedule.counters for i in range(c.count)]
    assert sorted(numbers) == list(range(layout.counter_count))
    assert layout.counter_bytes == layout.counter_count * COUNTER_STRIDE * 4
    assert len(counter_names(schedule)) == layout.counter_count


def test_flat_index_is_row_major() -> None:
    counter = Counter(name="c", shape=(3, 4, 5))
    flat = flat_index(counter, ({"l": 1}, 2, {"t": 1, "1": 1}))
    for layer in range(3):
        for token in range(4):
            value = flat.get("1", 0) + flat["l"] * layer + flat["t"] * token
            assert value == np.ravel_multi_index((layer, 2, token + 1), (3, 4, 5))
