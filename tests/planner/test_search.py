"""The search: deterministic, bounded, never worse than the default, close to the optimum where that is known."""

import itertools
import json
from dataclasses import replace
from math import exp
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from amk.cli import main
from amk.lowering.kernel import why_not_built
from amk.models.model import load_model
from amk.planner import search_cache as store
from amk.planner import space as space_module
from amk.planner.bound import decided, drain_ms
from amk.planner.clock import Clock
from amk.planner.formats import formats
from amk.planner.search import PATIENCE, Problem, Search, SearchResult, State, search
from amk.planner.settings import FAST
from amk.planner.space import Knob, Space
from amk.report.diagnostic import AmkError
from amk.schedule_ir.codec import load_schedule, schedule_hash
from amk.schedule_ir.schedule import Schedule
from amk.simulator.constants import constants_for, save_constants
from amk.simulator.predict import step_ms
from amk.targets.target import load_target
from amk.validator.verify import verify
from amk.weights.weight_format import FormatName
from tests.tiny import tiny

H200 = load_target("h200")
MODEL = tiny("small", layers=2, hidden=512, ffn=1024, heads=8, kv_heads=4, vocab=4096)
SMALL = H200.model_copy(update={"sms": 32})
"""An H200 with few SMs: all choices are there, and simulating a plan takes a fraction."""
PROBLEM = Problem(MODEL, SMALL, context=2048, positions=(200,))
REDUCED = {
    "warps": (4, 8, 16), "slots": (2, None), "chunk_bytes": (1024, 2048), "workers": (16, 32),
    "kv_splits": (2, 8, None), "wide_epilogue": (0, 64),
}  # fmt: skip


