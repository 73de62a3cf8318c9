"""A run as one HTML file: no external resource, and everything that came from outside escaped.

The only script is that of the timeline, in a frame without an origin; the policy of the page admits it by its hash.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from math import expm1

from amk.agent.decide.feedback import fate, name
from amk.agent.decide.feedback import outcome as verdict
from amk.agent.decide.headroom import candidates, foretold, known_error_of
from amk.agent.decide.neighbourhood import Survey, sentence
from amk.agent.decide.ranking import designs, ranking
from amk.agent.gate.candidate import Candidate
from amk.agent.journal.events import Asked
from amk.agent.journal.state import START, State, Trial
from amk.agent.report.result import Ablated, moved, result, what_matters
from amk.agent.report.results import metrics
from amk.agent.report.standing import HEADER, standings
from amk.agent.report.steps_moved import steps_moved
from amk.agent.report.stored_report import stamp
from amk.agent.report.survey_table import near_the_best, table
from amk.agent.report.svg import best_curve
from amk.report.timeline_html import content_policy, html
from amk.simulator.predict import Prediction, predict
from amk.simulator.timeline import timeline_of

FRAMES = "frame-src 'self'"
"""The timeline's document is part of the page."""
SHOWN_TRIALS = 2000
SHOWN_FAULTS = 50
TALK_HEADER = ("after evaluations", "conversation ended", "turns", "proposals", "tools called", "what failed")
TRIAL_HEADER = (
    "#",
    "proposer",
    "outcome",
    "gain over its parent",
    "ms",
    "parent and edit",
    "why it was proposed, why it ended",
)
_CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")
"""What moves the cursor of a terminal or the order of letters, and what no file can hold."""
_PHONE = '<meta name="viewport" content="width=device-width">'
_STYLE = """:root{color-scheme:light dark;--ink:#1a1a1a;--paper:#fff;--line:#ddd;--soft:#f6f6f6;--good:#e6f4ea;
--bad:#fde8e8;--note:#fff4ce}
@media(prefers-color-scheme:dark){:root{--ink:#e4e4e4;--paper:#16181b;--line:#3a3d42;--soft:#22252a;--good:#173a24;
--bad:#4a2020;--note:#453a12}}
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:var(--ink);
background:var(--paper)}
.result{font-size:1.25rem}table{border-collapse:collapse;font-size:13px;display:block;overflow-x:auto}
td,th{padding:.2rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
.long{overflow-wrap:anywhere;min-width:14rem}
.kept{background:var(--good)}.quarantined{background:var(--bad)}.note{background:var(--note);padding:.5rem 1rem}
pre{font-size:12px;overflow:auto;white-space:pre-wrap;overflow-wrap:anywhere;background:var(--soft);padding:1rem}
li{overflow-wrap:anywhere}svg{max-width:100%;height:auto}svg text{fill:currentColor}
iframe{width:100%;height:44rem;border:1px solid var(--line);background:#fff;color-scheme:light}
@media(max-width:40rem){body{margin:1rem auto;font-size:14px}h1{font-size:1.4rem}iframe{height:30rem}
td,th{padding:.2rem .25rem}svg text{font-size:24px}}
@media print{:root{color-scheme:light;--ink:#000;--paper:#fff;--line:#bbb;--soft:#fff;--good:#eee;--bad:#eee;
--note:#fff}
body{margin:0;max-width:none}iframe{display:none}h2{break-after:avoid}tr{break-inside:avoid}}"""


