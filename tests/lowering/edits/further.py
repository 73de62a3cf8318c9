"""Kernels and requests where edits show that the sample's subjects cannot see, and functions of headers run alone.

The sample takes its edits from `judge.SUBJECTS`. Before these, an edit is tried in every kernel here that has its file:
one layer of a shape in which a boundary of the code is met.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from amk.emulator.machine.machine import Limits, Machine, Order
from amk.emulator.memory.global_memory import Allocation
from amk.emulator.ptx.parse import parse
from amk.emulator.ptx.program import assemble
from amk.lowering.watchdog import empty_log
from amk.models.model_spec import LayerSlice, ModelSpec
from amk.planner.settings import FAST, PHASED, Settings
from amk.schedule_ir.sampling import Sampling
from amk.weights.weight_format import FormatName
from tests.lowering.edits.emulated import REQUESTS, Request
from tests.tiny import tiny

AT_A_BOUNDARY = Request("boundary", Order(), launches=(3,), position=14)
"""Positions 14 to 16: the last two of a block of the cache, and the first of the next."""
FULL = Request("late position", Order(seed=2, slice=300), launches=(2,), position=70)
BEHIND_THE_CONTEXT = Request("behind the context", Order(), launches=(1,), position=129)
REPELLED = Request("scores far below zero", Order(), launches=(2,), repelled=8.0)
NEGATIVE = Request("negative logits", Order(), launches=(4,), column=1)
ENDED = Request("a text that has ended", Order(), launches=(2,), position=7, ended=1)
ONE_STEP = Request("one step", Order(), launches=(1,))
TWO_TOKENS = Request("two tokens", Order(), launches=(2,))
EACH_ITS_OWN = Request(
    "parameters of each", Order(), launches=(3,), sampling=(Sampling(0.8, 40, 0.9, 7), Sampling(2.0, 0, 0.999, 11))
)
UP_TO_THE_CONTEXT = Request("up to the context", Order(), launches=(1,), position=117)
"""Eleven rows, of which the last is the last of the context."""
GIVEN_UP_TO_THE_CONTEXT = Request("given up to the context", Order(), launches=(1,), position=88)
"""Forty rows, of which the last is the last of the context."""
FOUR_UP_TO_THE_CONTEXT = Request("four up to the context", Order(), launches=(1,), position=124)
"""Four rows, of which the last is the last of the context."""
FAR_APART = Request("scores far apart", Order(), launches=(1,), position=40, repelled=900.0)
"""In a query vector the scores of one split are hundreds above those of the other."""
CHAINS = Request("two chains", Order(), launches=(1,), parents=tuple(max(row - 2, 0) for row in range(1, 36)))
BEYOND_FP8 = Request("keys beyond fp8", Order(), launches=(1,), repelled=900.0)
EARLY = Request("copies at once, one step", Order(eager=True), launches=(1,))
MANY_SPLITS = Request("many splits", Order(), launches=(2,), position=95)
"""Six splits are active, then seven."""
ENDING = (491, 379, 166)
"""What three of these kernels give as the third token, as that of the first text, and behind the second step."""
ENDS = tuple(
    Request(f"ends with {token}", Order(), launches=(4 - 2 * (token == ENDING[2]),), ends=(500, 501, 502, token))
    for token in ENDING
)
"""The last of the four tokens that end a text."""
DRAWS = tuple(
    Request(f"drawn at {temperature:g}, {top_k}, {top_p:g}", Order(), launches=(1,), sampling=drawn)
    for temperature, top_k, top_p in ((0.8, 40, 0.9), (0.05, 0, 1.0), (2.0, 0, 0.999), (0.0, 0, 1.0))
    for drawn in (Sampling(temperature, top_k, top_p, 11),)
)
WORKER_7_LAST = Request("worker 7 comes last", Order(last=frozenset((7, warp) for warp in range(4))), launches=(1,))
HELD = replace(PHASED, warps=4, run_ahead=True, slots=4, held_refills=1.0, first_refills=0.5, kv_block=16)
NEOX = tiny(
    "tiny-neox", layers=1, family="gpt_neox", qkv_bias=True, activation="gelu", parallel=True, rotary_dim=8, ffn=1024
)
ODD = tiny("tiny-odd", layers=1, family="gpt_neox", qkv_bias=True, activation="gelu", rotary_dim=8, ffn=180)
TANH = tiny("tiny-tanh", layers=1, hidden=1056, family="gpt_neox", qkv_bias=True, activation="gelu-tanh", rotary_dim=8)
FURTHER: dict[str, tuple[str, Settings, FormatName, ModelSpec, tuple[Request, ...]]] = {
    "far splits": (
        "h200",
        replace(FAST, kv_block=16, workers=8, overlay=False),
        "bf16",
        tiny(layers=1, head_dim=48),
        (AT_A_BOUNDARY, ENDS[0]),
    ),
    "few splits": (
        "h200",
        replace(FAST, batch=2, kv_block=16, workers=4),
        "bf16",
        tiny(layers=1, heads=2, kv_heads=1, head_dim=128),
        (AT_A_BOUNDARY, FULL),
    ),
    "norms of rows": (
        "h200",
        replace(FAST, rows=3, warps=4, kv_block=16, handoff="tagged"),
        "bf16",
        tiny(layers=1, heads=8, head_dim=32, qk_norm=True),
        REQUESTS[:1],
    ),
    "far scores": (
        "h200",
        replace(FAST, batch=2, kv_block=16, workers=4),
        "bf16",
        tiny(layers=1, heads=2, kv_heads=1, head_dim=128, qkv_bias=True),
        (REPELLED, FAR_APART),
    ),
    "many splits": (
        "h200",
        replace(FAST, kv_block=16, workers=8, warps=2, reduce_from=None),
        "bf16",
        tiny(layers=1, heads=16, kv_heads=1),
        (MANY_SPLITS,),
    ),
    "parted groups": (
        "h200",
        replace(FAST, batch=2, kv_block=16, chunk_bytes=1024, workers=4),
        "int8",
        tiny(layers=1, heads=2, kv_heads=1, ffn=1536),
        REQUESTS[:1],
    ),
    "held": ("h200", HELD, "bf16", NEOX, REQUESTS[:1]),
    "few candidates": (
        "h200",
        replace(FAST, sampling="top-k-top-p", workers=5, warps=3),
        "bf16",
        tiny(layers=1, vocab=128, hidden=192, heads=3, kv_heads=1, ffn=384),
        DRAWS[:2],
    ),
    "ragged draws": (
        "h200",
        replace(FAST, sampling="top-k-top-p", workers=4),
        "bf16",
        tiny(layers=1, vocab=1049),
        DRAWS[1:],
    ),
    "ragged rows": ("h200", replace(FAST, workers=4), "int8", ODD, REQUESTS[:1]),
    "behind the context": (
        "h200",
        replace(FAST, handoff="tagged"),
        "bf16",
        tiny(slice=LayerSlice(first=1, of=4)),
        (BEHIND_THE_CONTEXT,),
    ),
    "four rows": (
        "h200",
        replace(FAST, rows=4, warps=4, kv_block=16, handoff="tagged"),
        "bf16",
        tiny(layers=1, heads=8),
        (*REQUESTS[:2], ENDS[2]),
    ),
    "ended": ("h200", replace(FAST, batch=2, kv_block=16, workers=4), "bf16", tiny(layers=1), (ENDED, ENDS[1])),
    "plain rows": (
        "h200",
        replace(FAST, batch=2, kv_block=16, handoff="fenced", handoff_dtype="bf16", warps=2, workers=4),
        "bf16",
        tiny(layers=1, hidden=512, heads=3, kv_heads=1),
        (TWO_TOKENS,),
    ),
    "uneven halves": (
        "l4",
        replace(FAST, warps=3, workers=4),
        "int4-g64",
        tiny(layers=1, hidden=512),
        REQUESTS[:1],
    ),
    "many rows": (
        "h200",
        replace(FAST, rows=11, tree=True, kv_block=16, handoff="tagged", workers=4),
        "bf16",
        tiny(layers=1, hidden=96),
        (ONE_STEP, UP_TO_THE_CONTEXT),
    ),
    "many given rows": (
        "h200",
        replace(FAST, rows=40, headless=True, kv_block=40, handoff="tagged", warps=2, workers=2),
        "bf16",
        tiny(layers=1, hidden=96, heads=1, kv_heads=1),
        (ONE_STEP, GIVEN_UP_TO_THE_CONTEXT),
    ),
    "two layers of given rows": (
        "h200",
        replace(FAST, rows=40, headless=True, kv_block=40, handoff="tagged", warps=4, workers=2),
        "bf16",
        tiny(hidden=96, heads=1, kv_heads=1),
        (EARLY,),
    ),
    "scales of layers": (
        "h200",
        replace(FAST, batch=9, kv_block=16, scales_apart=True, workers=10, warps=1),
        "int8",
        tiny(hidden=768, heads=2, kv_heads=1, ffn=776),
        (ONE_STEP,),
    ),
    "live draws": (
        "h200",
        replace(FAST, batch=2, live=True, sampling="top-k-top-p", workers=4, warps=4),
        "bf16",
        tiny(layers=1, vocab=128),
        (EACH_ITS_OWN, replace(EACH_ITS_OWN, name="positions of each", position=20)),
    ),
    "norms of a batch": (
        "h200",
        replace(FAST, batch=2, kv_block=16, workers=4, warps=2),
        "bf16",
        TANH,
        (ONE_STEP,),
    ),
    "runs of scales": (
        "h200",
        replace(FAST, warps=2, scale_blocks=2, handoff="tagged", workers=4),
        "int4-g64-zp",
        tiny(layers=1, ffn=4032),
        REQUESTS[:1],
    ),
    "weights of splits": (
        "h200",
        replace(FAST, rows=2, warps=2, kv_block=16, handoff="tagged", workers=8),
        "bf16",
        tiny(layers=1, heads=2, kv_heads=1, head_dim=128),
        (ONE_STEP, MANY_SPLITS),
    ),
    "shared weights": (
        "h200",
        replace(FAST, rows=4, warps=2, kv_block=16, handoff="tagged", workers=8),
        "bf16",
        tiny(layers=1, hidden=64, heads=2, kv_heads=1, head_dim=128, ffn=64, vocab=128),
        (MANY_SPLITS,),
    ),
    "norms in parts": (
        "h200",
        replace(
            FAST, rows=17, headless=True, x_parts=2, warps=2, kv_block=32, chunk_bytes=512, handoff="mixed", workers=2
        ),
        "bf16",
        tiny(layers=1, hidden=64, heads=1, kv_heads=1),
        (ONE_STEP,),
    ),
    "sums of lanes": (
        "h200",
        replace(
            FAST, rows=16, headless=True, x_parts=2, warps=1, kv_block=16, chunk_bytes=512, handoff="mixed", workers=1
        ),
        "bf16",
        tiny(layers=1, hidden=128, heads=1, kv_heads=1, ffn=128),
        (ONE_STEP,),
    ),
    "splits of halves": (
        "h200",
        replace(FAST, kv_block=8, workers=9, warps=1),
        "bf16",
        tiny(layers=1, hidden=64, heads=9, kv_heads=1, ffn=64, vocab=128),
        (MANY_SPLITS,),
    ),
    "far scores of one": (
        "h200",
        replace(FAST, kv_block=16, workers=4, reduce_from=None, handoff="tagged"),
        "bf16",
        tiny(layers=1, heads=2, kv_heads=1, head_dim=128, qkv_bias=True),
        (REPELLED,),
    ),
    "negative logits": ("h200", replace(FAST, batch=2, kv_block=16, workers=4), "bf16", tiny(layers=1), (NEGATIVE,)),
    "negative logits of one": ("h200", replace(FAST, workers=4), "bf16", tiny(layers=1), (NEGATIVE,)),
    "keys beyond fp8": (
        "h200",
        replace(FAST, kv_dtype="fp8", kv_block=16, workers=4),
        "bf16",
        tiny(layers=1, heads=2, kv_heads=1, qkv_bias=True),
        (BEYOND_FP8,),
    ),
    "rows of fp8": (
        "h200",
        replace(FAST, rows=3, kv_dtype="fp8", warps=4, kv_block=16, workers=4),
        "bf16",
        tiny(layers=1, heads=8),
        (ONE_STEP,),
    ),
    "ragged batch": (
        "h200",
        replace(FAST, batch=2, kv_block=16, workers=4),
        "bf16",
        tiny(layers=1, heads=2, kv_heads=1, vocab=331),
        (TWO_TOKENS,),
    ),
    "one worker": (
        "h200",
        replace(
            FAST, rows=4, headless=True, x_parts=2, warps=2, kv_block=16, chunk_bytes=512, handoff="mixed", workers=1
        ),
        "bf16",
        tiny(layers=1, hidden=64, heads=4, kv_heads=1, head_dim=48),
        (ONE_STEP, FOUR_UP_TO_THE_CONTEXT),
    ),
    "heads in turns": (
        "h200",
        replace(FAST, batch=5, kv_block=16, warps=2, workers=2),
        "bf16",
        tiny(layers=1, hidden=64, heads=2, kv_heads=1, ffn=128, vocab=128),
        (ONE_STEP,),
    ),
    "many shares": (
        "h200",
        replace(
            FAST,
            rows=2,
            headless=True,
            k_splits=16,
            warps=2,
            kv_block=16,
            chunk_bytes=512,
            handoff="mixed",
            workers=16,
        ),
        "bf16",
        tiny(layers=1, hidden=64, heads=8, kv_heads=1, ffn=512),
        (ONE_STEP,),
    ),
    "odd shares": (
        "h200",
        replace(
            FAST,
            rows=3,
            headless=True,
            k_splits=2,
            warps=2,
            kv_block=16,
            chunk_bytes=512,
            handoff="mixed",
            workers=4,
        ),
        "bf16",
        tiny(layers=1, hidden=160, heads=1, kv_heads=1, ffn=64),
        (ONE_STEP,),
    ),
    "codes of a slice": (
        "h200",
        replace(FAST, warps=1, handoff="tagged", workers=2),
        "int8",
        tiny(layers=1, hidden=324, slice=LayerSlice(first=1, of=4)),
        (ONE_STEP,),
    ),
    "rows of a head": (
        "h200",
        replace(FAST, warps=2, handoff="tagged", workers=4),
        "bf16",
        tiny(layers=1, vocab=331, slice=LayerSlice(first=3, of=4, head=True)),
        (ONE_STEP,),
    ),
    "two chains": (
        "h200",
        replace(FAST, rows=36, tree=True, kv_block=36, handoff="tagged", warps=2, workers=2),
        "bf16",
        tiny(layers=1, hidden=64, heads=1, kv_heads=1, ffn=64, vocab=64),
        (CHAINS,),
    ),
    "rows of one worker": (
        "h200",
        replace(FAST, rows=3, warps=2, kv_block=16, handoff="tagged", workers=1),
        "bf16",
        tiny(layers=1, hidden=64, heads=2, kv_heads=1),
        (ONE_STEP,),
    ),
    "many sequences": (
        "h200",
        replace(FAST, batch=34, warps=4, kv_block=16, chunk_bytes=512, workers=34),
        "bf16",
        tiny(layers=1, hidden=64, heads=1, kv_heads=1, ffn=64),
        (ONE_STEP,),
    ),
    "late head": (
        "h200",
        replace(FAST, rows=2, warps=1, kv_block=16, handoff="tagged", workers=10),
        "bf16",
        tiny(layers=1, hidden=64, heads=8, kv_heads=1, ffn=64),
        (WORKER_7_LAST,),
    ),
}
"""Splits that are not all active, and heads of 48 elements; splits of whole heads of 128; the same with scores at
which only their distance from the largest has a finite exponential; more splits than one turn of their reader takes;
row groups that two agents share; several refills at once; an odd number of candidates; agents with a row for every
lane, and a last row group of one row; activations of no whole row groups; a slice at a position that no cache has; as
many rows and queries of an agent as are rotated together; a batch whose last text has ended; rows of bf16 behind
counters, of which a warp has whole ones, or so few columns that some lanes have none; codes of four bits without zeros
in pairs of blocks, copies ahead of the step that needs them, and shares that differ by a block; more tokens than
registers hold, nodes of a tree, of which an agent has 33 residuals; rows whose sums of squares have the ring right
behind them; scales beside the chunks of several layers, and many vectors that end within a block; a live batch that
draws, each sequence in its own way and at its own position; LayerNorm of several vectors in several pieces, and gelu
by tanh; blocks that share a scale, in so many fetches of a lane that they are used in groups; rows of which a lane has
the scale of one split; norms of rows that are one more than a turn takes, beside sums that a later part adds to;
far scores of a single sequence; logits that are all negative; keys whose largest are beyond fp8; several rows with a
cache of fp8; a batch whose last row group of the output head has three rows; a single worker, and heads of 48 elements
of several rows, whose sums take the place of queries that are a whole tile for every warp; more heads than warps, which
two workers serve in turns, one of them a head less; sixteen shares of columns; shares of rows that are no whole turn,
of which residuals lie right behind the partial sums; a slice with codes and a last row group of four rows, and the head
of one, of both of which a warp has more than 32 rows; a tree of more nodes than a word has bits; splits of whole heads,
of which a lane has the scale of one and gives its weight to the others; several rows of a single worker, with output
head; more sequences than a warp has lanes; eight heads that are rotated together, of which the last arrives alone."""

FROM_WARP_1 = frozenset(
    {
        "behind the context",
        "plain rows",
        "uneven halves",
        "many rows",
        "scales of layers",
        "live draws",
        "norms of a batch",
        "one worker",
    }
)
"""Kernels whose agents are not numbered as their warps: those of all plans are."""


@dataclass(frozen=True)
class Alone:
    """A kernel `unit(out, log, abort)` around a function of `file`. run: the words that its PTX leaves."""

    file: str
    text: str
    run: Callable[[str], NDArray[np.uint32]]


LOGITS = np.array([0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 3e38, -3e38], np.float32)
_HEAD = 'extern "C" __global__ void unit(amk::u32* out, amk::sync::WatchdogLog* log, amk::u32* abort) {\n'
_KEYS = f"""#include "amk/ranking.cuh"
{_HEAD}  if (threadIdx.x < 8) out[threadIdx.x] = amk::ranking::key(__uint_as_float(out[threadIdx.x]));
}}
"""
_TRIPS = f"""#include "amk/watchdog.cuh"
{_HEAD}  __shared__ amk::sync::Watchdog dog;
  if (threadIdx.x == 0) {{
    amk::sync::watchdog_start(dog, log, abort, 1000000000, blockIdx.x);
    amk::sync::Stall<amk::sync::Blocked::counter> first, second;
    int tries = 0;
    while (tries < 4096 && !first.gives_up(dog, 0, 5, 7, 3)) ++tries;
    while (tries < 8192 && !second.gives_up(dog, 1, 6, 9, 4)) ++tries;
    out[blockIdx.x] = tries;
  }}
}}
"""
_STALLS = f"""#include "amk/watchdog.cuh"
{_HEAD}  __shared__ amk::sync::Watchdog dog;
  if (threadIdx.x == 0) {{
    amk::sync::watchdog_start(dog, log, abort, blockIdx.x == 0 ? 1000 : 1000000000, blockIdx.x);
    amk::sync::Stall<amk::sync::Blocked::counter> stall;
    while (out[blockIdx.x] < 65536 && !stall.gives_up(dog, 0, 5, 7, 3)) ++out[blockIdx.x];
  }}
}}
"""
_DRAINS = f"""#include "amk/watchdog.cuh"
{_HEAD}  __shared__ amk::sync::Watchdog dog;
  if (threadIdx.x == 0) {{
    amk::sync::watchdog_start(dog, log, abort, 1000000000, blockIdx.x);
    amk::sync::Stall<amk::sync::Blocked::mbarrier> stall;
    while (out[blockIdx.x] < 262144 && !stall.gives_up(dog, 0, 5, 1, 0)) ++out[blockIdx.x];
  }}
}}
"""
_BEST = f"""#include "amk/ops/argmax_rows.cuh"
{_HEAD}  float value = __uint_as_float(out[threadIdx.x]);
  int index = threadIdx.x * 5 % 32;
  amk::ops::warp_best(value, index);
  out[threadIdx.x] = index;
}}
"""
_E4M3 = f"""#include "amk/pairs.cuh"
#include "amk/watchdog.cuh"
{_HEAD}  for (int i = threadIdx.x; i < 128; i += 32) out[i] = amk::e4m3_pair(out[i], out[i] >> 4);
}}
"""
_NOISE = f"""#include "amk/ranking.cuh"
{_HEAD}  out[threadIdx.x] = __float_as_uint(amk::ranking::gumbel(static_cast<int>(out[threadIdx.x]), 0, 11, 0));
}}
"""
_FAR_CHUNK = f"""#include "amk/ring.cuh"
{_HEAD}  constexpr int kBytes = 512, kChunk = 5000000;
  __shared__ alignas(16) char slots[2 * kBytes];
  __shared__ amk::u64 full[2];
  __shared__ amk::sync::Watchdog dog;
  if (threadIdx.x == 0) amk::sync::watchdog_start(dog, log, abort, 1000000000, 0);
  amk::sync::cta_barrier<1, 32>();
  RING ring;
  const char* source = reinterpret_cast<const char*>(out) - static_cast<long long>(kChunk) * kBytes;
  ring.start(slots, full, source, kChunk + 2, 1, threadIdx.x);
  ring.next = kChunk;
  ring.issue(0, LANE), ring.issue(1, LANE);
  const amk::u32 at = ring.wait(dog, 0);
  out[256 + threadIdx.x] = amk::sync::load_shared_u32(at + 4 * threadIdx.x);
  ring.template release<0>(threadIdx.x, 0);
  RING_END
}}
"""
_FAR_BULK = (
    _FAR_CHUNK.replace("RING ring", "amk::BulkRing<2, kBytes, false, true, false> ring")
    .replace("LANE", "false")
    .replace("RING_END", "ring.wait(dog, 0);")
)
_FAR_COPY = (
    _FAR_CHUNK.replace("RING ring", "amk::CopyRing<2, kBytes, false> ring")
    .replace("LANE", "threadIdx.x")
    .replace("RING_END", "amk::sync::copy_wait<0>();")
)
_SCALES = f"""#include "amk/vector_layouts.cuh"
{_HEAD}  const amk::BlockScale scale(out[threadIdx.x]);
  out[threadIdx.x] = __float_as_uint(scale.up()), out[32 + threadIdx.x] = __float_as_uint(scale.down());
}}
"""
_FAR_ROW = f"""#include "amk/token_rows.cuh"
struct Plan {{
  static constexpr int kHidden = 4096, kBatch = 1;
}};
struct Context {{
  using P = Plan;
  static constexpr bool kTokenALane = false;
  static constexpr int kTokens = 1;
  int tokens[1];
}};
struct Step {{
  struct Table {{
    const amk::bf16* data;
  }};
  static __device__ Table table(Context&) {{ return {{nullptr}}; }}
}};
{_HEAD}  Context c{{{{static_cast<int>(out[0])}}}};
  const auto row = reinterpret_cast<amk::u64>(amk::token_row<Step>(c, 0));
  if (threadIdx.x == 0) out[0] = static_cast<amk::u32>(row), out[1] = static_cast<amk::u32>(row >> 32);
}}
"""
_FAR_CACHE = f"""#include "amk/cache.cuh"
struct Plan {{
  static constexpr int kHeadDim = 128, kCaches = 256, kContext = 131072;
}};
{_HEAD}  const amk::bf16* cache = nullptr;
  const auto row = reinterpret_cast<amk::u64>(amk::cache_row<Plan>(cache, out[0], out[1], out[2]));
  if (threadIdx.x == 0) out[0] = static_cast<amk::u32>(row), out[1] = static_cast<amk::u32>(row >> 32);
}}
"""


class UnitFault(Exception):
    """What a unit did that the emulator refuses; its text is the kind of the first fault."""


def _ran(ptx: str, words: NDArray[np.uint32], blocks: int, abort: int = 1, capacity: int = 4) -> Machine:
    """The machine behind a unit that is told to give up, or is not."""
    allocations = [
        Allocation("out", words.nbytes, "state", words),
        Allocation("log", len(log := empty_log(capacity)), "state", log),
        Allocation("abort", 4, "constant", np.array([abort], np.uint32)),
    ]
    machine = Machine(assemble(parse(ptx), "unit"), blocks, 1, 0, allocations, Limits(instructions=4_000_000))
    places = [machine.memory.addresses[name] for name in ("out", "log", "abort")]
    outcome = machine.launch(b"".join(place.to_bytes(8, "little") for place in places), Order())
    if outcome.faults or not outcome.ended:
        raise UnitFault(outcome.faults[0].kind if outcome.faults else "did not end")
    return machine


def _words(machine: Machine, name: str, count: int) -> NDArray[np.uint32]:
    return machine.read(name, np.uint32, count).view(np.uint32)


def keys_of(ptx: str) -> NDArray[np.uint32]:
    """The keys of `LOGITS`."""
    return _ran(ptx, LOGITS.view(np.uint32).copy(), 1).read("out", np.uint32, 8).view(np.uint32)


def log_of(ptx: str) -> NDArray[np.uint32]:
    """The watchdog's log of a block whose two waits are given up."""
    return _ran(ptx, np.zeros(1, np.uint32), 1).read("log", np.uint32, len(empty_log(4)) // 4).view(np.uint32)


def log_of_stalls(ptx: str) -> NDArray[np.uint32]:
    """The log of two blocks that nobody tells to give up: the first one stalls, and the second one hears of it."""
    return _words(_ran(ptx, np.zeros(2, np.uint32), 2, abort=0), "log", len(empty_log(4)) // 4)


def full_log_of_stalls(ptx: str) -> NDArray[np.uint32]:
    """The same where one record has room."""
    return _words(_ran(ptx, np.zeros(2, np.uint32), 2, abort=0, capacity=1), "log", len(empty_log(1)) // 4)


def polls_of_drains(ptx: str) -> NDArray[np.uint32]:
    """How often a wait for a copy polls before it is given up."""
    return _words(_ran(ptx, np.zeros(1, np.uint32), 1), "out", 1)


def best_of(ptx: str) -> NDArray[np.uint32]:
    """The index that each lane keeps, where lane n has `VALUES[n]` and index 5 n % 32."""
    return _words(_ran(ptx, VALUES.view(np.uint32).copy(), 1), "out", 32)


def noise_of(ptx: str) -> NDArray[np.uint32]:
    """The Gumbel noise of `ROWS` at position 0, seed 11."""
    return _words(_ran(ptx, ROWS.copy(), 1), "out", 32)


def e4m3_of(ptx: str) -> NDArray[np.uint32]:
    """The numbers whose codes are `CODES`, in pairs of bf16."""
    return _words(_ran(ptx, CODES << 8, 1), "out", 128)


def far_chunk_of(ptx: str) -> NDArray[np.uint32]:
    """The first words of the chunk with number 5,000,000 of 512 bytes: the first of two that the memory has."""
    return _words(_ran(ptx, np.arange(288, dtype=np.uint32), 1), "out", 288)[256:]


def scales_of(ptx: str) -> NDArray[np.uint32]:
    """2^e, then 2^-e, of blocks whose largest magnitudes are `TOPS`."""
    return _words(_ran(ptx, np.concatenate([TOPS, TOPS]), 1), "out", 64)


def far_row_of(ptx: str) -> NDArray[np.uint32]:
    """The address of row 1,000,000 of 4,096 numbers of a table at 0, in two words."""
    return _words(_ran(ptx, np.array([1_000_000, 0], np.uint32), 1), "out", 2)


FAR = 99, 255, 131_071
"""Layer, head and position of a row of a cache before which 3.4 thousand million rows lie."""


def far_cache_row_of(ptx: str) -> NDArray[np.uint32]:
    """The address of the row `FAR` of a cache at 0, of 128 numbers a row, in two words."""
    return _words(_ran(ptx, np.array(FAR, np.uint32), 1), "out", 3)[:2]


CODES = np.arange(0, 256, 2, dtype=np.uint32) | np.arange(1, 256, 2, dtype=np.uint32) << 16
"""All of them, two a word."""
VALUES = np.where(np.arange(32) % 3 == 1, 2.0, -1.0).astype(np.float32)
"""Several lanes have the largest one."""
ROWS = np.array([858_091, 8610, *range(30)], np.uint32)
"""The uniform number of the first one is nearer to 1 than to the largest float32 below; that of the second one is so
small that its low word counts."""
TOPS = np.array([0, 1 << 16, 1 << 23, 14 << 23, 15 << 23, 127 << 23, 254 << 23, *[255 << 23] * 25], np.uint32)
"""Upper halves of their bits: zero, subnormal, small, 1, large, infinite."""
ALONE = {
    "keys": Alone("amk/ranking.cuh", _KEYS, keys_of),
    "trips": Alone("amk/sync.cuh", _TRIPS, log_of),
    "records": Alone("amk/watchdog.cuh", _TRIPS, log_of),
    "stalls": Alone("amk/watchdog.cuh", _STALLS, log_of_stalls),
    "full log": Alone("amk/watchdog.cuh", _STALLS, full_log_of_stalls),
    "drains": Alone("amk/watchdog.cuh", _DRAINS, polls_of_drains),
    "best": Alone("amk/ops/argmax_rows.cuh", _BEST, best_of),
    "e4m3": Alone("amk/pairs.cuh", _E4M3, e4m3_of),
    "noise": Alone("amk/ranking.cuh", _NOISE, noise_of),
    "far bulk copy": Alone("amk/ring.cuh", _FAR_BULK, far_chunk_of),
    "far copy": Alone("amk/ring.cuh", _FAR_COPY, far_chunk_of),
    "far row": Alone("amk/token_rows.cuh", _FAR_ROW, far_row_of),
    "far row of anything": Alone("amk/row_at.cuh", _FAR_ROW, far_row_of),
    "far cache row": Alone("amk/cache.cuh", _FAR_CACHE, far_cache_row_of),
    "scales": Alone("amk/vector_layouts.cuh", _SCALES, scales_of),
}
"""The order of logits; what is recorded of waits that are given up: two, one behind the other, of blocks of which one
stalls, and more than there is room for; how long one for a copy goes on; which of equal logits counts; all numbers of
e4m3; the noise of a draw; chunks, a row of a table and one of a cache more than 2^31 bytes from their beginning; scales
of blocks of any size."""