@pytest.fixture
def reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the knobs of REDUCED, with few values."""
    keep = {k.name: (getattr(FAST, k.name),) for k in Space.around(FAST).knobs} | REDUCED
    monkeypatch.setattr(space_module, "values_of", lambda name, _: keep.get(name, ()))


def found(expansions: int, seed: int = 0, problem: Problem = PROBLEM) -> SearchResult:
    return search(problem, expansions=expansions, seed=seed)


@pytest.mark.turns(12)
def test_the_same_seed_and_count_give_the_same_plan_byte_for_byte() -> None:
    one, two = found(14, seed=3), found(14, seed=3)
    assert one.best == two.best and one.schedule.model_dump_json() == two.schedule.model_dump_json()
    assert one.expansions == 14


@pytest.mark.turns(4)
def test_a_process_for_each_position_finds_the_same_plan() -> None:
    problem = replace(PROBLEM, positions=(200, 900))
    with Clock(problem, cores=2, alone=2) as times:
        together = search(problem, expansions=6, times=times)
        assert times.pool is not None and times.helpers == 1
    assert together == found(6, problem=problem)


def test_never_worse_than_the_default_plan() -> None:
    result = found(12)
    assert result.default is not None and result.best.score <= result.default.score
    assert not result.best.slower_somewhere(result.default)
    assert result.gain(result.naive) is not None


@pytest.mark.turns(4)
def test_refusals_of_faster_plans_do_not_cost_the_default() -> None:
    """All that is faster is refused, often as wide as the default: the default comes next, not a slower one."""
    unhindered = found(24)
    default = unhindered.default
    assert default is not None
    asked: list[str] = []

    def why_not(schedule: Schedule) -> str | None:
        asked.append(schedule_hash(schedule))
        return "spills" if sum(PROBLEM.times(schedule)) < sum(default.ms) else None

    hindered = search(PROBLEM, expansions=24, why_not=why_not)
    assert unhindered.best.score < default.score and PATIENCE <= len(hindered.refused) == len(asked) - 1
    assert hindered.best.score <= default.score


def test_a_budget_stops_at_a_whole_round_whose_count_reproduces_it() -> None:
    limited = search(PROBLEM, budget_s=0.4, seed=1)
    assert limited.expansions >= 1
    again = search(PROBLEM, expansions=limited.expansions, seed=1)
    assert again.best.key == limited.best.key


@pytest.mark.turns(4)
def test_within_three_percent_of_exhaustive_search(reduced: None) -> None:
    """A space of 144 points, 28 of which may be simulated."""
    everything = Search(PROBLEM)
    for values in itertools.product(*REDUCED.values()):
        everything.look(replace(everything.space.start, **dict(zip(REDUCED, values, strict=True))))
    optimum = everything.best
    assert optimum is not None and len(everything.keys) > 80
    for seed in (0, 1):
        assert exp(found(28, seed).best.score - optimum.score) <= 1.03


def test_the_bound_is_below_every_completion() -> None:
    searcher, names = Search(PROBLEM), ("workers", "warps", "chunk_bytes", "refill_fence")
    constants = constants_for(H200)
    for _ in range(25):
        settings = searcher.space.random(searcher.rng)
        state = searcher.look(settings)
        if state is None:
            continue
        for depth in range(len(names) + 1):
            known = decided(settings, names[:depth])
            assert drain_ms(MODEL, H200, PROBLEM.runs, constants, known) <= min(state.ms) * (1 + 1e-9)


@pytest.mark.turns(24)
@pytest.mark.parametrize("gpu", ["l4", "a100", "b200"])
@pytest.mark.parametrize(("form", "batch"), [("bf16", 1), ("int4-g128", 1), ("bf16", 4)])
def test_the_bound_is_below_whole_plans_of_other_targets(gpu: str, form: FormatName, batch: int) -> None:
    problem = Problem(MODEL, load_target(gpu), formats(form), context=512, positions=(100,))
    searcher, seen = Search(problem, replace(FAST, batch=batch), seed=5), 0
    names = [knob.name for knob in searcher.space.knobs]
    for _ in range(40):
        settings = searcher.space.mutate(searcher.space.start, searcher.rng, 4)
        state = searcher.look(settings)
        if state is not None:
            seen += 1
            known = decided(settings, names)
            bound = drain_ms(MODEL, problem.target, problem.runs, searcher.constants, known, batch)
            assert 0 < bound <= min(state.ms) * (1 + 1e-9)
    assert seen > 5


@pytest.mark.turns(12)
def test_a_short_search_has_tried_every_choice() -> None:
    """80 plans try every value of order, tiles, splits, rings, SMs, parts and hand-offs."""
    searcher = Search(PROBLEM)
    searcher.limit = 80
    for _ in searcher.rounds():
        if searcher.spent:
            break
    for knob in searcher.space.knobs:
        tried = {getattr(settings, knob.name) for settings in searcher.states}
        assert tried == set(knob.values), f"{knob.name}: only {tried}"


def test_a_state_that_is_beaten_for_no_more_memory_and_warps_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    searcher = Search(PROBLEM)
    start = searcher.space.start
    chosen = {v: replace(start, wide_epilogue=v) for v in (0, 16, 32, 128)}
    fast = State(chosen[0], "a", (1.0, 1.0), shared=100, warps=8)
    beaten = State(chosen[16], "b", (2.0, 2.0), shared=100, warps=8)
    smaller = State(chosen[32], "c", (3.0, 3.0), shared=99, warps=8)
    later = State(chosen[128], "d", (0.9, 1.2), shared=100, warps=8)
    assert fast.dominates(beaten) and not fast.dominates(smaller) and not fast.dominates(later)
    states = {s.settings: s for s in (fast, beaten, smaller, later)}
    monkeypatch.setattr(searcher, "look", states.get)
    assert [s.key for s in searcher._round([fast], Knob("wide_epilogue", (16, 32, 128)), ())] == ["a", "d", "c"]


@pytest.mark.turns(4)
def test_what_is_no_choice_is_searched_as_asked() -> None:
    """A batch, drawing and another cache are in the plans that are timed and proved, in the presets too."""
    start = replace(FAST, batch=2, kv_dtype="fp8")
    result = search(PROBLEM, start=start, expansions=6)
    assert result.schedule.batch == 2 and result.schedule.kv.dtype == "fp8"
    assert result.default is not None and result.default.settings.batch == 2
    assert result.best.ms == PROBLEM.times(result.schedule) and result.best.ms != found(6).best.ms
    assert verify(result.schedule).safe


def test_settings_of_which_no_plan_is_safe_are_not_simulated() -> None:
    """Slots that are refilled by bulk copies without a fence; copies by the agents themselves need none."""
    searcher = Search(PROBLEM)
    open_slots = replace(searcher.space.start, refill_fence=False)
    assert searcher.look(open_slots) is None and searcher.expansions == 0
    assert not verify(PROBLEM.schedule(open_slots)).safe
    by_agents = Search(replace(PROBLEM, target=load_target("l4")))
    assert by_agents.look(open_slots) is not None


def test_a_beam_without_a_start_falls_back_to_draws() -> None:
    """With a start that cannot be planned the beam is empty. Draws come after the opening and a cycle, both of which
    look at every knob; most seeds find a plan among the first draws."""
    start = replace(FAST, warps=16, chunk_bytes=16384, slots=24, workers=4000)
    rounds = []
    for seed in range(5):
        searcher = Search(PROBLEM, start, seed)
        searcher.limit = 10
        searcher.presets = lambda: []  # type: ignore[method-assign]
        rounds.append(next(number for number, _ in enumerate(searcher.rounds()) if searcher.best is not None))
    assert median(rounds) <= 1 + 2 * len(searcher.space.knobs)


def test_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(AmkError) as caught:
        search(Problem(load_model("llama3-70b"), load_target("l4")), expansions=3)
    assert caught.value.diagnostics[0].code == "AMK011"


def arguments(path: Path, *more: str) -> list[str]:
    named = ["plan", "--model", "smollm2-135m", "--gpu", "l4", "--max-context", "256"]
    return [*named, "-o", str(path), "--search", *more]


@pytest.mark.turns(12)
def test_the_command_searches_once_and_then_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AMK_CACHE", str(tmp_path / "cache"))
    one, two, three = (tmp_path / f"{n}.json" for n in (1, 2, 3))
    assert main(arguments(one, "--expansions", "4", "--seed", "5")) == 0
    assert "--expansions 4 --seed 5" in capsys.readouterr().err
    (entry,) = (tmp_path / "cache" / "plans").glob("*.json")
    assert entry.stat().st_size <= store.MOST_BYTES

    def fail(*_: object, **__: object) -> SearchResult:
        raise AssertionError("searched again")

    monkeypatch.setattr("amk.commands.plan_search.search", fail)
    assert main(arguments(two, "--expansions", "4", "--seed", "5")) == 0
    assert one.read_bytes() == two.read_bytes()
    monkeypatch.setattr(store, "__version__", "another")
    assert main(arguments(three, "--expansions", "4", "--seed", "5")) == 4  # another version: not this entry
    monkeypatch.undo()


def test_every_part_of_the_key_counts() -> None:
    key = store.cache_key(PROBLEM, {"seed": 0})
    others = [
        replace(PROBLEM, model=tiny("small")), replace(PROBLEM, target=load_target("l4")), replace(PROBLEM, context=99),
        replace(PROBLEM, positions=(1,)), replace(PROBLEM, formats=formats("int8")),
        replace(PROBLEM, constants=constants_for(H200).model_copy(update={"hop_us": 9.0})),
    ]  # fmt: skip
    keys = {key, store.cache_key(PROBLEM, {"seed": 1}), *(store.cache_key(o, {"seed": 0}) for o in others)}
    keys |= {store.cache_key(PROBLEM, {"seed": 0}, replace(FAST, batch=2))}
    assert len(keys) == len(others) + 3


@pytest.mark.parametrize("constant", ["__version__", "SEARCH_VERSION"])
def test_a_version_is_part_of_the_key(constant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = store.cache_key(PROBLEM, {"seed": 0})
    monkeypatch.setattr(store, constant, -1)
    assert key != store.cache_key(PROBLEM, {"seed": 0})


@pytest.mark.turns(4)
def test_plans_that_do_not_compile_are_passed_over() -> None:
    asked: list[int] = []

    def why_not(schedule: Schedule) -> str | None:
        asked.append(schedule.launch.warps)
        return "spills" if len(asked) < 3 else None

    found = search(PROBLEM, expansions=14, why_not=why_not)
    assert len(found.refused) == 2 and len(asked) == 3
    with pytest.raises(AmkError, match="compiles"):
        search(PROBLEM, expansions=3, why_not=lambda _: "never")


@pytest.mark.parametrize("changes", [
    {"warps": 12}, {"warps": 6}, {"warps": 2, "handoff": "tagged", "handoff_dtype": "f32", "reduce_from": None},
    {"handoff": "tagged", "handoff_dtype": "f32", "reduce_from": 2},
], ids=str)  # fmt: skip
def test_shares_that_are_no_whole_fetches_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(AmkError) as caught:
        Problem(load_model("llama3.2-1b"), H200, context=2048).schedule(replace(FAST, **changes))
    assert caught.value.diagnostics[0].code == "AMK406"


@pytest.mark.turns(16)
@pytest.mark.parametrize(("handoff", "dtype"), [("fenced", "bf16"), ("tagged", "f32")])
def test_hand_offs_of_another_type_are_safe_and_compile(handoff: str, dtype: str) -> None:
    settings = replace(FAST, plan="search", handoff=handoff, handoff_dtype=dtype, reduce_from=None)
    schedule = PROBLEM.schedule(settings)
    assert {b.dtype for b in schedule.buffers if b.name in ("h_mid", "h_out", "attn")} == {dtype}
    assert verify(schedule).safe and why_not_built(schedule) is None


@pytest.mark.turns(4)
def test_the_command_searches_with_the_batch_that_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AMK_CACHE", str(tmp_path / "cache"))
    one, two = tmp_path / "1.json", tmp_path / "2.json"
    assert main(arguments(one, "--expansions", "3")) == 0
    assert main(arguments(two, "--expansions", "3", "--batch", "2")) == 0
    schedule, _ = load_schedule(two)
    (known,) = [json.loads(p.read_text()) for p in (tmp_path / "cache" / "plans").glob("*.json")
                if json.loads(p.read_text())["schedule"] == schedule_hash(schedule)]  # fmt: skip
    assert schedule.batch == 2 and known["ms"][0] == pytest.approx(step_ms(schedule, 128), rel=1e-6)
    log = capsys.readouterr().err
    assert f"simulated {known['ms'][0]:.4f} ms at 128" in log and "error of such predictions: " in log


def test_the_command_tells_positions_that_the_cache_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AMK_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "s.json"
    assert main(arguments(file, "--expansions", "1", "--max-context", "512")) == 0
    schedule, _ = load_schedule(file)
    assert f"{step_ms(schedule, 511):.4f} ms at 511 (" in capsys.readouterr().err


@pytest.mark.turns(16)
def test_the_command_searches_by_the_constants_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A search that is known is made again with other constants, whose times it tells; and is then known, too."""
    monkeypatch.setenv("AMK_CACHE", str(tmp_path / "cache"))
    known = constants_for(load_target("l4"))
    moved = {"hop_us": 9 * known.hop_us, "l2_us": 9 * known.l2_us, "sources": {"learned": "two rows of l4.json"}}
    slower = known.model_copy(update=moved)
    file, one, two = (tmp_path / f"{name}.json" for name in ("constants", 1, 2))
    save_constants(slower, file)
    assert main(arguments(one, "--expansions", "3")) == 0
    assert "two rows" not in capsys.readouterr().err
    command_line = arguments(two, "--expansions", "3", "--constants", str(file))
    assert main(command_line) == 0
    log, (schedule, _) = capsys.readouterr().err, load_schedule(two)
    assert f"simulated {step_ms(schedule, 128, slower):.4f} ms at 128" in log and "two rows of l4.json" in log
    assert step_ms(schedule, 128, slower) > 1.05 * step_ms(schedule, 128)
    assert len(list((tmp_path / "cache" / "plans").glob("*.json"))) == 2
    monkeypatch.setattr("amk.commands.plan_search.search", None)
    assert main(command_line) == 0


