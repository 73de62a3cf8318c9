"""What driver and worker say to each other: one JSON object a line, each answer carrying its question's nonce.

The worker only runs programs and reports raw numbers. It knows neither which program is the incumbent's nor what is
hoped for, and nothing it says is believed before `audit` has looked at it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

MAX_ANSWER = 2**20

Slot = Literal["a", "b"]


class Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Open(Message):
    do: Literal["open"] = "open"
    nonce: int


class Load(Message):
    """Make the program of `slot` ready: `kernel` as the gate admitted it, in base64. `key` comes back as what was
    loaded."""

    do: Literal["load"] = "load"
    nonce: int
    slot: Slot
    schedule: str
    kernel: str
    key: str
    seed: int


class Check(Message):
    """Run one token at each position on inputs drawn from `seed` and compare with the oracle."""

    do: Literal["check"] = "check"
    nonce: int
    slot: Slot
    positions: tuple[int, ...]
    seed: int


class Block(Message):
    """Time `steps` steps at each position."""

    do: Literal["block"] = "block"
    nonce: int
    slot: Slot
    positions: tuple[int, ...]
    steps: int


class Canary(Message):
    """Run a kernel whose answer is known."""

    do: Literal["canary"] = "canary"
    nonce: int


Question = Annotated[Open | Load | Check | Block | Canary, Field(discriminator="do")]
QUESTION: TypeAdapter[Question] = TypeAdapter(Question)


class PositionCheck(Message):
    """error, oracle_error: relative L2 of logits against fp64, of the program and of a bf16 reference implementation.
    finite: every output is a number. repeated: two runs agreed bitwise."""

    pos: int
    error: float
    oracle_error: float
    finite: bool
    repeated: bool


class Answer(Message):
    """`error` is "" on success. times[i]: ms per token of the steps at position i. tokens: what the device's own epoch
    counted while the question was answered."""

    nonce: int
    error: Annotated[str, Field(max_length=4000)] = ""
    kind: Annotated[str, Field(max_length=64)] = ""
    key: Annotated[str, Field(max_length=128)] = ""
    device: Annotated[str, Field(max_length=200)] = ""
    checks: tuple[PositionCheck, ...] = ()
    times: tuple[tuple[float, ...], ...] = ()
    tokens: int = 0
