"""Verdicts on planner output, and the composed check against the flat one."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from amk.adversary.cases import BASES, base_schedule
from amk.adversary.edits import Edit, Json, after, apply, at, steps
from amk.adversary.neighbourhood.bases import SMALL_BASES, base
from amk.judges.flat_checker import check
from amk.judges.oracle.judge import last_start, rule
from amk.models.model import load_model
from amk.planner.decode import plan
from amk.planner.settings import FAST, NAIVE
from amk.report.diagnostic import AmkError
from amk.schedule_ir.schedule import Schedule, Step
from amk.targets.target import load_target
from amk.validator import verify as deciding
from amk.validator.evidence.flat_system import expand
from amk.validator.export.certificate import make_certificate
from amk.validator.induction.layers import KEPT, reduce_layers
from amk.validator.induction.tokens import check_epochs, one_follows
from amk.validator.memory.composition import compose
from amk.validator.memory.flat import Judgement, judge
from amk.validator.memory.races import Race
from amk.validator.order.greedy_run import greedy
from amk.validator.order.intervals import IntervalOrder
from amk.validator.order.two_levels import NotComposable
from amk.validator.program.system import I64, READ, Bools, System
from amk.validator.static.resources import CompiledResources
from amk.validator.static.structure import check_structure
from amk.validator.verify import verify
from tests.cases import cases
from tests.damage import rewritten
from tests.validator.plans import MODELS, SMALL, from_document, small_plan

WORKERS = (4, 7)
PLANS = [(m, s, WORKERS[(a + b) % 2]) for a, m in enumerate(MODELS) for b, s in enumerate(SMALL)]
PLANS = list(product(MODELS, SMALL, WORKERS)) if cases(0, 1) else PLANS
"""With `--long` every model has every plan on either number of workers."""


@pytest.mark.turns(4)
@pytest.mark.parametrize(("model", "settings", "workers"), PLANS)
def test_planner_output_is_safe_composed_and_flat(model: str, settings: str, workers: int) -> None:
    schedule = small_plan(SMALL[settings], MODELS[model], workers)
    verdict = verify(schedule)
    assert verdict.status == "SAFE", verdict.diagnostics
    reduced = reduce_layers(schedule)
    assert reduced.model.layers == min(schedule.model.layers, KEPT)
    for pos in (0, 7, schedule.kv.context - 2):
        assert greedy(expand(reduced, pos, 2, "block").system).complete
        assert judge(expand(reduced, pos, 2, "word").system).safe


@pytest.mark.parametrize(("most", "status"), [(2, "UNSAFE"), (1, "UNKNOWN")])
def test_what_only_two_tokens_show_is_open_where_launches_have_one(most: int, status: str) -> None:
    """Without the barrier behind the last wait a token's sum of squares meets that of the token before."""
    document = json.loads(small_plan(replace(SMALL["fast"], max_tokens=most)).model_dump_json())
    token = document["programs"][0]["body"][1]["body"]
    last = max(n for n, node in enumerate(token) if node.get("waits"))
    assert token.pop(last + 1)["op"]["op"] == "barrier"
    schedule = from_document(document)
    verdict = verify(schedule)
    assert verdict.status == status, verdict.diagnostics
    assert (verdict.evidence is None) == (status == "UNKNOWN")
    assert rule(schedule, most, [last_start(schedule, most)]).status == ("UNSAFE" if most > 1 else "SAFE")


def test_what_is_wrong_in_one_token_is_unsafe_where_launches_have_one() -> None:
    schedule = rewritten(small_plan(replace(SMALL["naive"], max_tokens=1)), _without_wait_for("act"))
    verdict = verify(schedule)
    assert verdict.status == "UNSAFE" and verdict.evidence is not None
    assert verdict.diagnostics[0].code == "AMK302"


ASKED = ("output head", "warps apart", "warps apart, fenced")
"""Where that is not seen: the last step that all warps run waits by itself, and before it they know too little."""


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", sorted(SMALL_BASES))
def test_a_launch_of_one_token_is_safe_where_that_follows(name: str) -> None:
    schedule = reduce_layers(from_document(base(name)))
    result = compose(schedule)
    assert result.safe and one_follows(result) == (name not in ASKED) and compose(schedule, 1).safe


class _Nothing(IntervalOrder):
    """No step comes before one on another worker."""

    def precedes(self, before: I64, after: I64) -> Bools:
        workers = ([self.node(int(n))[1] for n in numbers] for numbers in (before, after))
        return super().precedes(before, after) & np.equal(*workers)


