"""Packed codes that an earlier start left on disk.

A quantiser may take minutes for what reads in seconds, so codes that it made are kept in the user's cache directory, in
the order of the packed buffer. Matrices in bf16 and codes of the checkpoint itself are only put in order, and are not
kept.

Property:
    key       of all that the bytes depend on: layout, formats, the quantiser and its code, the checkpoint's files by
              size, time of change and a sample of their bytes
    whole     the description is written last and has the size and checksum of every part; what differs is a miss
    room      nothing is written where the disk would be full, and the oldest entries go when all are too large
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from amk.interpreter.packing import Sink, ahead, pack_weights
from amk.models.matrices import K_SPLIT, MatrixName
from amk.models.row_groups import CodedSource, TensorSource
from amk.report.diagnostic import AmkError
from amk.report.json_file import read_json
from amk.schedule_ir.layout import stream_layout
from amk.schedule_ir.memory import Stream
from amk.schedule_ir.schedule import Schedule
from amk.weights.bfloat import F32, Bits
from amk.weights.quantised import Quantiser

Progress = Callable[[int, int], None]

MOST_BYTES = 128 << 30
"""Of all entries."""
ABANDONED = 24 * 3600
"""Seconds since a file that is being written was last written to, after which nobody writes it."""
SAMPLES, SAMPLE_BYTES = 64, 4096
"""Of a file of a checkpoint."""
CODE = ("interpreter/packing.py", "models", "quantize", "schedule_ir/layout.py", "weights", "engine/checkpoints")
"""Files and folders of amk that decide the bytes."""
MOST_DESCRIPTION = 1 << 20
WEIGHTS = (".safetensors", ".gguf", ".json")
"""Names of the files of a checkpoint that decide the bytes end so."""


def default_directory() -> Path:
    """Where entries live unless told otherwise."""
    return Path(platformdirs.user_cache_dir("amk")) / "packed"


def packed_weights(
    schedule: Schedule,
    source: TensorSource,
    sink: Sink,
    progress: Progress | None,
    quantise: Quantiser,
    directory: Path | None = None,
) -> dict[str, F32]:
    """As `pack_weights`, from disk if an earlier call left these bytes there; what a quantiser made is left there."""
    path = getattr(source, "path", None)
    if path is None or not name_of(quantise) or not _has_made_codes(schedule, source):
        return pack_weights(schedule, source, sink, progress, quantise)
    entry = _Entry(directory or default_directory(), key_of(schedule, Path(path), quantise))
    if (parts := entry.parts()) is not None and (found := entry.read(parts, sink, progress)) is not None:
        return found
    return entry.pack(schedule, source, sink, progress, quantise)


def _has_made_codes(schedule: Schedule, source: TensorSource) -> bool:
    """Whether a quantiser makes some of the codes."""
    (stream,) = schedule.streams
    own = source.form if isinstance(source, CodedSource) else None
    chunks = {(name, stream.chunk(name, layer)) for name, layer, _ in stream_layout(schedule, stream).packed}
    return any(chunk.format != "bf16" and (chunk.weights != own or name == "lm_head") for name, chunk in chunks)


def name_of(quantise: Quantiser) -> str:
    """That of a function that a module defines; empty for others, which nothing tells apart."""
    name = str(getattr(quantise, "__qualname__", ""))
    return name if name.isidentifier() else ""


def key_of(schedule: Schedule, checkpoint: Path, quantise: Quantiser) -> str:
    """sha256 of what decides the packed bytes."""
    digest = hashlib.sha256()
    for part in _parts_of_key(schedule, checkpoint, quantise):
        digest.update(f"{len(part)}:".encode())
        digest.update(part)
    return digest.hexdigest()


def _parts_of_key(schedule: Schedule, checkpoint: Path, quantise: Quantiser) -> Iterator[bytes]:
    (stream,) = schedule.streams
    yield _code()
    yield f"{quantise.__module__}.{name_of(quantise)}".encode()
    yield from _layout(schedule, stream)
    for file in sorted(checkpoint.iterdir()) if checkpoint.is_dir() else [checkpoint]:
        if file.suffix in WEIGHTS:
            yield _sample(file)


def _layout(schedule: Schedule, stream: Stream) -> Iterator[bytes]:
    """All of a schedule that `Packer` looks at."""
    layout, tables = stream_layout(schedule, stream), schedule.tables
    yield schedule.model.model_dump_json(exclude={"name", "source", "max_context"}).encode()
    yield repr((schedule.launch.workers, stream.chunk_bytes, stream.row_groups, layout.parts, layout.splits)).encode()
    yield np.ascontiguousarray(layout.places).tobytes()
    yield np.ascontiguousarray(layout.base).tobytes()
    yield repr(tables.get(f"{K_SPLIT}.index")).encode()
    for name, layer, part in layout.packed:
        yield repr((name, layer, part, stream.chunk(name, layer))).encode()
        yield np.ascontiguousarray(layout.counts[name, layer]).tobytes()
    for name in sorted({name for name, _, _ in layout.packed}):
        yield _rows(schedule, layout.shares(name), name)


def _rows(schedule: Schedule, shares: str, name: MatrixName) -> bytes:
    return repr((name, schedule.tables[f"{shares}.first"], schedule.tables[f"{shares}.count"])).encode()


@cache
def _code() -> bytes:
    """sha256 of the files that decide the bytes."""
    digest = hashlib.sha256()
    for name in CODE:
        for file in _files_of(files("amk").joinpath(name)):
            digest.update(file.read_bytes())
    return digest.digest()


def _files_of(place: Traversable) -> Iterable[Traversable]:
    if place.is_file():
        return [place]
    return sorted((each for each in place.iterdir() if each.name.endswith(".py")), key=lambda each: each.name)


def _sample(file: Path) -> bytes:
    """A file of a checkpoint: name, size, time of change, and blocks from all over it."""
    about = file.stat()
    digest = hashlib.sha256(repr((file.name, about.st_size, about.st_mtime_ns)).encode())
    with file.open("rb") as data:
        for number in range(SAMPLES):
            data.seek(about.st_size * number // SAMPLES)
            digest.update(data.read(SAMPLE_BYTES))
    return digest.digest()


@dataclass(frozen=True)
class _Part:
    """A run of the packed buffer from chunk `first` on, or the scales of a buffer."""

    bytes: int
    checksum: int
    first: int = 0
    scales: str = ""
    shape: tuple[int, ...] = ()


@dataclass
class _Entry:
    directory: Path
    key: str
    contents: list[_Part] = field(default_factory=list)
    full: bool = False

    @property
    def data(self) -> Path:
        return self.directory / f"{self.key}.bin"

    @property
    def description(self) -> Path:
        return self.directory / f"{self.key}.json"

    def parts(self) -> list[_Part] | None:
        """What lies in the entry; None if there is none, or another one than its description says."""
        try:
            record = read_json(self.description, MOST_DESCRIPTION)
            parts = [_Part(**{**part, "shape": tuple(part["shape"])}) for part in record["parts"]]
            whole = all(part.bytes == prod(part.shape) * (4 if part.scales else 2) for part in parts)
            if whole and record["key"] == self.key and self.data.stat().st_size == sum(part.bytes for part in parts):
                os.utime(self.data)
                return parts
        except (AmkError, OSError, KeyError, TypeError):
            pass
        return None

    def read(self, parts: list[_Part], sink: Sink, progress: Progress | None) -> dict[str, F32] | None:
        """Hand on what lies in the entry; None where a part is damaged."""
        try:
            data = np.memmap(self.data, np.uint8, mode="r")
        except OSError:  # another process has just removed it
            return None
        scales: dict[str, F32] = {}
        ends = list(accumulate(part.bytes for part in parts))

        def bytes_of(number: int) -> Any:
            part = parts[number]
            found = np.array(data[ends[number] - part.bytes : ends[number]])
            return found if zlib.crc32(found.data) == part.checksum else None

        for part, end, found in zip(parts, ends, ahead(bytes_of, len(parts)), strict=True):
            if found is None:
                return None
            if part.scales:
                scales[part.scales] = found.view(np.float32).reshape(part.shape)
            else:
                sink(part.first, found.view(np.uint16).reshape(part.shape))
            if progress:
                progress(end, ends[-1])
        return scales

    def pack(
        self,
        schedule: Schedule,
        source: TensorSource,
        sink: Sink,
        progress: Progress | None,
        quantise: Quantiser,
    ) -> dict[str, F32]:
        """Pack, and leave the bytes on disk if there is room."""
        file = self._begin(schedule)

        def both(first: int, packed: Bits) -> None:
            self._add(file, packed, first=first)
            sink(first, packed)

        try:
            scales = pack_weights(schedule, source, both, progress, quantise)
            for name, values in scales.items():
                self._add(file, values, scales=name)
            self._finish(file)
        finally:
            if file is not None:
                with suppress(OSError):  # what a full disk did not take is written again here
                    file.close()
                Path(file.name).unlink(missing_ok=True)
        return scales

    def _begin(self, schedule: Schedule) -> Any:
        """A file to write to; None where the disk has no room for twice as much."""
        (stream,) = schedule.streams
        size = int(stream_layout(schedule, stream).places.sum()) * stream.chunk_bytes
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            _evict(self.directory, MOST_BYTES - size)
            if size > MOST_BYTES or shutil.disk_usage(self.directory).free < 2 * size:
                return None
            return tempfile.NamedTemporaryFile(dir=self.directory, prefix=".", suffix=".tmp", delete=False)
        except OSError:
            return None

    def _add(self, file: Any, values: Any, first: int = 0, scales: str = "") -> None:
        if file is None or self.full:
            return
        words = np.ascontiguousarray(values)
        try:
            file.write(words.data)
        except OSError:
            self.full = True
            return
        self.contents.append(_Part(words.nbytes, zlib.crc32(words.data), first, scales, words.shape))

    def _finish(self, file: Any) -> None:
        if file is None or self.full:
            return
        temporary = Path(file.name)
        beside = temporary.with_suffix(".json")
        try:
            file.close()
            beside.write_text(json.dumps({"key": self.key, "parts": [vars(part) for part in self.contents]}))
            os.replace(temporary, self.data)
            os.replace(beside, self.description)
        except OSError:
            beside.unlink(missing_ok=True)


def _evict(directory: Path, most: int) -> None:
    """Remove the entries that were used least recently, until the others have at most so many bytes, and what killed
    processes left."""
    kept, now = 0, time.time()
    for left in directory.glob(".*.tmp"):
        if now - left.stat().st_mtime > ABANDONED:
            left.unlink(missing_ok=True)
    for data in sorted(directory.glob("*.bin"), key=lambda each: each.stat().st_mtime_ns, reverse=True):
        kept += data.stat().st_size
        if kept > most:
            data.with_suffix(".json").unlink(missing_ok=True)
            data.unlink(missing_ok=True)
