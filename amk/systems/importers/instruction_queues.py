"""Instruction queues of HazyResearch's low-latency Llama megakernel, with the counters that its operations use.

A queue per SM holds instructions of 32 words. Two agents stand for an SM's warps: one waits for counters and reads, one
writes and signals. The second does an instruction after the first has. Otherwise neither waits for the other, because
the warps of an SM work on several instructions at once. What the pages of shared memory hold back is left out. That may
hide a deadlock of pages, and makes no order that the counters do not.

Counters are `Bar[layer][opcode - 1][index]`. As in the published kernel, an operation waits for those of the operation
before it and adds to its own: heads by blocks of 16 columns, attention by heads, projections by blocks. Waits are
volatile loads and signals plain `atomicAdd`, which order no memory by the PTX model. `fenced` reads the queues as if
each had its fence.
"""

from __future__ import annotations

import json
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from amk.report.diagnostic import AmkError, Diagnostic, Where
from amk.report.schema import schema_error
from amk.systems.agent import Agent
from amk.systems.builder import System
from amk.systems.names import Buffer, Counter

QKV, ATTENTION, REDUCTION, O_PROJ, UP_GATE, DOWN, LM_HEAD = range(1, 8)
BLOCK: Final = 16
"""Columns of one block of every matrix."""
ITEM: Final = 2
"""Bytes of an activation."""


class Shape(BaseModel):
    """Of the model: what its config.json says."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")
    num_hidden_layers: int = Field(ge=1, le=1024)
    num_attention_heads: int = Field(ge=1, le=1024)
    num_key_value_heads: int = Field(ge=1, le=1024)
    head_dim: int = Field(ge=BLOCK, le=1024)
    hidden_size: int = Field(ge=BLOCK, le=1 << 17)
    intermediate_size: int = Field(ge=BLOCK, le=1 << 18)
    vocab_size: int = Field(ge=BLOCK, le=1 << 21)


class Queues(BaseModel):
    """What `importers/README.md` says how to dump."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")
    config: Shape
    instructions: tuple[tuple[tuple[int, ...], ...], ...]


def instruction_queues(value: object, file: str, fenced: bool = False) -> System:
    """value: the JSON of the dump; file: what diagnostics call it; fenced: waits acquire and signals release."""
    try:
        queues = Queues.model_validate_json(json.dumps(value))
    except ValidationError as error:
        raise schema_error(error, file) from error
    return _Reader(queues, file, fenced).system()


