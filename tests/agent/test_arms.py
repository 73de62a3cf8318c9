"""Arms of the default: who is asked next follows from what each earned lately. The journals are made up."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pytest

from amk.agent.journal.events import Decided, Gated, LeaseReserved, Limits, Measured, Proposed, SessionStarted
from amk.agent.journal.inbox import Suggestion
from amk.agent.journal.state import State
from amk.agent.propose.arms import Arms
from amk.agent.propose.base import Context, Proposer
from amk.agent.propose.portfolio import Portfolio
from amk.agent.propose.replay import Replay
from tests.agent.conftest import MakeLoop


@dataclass(frozen=True)
class Arm:
    name: str

    def ask(self, context: Context) -> Sequence[Suggestion]:
        return []


ARMS = Arms((Arm("knobs"), Arm("structure")))


def first(state: State) -> str:
    return ARMS.order(state)[0].name


def evaluated(state: State, who: str, score: float, rounds: int = 6, handle: str | None = None) -> None:
    """A trial whose log time is `score` relative to the start."""
    index = len(state.trials)
    state.apply(Proposed(index=index, proposer=who, settings={}, handle=handle), float(index))
    state.apply(Gated(index=index, verdict="passed", key=str(index)), float(index))
    place = {"index": index, "phase": "pilot", "attempt": 1, "seconds": 1.0, "device": "d"}
    times = {"log_ratios": (score,) * rounds, "candidate_ms": (1.0,), "incumbent_ms": (1.0,), "against": -1}
    state.apply(LeaseReserved.model_validate(place), float(index))
    state.apply(Measured.model_validate(place | times), float(index))
    best = min((t.score for t in state.trials if t.score is not None), default=0.0)
    kept = "kept" if score < best else "rejected"
    state.apply(Decided(index=index, outcome=kept, reason="r", log_gain=-score, score=score), float(index))


def refused(state: State, who: str) -> None:
    index = len(state.trials)
    state.apply(Proposed(index=index, proposer=who, settings={}), float(index))
    state.apply(Gated(index=index, verdict="unsafe", key=str(index), codes=("AMK302",)), float(index))


def test_knobs_open_the_run_and_what_gained_hands_over_once_it_finds_nothing_more() -> None:
    """Edits get their turn once seven evaluations kept nothing, and keep it as long as they gain."""
    state = State()
    evaluated(state, "beam", -0.4)
    for score in (*[-0.3] * 6, -0.5, *[-0.3] * 6):
        assert first(state) == "knobs"
        evaluated(state, "local", score)
    evaluated(state, "local", -0.3)
    for number in range(4):
        assert first(state) == "structure"
        evaluated(state, "structure", -0.52 - 0.02 * number)
    fruitless = 0
    while first(state) == "structure":
        evaluated(state, "structure", -0.5)
        fruitless += 1
    assert 3 <= fruitless <= 12, "then the knobs have another try"
    evaluated(state, "local", -0.65)
    idle = 0
    while first(state) == "knobs":
        evaluated(state, "local", -0.4)
        idle += 1
    assert 3 <= idle <= 8


def test_a_language_model_is_asked_by_what_it_gained_as_arms_are() -> None:
    """It hands in what it finds, so its trials have handles; those of others from outside are nobody's."""
    state = State()

    def asked() -> bool:
        return ARMS.first("llm", state)

    assert asked(), "nothing is known of anybody"
    for number in range(4):
        evaluated(state, "llm", 0.01, handle=f"llm/{number}")
    assert not asked() and first(state) == "knobs", "what it proposed is not held against the knobs"
    for _ in range(4):
        evaluated(state, "local", 0.01)
        evaluated(state, "structure", 0.01)
    assert asked(), "the others found nothing either"
    evaluated(state, "structure", -0.02)
    assert not asked()
    evaluated(state, "llm", -0.06, handle="llm/4")
    assert asked(), "it gained more"
    for number in range(12):
        evaluated(state, "mcp", 0.01, handle=f"mcp/{number}")
    assert asked() and first(state) == "structure", "they cost no arm anything"


@pytest.mark.parametrize(
    ("limits", "simulated", "rest"),
    [
        (Limits(evals=24), True, "structure"),
        (Limits(evals=24, minutes=5), True, "knobs"),
        (Limits(evals=24), False, "knobs"),
    ],
    ids=["no GPU, evaluations count", "minutes count", "a GPU's seconds count"],
)
def test_credit_is_gain_per_second_of_the_gpu(limits: Limits, simulated: bool, rest: str) -> None:
    """Two arms gain alike by what is tested at length; then one proposes only what its pilot ends at once."""
    session = SessionStarted(session=1, device="d", backend="d", simulated=simulated, limits=limits)
    state = State(sessions=[session])
    for _ in range(3):
        evaluated(state, "structure", state.best_score - 0.02, rounds=60)
        evaluated(state, "local", state.best_score + 0.3, rounds=1)
        evaluated(state, "local", state.best_score - 0.009, rounds=1)
    assert first(state) == rest


