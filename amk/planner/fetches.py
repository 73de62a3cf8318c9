"""What agents read of a vector in equal shares: every share is a whole number of the fetches that the code makes."""

from __future__ import annotations

from amk.models.matrices import MatrixName
from amk.models.model_spec import ModelSpec
from amk.planner.formats import Layered
from amk.planner.settings import Settings, crossing_dtype, has_tags
from amk.planner.staging import layout
from amk.report.diagnostic import AmkError, Diagnostic
from amk.schedule_ir.ops.staging import LANES, NORM_FETCHES

READERS: tuple[tuple[MatrixName, ...], ...] = (("qkv", "gate_up"), ("o",), ("down",))
"""What multiplies the vectors of hidden, q_dim and ffn elements; lm_head's comes with the next QKV's."""


def fetched(settings: Settings) -> int:
    """Elements of a 16-byte fetch: two tagged words of one f32 or two bf16 each, four elements elsewhere."""
    return 2 if settings.handoff != "fenced" and crossing_dtype(settings) == "f32" else 4


def require_whole_fetches(model: ModelSpec, settings: Settings, workers: int, reduced: bool, formats: Layered) -> None:
    """AMK406 unless `warps` agents share the vectors that cross SMs in whole fetches; `handoff` is decided.

    Vectors staged in blocks are shared in blocks, whatever the number of warps, but for a hidden state whose norm needs
    all of it first. reduced: attention's splits are reduced before everybody stages the result.
    """
    wide = fetched(settings)
    vectors = settings.vectors
    blocks = [
        all(layout(name, forms, vectors) != "bf16" for name in names for _, forms in formats) for names in READERS
    ]
    blocks[0] = blocks[0] and model.graph.norm != "layer"
    shares = (("hidden", model.hidden, wide), ("q_dim", model.q_dim, wide), ("ffn", model.ffn, 4))
    for (name, count, width), whole in zip(shares, blocks, strict=True):
        if count % (width if whole else width * settings.warps):
            _refuse(f"{settings.warps} warps cannot share {name} = {count:,} in fetches of {width} elements")
    if model.hidden > settings.warps * LANES * wide * NORM_FETCHES:
        most = settings.warps * LANES * wide * NORM_FETCHES
        _refuse(f"{settings.warps} warps stage at most {most:,} elements at once, hidden is {model.hidden:,}")
    if reduced and wide != 4:
        _refuse("splits are reduced in fetches of 4 elements: tagged words hold 4 only as bf16")
    if not reduced and model.head_dim % wide:
        _refuse(f"a head of {model.head_dim} is combined in fetches of {wide} elements")
    candidates, each = workers * settings.warps, 2 if has_tags(settings, "best") else 4
    if vectors > 1 and not settings.headless and candidates % each:
        _refuse(f"each sequence's {candidates:,} candidates, one a warp, are read in fetches of {each}")


def fewest_warps(settings: Settings, model: ModelSpec) -> int:
    """`settings.warps`, doubled until they stage a hidden state at once; `handoff` is decided."""
    warps = settings.warps
    while model.hidden > warps * LANES * fetched(settings) * NORM_FETCHES:
        warps *= 2
    return warps


def _refuse(message: str) -> None:
    help_line = "another number of warps or workers, or another hand-off, reads whole fetches"
    raise AmkError(Diagnostic("AMK406", message, help=help_line))
