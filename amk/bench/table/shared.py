"""A small file of measurements that somebody with a GPU gives to somebody without one.

It holds what the simulator can learn from: the schedules of the kernels, times, the state of the card, versions; no
weights, no prompts, no paths, and of the card's identity only a hash. The schedules travel whole, because a version
whose planner makes other plans learns from them too. The seal is a SHA-256 of all else, so that damage is noticed; who
sent the file only a signature tells (`ssh-keygen -Y sign`, the key of one's choice).
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from amk.bench.table.row import Row
from amk.bench.table.schedule_text import pack, unpack
from amk.report.diagnostic import AmkError, Diagnostic, Where
from amk.report.json_file import read_json
from amk.report.schema import schema_error
from amk.schedule_ir.codec import schedule_hash
from amk.schedule_ir.schedule import Schedule

MOST_BYTES: Final = 1 << 20
MOST_ROWS: Final = 256
MOST_SCHEDULES: Final = 64
NAMESPACE: Final = "amk-bench"
SECONDS: Final = 60.0
Text = Annotated[str, Field(max_length=200)]
Ms = Annotated[float, Field(gt=0, lt=1e5, allow_inf_nan=False)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Key(_Data):
    """What was measured, as a row of `amk bench` names it."""

    model: Text
    gpu: Text
    dtype: Text
    plan: Text
    pos: Annotated[int, Field(ge=0)]
    batch: Annotated[int, Field(ge=1)]


class Times(_Data):
    """Of a step, in ms."""

    ms: Ms
    p10: Ms
    p90: Ms


class Measured(_Data):
    """schedule: its hash. correct: its logits were right and came twice alike."""

    key: Key
    context: Annotated[int, Field(ge=1)]
    times: Times
    schedule: Hash
    correct: bool


class Entry(_Data):
    row: Measured


class Shared(_Data):
    """card: hash of the card's identity. schedules: by their hashes. signature: of the seal, by ssh-keygen."""

    format: Literal[2]
    card: Text
    hardware: Annotated[dict[Text, Text], Field(max_length=32)]
    software: Annotated[dict[Text, Text], Field(max_length=16)]
    schedules: Annotated[dict[Hash, str], Field(min_length=1, max_length=MOST_SCHEDULES)]
    rows: Annotated[tuple[Entry, ...], Field(strict=False, min_length=1, max_length=MOST_ROWS)]
    seal: Hash
    signature: Annotated[str, Field(max_length=8192)] = ""


def shared(rows: Sequence[tuple[Row, Schedule]], provenance: dict[str, Any]) -> Shared:
    """The file's content; AMK002 or AMK005 if it is too much. provenance: of `amk.bench.tools.hardware`; its command,
    which names files, is left out."""
    schedules = pack_all([schedule for _, schedule in rows])
    hardware = {str(k): str(v)[:200] for k, v in provenance["hardware"].items()}
    uuid = hardware.pop("uuid", "")
    content: dict[str, Any] = {
        "format": 2,
        "card": hashlib.sha256(uuid.encode()).hexdigest()[:16] if uuid else "",
        "hardware": hardware,
        "software": {str(k): str(v)[:200] for k, v in provenance.items() if k not in ("command", "hardware")},
        "schedules": schedules,
        "rows": [{"row": _measured(row, schedule)} for row, schedule in rows],
    }
    return Shared.model_validate(content | {"seal": seal_of(content)})


