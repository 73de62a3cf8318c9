"""The timeline's pages: what is drawn is what was given, nothing is loaded, and no name can become markup or code."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amk.report.timeline import Arrow, MalformedTimeline, Series, Span, Table, Timeline, Track
from amk.report.timeline_html import html
from amk.report.timeline_perfetto import perfetto

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&<!--\u2028\x1b[31m"


def well_formed(trace: dict[str, Any]) -> None:
    """What the Trace Event Format asks of complete events, flows, counters and metadata."""
    events: list[dict[str, Any]] = trace["traceEvents"]
    assert {e["ph"] for e in events} <= set("XMsfC") and trace["displayTimeUnit"] in ("ms", "ns")
    named = {
        kind: {(e["pid"], e["tid"]) for e in events if e["name"] == kind} for kind in ("process_name", "thread_name")
    }
    processes = {pid for pid, _ in named["process_name"]}
    assert all(isinstance(e["name"], str) and e["pid"] in processes for e in events)
    last: dict[tuple[int, int], tuple[float, float]] = {}
    for e in (e for e in events if e["ph"] == "X"):
        place = e["pid"], e["tid"]
        assert place in named["thread_name"] and e["dur"] >= 0 and e["ts"] >= 0
        assert e["ts"] >= last.get(place, (0, 0))[1] - 1e-9, "slices of a thread overlap or go back"
        last[place] = e["ts"], e["ts"] + e["dur"]
    flows = {ph: {e["id"]: e for e in events if e["ph"] == ph} for ph in "sf"}
    assert sum(e["ph"] in "sf" for e in events) == 2 * len(flows["s"]) and flows["s"].keys() == flows["f"].keys()
    slices = [e for e in events if e["ph"] == "X"]
    for number, start in flows["s"].items():
        finish = flows["f"][number]
        assert (start["cat"], start["name"]) == (finish["cat"], finish["name"]) and start["ts"] <= finish["ts"]
        for end in (start, finish):
            own = [s for s in slices if (s["pid"], s["tid"]) == (end["pid"], end["tid"])]
            assert any(s["ts"] <= end["ts"] <= s["ts"] + s["dur"] for s in own), "a flow that binds to no slice"


def small(name: str = "gemv", **more: Any) -> Timeline:
    tracks = (Track("worker 0", name), Track("worker 1", "warp 1"))
    spans = (
        Span(0, 0, 2, name, "weights", name),
        Span(0, 2, 3, "s", "signal"),
        Span(1, 1, 3.5, "w", "wait", marked=True),
    )
    arrows = (Arrow(1, 2, name, marked=True),)
    series = (Series(name, "MB", ((0.0, 1.0), (2.0, 0.5))),)
    tables = (Table(name, ("a", name), ((name, 1.5),)),)
    return Timeline(name, "us", tracks, spans, arrows, series, tables, (name,), **more)


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data
        self.text += data

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(("/" + tag, {}))


def data(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Page(text).scripts[0])
    return found


def test_the_page_holds_every_track_span_and_arrow() -> None:
    found = data(html(small()))
    assert found["tracks"] == [["worker 0", "gemv"], ["worker 1", "warp 1"]]
    assert found["spans"]["start"] == [0, 2, 1] and found["spans"]["end"] == [2, 3, 3.5]
    assert [found["kinds"][k] for k in found["spans"]["kind"]] == ["weights", "signal", "wait"]
    assert [found["texts"][n] for n in found["spans"]["name"]] == ["gemv", "s", "w"]
    assert found["spans"]["marked"] == [2] and found["arrows"]["marked"] == [0]
    assert (found["arrows"]["source"], found["arrows"]["target"]) == ([1], [2])
    assert found["series"] == [{"name": "gemv", "unit": "MB", "x": [0.0, 2.0], "y": [1.0, 0.5]}]


def test_nothing_is_loaded_and_only_this_script_may_run() -> None:
    page = Page(html(small()))
    assert not {"img", "link", "iframe", "object", "base"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        assert not {"src", "href", "srcset", "action"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
    policy = next(a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a)
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert not re.search(r"https?://|@import|url\(", html(small()))


@pytest.mark.parametrize("name", [HOSTILE, "a\nb", "]]>", "\ud800"])
def test_hostile_names_stay_text(name: str) -> None:
    plain, page = Page(html(small())), Page(html(small(name)))
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert page.scripts[1] == plain.scripts[1]
    assert all("\x1b" not in text and "\u2028" not in text for text in data(html(small(name)))["texts"])


@given(st.text(st.characters(exclude_categories=()), max_size=60))
def test_any_name_gives_a_page_and_a_trace_that_parse(name: str) -> None:
    text = html(small(name))
    assert len(data(text)["spans"]["track"]) == 3 and len(Page(text).scripts) == 2
    json.loads(json.dumps(perfetto(small(name))))


def test_perfetto_has_a_thread_a_track_and_a_flow_an_arrow() -> None:
    found = perfetto(small(microseconds=2.0))
    events = found["traceEvents"]
    names = {e["args"]["name"] for e in events if e["ph"] == "M" and "name" in e["args"]}
    assert names == {"worker 0", "worker 1", "gemv", "warp 1", "numbers"}
    well_formed(found)
    slices = [e for e in events if e["ph"] == "X"]
    assert [(e["ts"], e["dur"]) for e in slices] == [(0, 4), (4, 2), (2, 5)]
    start, finish = (e for e in events if e["ph"] in "sf")
    assert start["id"] == finish["id"] and finish["bp"] == "e" and start["ts"] <= finish["ts"]
    for flow, piece in ((start, slices[1]), (finish, slices[2])):
        assert (flow["pid"], flow["tid"]) == (piece["pid"], piece["tid"])
        assert piece["ts"] <= flow["ts"] <= piece["ts"] + piece["dur"]
    assert sum(e["ph"] == "C" for e in events) == 2


@pytest.mark.parametrize(
    ("spans", "arrows", "words"),
    [
        ((Span(1, 0, 1, "x"),), (), "track 1 of 1"),
        ((Span(0, 2, 1, "x"),), (), "from 2 to 1"),
        ((Span(0, 0, float("inf"), "x"),), (), "inf"),
        ((Span(0, 0, float("nan"), "x"),), (), "nan"),
        ((Span(0, 0, 2, "x"), Span(0, 1, 3, "y")), (), "overlap"),
        ((Span(0, 0, 1, "x"),), (Arrow(0, 1),), "arrow"),
    ],
)
def test_what_cannot_be_drawn_is_refused(spans: tuple[Span, ...], arrows: tuple[Arrow, ...], words: str) -> None:
    with pytest.raises(MalformedTimeline, match=words):
        Timeline("t", "us", (Track("g", "n"),), spans, arrows)


def test_the_script_is_valid(tmp_path: Path) -> None:
    """Checked where node is installed; the page itself was looked at in a browser."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    script = tmp_path / "page.js"
    text = Page(html(small())).scripts[1]
    codes = []
    for part in (text, text.rstrip()[:-4]):  # whole, and without its end, which node must refuse
        script.write_text(part, encoding="utf-8")
        codes.append(subprocess.run([node, "--check", str(script)], check=False, capture_output=True).returncode)
    assert codes == [0, 1]
