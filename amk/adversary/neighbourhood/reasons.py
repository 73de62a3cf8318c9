"""Why no run refutes edits that are refused, by code and by the field that was edited.

* `unseen`: real, and outside the machine's sight. That is a race that no order showed, the memory model, the kernel's
  resources, alignment, a width that this machine does not have, or an operation that it does not carry out.
* `policy`: what amk asks of every schedule so that it can be decided or launched, whatever runs would show.
* `open`: nobody has said why. A rule that a run should be able to break is a candidate for a needless refusal.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Kind = Literal["unseen", "policy", "open"]


class Reason(NamedTuple):
    """text: empty if the kind is open."""

    kind: Kind
    text: str


def _unseen(text: str) -> Reason:
    return Reason("unseen", text)


def _policy(text: str) -> Reason:
    return Reason("policy", text)


OPEN: Final = Reason("open", "")
RACE = _unseen("a race shows in some orders only")
MODEL = _unseen("runs here are sequentially consistent")
OUTSIDE = _unseen("the machine carries it out as if it were an ordinary wait, signal or store")
LIMITS = _unseen("no hardware limit binds the machine")
BYTES = _unseen("copies and operands are numbers, not bytes, here")
CHOICE = _unseen("another choice or sum shows for some values only")
RING = _policy("a ring has its bytes for itself, whatever else is declared there and not touched")
OPERANDS = _policy("an op orders its accesses to one operand, so two operands are not to be one buffer")
MODES = _policy("a mode is to be one that says something: of one sequence none is live, one row accepts no guess")

BY_CODE: dict[str, Reason] = {
    "AMK011": LIMITS,
    "AMK101": _policy("every row is to be somebody's, also one whose value a run does not show"),
    "AMK102": _policy("a row is to be one worker's, even where both write the same"),
    "AMK103": _policy("shapes and limits are to be the plan's, even where others hold what a run touches"),
    "AMK104": _policy("an operand is to be the one that is meant, even where the arithmetic has no use for it"),
    "AMK105": _unseen("bytes that nobody wrote may be read and not count"),
    "AMK106": _policy("the steps are to be those of the model, each once, even where another list computes the same"),
    "AMK203": _unseen(
        "thresholds fall behind by a little in each token, and a wait holds wrongly after more tokens than a run has; "
        "a hint orders nothing anyway"
    ),
    "AMK204": _unseen("no run has 2^32 increments"),
    "AMK301": RACE,
    "AMK302": RACE,
    "AMK401": LIMITS,
    "AMK402": LIMITS,
    "AMK403": LIMITS,
    "AMK404": RACE,
    "AMK405": BYTES,
    "AMK406": LIMITS,
    "AMK407": _unseen("what device code relies on; no device code runs here"),
    "AMK501": RACE,
    "AMK504": RACE,
    "AMK513": _unseen(
        "a word with an equal tag is taken too early in some orders, or after more tokens than a run has"
    ),
    "AMK514": RACE,
    "AMK515": RACE,
    "AMK601": LIMITS,
}  # fmt: skip
BY_CODE |= dict.fromkeys(("AMK502", "AMK503", "AMK505", "AMK507", "AMK509"), MODEL)
BY_CODE |= dict.fromkeys(
    ("AMK205", *(f"AMK{n}" for n in range(208, 215)), "AMK506", "AMK508", "AMK510", "AMK511", "AMK512"), OUTSIDE
)
"""What holds for fields that are not in the next table."""

BY_FIELD: dict[tuple[str, str], Reason] = {
    ("AMK103", "Launch.max_tokens"): _unseen("a run has fewer tokens than a launch may have"),
    ("AMK301", "Buffer.offset"): _unseen("a copy lands before the bytes are read in some orders only"),
    ("AMK301", "Stream.full"): _unseen("a copy lands before the bytes are read in some orders only"),
    ("AMK302", "Counter.handoff"): _policy("a hint is to order nothing, whatever its signals and waits would order"),
    ("AMK302", "GemvOp.deferred"): _policy("what a warp owes is counted in slots, alike for all warps"),
    ("AMK406", "Buffer.align"): _policy("a buffer is to begin at a multiple of the alignment that it declares"),
    ("AMK407", "Buffer.role"): _policy("a buffer that is no scratch memory is to be one that the host knows"),
    ("AMK407", "Buffer.tag"): _policy("a buffer without flag words is to have no tag"),
    ("AMK507", "Buffer.role"): _policy("what a launch may write is to be fenced, also where nobody writes it"),
    ("AMK513", "Buffer.tagged"): _policy("a buffer is to have a tag if and only if it has flag words"),
    ("AMK513", "Buffer.role"): _unseen("runs are one launch, so no flag word of an earlier one is left"),
}  # fmt: skip
BY_FIELD |= {
    ("AMK103", field): BYTES
    for field in (
        "Buffer.dtype", "Chunk.columns", "Chunk.format", "Stream.chunk_align", "Stream.chunks{}", "Stream.full",
        "Stream.ring", "Stream.slots", "Stream.source",
    )
}  # fmt: skip
BY_FIELD |= {("AMK106", field): MODES for field in ("Schedule.accepts", "Schedule.live", "Schedule.tree")}
BY_FIELD |= dict.fromkeys(
    (("AMK106", "GeluOp.tanh"), ("AMK106", "ModelSpec.activation")),
    _unseen("the two activations differ by less than rounding may"),
)
BY_FIELD |= {("AMK301", field): RING for field in ("Buffer.shape[]", "Buffer.dtype", "Buffer.tagged")}

BY_PROPERTY: dict[tuple[str, str], Reason] = {
    ("AMK301", "role"): _policy("a byte is to have one writer, even where two write the same"),
}
BY_PROPERTY |= {
    ("AMK106", name): CHOICE
    for name in ("round", "candidates", "ssq_agents", "tally_agents", "gather_agents", "attend_agents")
}
BY_PROPERTY |= {("AMK302", name): OPERANDS for name in ("also", "scales", "sums")}
"""By the last part of a field: operands and parameters of ops, whichever op has them."""


def reason_of(code: str, field: str) -> Reason:
    """Why no run refutes edits of this field that this code refuses."""
    named = BY_FIELD.get((code, field)) or BY_PROPERTY.get((code, field.rpartition(".")[2]))
    return named or BY_CODE.get(code, OPEN)
