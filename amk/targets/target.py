"""A GPU as data: the limits that the validator checks and the rates that the planner counts with."""

import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from amk.report.diagnostic import AmkError, Diagnostic
from amk.report.json_file import read_json
from amk.report.schema import Name, closest, schema_error

Feature = Literal["cp_async", "mma", "fp8", "bulk_copy", "cluster", "wgmma", "tcgen05"]
"""What code for the target may use.

cp_async: 16-byte asynchronous copies to shared memory. mma: warp-level tensor-core products of bf16. fp8: the same for
fp8. bulk_copy: cp.async.bulk with mbarrier transactions. cluster: block clusters with distributed shared memory. wgmma
and tcgen05: the architecture-specific tensor instructions of sm_90a and sm_100a.
"""

RESERVED_SMEM_PER_BLOCK = 1024
"""Bytes of shared memory that the system keeps for itself in every block on sm_80 and later."""

STATIC_SMEM_PER_BLOCK = 128
"""Bytes of shared memory that a kernel has beside what its launch asks for: the
watchdog's, padded to the alignment of what follows."""

MAX_THREADS_PER_BLOCK = 1024
MAX_REGISTERS_PER_THREAD = 255

PER_SM = ("smem_per_sm", "smem_per_block", "regs_per_sm", "max_threads_per_sm", "max_blocks_per_sm")
PER_CARD = ("sms", "hbm_bytes")

_Positive = Annotated[int, Field(gt=0, lt=1 << 48)]
_Rate = Annotated[float, Field(gt=0, lt=1e6, allow_inf_nan=False)]


class Target(BaseModel):
    """One GPU model. Sizes in bytes, rates in 10^9 bytes per second."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    name: Name
    title: Annotated[str, Field(max_length=100)]
    aliases: Annotated[tuple[Name, ...], Field(strict=False)] = ()
    arch: Annotated[str, Field(pattern=r"^sm_[0-9]{2,3}a?$")]
    sms: _Positive
    smem_per_sm: _Positive
    smem_per_block: _Positive
    regs_per_sm: _Positive
    max_threads_per_sm: _Positive
    max_blocks_per_sm: _Positive
    l2_bytes: _Positive
    hbm_bytes: _Positive
    hbm_gbps: _Rate
    read_ceiling_gbps: _Rate
    read_ceiling_measured: bool
    features: Annotated[tuple[Feature, ...], Field(strict=False)]
    sources: dict[str, str]

    @property
    def capability(self) -> tuple[int, int]:
        """(major, minor) as the driver reports it: (9, 0) for sm_90a."""
        digits = re.sub(r"\D", "", self.arch)
        return int(digits[:-1]), int(digits[-1])

    def as_known(self) -> "Target":
        """The target with no more than is known of it.

        A schedule carries its target, and whoever edits the file may write any limit. What an SM has and can do follows
        from the compute capability, the number of SMs and the memory from the name or alias. A capability that no known
        target has gets no more than the most that any has; of an unknown name the file's SMs and memory are believed.
        """
        like = [known for known in targets() if known.capability == self.capability] or [*targets()]
        same = [known for known in targets() if known.is_called(self.name)]
        known = [(limit, like) for limit in PER_SM] + [(limit, same) for limit in PER_CARD if same]
        least = {limit: min(getattr(self, limit), max(getattr(gpu, limit) for gpu in gpus)) for limit, gpus in known}
        features = tuple(f for f in self.features if any(gpu.has(f) for gpu in like))
        return self.model_copy(update={**least, "features": features})

    def is_called(self, name: str) -> bool:
        """Whether it is the target's name or an alias, case ignored."""
        return name.lower() in (known.lower() for known in (self.name, *self.aliases))

    def has(self, feature: Feature) -> bool:
        return feature in self.features

    def require(self, feature: Feature, what: str) -> None:
        """AMK601 as an AmkError if the target lacks `feature`, which `what` needs."""
        if not self.has(feature):
            raise AmkError(Diagnostic("AMK601", f"{what} needs {feature}, which {self.name} ({self.arch}) lacks"))


@cache
def targets() -> tuple[Target, ...]:
    """All known targets, in the order of the data file."""
    path = Path(str(files("amk.targets") / "targets.json"))
    entries = read_json(path, 1 << 20)
    try:
        return tuple(Target.model_validate(entry) for entry in entries)
    except ValidationError as error:
        raise schema_error(error, str(path)) from error


def load_target(name: str) -> Target:
    """The target with this name or alias, case ignored; AMK010 as an AmkError otherwise."""
    for target in targets():
        if target.is_called(name):
            return target
    known = [each for target in targets() for each in (target.name, *target.aliases)]
    suggestion = closest(name, known) or "`amk targets` lists the known names"
    raise AmkError(Diagnostic("AMK010", f"target '{name}' is not known", help=suggestion))
