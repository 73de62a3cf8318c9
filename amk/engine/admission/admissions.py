"""Admissions of earlier starts, so that a start with the same schedule, code and program checks nothing twice.

Property: a process of this user on this machine wrote every seal that holds. In it `AdmittedKernel` accepted just this
    schedule, certificate and code, and its sources, Python and packages were those of this process.
Assumptions: those of `amk.lowering.seal`; sha256 has no collisions; a package of one version has one content; the clock
    of the file system does not run behind.
Algorithm: the seal stands over the hashes of all four. Anything else in the cache, or a changed file of the program, is
    a miss, and everything is checked as if there were no entry. A process whose sources changed after it began cannot
    hash what it runs, so it seals nothing and takes nothing. NVRTC from outside its package has no version, so nothing
    is sealed with it.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from amk.engine.admission import certificates
from amk.lowering.bound import code_hash
from amk.lowering.seal import is_sealed, seal
from amk.report.diagnostic import AmkError
from amk.report.json_file import read_bytes
from amk.version import IMPORTED_NS

ROOT = Path(__file__).parents[2]
"""The package."""
_SUFFIXES = (".py", ".cuh", ".json")
_COMPILER = "nvidia-cuda-nvrtc"
_PACKAGES = (
    "cuda-bindings", "nvidia-cuda-cccl", "nvidia-cuda-runtime", "numpy", "pydantic", "pydantic-core", "pyelftools",
    "z3-solver",
)  # fmt: skip


def load(digest: str) -> tuple[bytes, str] | None:
    """Cubin and seal of the schedule with that hash, as they stand there; None if they cannot be read."""
    try:
        record = json.loads(read_bytes(_file(digest), certificates.MOST_BYTES))
        return base64.b64decode(record["cubin"], validate=True), str(record["seal"])
    except (AmkError, ValueError, KeyError, TypeError, RecursionError):
        return None


def keep(digest: str, certificate: Any, cubin: bytes | str) -> None:
    """Seal an admission that this process made; PTX is not kept."""
    if isinstance(cubin, bytes) and (found := sealed(digest, certificate, cubin)):
        record = {"cubin": base64.b64encode(cubin).decode(), "seal": found}
        certificates.replace(_file(digest), json.dumps(record))


def sealed(digest: str, certificate: Any, code: bytes) -> str:
    """The seal of an admission that this process made; "" where nothing is sealed."""
    claim = _claim(digest, certificate, code)
    return "" if claim is None else seal(claim)


def is_admitted(digest: str, certificate: Any, code: bytes | str, signature: str) -> bool:
    """Whether `signature` is the seal of this schedule, certificate and code under this program."""
    claim = _claim(digest, certificate, code)
    return claim is not None and is_sealed(claim, signature)


def _claim(digest: str, certificate: Any, code: bytes | str) -> str | None:
    program = program_hash()
    try:
        return None if program is None else json.dumps(["admitted", program, digest, certificate, code_hash(code)])
    except RecursionError:  # of a certificate that could just be read
        return None


def _file(digest: str) -> Path:
    return certificates.directory().with_name("admitted") / f"{digest}.json"


def program_hash() -> str | None:
    """What decides; None without a packaged compiler, and where that is no longer what stands in the files."""
    found = hashed()
    return None if found is None or _changed(found[1]) else found[0]


@functools.cache
def hashed() -> tuple[str, list[Path]] | None:
    """A hash of all sources of amk by content, Python and packages by version; and the sources."""
    digest = hashlib.sha256()
    try:
        digest.update(version(_COMPILER).encode())
    except PackageNotFoundError:
        return None
    digest.update(json.dumps([sys.version, *map(_version, _PACKAGES)]).encode())
    sources = sorted(path for path in ROOT.rglob("*") if path.suffix in _SUFFIXES)
    for path in sources:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT)}:{len(content)}:".encode())
        digest.update(content)
    return digest.hexdigest(), sources


def _changed(sources: list[Path]) -> bool:
    """Whether one was written or put in its place after this process imported amk. Installers set the time of
    modification; nobody sets that of the change."""
    try:
        return any(path.stat().st_ctime_ns > IMPORTED_NS for path in sources)
    except OSError:
        return True


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