class _Reader:
    def __init__(self, queues: Queues, file: str, fenced: bool) -> None:
        self.queues, self.file, self.shape, self.fenced = queues, file, queues.config, fenced
        self.sys = System(file)
        self.counters: dict[tuple[int, int, int], Counter] = {}
        sizes = {
            "hidden": self.shape.hidden_size, "q": self.shape.hidden_size, "attention": self.shape.hidden_size,
            "silu": self.shape.intermediate_size, "logits": self.shape.vocab_size,
        }  # fmt: skip
        self.buffers = {name: self.sys.buffer(name, size * ITEM) for name, size in sizes.items()}
        self.sys.initial(self.buffers["hidden"], 0, self.shape.hidden_size * ITEM)
        cache = self.shape.num_key_value_heads * self.shape.head_dim * ITEM
        for layer in range(self.shape.num_hidden_layers):
            for name in ("k", "v"):
                self.buffers[f"{name} {layer}"] = self.sys.buffer(f"{name} of layer {layer}", cache)

    def system(self) -> System:
        for number, queue in enumerate(self.queues.instructions):
            done = self.sys.counter(f"SM {number}: read", scope="cta")
            reader = self.sys.agent(f"SM {number} loads", cta=number)
            writer = self.sys.agent(f"SM {number} stores", cta=number)
            for k, words in enumerate(queue):
                self.number, self.k = number, k
                with self.sys.at((f"{self.file}:SM {number}", k)):
                    self.instruction(words, reader, writer, done, k)
        return self.sys

    def instruction(self, words: tuple[int, ...], reader: Agent, writer: Agent, counter: Counter, k: int) -> None:
        kinds = {
            QKV: (4, self.qkv), ATTENTION: (5, self.attention), O_PROJ: (5, self.projection),
            UP_GATE: (3, self.up_gate), DOWN: (5, self.projection), LM_HEAD: (3, self.lm_head),
        }  # fmt: skip
        opcode = words[0] if words else 0
        if opcode not in kinds:
            # nothing to do, or an operation that is not known: only the first is harmless
            if opcode != 0:
                raise self.refuse("AMK205", f"opcode {opcode} is not known here")
            reader.signal(counter)
            writer.wait(counter, k + 1)
            return
        length, act = kinds[opcode]
        if len(words) < length:
            raise self.refuse("AMK005", f"an instruction of opcode {opcode} has {length} words or more")
        layer = 0 if opcode == LM_HEAD else words[1]
        if not 0 <= layer < self.shape.num_hidden_layers:
            raise self.refuse("AMK005", f"there is no layer {layer}")
        self.handoff = (counter, k)
        act(words, reader, writer)

    def refuse(self, code: str, message: str) -> AmkError:
        where = Where(file=self.file, path=f"/instructions/{self.number}/{self.k}")
        return AmkError(Diagnostic(code, message, where=where))

    def wait(self, agent: Agent, layer: int, opcode: int, index: int, least: int) -> None:
        agent.wait(self.counter(layer, opcode, index), least, order="acquire" if self.fenced else "relaxed")

    def signal(self, agent: Agent, layer: int, opcode: int, index: int, amount: int) -> None:
        agent.signal(self.counter(layer, opcode, index), amount, order="release" if self.fenced else "relaxed")

    def counter(self, layer: int, opcode: int, index: int) -> Counter:
        key = (layer, opcode, index)
        if key not in self.counters:
            self.counters[key] = self.sys.counter(f"Bar[{layer}][{opcode - 1}][{index}]")
        return self.counters[key]

    def handed_over(self, reader: Agent, writer: Agent) -> None:
        """The reading part is over, and the writing part begins."""
        counter, k = self.handoff
        reader.signal(counter)
        writer.wait(counter, k + 1)

    def columns(self, name: str, first: int, end: int) -> tuple[Buffer, int, int]:
        """Bytes of columns [first, end) of a buffer."""
        buffer = self.buffers[name]
        if not 0 <= first < end <= buffer.size // ITEM:
            raise self.refuse("AMK005", f"columns {first} to {end} (exclusive) are not within {name}")
        return buffer, first * ITEM, end * ITEM

    def last_down(self, agent: Agent, layer: int) -> None:
        """Wait until the hidden state behind a layer is complete."""
        columns = self.shape.intermediate_size // self.shape.hidden_size
        self.wait(agent, layer, DOWN, 0, columns * self.shape.hidden_size // BLOCK)

    def qkv(self, words: tuple[int, ...], reader: Agent, writer: Agent) -> None:
        layer, first, end = words[1:4]
        if layer:
            self.last_down(reader, layer - 1)
        reader.read(*self.columns("hidden", 0, self.shape.hidden_size))
        self.handed_over(reader, writer)
        heads, kv = self.shape.num_attention_heads, self.shape.num_key_value_heads
        starts = {"q": 0, f"k {layer}": heads, f"v {layer}": heads + kv}
        for block in range(first, end):
            head = block * BLOCK // self.shape.head_dim
            name = next(n for n in reversed(starts) if head >= starts[n])
            column = block * BLOCK - starts[name] * self.shape.head_dim
            writer.write(*self.columns(name, column, column + BLOCK), value=(name, layer, column))
            self.signal(writer, layer, QKV, head, 1)

    def attention(self, words: tuple[int, ...], reader: Agent, writer: Agent) -> None:
        layer, kv_head, partials = words[1:4]
        if partials != 1:
            raise self.refuse("AMK205", "attention in several parts is not known here")
        dim, blocks = self.shape.head_dim, self.shape.head_dim // BLOCK
        heads, kv = self.shape.num_attention_heads, self.shape.num_key_value_heads
        group = heads // kv
        for index in (heads + kv_head, heads + kv + kv_head):
            self.wait(reader, layer, QKV, index, blocks)
        for head in range(kv_head * group, kv_head * group + group):
            self.wait(reader, layer, QKV, head, blocks)
        for name, start, count in (
            ("q", kv_head * group, group),
            (f"k {layer}", kv_head, 1),
            (f"v {layer}", kv_head, 1),
        ):
            for column in range(start * dim, (start + count) * dim, BLOCK):
                reader.read(*self.columns(name, column, column + BLOCK), value=(name, layer, column))
        self.handed_over(reader, writer)
        first = kv_head * group * dim
        writer.write(*self.columns("attention", first, first + group * dim), value=("attention", layer, kv_head))
        self.signal(writer, layer, REDUCTION, 0, group)

    def projection(self, words: tuple[int, ...], reader: Agent, writer: Agent) -> None:
        opcode, layer, first, end, part = words[:5]
        hidden = self.shape.hidden_size
        before, source = (REDUCTION, "attention") if opcode == O_PROJ else (UP_GATE, "silu")
        least = self.shape.num_attention_heads if opcode == O_PROJ else hidden // BLOCK
        self.wait(reader, layer, before, part, least)
        reader.read(*self.columns(source, part * hidden, part * hidden + hidden))
        self.handed_over(reader, writer)
        writer.add(*self.columns("hidden", first * BLOCK, end * BLOCK))
        self.signal(writer, layer, opcode, 0, end - first)

    def up_gate(self, words: tuple[int, ...], reader: Agent, writer: Agent) -> None:
        layer, count = words[1:3]
        if len(words) < 3 + count:
            raise self.refuse("AMK005", f"{count} blocks are said, and {len(words) - 3} given")
        self.wait(reader, layer, O_PROJ, 0, self.shape.hidden_size // BLOCK)
        reader.read(*self.columns("hidden", 0, self.shape.hidden_size))
        self.handed_over(reader, writer)
        for block in words[3 : 3 + count]:
            writer.write(*self.columns("silu", block * BLOCK, block * BLOCK + BLOCK), value=("silu", layer, block))
            self.signal(writer, layer, UP_GATE, block * BLOCK // self.shape.hidden_size, 1)

    def lm_head(self, words: tuple[int, ...], reader: Agent, writer: Agent) -> None:
        first, end = words[1:3]
        self.last_down(reader, self.shape.num_hidden_layers - 1)
        reader.read(*self.columns("hidden", 0, self.shape.hidden_size))
        self.handed_over(reader, writer)
        writer.write(*self.columns("logits", first * BLOCK, end * BLOCK))
