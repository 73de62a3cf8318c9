"""The report: self-contained, labelled, and safe against what models and schedules can put into it."""

import io
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from math import inf, log
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from amk.agent.decide.feedback import fate
from amk.agent.decide.headroom import share_above_floor
from amk.agent.decide.ranking import MOST_UNRANKED, misleads
from amk.agent.gate import candidate
from amk.agent.gate.candidate import Candidate
from amk.agent.gate.design import Design
from amk.agent.journal.events import Decided, Gated, LlmReserved, LlmSettled, Proposed
from amk.agent.journal.inbox import Suggestion
from amk.agent.journal.state import START, State
from amk.agent.journal.store import read_state
from amk.agent.propose.base import Context
from amk.agent.propose.local import Local
from amk.agent.propose.structure import advised
from amk.agent.report import live
from amk.agent.report.bounds import bounds
from amk.agent.report.html import render
from amk.agent.report.live import BLOCKS, View, board, curve, line
from amk.agent.report.result import ablated
from amk.agent.report.results import metrics
from amk.agent.report.stored_report import kept_report
from amk.agent.report.survey_table import LONG, table
from amk.agent.run import reports
from amk.agent.run.reports import candidate_of, report_of, write_report
from amk.report.diagnostic import AmkError
from amk.simulator.predict import Prepared, steps_ms
from tests.agent import long_night, report_time
from tests.agent.conftest import MakeLoop

ABLATIONS = Path(__file__).parents[1] / "records/speed/h200-ablations.json"
HOSTILE = [
    "<script>alert(1)</script>",
    "'\"><img src=x onerror=alert(1)>",
    "</td></table><h1>",
    "&lt;",
    "\x1b[31m\u202e",
    "javascript:x",
]


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


@pytest.mark.turns(12)
def test_a_real_run_renders_with_curve_timeline_and_diff(make_loop: MakeLoop) -> None:
    loop = make_loop(evals=12)
    loop.run()
    text = render(loop.state, candidate_of(loop.state, loop.state.best), candidate_of(loop.state, START))
    assert (
        "simulated" in text
        and "Error of such predictions: of this kind" in text
        and "<polyline" in text
        and 'aria-label="timeline"' in text
    )
    assert text.count('class="rejected"') + text.count('class="kept"') == 12
    assert "no live model was called" in text
    whole = report_of(loop.state)
    assert "prefers-color-scheme:dark" in whole and "@media print" in whole and 'name="viewport"' in whole
    assert whole.index('class="result"') < whole.index("<polyline") < whole.index("<h2>Proposals")
    if loop.state.best != START:
        assert "<details>" in text and "in a fresh process on fresh inputs" in text
        assert (
            whole.index("What matters")
            < whole.index('aria-label="timeline"')
            < whole.index("from the start to the best")
        )


@pytest.mark.turns(4)
def test_a_whole_report_is_kept_until_the_journal_has_more(make_loop: MakeLoop, tmp_path: Path) -> None:
    """So `amk report` plans and simulates nothing: 1,000 evaluations are told in little processor time."""
    loop = make_loop(evals=2)
    loop.run()
    state = loop.state
    for i in range(len(state.trials), 1000):
        state.apply(Proposed(index=i, proposer="p", settings={"warps": 8}, why="w" * 60), float(i))
        state.apply(Gated(index=i, verdict="passed", key=str(i)), float(i))
        state.apply(Decided(index=i, outcome="rejected", reason="r", log_gain=-0.1, score=0.1), float(i))
    assert kept_report(tmp_path, state) is None
    write_report(tmp_path, state, whole=False)
    assert kept_report(tmp_path, state) is None, "it does not tell all"
    path = write_report(tmp_path, state, workshop=loop.gate.workshop)
    before = time.process_time()
    assert kept_report(tmp_path, state) == path.read_text()
    assert time.process_time() - before < 0.2
    state.apply(Proposed(index=1000, proposer="p", settings={"warps": 8}), 1000.0)
    assert kept_report(tmp_path, state) is None


