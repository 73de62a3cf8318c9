"""One measured row: a model, a plan and a position, with its correctness and its baselines from the same run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from amk.bench.tools.times import Power, Times, finite
from amk.targets.target import load_target


@dataclass(frozen=True)
class Key:
    """What a row is about; rows with equal keys are measurements of the same thing.

    run: which of several separate runs; batch: sequences decoded together. Older records lack them.
    """

    model: str
    gpu: str
    dtype: str
    plan: str
    pos: int
    tokens: int
    steps: int
    baselines: tuple[str, ...]
    run: int = 1
    batch: int = 1


@dataclass(frozen=True)
class Row:
    """ms per step, a token of each sequence; bytes that a step must read; ceiling in 10^9 bytes/s; errors are relative
    2-norms of logits. baselines: those that computed the model's logits; left_out: why the others have
    no time, by name. variants: ms of each way in which a baseline was tried. errors: of baselines, as `error`, where
    they were recorded. power: of the kernel ("amk") and of
    baselines under sustained load, where it could be measured. uuid: of the GPU; older records lack it.
    """

    key: Key
    times: Times
    baselines: dict[str, Times]
    bytes: int
    ceiling_gbps: float
    error: float
    torch_error: float
    kl: float
    argmax_agrees: bool
    reproducible: bool
    correct: bool
    left_out: dict[str, str] = field(default_factory=dict)
    variants: dict[str, dict[str, float]] = field(default_factory=dict)
    power: dict[str, Power] = field(default_factory=dict)
    uuid: str = ""
    errors: dict[str, float] = field(default_factory=dict)

    @property
    def floor_ms(self) -> float:
        """Bytes that L2 cannot have kept from the step before, at the read ceiling of the same run."""
        return max(0, self.bytes - load_target(self.key.gpu).l2_bytes) / self.ceiling_gbps / 1e6

    @property
    def tokens_per_second(self) -> float:
        """Of all sequences together."""
        return 1e3 * self.key.batch / self.times.ms

    @property
    def of_ceiling(self) -> float:
        """Share of the read ceiling at which the kernel takes all bytes, those that L2 keeps included."""
        return self.bytes / self.ceiling_gbps / 1e6 / self.times.ms

    def ratio(self, baseline: str) -> float:
        """How many times faster than `baseline`."""
        return self.baselines[baseline].ms / self.times.ms

    def record(self) -> dict[str, object]:
        """JSON values: the fields and what follows from them; numbers that JSON lacks by name."""
        derived = {
            "floor_ms": self.floor_ms,
            "of_ceiling": self.of_ceiling,
            "tokens_per_second": self.tokens_per_second,
            "ratios": {name: self.ratio(name) for name in self.baselines},
        }
        return dict(finite(asdict(self) | derived))


BEFORE = ("model", "weights", "plan", "batch", "pos", "ms/step", "p10", "p90", "tok/s", "floor", "% ceiling")
AFTER = ("mJ/step", "W", "MHz", "throttled", "error", "torch err", "KL", "argmax", "bitwise", "verdict")
OWN = "amk"


def header(baselines: tuple[str, ...]) -> tuple[str, ...]:
    return (*BEFORE, *(column for name in baselines for column in (name, "ratio")), *AFTER)


def cells(row: Row) -> tuple[str, ...]:
    """One line of the table, in the order of `header`."""
    pairs = [
        text
        for name in row.key.baselines
        for text in ((f"{row.baselines[name].ms:.4f}", f"{row.ratio(name):.2f}x") if name in row.baselines else "--")
    ]
    return (
        row.key.model,
        row.key.dtype,
        row.key.plan,
        str(row.key.batch),
        str(row.key.pos),
        f"{row.times.ms:.4f}",
        f"{row.times.p10:.4f}",
        f"{row.times.p90:.4f}",
        f"{row.tokens_per_second:.0f}",
        f"{row.floor_ms:.4f}",
        f"{100 * row.of_ceiling:.1f}",
        *pairs,
        *power_cells(row.power.get(OWN)),
        f"{row.error:.2e}",
        f"{row.torch_error:.2e}",
        f"{row.kl:.1e}",
        "same" if row.argmax_agrees else "differs",
        "equal" if row.reproducible else "DIFFERS",
        "ok" if row.correct else "WRONG",
    )


def power_cells(power: Power | None) -> tuple[str, str, str, str]:
    """Energy of a step, watts, the clock of the SMs and why it was held down."""
    if power is None:
        return "-", "-", "-", "-"
    return f"{1e3 * power.joules:.1f}", f"{power.watts:.0f}", f"{power.sm_mhz:.0f}", ", ".join(power.throttled) or "no"
