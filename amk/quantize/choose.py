"""Formats under a bound on the error: the fewest bytes whose mean KL over a text stays below the bound.

Layers are dealt to `parts` of neighbours. A *place* is one matrix in one part, or lm_head. The choice takes three
steps:

1. Each (place, format) is measured alone.
2. From all bf16, the step that saves the most bytes per KL is taken while the sum of the measured KLs allows it.
3. The sum is only an estimate, so the choice is measured as a whole. While it is above the bound, the place with the
   largest KL goes back to its next better format. Where it is below, up to `TRIES` further steps are measured together
   with the others, and taken if they stay below.

bf16 everywhere is within any bound. A plan has a loop of code for every run of layers with equal formats, so `parts`
bounds how often a layer's code is repeated. With as many parts as layers, every layer has a choice of its own. Cost: 16
measurements a part.
"""

from __future__ import annotations

from dataclasses import dataclass

from amk.models.matrices import MatrixName
from amk.models.model_spec import ModelSpec
from amk.quantize.error import BF16, LAYERED_MATRICES, Progress, TextError, TextJudge, matrix_bytes, stored_bytes
from amk.weights.weight_format import FormatName

CANDIDATES: tuple[FormatName, ...] = ("int8", "int8-g128", "int4-g64", "int4-g128")

TRIES = 12

PARTS = 4
"""Unless told otherwise."""

Place = tuple[MatrixName, int]
"""A matrix in a part of the layers; lm_head belongs to part 0."""
Chosen = dict[Place, FormatName]
Alone = dict[tuple[Place, FormatName], float]


@dataclass(frozen=True)
class Choice:
    """forms: of every layer. What they take, what they cost, and the KL of every (place, format) alone."""

    forms: tuple[dict[MatrixName, FormatName], ...]
    bytes: int
    error: TextError
    alone: Alone


@dataclass(frozen=True)
class Parts:
    """The layers of a model in `count` parts of neighbours, as equal as possible."""

    model: ModelSpec
    count: int

    @property
    def places(self) -> tuple[Place, ...]:
        return (*((name, part) for name in LAYERED_MATRICES for part in range(self.count)), ("lm_head", 0))

    def layers(self, place: Place) -> range:
        """The layers of the part; of lm_head one stands for the matrix."""
        name, part = place
        ends = [self.model.layers * n // self.count for n in (part, part + 1)]
        return range(1) if name == "lm_head" else range(*ends)

    def forms(self, choice: Chosen) -> tuple[dict[MatrixName, FormatName], ...]:
        """By layer; bf16 where nothing is chosen."""
        out = [dict(BF16) for _ in range(self.model.layers)]
        for (name, part), form in choice.items():
            for layer in range(self.model.layers) if name == "lm_head" else self.layers((name, part)):
                out[layer][name] = form
        return tuple(out)

    def bytes(self, place: Place, form: FormatName) -> int:
        return len(self.layers(place)) * matrix_bytes(self.model, place[0], form)

    def name(self, place: Place) -> str:
        layers = self.layers(place)
        where = f" of layers {layers.start} to {layers.stop - 1}" if self.count > 1 and place[0] != "lm_head" else ""
        return place[0] + where


def choose(judge: TextJudge, most_kl: float, tell: Progress = lambda line: None, parts: int = 1) -> Choice:
    """The choice for a bound of `most_kl` nats on the mean KL; ValueError if it is not positive."""
    if not most_kl > 0:
        raise ValueError("the bound on the KL must be positive")
    of = Parts(judge.model, min(parts, judge.model.layers))
    alone: Alone = {(place, "bf16"): 0.0 for place in of.places}
    for place in of.places:
        for form in CANDIDATES:
            alone[place, form] = judge.error(of.forms({place: form})).kl
            tell(f"{of.name(place)} in {form}: KL {alone[place, form]:.3g}")
    chosen = estimated(of, alone, most_kl)
    while True:
        forms = of.forms(chosen)
        error = judge.error(forms)
        tell(f"{', '.join(f'{of.name(place)} {form}' for place, form in chosen.items())}: KL {error.kl:.3g}")
        if error.kl <= most_kl or all(form == "bf16" for form in chosen.values()):
            break
        worst = max(chosen, key=lambda place: alone[place, chosen[place]])
        chosen = chosen | {worst: _better(of, alone, worst, chosen[worst])}
    chosen, error = _further(judge, of, alone, most_kl, chosen, error, tell)
    forms = of.forms(chosen)
    return Choice(forms, stored_bytes(judge.model, forms), error, alone)


def _further(
    judge: TextJudge, of: Parts, alone: Alone, most_kl: float, choice: Chosen, error: TextError, tell: Progress
) -> tuple[Chosen, TextError]:
    """What more may be saved: the sum of KLs is too much, so each next step is measured together with all others."""
    refused: set[tuple[Place, FormatName]] = set()
    for _ in range(TRIES):
        steps = [step for step in _steps(of, alone, choice) if step[1:3] not in refused]
        if not steps:
            break
        _, place, form, _ = max(steps)
        tried = choice | {place: form}
        trial_error = judge.error(of.forms(tried))
        tell(f"{of.name(place)} {form} as well: KL {trial_error.kl:.3g}")
        if trial_error.kl <= most_kl:
            choice, error = tried, trial_error
        else:
            refused.add((place, form))
    return choice, error


def _steps(of: Parts, alone: Alone, choice: Chosen) -> list[tuple[float, Place, FormatName, float]]:
    """(bytes saved per KL, place, format, KL more) of everything that saves bytes."""
    steps = []
    for place, now in choice.items():
        for form in CANDIDATES:
            more = alone[place, form] - alone[place, now]
            saved = of.bytes(place, now) - of.bytes(place, form)
            if saved > 0:
                steps.append((saved / max(more, 1e-9), place, form, more))
    return steps


def estimated(of: Parts, alone: Alone, most_kl: float) -> Chosen:
    """Greedy by bytes saved per KL, KLs added."""
    chosen: Chosen = dict.fromkeys(of.places, "bf16")
    while True:
        spent = sum(alone[place, form] for place, form in chosen.items())
        steps = [step for step in _steps(of, alone, chosen) if spent + step[3] <= most_kl]
        if not steps:
            return chosen
        _, place, form, _ = max(steps)
        chosen[place] = form


def _better(of: Parts, alone: Alone, place: Place, now: FormatName) -> FormatName:
    """The next format of the place with a smaller KL: the one that costs the fewest bytes, bf16 at last."""
    fits = [form for form in CANDIDATES if alone[place, form] < alone[place, now]]
    return min(fits, key=lambda form: of.bytes(place, form), default="bf16")