@pytest.mark.turns(4)
def test_a_report_that_is_made_again_plans_and_simulates_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a session that was killed: its best is simulated once, and as little is taken out of it as the reader waits. A
    plan whose loop of layers was split is simulated with two numbers of layers.
    `python -m tests.agent.report_time` measures 1,000 evaluations."""
    state = read_state(report_time.folder_of_run(tmp_path, "smollm2-135m", "h200", "bf16", 120))
    assert state.evals == 120 and state.trials[state.best].edited and state.run is not None
    simulated, run = list[int](), Prepared.converged

    def converged(self: Prepared, *rest: Any, **more: Any) -> Any:
        simulated.append(self.pos)
        return run(self, *rest, **more)

    monkeypatch.setattr(Prepared, "converged", converged)
    planned, make = list[str](), candidate.plan
    monkeypatch.setattr(candidate, "plan", lambda *arguments, **more: planned.append("") or make(*arguments, **more))
    text = report_of(state, until=0.0)
    assert 2 <= len(simulated) <= 6 and len(planned) <= 6
    assert "simulated at position" in text and 'aria-label="timeline"' in text


def test_a_value_that_is_no_choice_any_more_leaves_the_report_without_a_timeline(make_loop: MakeLoop) -> None:
    """The run may be of an earlier version."""
    state = make_loop(evals=1).state
    state.apply(Proposed(index=0, proposer="p", settings={"warps": 7}, why=""), 0.0)
    assert candidate_of(state, START) is not None and candidate_of(state, 0) is None


def test_changes_are_taken_out_of_the_best_one_by_one(make_loop: MakeLoop) -> None:
    """All of them, the knobs behind the edits too, and over the positions: what saves much at one may save nothing at
    another."""
    loop = make_loop(evals=1)
    start, workshop = loop.space.start, loop.gate.workshop
    some: dict[str, Any] = {
        "run_ahead": not start.run_ahead, "wide_epilogue": 32, "kv_splits": 1, "reduce_from": 4, "hint_slack": 2,
        "held_refills": 0.0, "refill_late": not start.refill_late, "prefetch_cache": not start.prefetch_cache,
    }  # fmt: skip
    best = Design(replace(start, **some), ())
    result = workshop.make(best)
    assert isinstance(result, Candidate)
    positions = (1, 128)
    whole = dict(zip(positions, steps_ms(result.schedule, positions), strict=True))
    found = {each.change.split(" = ")[0]: each.worth for each in ablated(loop.space, workshop, best, whole)}
    assert set(found) == set(some)
    assert len(ablated(loop.space, workshop, best, whole, 0.0)) == 1, "who waits is shown one"
    rest = workshop.make(Design(replace(best.settings, kv_splits=start.kv_splits)))
    assert isinstance(rest, Candidate)
    logs = [log(ms / whole[pos]) for pos, ms in zip(positions, steps_ms(rest.schedule, positions), strict=True)]
    assert logs[0] != pytest.approx(logs[1], abs=1e-4)
    assert found["kv_splits"] == pytest.approx(sum(logs) / 2)


def test_long_cells_keep_their_column_wide() -> None:
    """On a phone a text of 600 characters in a column of five is taller than the screen, and its row is white."""
    text = table(("what", "why"), [("", ("short", "w" * (LONG + 1)))])
    assert text.count("class=long") == 1 and f"<td class=long>{'w' * (LONG + 1)}<" in text and "<td>short<" in text


def test_what_changes_are_worth_is_written_down_once(make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a report that is made again in a hurry says as much as the session's own."""
    loop = make_loop(evals=1)
    start = loop.space.start
    best = loop.space.point(replace(start, run_ahead=not start.run_ahead, wide_epilogue=32))
    loop.note(Proposed(index=0, proposer="p", settings=best))
    loop.note(Gated(index=0, verdict="passed", key="0"))
    loop.note(Decided(index=0, outcome="kept", reason="r", log_gain=0.1, score=-0.1))

    def section(text: str) -> str:
        return text[text.index("What matters") : text.index('aria-label="timeline"')]

    whole = section(report_of(loop.state, note=loop.journal.append))
    assert "simulated over all positions" in whole
    assert loop.state.ablation is not None and len(loop.state.ablation.worth) == loop.state.ablation.every == 2
    events = loop.state.events
    loop.journal.close()
    state = read_state(loop.journal.folder)
    monkeypatch.setattr(reports, "ablated", None)
    assert section(report_of(state, until=0.0, note=pytest.fail)) == whole and state.events == events
    state.apply(Decided(index=0, outcome="kept", reason="r", log_gain=0.2, score=-0.2), 9.0)
    assert state.ablation is None, "of another best"


