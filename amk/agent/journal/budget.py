"""What a run may still spend: minutes, evaluations, dollars, tokens, calls.

Money is reserved at its upper bound before an attempt is sent and settled at what it cost; what a crash left open
counts in full. So settled + reserved never exceeds the limit, whatever is in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from amk.agent.journal.events import Faulted, Limits, LlmReserved, LlmSettled
from amk.agent.journal.state import State
from amk.agent.journal.store import Journal

CLOSING = 60.0
"""Seconds that a paired test and a confirmation take together."""


UNITS = {"minutes": "minutes", "evals": "evaluations", "dollars": "dollars", "tokens": "tokens", "calls": "calls"}


def merged(old: Limits, changes: Mapping[str, float | int | None]) -> Limits:
    """`old` with those limits that were given; one that was not stays what it was. ValueError outside their range."""
    return Limits.model_validate(old.model_dump() | {name: n for name, n in changes.items() if n is not None})


def changes(old: Limits, new: Limits) -> tuple[str, ...]:
    """Every limit that differs, in words."""
    pairs = ((what, getattr(old, name), getattr(new, name)) for name, what in UNITS.items())
    return tuple(f"{what}: {_text(a)} -> {_text(b)}" for what, a, b in pairs if a != b)


def _text(limit: float | None) -> str:
    return "no limit" if limit is None else f"{limit:g}" if isinstance(limit, float) else str(limit)


def spent_out(limits: Limits, state: State, elapsed: float) -> str | None:
    """Why nothing more may be proposed, or None. Money ends only the language model, never the search."""
    if limits.evals is not None and state.committed >= limits.evals:
        return f"{limits.evals} evaluations are used up"
    return out_of_time(limits, elapsed)


def out_of_time(limits: Limits, elapsed: float) -> str | None:
    """Why no further proposal may be begun, or None."""
    if limits.minutes is not None and elapsed >= limits.minutes * 60:
        return f"{limits.minutes:g} minutes are used up"
    return None


def closing(limits: Limits, elapsed: float) -> bool:
    """Whether what is left is needed for a paired test and confirm what waits for it."""
    return limits.minutes is not None and elapsed >= limits.minutes * 60 - CLOSING


def refusal(limits: Limits, state: State, dollars: float, tokens: int) -> str | None:
    """Why one more attempt of at most `dollars` and `tokens` may not be sent, or None."""
    committed = state.dollars + state.dollars_reserved
    if committed + dollars > limits.dollars:
        return f"${committed:.4f} of ${limits.dollars:.2f} are committed, the attempt may cost ${dollars:.4f}"
    if limits.tokens is not None and state.tokens + state.tokens_reserved + tokens > limits.tokens:
        return f"{state.tokens + state.tokens_reserved:,} of {limits.tokens:,} tokens are committed"
    if limits.calls is not None and state.calls >= limits.calls:
        return f"{limits.calls} calls are used up"
    return None


def reserve(journal: Journal, limits: Limits, attempt: LlmReserved) -> str | None:
    """Set the attempt's upper bound aside; returns why not if it does not fit."""
    with journal.locked():
        reason = refusal(limits, journal.state, attempt.dollars, attempt.tokens)
        if reason is None:
            journal.append(attempt)
        return reason


def settle_lost(journal: Journal) -> None:
    """Charge what an earlier session reserved and never settled: it may have been billed."""
    for reserved in list(journal.state.llm_open.values()):
        journal.append(
            LlmSettled(
                call=reserved.call,
                attempt=reserved.attempt,
                dollars=reserved.dollars,
                input_tokens=reserved.tokens,
                output_tokens=0,
                cached_tokens=0,
                outcome="lost",
                live=True,
            )
        )


def settle_leases(note: Callable[[Faulted], None], state: State) -> None:
    """Give back the devices that an earlier session held when it ended."""
    for lease in list(state.leases.values()):
        note(
            Faulted(index=lease.index, phase=lease.phase, attempt=lease.attempt, seconds=0.0, fault="lost",
                    detail="the driver ended before the result was written", device=lease.device)
        )  # fmt: skip
