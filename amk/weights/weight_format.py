"""How the numbers of a weight matrix are stored, and the bytes of a chunk of them.

A weight is (code - zero) * scale. Codes have `bits` bits. Scales are fp16, one per row and group of `group` columns
(per row when group is 0). Zeros are small integers, one per scale in formats with zero points, else a constant of the
format. bf16 has neither scales nor zeros.

A chunk is a tile of 8 rows and some columns: codes, then scales [8][groups], then zeros [8][groups] (bytes, padded to
16). A group that reaches past the end of a row has fewer columns. Where a row has one scale, the scale may stand apart
in a constant that the product reads. A chunk is then codes only, whole cache lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from amk.report.schema import unless
from amk.weights.codes import CODES, Code, Staged

ROWS = 8
ALIGNMENT = 16
"""Bulk copies move multiples of 16 bytes."""
BLOCK = 64
"""Elements of a staged vector that share a scale."""


def whole_blocks(count: int) -> int:
    """Blocks that `count` elements touch."""
    return -(-count // BLOCK)


@dataclass(frozen=True)
class WeightFormat:
    """codes: a name in CODES. group: columns that share a scale, 0 for a whole row. zeros: stored zero points."""

    codes: str
    group: int = 0
    zeros: bool = False

    @cached_property
    def kind(self) -> Code:
        return CODES[self.codes]

    @property
    def bits(self) -> int:
        return self.kind.bits

    @property
    def plain(self) -> bool:
        """Are the numbers stored as they are, without scales."""
        return self.kind.largest == 0

    def staged(self, vectors: int = 1) -> Staged:
        """What the vector has to be staged as: codes are multiplied as integers or as f16 numbers with one vector, as
        bf16 numbers with several."""
        return self.kind.staged if vectors == 1 else "bf16"

    def sums(self, vectors: int = 1) -> bool:
        """Have the codes zeros of their own that the sums of the vector's blocks take out."""
        return self.zeros and vectors == 1

    @property
    def unit(self) -> int:
        """Columns of a chunk come in multiples of this: whole 512-byte tiles and whole groups, both powers of two."""
        return max(512 // self.bits, self.group)

    @property
    def per_row(self) -> bool:
        """Has every row one scale, which may stand apart from the chunks."""
        return not self.plain and not self.group

    def groups(self, columns: int) -> int:
        """Scales per row of `columns` columns; 0 of plain numbers."""
        if self.plain:
            return 0
        return -(-columns // self.group) if self.group else 1

    def payload_bytes(self, columns: int) -> int:
        """Bytes of the codes of a chunk."""
        return ROWS * columns * self.bits // 8

    def chunk_bytes(self, columns: int) -> int:
        """Bytes of a chunk with its scales and zeros."""
        scales = ROWS * self.groups(columns)
        extra = 2 * scales + (-(-scales // ALIGNMENT) * ALIGNMENT if self.zeros else 0)
        return self.payload_bytes(columns) + extra

    def needed_bytes(self, rows: int, k: int) -> int:
        """Bytes that a matrix holds at least: codes, scales and zeros without any padding."""
        scales = rows * self.groups(k)
        return rows * k * self.bits // 8 + 2 * scales + (-(-scales // 2) if self.zeros else 0)


@cache
def weight_format(name: FormatName) -> WeightFormat:
    """The format of that name: codes, then '-g' and the group, then '-zp' for stored zero points. KeyError if it is not
    one of its kind of code."""
    codes, *parts = name.split("-")
    if name not in CODES[codes].formats:
        raise KeyError(name)
    group = next((int(part[1:]) for part in parts if part.startswith("g")), 0)
    return WeightFormat(codes, group, "zp" in parts)


class _Formats(Mapping[str, WeightFormat]):
    """Name -> format. A look-up imports the file of its kind of code, going through all of them imports all."""

    def __getitem__(self, name: str) -> WeightFormat:
        return weight_format(name)

    def __iter__(self) -> Iterator[str]:
        return (name for kind in CODES.values() for name in kind.formats)

    def __len__(self) -> int:
        return len(list(iter(self)))


FORMATS: Mapping[FormatName, WeightFormat] = _Formats()


class _Named:
    """A field that holds the name of a format."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(_name)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: Any) -> Any:
        return {"enum": list(FORMATS), "type": "string"}


def _name(value: Any) -> str:
    if not isinstance(value, str) or value not in FORMATS:
        *most, last = map(repr, FORMATS)
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(most)} or {last}"})
    return value


if TYPE_CHECKING:
    FormatName = str
else:
    FormatName: Any = Annotated[str, _Named]


class Chunk(BaseModel):
    """The chunks of one matrix: their format and columns. apart: the scales of its rows are not in them."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    format: FormatName
    columns: int = Field(ge=32, le=16384, multiple_of=32)
    apart: bool = unless(False)

    @property
    def weights(self) -> WeightFormat:
        return weight_format(self.format)

    @property
    def bytes(self) -> int:
        form = self.weights
        return form.payload_bytes(self.columns) if self.apart else form.chunk_bytes(self.columns)


@cache
def plain_chunk(columns: int) -> Chunk:
    """A bf16 chunk."""
    return Chunk(format="bf16", columns=columns)