def test_a_schedule_cannot_leave_the_frame_of_its_timeline(make_loop: MakeLoop) -> None:
    """Names of a schedule are in the frame's document only, escaped twice, and elements of neither."""
    loop = make_loop(evals=1)
    loop.run()
    best = candidate_of(loop.state, START)
    assert best is not None
    model = best.schedule.model.model_copy(update={"name": HOSTILE[0]})
    hostile = best.schedule.model_copy(update={"name": '"></iframe><script>alert(2)</script>', "model": model})
    text = render(loop.state, replace(best, schedule=hostile, key="other"), best)
    tags = Tags()
    tags.feed(text)
    assert not [name for name, _ in tags.seen if name in ("script", "img", "object", "link", "a", "form")]
    (frame,) = [attributes for name, attributes in tags.seen if name == "iframe"]
    assert frame["sandbox"] == "allow-scripts" and "<script>alert(" not in text
    inner = Tags()
    inner.feed(str(frame["srcdoc"]))
    assert sum(name == "script" for name, _ in inner.seen) == 2  # the data and the renderer of the product


def test_hostile_strings_are_escaped_everywhere(make_loop: MakeLoop) -> None:
    loop = make_loop(evals=1)
    note = loop.journal.append
    for i, evil in enumerate(HOSTILE):
        note(Proposed(index=i, proposer=evil, settings={"warps": evil, evil: 1}, why=evil, handle=evil))
        note(Gated(index=i, verdict="passed" if i % 2 else "unsafe", key=str(i), codes=(evil,), detail=evil))
        if i % 2:
            note(Decided(index=i, outcome="rejected", reason=evil, log_gain=-0.1, score=0.1))
        note(LlmReserved(call=i, attempt=1, model=evil, dollars=0.0, tokens=1))
        note(
            LlmSettled(
                call=i,
                attempt=1,
                dollars=0.0,
                input_tokens=0,
                output_tokens=0,
                cached_tokens=0,
                outcome=evil,
                live=True,
            )
        )
    text = render(loop.state, None, None)
    assert not [c for c in text if c not in "\n\t" and not c.isprintable()], "not for a terminal either"
    tags = Tags()
    tags.feed(text)
    names = {name for name, _ in tags.seen}
    assert not names & {"script", "img", "iframe", "object", "link", "a", "form"}
    assert sum(name == "h1" for name, _ in tags.seen) == 1
    assert not any(key.startswith("on") or key in ("src", "href") for _, attrs in tags.seen for key in attrs)
    assert "default-src" in text and not re.search(r"url\(|@import|https?://", text)
    for index in range(len(HOSTILE)):
        assert "\x1b" not in line(loop.state, index)


def test_the_plain_view_says_simulated_on_every_line(make_loop: MakeLoop, tmp_path: Path) -> None:
    loop = make_loop(evals=4)
    with open(tmp_path / "out", "w") as stream, View(stream) as view:
        loop.watch = view.show
        loop.run()
    lines = (tmp_path / "out").read_text().splitlines()
    assert len(lines) == 4 and all(text.startswith("simulated") for text in lines)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@dataclass(frozen=True)