def pack_all(schedules: Sequence[Schedule]) -> dict[str, str]:
    """The schedules of as many rows, each once, by their hashes. AMK002 or AMK005 if it is too much for one file."""
    texts = {schedule_hash(schedule): pack(schedule) for schedule in schedules}
    size = sum(len(text) for text in texts.values())
    for count, most, what in (
        (len(schedules), MOST_ROWS, "rows"),
        (len(texts), MOST_SCHEDULES, "schedules"),
        (size, MOST_BYTES // 2, "characters of schedules"),
    ):
        if count > most:
            raise AmkError(Diagnostic("AMK005", f"{count:,} {what} are too many for one file, the limit is {most:,}"))
    return texts


def _measured(row: Row, schedule: Schedule) -> dict[str, Any]:
    key = {name: getattr(row.key, name) for name in Key.model_fields}
    times = {name: getattr(row.times, name) for name in Times.model_fields}
    return {"key": key, "context": schedule.kv.context, "times": times, "schedule": schedule_hash(schedule),
            "correct": row.correct and row.reproducible}  # fmt: skip


def seal_of(content: dict[str, Any]) -> str:
    """SHA-256 of all but the seal and the signature, as canonical JSON."""
    rest = {name: value for name, value in content.items() if name not in ("seal", "signature")}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write(path: Path, content: Shared, key: Path | None = None) -> None:
    """AMK001 if it cannot be written, AMK005 if `key` cannot sign."""
    if key is not None:
        signature = _ssh_keygen("-Y", "sign", "-n", NAMESPACE, "-f", str(key), stdin=content.seal)
        content = content.model_copy(update={"signature": signature})
    try:
        path.write_text(json.dumps(content.model_dump(mode="json"), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise AmkError(Diagnostic("AMK001", f"cannot write: {error}", where=Where(file=str(path)))) from error


def read(path: Path, signers: Path | None = None) -> Shared:
    """The file, whole and as it was sealed. signers: those whose signature is asked for, as in ssh's allowed_signers.
    AMK001, AMK002, AMK005."""
    content = read_json(path, MOST_BYTES)
    if isinstance(content, dict) and content.get("format") == 1:
        raise _refused(
            path, "a file of format 1 has no schedules: measure again with this version, `amk bench --share`"
        )
    try:
        found = Shared.model_validate(content)
    except ValidationError as error:
        raise schema_error(error, str(path)) from error
    if seal_of(content) != found.seal:
        raise _refused(path, "the seal is not that of the content: the file was damaged or changed")
    if {entry.row.schedule for entry in found.rows} != found.schedules.keys():
        raise _refused(path, "its schedules are not those of its rows")
    if wrong := [entry.row.key.model_dump() for entry in found.rows if not entry.row.correct]:
        raise _refused(path, f"a kernel computed wrong logits, so its time says nothing: {wrong[0]}")
    if signers is not None:
        _check_signature(path, found, signers)
    return found


def schedules_of(path: Path, content: Shared) -> dict[str, Schedule]:
    """The schedules of a file that was read, by their hashes. AMK0xx for what is none."""
    return {digest: unpack(text, digest, str(path)) for digest, text in content.schedules.items()}


def _check_signature(path: Path, record: Shared, signers: Path) -> None:
    if not record.signature:
        raise _refused(path, "it is not signed")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "signature"
        file.write_text(record.signature, encoding="utf-8")
        try:
            who = _ssh_keygen("-Y", "find-principals", "-f", str(signers), "-s", str(file)).strip().splitlines()[0]
            _ssh_keygen(
                "-Y", "verify", "-n", NAMESPACE, "-f", str(signers), "-I", who, "-s", str(file), stdin=record.seal
            )
        except (AmkError, IndexError) as error:
            raise _refused(path, "the signature is of none of the signers, or of another content") from error


def _ssh_keygen(*words: str, stdin: str = "") -> str:
    """What ssh-keygen prints; AMK005 if it is not there, or refuses."""
    try:
        done = subprocess.run(
            ["ssh-keygen", *words], input=stdin, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AmkError(Diagnostic("AMK005", f"ssh-keygen cannot be run: {type(error).__name__}")) from error
    if done.returncode != 0:
        raise AmkError(Diagnostic("AMK005", f"ssh-keygen: {done.stderr.strip()[-200:]}"))
    return done.stdout


def _refused(path: Path, why: str) -> AmkError:
    return AmkError(Diagnostic("AMK005", why, where=Where(file=str(path))))