@pytest.mark.turns(12)
@pytest.mark.parametrize("step", [["--rows", "4"], ["--rows", "4", "--tree"], ["--batch", "2", "--live"]], ids=str)
def test_the_search_is_for_the_step_that_is_asked_for(
    step: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is simulated and found SAFE is the schedule that is written, not that of one row."""
    monkeypatch.setenv("AMK_CACHE", str(tmp_path))
    file = tmp_path / "plan.json"
    assert main(arguments(file, "--expansions", "4", *step)) == 0
    schedule, _ = load_schedule(file)
    assert f"simulated {step_ms(schedule, 128):.4f} ms at 128" in capsys.readouterr().err
    assert verify(schedule).safe


@pytest.mark.parametrize("words", [
    ["--constants", "no-search.json"], ["--expansions", "5"], ["--budget", "5s"], ["--seed", "0"], ["--no-cache"],
], ids=str)  # fmt: skip
def test_what_is_about_a_search_needs_one(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "smollm2-135m", "--gpu", "l4", *words]) == 2
    assert f"{words[0]} is for --search" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--expansions", "0"], ["--model", "no-such"], ["--plan", "naive"]], ids=str)
def test_bad_requests(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "smollm2-135m", "--gpu", "l4", "--search", *words]) == 2
    assert capsys.readouterr().err.startswith("error[AMK")