def render(
    state: State, best: Candidate | None, start: Candidate | None, survey: Survey | None = None,
    changes: tuple[Sequence[Ablated], int, str] = ((), 0, ""), edits: str = "", foreseen: Prediction | None = None,
    before: Prediction | None = None,
) -> str:  # fmt: skip
    """The report of `state`.

    candidates: give timeline and diff where they can still be planned. survey, edits: what is left near the best.
    changes: those of the best that were taken out by themselves, how many there are, and at which positions. foreseen,
    before: the best and the start simulated at the position of `middle`, where known.
    """
    run = state.run
    assert run is not None
    kind = " (simulated)" if run.simulated else ""
    sections = [
        f"<h1>{escape(run.model)} on {escape(run.target)}{kind}</h1>",
        _notice(state),
        result(state),
        "<h2>Best so far</h2>",
        best_curve(state, run.simulated),
        what_matters(*changes),
        _timeline(state, best, foreseen),
        _steps_moved(state, start, best, before, foreseen),
        moved(start, best),
        _settings(state),
        "<h2>The run</h2>",
        _facts(state),
        near_the_best(survey) if survey is not None else "",
        edits,
        "<h2>What became of the proposals</h2>",
        _outcomes(state),
        _to_measure(state),
        _proposers(state),
        _language_model(state),
        _notes(state),
        "<h2>Proposals</h2>",
        _trials(state),
    ]
    title = escape(f"amk autoresearch {run.run}")
    whole = stamp(state) if best is not None else ""
    head = f'<meta charset="utf-8">{whole}{_PHONE}<title>{title}</title><style>{_STYLE}</style>'
    policy = f'<meta http-equiv="Content-Security-Policy" content="{escape(content_policy())}; {FRAMES}">'
    page = f"<!doctype html><html lang=en><head>{head}{policy}</head><body>{''.join(sections)}</body></html>\n"
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), page)


def _notice(state: State) -> str:
    assert state.run is not None
    if not state.run.simulated:
        return ""
    text = "No GPU was used. Every time here is simulated by a model of the GPU, not measured. "
    text += f"Error of such predictions: {known_error_of(state.run)}."
    return f'<p class="note">{escape(text)}</p>'


def _facts(state: State) -> str:
    run = state.run
    assert run is not None
    mads = ", ".join(f"{100 * c.mad:.3f}%" for c in state.calibrations[-5:])
    live = sum(s.live for s in state.llm_settled)
    known = len(designs(state))
    unranked = f"{known} design{'' if known == 1 else 's'}, too few"
    rows = [
        ("run", run.run), ("back end", run.backend), ("weights", run.weights), ("sequences at a time", str(run.batch)),
        ("cache positions", str(run.context)), ("started from", run.start), ("seed", str(run.seed)),
        ("proposer", run.proposer), ("positions", ", ".join(map(str, run.positions))),
        ("sessions", str(state.session.session if state.session else 0)),
        ("state", state.finished or "not finished"),
        ("near the best", sentence(state.surveyed) if state.surveyed else "not looked at"),
        *(("journal repaired", what) for what in state.repairs),
        *((f"session {s.session}", ", ".join(s.changed)) for s in state.sessions if s.changed),
        *((f"after {evals} evaluations", sentence(event)) for evals, event in state.exhaustions),
        ("work", f"{state.elapsed / 60:.1f} minutes"),
        ("device time" + (" (simulated)" if run.simulated else ""), f"{state.gpu_seconds / 60:.1f} minutes"),
        *(tuple(line.removeprefix("METRIC ").split("=")) for line in metrics(state)),
        *(() if run.simulated or ranking(state) is not None else (("simulator_rank_correlation", unranked),)),
        ("proposals", str(len(state.trials))), ("evaluations", str(state.evals)),
        ("A/A spread", mads or "not measured"),
        ("language model", f"{run.llm_model}, {live} live attempts" if live else "no live model was called"),
        ("dollars", f"{state.dollars:.4f} of {state.limits.dollars:.2f}"),
        ("constants of the simulator", run.constants.origin if run.constants else "the target's own"),
        ("judges (sha256)", run.manifest), ("version", run.version),
    ]  # fmt: skip
    return table(("", ""), [("", row) for row in rows])


def _settings(state: State) -> str:
    if state.best == START:
        return ""
    text = escape(json.dumps(state.trials[state.best].proposed.settings))
    return f"<details><summary>settings of the best</summary><pre>{text}</pre></details>"