class Thinking:
    """A proposer that thinks at its third turn, until the terminal shows it. Only then is thinking worth a line,
    however long the machine takes for an earlier turn."""

    shown: Callable[[], str]
    name: str = "local"

    def ask(self, context: Context) -> Sequence[Suggestion]:
        if len(context.state.trials) == 2:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(live, "THINKS", 0.1)
                until = time.monotonic() + 60
                while "is looked for" not in self.shown() and time.monotonic() < until:
                    time.sleep(0.05)
        return Local().ask(context)


def test_the_live_view_goes_on_while_a_proposer_thinks(make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """And shows then all that was written down before."""
    monkeypatch.setattr(live, "THINKS", inf)
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    loop = make_loop(Thinking(stream.getvalue), evals=3)
    with View(stream) as view:
        loop.watch, loop.asks = view.show, view.asks
        loop.run()
    before, *later = stream.getvalue().split("a proposal is looked for, for ")
    assert later and "2 proposals" in before and "3 proposals" not in before and "3 proposals" in later[-1]


def test_a_refusal_has_its_reason_in_the_live_view(make_loop: MakeLoop) -> None:
    loop = make_loop(evals=1)
    loop.note(Proposed(index=0, proposer="p", settings={}))
    loop.note(Gated(index=0, verdict="unsafe", codes=("AMK302",), detail="two accesses are not ordered"))
    stream = io.StringIO()
    Console(file=stream, width=200).print(board(loop.state))
    assert "#0 p: unsafe: AMK302 two accesses are not ordered" in stream.getvalue()


def test_the_live_view_shows_how_far_the_search_is(make_loop: MakeLoop) -> None:
    """Limits, distance to the floor, what the device is at, and the way from the start to the best."""
    loop, seen = make_loop(Local(), evals=8), list[str]()

    def watch(state: State) -> None:
        stream = io.StringIO()
        Console(file=stream, width=200).print(board(state))
        seen.append(stream.getvalue())

    run = loop.state.run
    assert run is not None
    loop.state.run = run.model_copy(update={"floor_ms": (0.1,) * len(run.positions)})
    loop.watch = watch
    loop.run()
    assert "of 8 evaluations" in seen[0] and "calibrate of the start" in "".join(seen)
    assert "now: pilot of #0" in "".join(seen) and "8 of 8 evaluations" in seen[-1] and "now:" not in seen[-1]
    above = share_above_floor(loop.state)
    assert above is not None and f"{100 * (1 - above):.1f}% of the speed of light" in seen[-1]
    drawn = curve(loop.state)
    assert loop.state.best >= 0 and len(drawn) == loop.state.evals and drawn[-1] == BLOCKS[-1] and drawn in seen[-1]
    assert list(drawn) == sorted(drawn) and not curve(State())


def test_what_was_measured_says_how_the_simulator_ranked(make_loop: MakeLoop) -> None:
    state = make_loop(evals=1).state
    assert state.run is not None
    state.run = state.run.model_copy(update={"simulated": False})
    for i, (score, ms) in enumerate([(-0.1, 1.0), (0.2, 1.3), (0.1, 1.2), (0.3, 1.25)]):
        assert not any("rank" in line for line in metrics(state)) or i > 2
        few = f"<td>{i} design{'s' * (i != 1)}, too few"
        assert (few in render(state, None, None)) == (i < 3)
        state.apply(Proposed(index=i, proposer="p", settings={}), float(i))
        state.apply(Gated(index=i, verdict="passed", key=str(i), simulated_ms=ms), float(i))
        state.apply(Decided(index=i, outcome="rejected", reason="r", log_gain=-score, score=score), float(i))
    assert "METRIC simulator_rank_correlation=0.800" in metrics(state)
    assert "<td>0.800" in render(state, None, None)


@pytest.mark.parametrize(("order", "bad"), [(1, False), (0, True), (-1, True)])
def test_a_simulator_that_ranks_badly_is_not_asked(order: int, bad: bool, make_loop: MakeLoop) -> None:
    """order: of what it says beside what is measured, the same, none, or the other way round."""
    loop = make_loop(evals=1)
    state = loop.state
    assert state.run is not None
    state.run = state.run.model_copy(update={"simulated": False})
    for i in range(MOST_UNRANKED):
        assert not misleads(state)
        said = order * i if order else (7 * i) % 5
        state.apply(Proposed(index=i, proposer="p", settings={}), float(i))
        state.apply(Gated(index=i, verdict="passed", key=str(i), simulated_ms=100.0 + said), float(i))
        state.apply(Decided(index=i, outcome="rejected", reason="r", log_gain=-0.1, score=0.01 * i), float(i))
    assert misleads(state) == bad and advised(loop.context()) != bad
    state.run = state.run.model_copy(update={"simulated": True})
    assert advised(loop.context()), "it is the device"


def test_a_long_run_keeps_its_report_small(make_loop: MakeLoop) -> None:
    loop = make_loop(evals=1)
    for i in range(6000):
        loop.state.apply(Proposed(index=i, proposer="p", settings={"warps": 8, "slots": 4}, why="w" * 500), float(i))
        loop.state.apply(Gated(index=i, verdict="passed", key=str(i)), float(i))
        loop.state.apply(Decided(index=i, outcome="rejected", reason="r" * 500, log_gain=-0.1, score=0.1), float(i))
    began = time.process_time()
    text = render(loop.state, None, None)
    assert len(text) < 10_000_000 and "2000 of 6000 are shown" in text
    assert time.process_time() - began < 2.0, "seconds of a processor, for twice as many as a night has"


@pytest.mark.turns(16)
def test_a_short_night_leaves_little_behind(tmp_path: Path) -> None:
    """The short form of `python -m tests.agent.long_night`: seven minutes in four seconds."""
    found = long_night.night(tmp_path / "run", 0.12, "random")
    assert long_night.problems(found | {"browser": None}) == [] and found["evaluations"] > 0


def ablated_rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


@pytest.mark.turns(4)
def test_a_closer_bound_than_the_floor_is_told_beside_the_best(make_loop: MakeLoop, tmp_path: Path) -> None:
    """Of the newest row that is of the run's model, weights and card; another row says nothing of it."""
    loop = make_loop(evals=2)
    loop.run()
    run = loop.state.run
    assert run is not None
    assert "No closer bound was handed in" in report_of(loop.state)
    other = next(row for row in ablated_rows(ABLATIONS) if row["row"]["bound_ms"] is not None)
    (said,) = bounds(loop.state, [ABLATIONS])
    assert said.startswith("No row of ") and bounds(loop.state, []) == []
    key = other["row"]["key"] | {
        "model": run.model, "dtype": run.dtype, "gpu": run.target, "plan": run.start, "pos": run.positions[0],
    }  # fmt: skip
    old, new = (
        {"row": other["row"] | {"key": key, "ceiling_gbps": gbps}, "run": {"date": date, "commit": "c" * 40}}
        for date, gbps in (("2026-01-01", 1000.0), ("2026-01-02", 2000.0))
    )
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps({"format": "ablations 1", "rows": [new, old, other]}))
    (said,) = bounds(loop.state, [ABLATIONS, mine])
    bound = other["row"]["bound_ms"]
    floor = (other["row"]["bytes"] - other["row"]["l2_bytes"]) / 2000.0 / 1e6
    assert f"({'c' * 8}, 2026-01-02)" in said and f"took {bound:.4f} ms" in said and f"is {floor:.4f} ms" in said
    best = loop.state.trials[loop.state.best] if loop.state.best != START else None
    ms = fate(loop.state, best).ms[0] if best is not None else loop.state.calibrations[-1].incumbent_ms[0]
    assert f"The best takes {ms:.4f} ms" in said and f"{100 * (1 - bound / ms):.1f}% of it is above" in said
    assert said in report_of(loop.state, bounds=[said])
    with pytest.raises(AmkError, match="no such record"):
        bounds(loop.state, [tmp_path / "absent.json"])