def test_one_token_is_composed_where_it_does_not_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every worker reads the state that the first one writes when all is done."""
    schedule = small_plan()
    result = compose(schedule)
    assert isinstance(result.order, IntervalOrder)
    assert not one_follows(replace(result, order=_Nothing(result.order.inter_cta), fence=None))
    composed = []
    monkeypatch.setattr(deciding, "one_follows", lambda result: False)
    monkeypatch.setattr(deciding, "compose", lambda s, n=2, footprints=None: composed.append(n) or compose(s, n))
    assert verify(schedule).status == "SAFE" and composed == [2, 1]


def _without_wait_for(counter: str) -> Callable[[Step], Step]:
    return lambda step: step.model_copy(update={"waits": tuple(w for w in step.waits if w.counter != counter)})


def test_three_tokens_and_all_layers_agree_with_two_and_two() -> None:
    schedule = small_plan(SMALL["naive"], MODELS["deep"])
    assert compose(schedule, 3).safe
    assert judge(expand(schedule, 5, 3, "word").system).safe
    assert not check_epochs(compose(reduce_layers(schedule))).open


@pytest.mark.parametrize(("model", "settings"), [("llama3.2-1b", FAST), ("llama3-8b", FAST), ("llama3-8b", NAIVE)])
def test_full_size_plans_are_safe_in_time(model: str, settings: object) -> None:
    schedule = plan(load_model(model), load_target("h200"), settings=settings, max_context=8192)  # type: ignore[arg-type]
    verdict = verify(schedule)
    assert verdict.status == "SAFE"
    assert verdict.stats["seconds"] < 10
    assert verdict.deterministic and verdict.tokens_to_wrap is not None and verdict.tokens_to_wrap > 10**6


def test_compiled_registers_decide_residency() -> None:
    schedule = small_plan()
    assert verify(schedule, compiled=CompiledResources(registers=64)).status == "SAFE"
    codes = [
        d.code for d in verify(schedule, compiled=CompiledResources(registers=255, static_shared=2**18)).diagnostics
    ]
    assert "AMK401" in codes


@pytest.mark.parametrize("settings", ["fast", "naive"])
def test_the_independent_checker_accepts_the_flat_certificate(settings: str) -> None:
    flat = expand(small_plan(SMALL[settings], MODELS["qk-norm"]), 3, 2, "word").system
    system, certificate = flat.to_json(), make_certificate(judge(flat))
    assert check(system, certificate).accepted
    certificate["order"] = certificate["order"][::-1]
    assert not check(system, certificate).accepted


def test_time_limit_gives_unknown() -> None:
    verdict = verify(small_plan(), timeout_s=0.0)
    assert verdict.status == "UNKNOWN" and verdict.diagnostics[0].code == "AMK205"


def _mutant(rng: random.Random, document: Json) -> list[Edit]:
    """One random edit of synchronisation, order or placement; most results are well-formed and wrong."""
    paths = [p for p, _ in steps(document)]
    sync = [p for p, s in steps(document) if s["op"]["op"] in ("barrier", "wait", "signal")]
    waits = [p for p, s in steps(document) if s.get("waits")]
    match rng.randrange(5):
        case 0:
            return [Edit("remove", rng.choice(sync))]
        case 1:
            path, by = rng.choice(paths), rng.choice((-3, -1, 1, 2))
            fits = 0 <= int(path[-1]) + by < len(at(document, path[:-1]))
            return [Edit("remove", path), Edit("insert", after(path, by), at(document, path))] if fits else []
        case 2:
            path = (*rng.choice(waits), "waits", 0, "at_least")
            threshold = dict(at(document, path))
            threshold[rng.choice(sorted(threshold))] += rng.choice((-1, 1))
            return [Edit("replace", path, threshold)]
        case 3:
            shared = [i for i, b in enumerate(document["buffers"]) if b["space"] == "shared"]
            one, two = rng.sample(shared, 2)
            return [Edit("replace", ("buffers", one, "offset"), document["buffers"][two]["offset"])]
        case _:
            return [Edit("replace", (*rng.choice(waits), "waits", 0, "order"), "relaxed")]


def _flat_is_safe(schedule: Schedule, weak: bool) -> bool:
    """By the definitions, at a few positions: what blocks, what is ordered in time, what waits, what is visible."""
    tagged = {i for i, b in enumerate(schedule.buffers) if b.tagged}
    for pos in (0, 14, schedule.kv.context - 2 * schedule.rows):
        if not greedy(expand(schedule, pos, 2, "block").system).complete:
            return False
        word = judge(expand(schedule, pos, 2, "word").system, None)
        least = judge(expand(schedule, pos, 2, "word", sure=True).system, None)
        if not word.dataflow.correct or any(race.buffer not in tagged for race in least.races.races):
            return False
        if weak and (_overwritten(schedule, tagged, pos) or _invisible(schedule, tagged, pos, word)):
            return False
    return True


def _overwritten(schedule: Schedule, tagged: set[int], pos: int) -> bool:
    """A flag word may be written again before one of its readers has found it."""
    wait = judge(expand(schedule, pos, 2, "wait", sure=True).system, None)
    found = [r for r in wait.races.races if r.buffer in tagged and READ in (r.first_kind, r.second_kind)]
    return any(_value(wait.run.system, r.first, r.buffer) != _value(wait.run.system, r.second, r.buffer) for r in found)


def _value(system: System, event: int, buffer: int) -> int:
    """What the event writes to a tagged buffer, or looks for there."""
    mine = range(int(system.access_first[event]), int(system.access_first[event + 1]))
    return next(int(system.access_value[i]) for i in mine if system.access_buffer[i] == buffer)


def _invisible(schedule: Schedule, tagged: set[int], pos: int, word: Judgement) -> bool:
    """A write that no fence makes visible to what follows it in time, tags apart."""
    for race in judge(expand(schedule, pos, 2, "fence").system, None).races.races:
        earlier, later = _kinds(word, race)
        if earlier != READ and not (race.buffer in tagged and later == READ):
            return True
    return False


def _kinds(judgement: Judgement, race: Race) -> tuple[int, int]:
    """Kinds of the two accesses in the order of the run."""
    position = judgement.run.position
    kinds = race.first_kind, race.second_kind
    return kinds if position[race.first] < position[race.second] else kinds[::-1]


@pytest.mark.turns(12)
@pytest.mark.parametrize("seed", range(cases(1, 4)))
def test_composed_verdict_is_the_flat_verdict_on_mutants(seed: int) -> None:
    """Few: `amk adversarial --n` judges many more mutants against an oracle that is as flat."""
    rng = random.Random(seed)
    judged = {True: 0, False: 0}
    while sum(judged.values()) < 10:
        document = base_schedule(rng.choice(sorted(BASES)))
        edits = _mutant(rng, document)
        try:
            schedule = from_document(apply(document, edits)[0])
            if check_structure(schedule):
                continue
            result = compose(schedule)
        except (AmkError, NotComposable):
            continue
        judged[result.safe] += 1
        try:
            assert _flat_is_safe(schedule, result.weak) == result.safe, edits
        except NotComposable:
            assert not result.safe
    assert judged[False] > 2


@pytest.mark.turns(4)
def test_replay_command_confirms_and_refuses(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    from amk.cli import main

    case = tmp_path / "bad.json"
    document = base_schedule("fenced")
    path = next(p for p, s in steps(document) if s.get("waits"))
    case.write_text(json.dumps(apply(document, [Edit("remove", path)])[0]))
    witness = tmp_path / "w.json"
    assert main(["verify", str(case), "--witness", str(witness)]) == 1
    assert "AMK302" in capsys.readouterr().err
    assert main(["replay", str(witness)]) == 0
    evidence = json.loads(witness.read_text())
    evidence["witness"]["order"] = evidence["witness"]["order"][:1]
    witness.write_text(json.dumps(evidence))
    assert main(["replay", str(witness)]) == 1
    evidence["witness"]["kind"] = "nonsense"
    witness.write_text(json.dumps(evidence))
    assert main(["replay", str(witness)]) == 2


def test_verify_command_speaks_json(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    from amk.cli import main

    good = tmp_path / "good.json"
    good.write_text(json.dumps(base_schedule("tagged")))
    assert main(["verify", str(good), "--format", "json", "--emit-system", str(tmp_path / "s.json")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "SAFE" and report["diagnostics"] == []
    assert all(proof["outcome"] == "proved" for proof in report["proofs"])
    assert json.loads((tmp_path / "s.json").read_text())["schedule"] == report["schedule"]