def middle(state: State) -> int:
    """The position of timeline and ablation."""
    assert state.run is not None
    return state.run.positions[len(state.run.positions) // 2]


def _foreseen(state: State, candidate: Candidate, prediction: Prediction | None) -> Prediction:
    assert state.run is not None
    return prediction or predict(candidate.schedule, middle(state), state.run.constants)


def _steps_moved(
    state: State, start: Candidate | None, best: Candidate | None, before: Prediction | None, after: Prediction | None
) -> str:
    if start is None or best is None or start.key == best.key:
        return ""
    return steps_moved(_foreseen(state, start, before), _foreseen(state, best, after))


def _timeline(state: State, best: Candidate | None, foreseen: Prediction | None) -> str:
    if best is None or state.run is None:
        return ""
    page = escape(html(timeline_of(_foreseen(state, best, foreseen))))
    frame = f'<iframe aria-label="timeline" sandbox="allow-scripts" srcdoc="{page}"></iframe>'
    return f"<h2>Timeline of the best schedule (simulated)</h2>{frame}"


def _outcomes(state: State) -> str:
    counts: Counter[tuple[str, str]] = Counter()
    for trial in state.trials:
        counts[trial.proposed.proposer, verdict(trial)] += 1
    rows = [("", (who, what, str(n))) for (who, what), n in sorted(counts.items())]
    codes = Counter(code for t in state.trials if t.gated for code in t.gated.codes)
    reasons = [("", (code, str(n))) for code, n in codes.most_common()]
    refused = "<h3>Reason codes of refusals</h3>" + table(("code", "count"), reasons) if reasons else ""
    return table(("proposer", "outcome", "count"), rows) + refused


def _to_measure(state: State) -> str:
    """What a simulated run is for: the list that a machine with the card measures first."""
    if state.run is None or not state.run.simulated or not (found := candidates(state)):
        return ""
    rows = []
    for worth in found:
        ending = fate(state, worth.trial)
        gain, value = f"{100 * expm1(worth.gain):+.2f}%", f"{100 * worth.value:.2f}%"
        rows.append(("", (str(ending.index), gain, value, f"{name(ending.parent)}: {json.dumps(ending.edit)}"[:600])))
    notes = "".join(f"<p>{escape(line)}</p>" for line in foretold(state))
    head = ("#", "simulated gain over the start", "expected value of measuring it", "parent and edit")
    return f"<h2>Candidates to measure</h2>{notes}{table(head, rows)}"


def _proposers(state: State) -> str:
    return "<h2>Proposers</h2>" + table(HEADER, [("", each.cells) for each in standings(state)])


def _language_model(state: State) -> str:
    if not state.llm_settled and not state.conversations:
        return ""
    counts = Counter(s.outcome for s in state.llm_settled)
    rows = [("", (outcome, str(n))) for outcome, n in counts.most_common()]
    total = f"{state.tokens:,} tokens, ${state.dollars:.4f}; upper bounds where the provider did not say."
    talks = [("", _talk(asked)) for asked in state.conversations[-SHOWN_FAULTS:]]
    talk_table = table(TALK_HEADER, talks) if talks else ""
    return (
        f"<h2>Language model</h2>{table(('attempts that ended in', 'count'), rows)}<p>{escape(total)}</p>{talk_table}"
    )


def _talk(request: Asked) -> tuple[str, ...]:
    tools = ", ".join(f"{name} {n}" for name, n in sorted(request.tools.items()))
    failed = "; ".join(filter(None, (request.detail, *request.faults)))
    return str(request.evals), request.outcome, str(request.turns), str(request.proposals), tools, failed[:600]


def _notes(state: State) -> str:
    """The lab book."""
    if not state.notes:
        return ""
    rows = [("", (str(note.evals), note.author, note.text)) for note in state.notes]
    return "<h2>Notes</h2>" + table(("after evaluations", "by", "what was learned"), rows)


def _trials(state: State) -> str:
    """Every proposal that was measured and the latest of the others, newest first."""
    chosen = [t for t in state.trials if t.evaluated][-SHOWN_TRIALS:]
    left = SHOWN_TRIALS - len(chosen)
    chosen += [t for t in state.trials if not t.evaluated][-left:] if left else []
    rows = [(verdict(t), _row(state, t)) for t in sorted(chosen, key=lambda t: t.index, reverse=True)]
    cut = f"<p>{len(chosen)} of {len(state.trials)} are shown.</p>" if len(chosen) < len(state.trials) else ""
    return cut + table(TRIAL_HEADER, rows)


def _row(state: State, trial: Trial) -> tuple[str, ...]:
    ending = fate(state, trial)
    edit = ", ".join(f"{k}={v}" for k, v in ending.edit.items())
    times = " ".join(f"{ms:.4f}" for ms in ending.ms)
    return (
        str(trial.index),
        trial.proposed.proposer,
        ending.outcome,
        ending.gain_text,
        times,
        f"{name(ending.parent)}: {edit}"[:600],
        f"{ending.why}: {' '.join((*ending.codes, ending.reason))}"[:600],
    )