@pytest.mark.parametrize(("simulated", "rest"), [(True, "leap"), (False, "local")])
def test_searches_of_the_knobs_are_credited_per_second_of_the_gpu(simulated: bool, rest: str) -> None:
    """As many proposals of each, which gain alike; those of one take the GPU for thirty times as long."""
    knobs = Portfolio((Arm("leap"), Arm("local")))
    session = SessionStarted(session=1, device="d", backend="d", simulated=simulated, limits=Limits(evals=99))
    state = State(sessions=[session])
    for _ in range(6):
        evaluated(state, "local", state.best_score - 0.009, rounds=2)
        evaluated(state, "leap", state.best_score - 0.01, rounds=60)
    assert knobs.order(state)[0].name == rest


def test_what_gains_is_worth_more_than_what_comes_near() -> None:
    """Although its paired test and confirmation take nine times as long as a pilot."""
    knobs = Portfolio((Arm("near"), Arm("gains")))
    state = State(sessions=[SessionStarted(session=1, device="d", backend="d", simulated=False, limits=Limits())])
    for _ in range(6):
        evaluated(state, "near", state.best_score + 0.001, rounds=6)
        evaluated(state, "gains", state.best_score - 0.02, rounds=54)
    assert knobs.order(state)[0].name == "gains"


def test_arms_that_find_nothing_take_turns() -> None:
    state, used = State(), []
    for _ in range(40):
        used.append(first(state))
        evaluated(state, used[-1], 0.1)
    assert 15 <= used.count("knobs") <= 25


def test_a_refusal_costs_an_arm_little() -> None:
    """It takes no device: an arm of which half is refused is asked for more proposals, not for fewer evaluations."""
    state, used = State(), []
    for _ in range(60):
        used.append(first(state))
        if used[-1] == "structure" and used.count("structure") % 2:
            refused(state, "structure")
        else:
            evaluated(state, used[-1], 0.1)
    measured = [t.proposed.proposer for t in state.trials if t.evaluated]
    assert abs(measured.count("structure") - measured.count("knobs")) <= 8


def test_proposals_that_are_open_count_as_drawn() -> None:
    """Two dozen wait for a device at once: not all of one arm."""
    state = State()
    for index in range(24):
        state.apply(Proposed(index=index, proposer=first(state), settings={}), float(index))
    used = [t.proposed.proposer for t in state.trials]
    assert used.count("knobs") == used.count("structure") == 12


def test_what_only_settles_what_is_near_the_best_gets_a_tenth() -> None:
    """Where neither arm earns anything; what earns is asked whatever it does."""
    state = State()
    for _ in range(80):
        who = ARMS.order(state, ["knobs"])[0].name
        evaluated(state, "sweep" if who == "knobs" else who, 0.02)
    settled = sum(trial.proposed.proposer == "sweep" for trial in state.trials)
    assert 5 <= settled <= 12
    for _ in range(3):
        evaluated(state, "sweep", state.best_score - 0.02)
    assert ARMS.order(state, ["knobs"])[0].name == "knobs"


@dataclass(frozen=True)
class Asked(Arm):
    def ask(self, context: Context) -> Sequence[Suggestion]:
        return [Suggestion(self.name, {})]


def test_what_is_near_the_best_is_settled_in_the_second_half(make_loop: MakeLoop) -> None:
    """Three of four proposals, once nothing was kept for long; the arms are asked for the others, and before."""
    arms, loop = Arms((Asked("arm"),), (Asked("near"),)), make_loop(evals=1)
    context, state = loop.context(), loop.state
    session = SessionStarted(session=1, device="d", backend="d", simulated=False, limits=Limits(minutes=10))

    def who(seconds: float, evals: int) -> str:
        state.elapsed, state.evals = seconds, evals
        (asked,) = arms.ask(context)
        return asked.proposer

    state.apply(session, 0.0)
    evaluated(state, "arm", 0.1)
    assert who(299.0, 100) == "arm" and who(301.0, 100) == "near"
    assert who(301.0, 10) == "arm", "something may have been kept a moment ago"
    turns = []
    for _ in range(8):
        turns.append(who(400.0, 100))
        refused(state, "arm")
    assert turns.count("near") == 6


@dataclass(frozen=True)
class Settled(Arm):
    def settles(self, context: Context) -> bool:
        return True


def test_an_arm_is_asked_whether_it_settles(make_loop: MakeLoop) -> None:
    loop = make_loop(Replay(({"warps": 2}, {"warps": 12})), evals=2)
    loop.run()
    asked: list[str] = []

    class Asked(Arms):
        def order(self, state: State, settling: Collection[str] = ()) -> list[Proposer]:
            asked.extend(settling)
            return super().order(state, settling)

    Asked((Settled("knobs"), Arm("structure"))).ask(loop.context())
    assert asked == ["knobs"]
