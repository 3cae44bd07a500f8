"""The timeline widget without a browser: the view, search, details, live rows, drawing."""

from __future__ import annotations

import base64
import gc
import importlib
import inspect
import pkgutil
import queue
import re
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anywidget
import plotly.graph_objects as go
import pytest
import traitlets
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_S
from plotly.basedatatypes import Undefined

import gpuscope as gs
from gpuscope.errors import MissingEvidence
from gpuscope.timeline.canvas.plot import PLOTLY_SCRIPT, Plot, _bars_first
from gpuscope.timeline.canvas.scheduler import RedrawScheduler
from gpuscope.timeline.canvas.snapshot import DARK
from gpuscope.timeline.canvas.state import LISTED
from gpuscope.timeline.canvas.window import (
    LEAST_NS,
    around,
    clamped,
    panned,
    widened,
    zoomed,
)
from gpuscope.timeline.labels import MAX_TRACKS
from gpuscope.timeline.look import look
from gpuscope.trace import Trace
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.widgets.details import Details, describe
from gpuscope.widgets.view import Bar, TimelineView
from gpuscope.workloads.spin import Spin
from gpuscope_lessons.question import Question

TIMES = st.integers(0, 10**12)


# -- arithmetic of the view -------------------------------------------------------------


@st.composite
def windows(draw):
    low = draw(TIMES)
    return low, low + draw(st.integers(LEAST_NS, 10**12))


@given(windows(), windows(), st.floats(1e-3, 1e3), st.floats(0, 1))
def test_zooming_stays_inside_and_keeps_the_point(window, extent, by, at):
    window = clamped(window, extent)
    low, high = zoomed(window, by, at, extent)
    assert extent[0] <= low < high <= extent[1]
    assert high - low >= min(LEAST_NS, extent[1] - extent[0])
    if by <= 1:  # nothing is clamped: the point stays to a ns
        point = window[0] + (window[1] - window[0]) * at
        assert low + (high - low) * at == pytest.approx(point, abs=2)


@given(windows(), windows(), st.floats(-5, 5))
def test_panning_keeps_the_width_and_stays_inside(window, extent, by):
    window = clamped(window, extent)
    low, high = panned(window, by, extent)
    assert high - low == window[1] - window[0]
    assert extent[0] <= low < high <= extent[1]


@given(windows(), windows(), windows())
def test_a_span_is_brought_into_view(window, span, extent):
    span = clamped(span, extent)
    window = clamped(window, extent)
    low, high = around(window, span, extent)
    assert low <= span[0] <= span[1] <= high
    assert 1 <= (high - low) / (span[1] - span[0]) <= 200 or (low, high) == extent


# -- one drawing at a time --------------------------------------------------------------


class Drawn:
    """Frames that wait to be let go, as drawing takes time."""

    def __init__(self) -> None:
        self.frames = 0
        self.go = threading.Semaphore(0)
        self.began = threading.Semaphore(0)

    def __call__(self) -> int:
        self.began.release()
        assert self.go.acquire(timeout=PATIENCE_S)
        self.frames += 1
        return self.frames


@pytest.fixture
def drawn():
    return Drawn()


@pytest.fixture
def scheduler(drawn):
    made = RedrawScheduler(drawn, failed=pytest.fail)
    yield made
    drawn.go.release(1000)
    made.close()


def test_what_is_asked_for_while_a_frame_is_drawn_becomes_one_frame(scheduler, drawn):
    scheduler.ask()
    assert drawn.began.acquire(timeout=PATIENCE_S)
    for _ in range(100):
        scheduler.ask()
    drawn.go.release(1000)
    assert scheduler.wait(PATIENCE_S)
    assert drawn.frames == 2


def test_once_a_browser_answers_one_frame_is_on_its_way_beside_the_one_being_painted(
    scheduler, drawn
):
    drawn.go.release(100)
    scheduler.ask()
    assert scheduler.wait(PATIENCE_S)
    scheduler.painted(1)
    for number in (1, 2, 3):
        assert drawn.began.acquire(timeout=PATIENCE_S), number
        if number < 3:
            scheduler.ask()
    for _ in range(5):
        scheduler.ask()
    assert not drawn.began.acquire(timeout=0.05), "a third frame was drawn"
    scheduler.painted(2)
    assert drawn.began.acquire(timeout=PATIENCE_S)


def test_frames_that_follow_each_other_are_drawn_by_one_thread():
    threads = []
    scheduler = RedrawScheduler(
        lambda: threads.append(threading.current_thread()), failed=pytest.fail
    )
    for _ in range(3):
        scheduler.ask()
        assert scheduler.wait(PATIENCE_S)
    scheduler.close()
    assert len(threads) == 3
    assert len(set(threads)) == 1
    assert not threads[0].is_alive()


def test_a_thread_with_nothing_to_draw_ends_and_another_follows(monkeypatch):
    monkeypatch.setattr("gpuscope.timeline.canvas.scheduler._LINGER_S", 0.001)
    threads = []
    scheduler = RedrawScheduler(
        lambda: threads.append(threading.current_thread()), failed=pytest.fail
    )
    for _ in range(2):
        scheduler.ask()
        assert scheduler.wait(PATIENCE_S)
        threads[-1].join(PATIENCE_S)
        assert not threads[-1].is_alive()
    assert len(threads) == 2
    scheduler.close()


def test_a_browser_that_went_away_holds_up_one_frame_only(drawn, monkeypatch):
    monkeypatch.setattr("gpuscope.timeline.canvas.scheduler.PATIENCE_S", 0.01)
    scheduler = RedrawScheduler(drawn, failed=pytest.fail)
    drawn.go.release(10)
    scheduler.painted(0)
    for _ in range(3):
        scheduler.ask()
        assert scheduler.wait(PATIENCE_S)
    assert drawn.frames == 3
    scheduler.close()


def test_what_cannot_be_drawn_is_told_and_drawing_goes_on():
    said: list[Exception] = []

    def draw() -> int:
        if not said:
            raise ValueError("no")
        return 1

    scheduler = RedrawScheduler(draw, failed=said.append)
    scheduler.ask()
    assert scheduler.wait(PATIENCE_S)
    scheduler.ask()
    assert scheduler.wait(PATIENCE_S)
    assert [str(one) for one in said] == ["no"]
    scheduler.close()


def test_a_period_passes_before_the_next_drawing_unless_it_is_closed():
    drawn: queue.Queue[int] = queue.Queue()
    scheduler = RedrawScheduler(lambda: drawn.put(1), failed=pytest.fail, period_s=1e6)
    scheduler.ask()
    assert drawn.get(timeout=PATIENCE_S)
    scheduler.ask()
    scheduler.close()
    assert drawn.empty()


def test_a_closed_painter_draws_no_more_and_leaves_no_thread(scheduler, drawn):
    drawn.go.release(10)
    scheduler.ask()
    scheduler.close()
    frames = drawn.frames
    scheduler.ask()
    assert drawn.frames == frames
    assert "gpuscope-paint" not in {thread.name for thread in threading.enumerate()}


# -- a timeline of a trace --------------------------------------------------------------

EVIL = "<script>alert(1)</script> %{x} $y$ \u202e"
PARTITIONS = {"decode": {"sm_count": 2, "sm_ids": [0, 1]}, "prefill": {"sm_count": 4}}


def step_trace(steps: int = 12, **metadata) -> Trace:
    """Steps of 100 µs: a range, a launch call in it, its kernel of 60 µs, blocks on two SMs."""
    rows: list[dict] = []
    edges: dict[str, list] = {"from": [], "to": [], "kind": []}

    def add(**row):
        rows.append({"id": 10 + len(rows), "process": 7, "source": "cupti", **row})
        return rows[-1]["id"]

    def link(first, then, kind):
        for name, value in (("from", first), ("to", then), ("kind", kind)):
            edges[name].append(value)

    before = None
    for step in range(steps):
        start = 1_000_000 + step * 100_000
        around = add(kind="range", name=f"step {step}", start_ns=start, end_ns=start + 100_000,
                     thread=7)  # fmt: skip
        call = add(kind="api", name="cudaLaunchKernel", start_ns=start + 1000, thread=7,
                   end_ns=start + 5000, parent=around)  # fmt: skip
        kernel = add(
            kind="kernel", name=EVIL if step == 3 else "gemm", start_ns=start + 10_000,
            end_ns=start + 70_000, partition="decode" if step % 2 else "prefill", device=0,
            stream=1 + step % 2, queued_ns=start + 5000, category="big" if step % 2 else "small",
        )  # fmt: skip
        link(call, kernel, "launch")
        if before is not None and step % 2:
            link(before, kernel, "event wait")
        before = kernel
        for sm in (0, 1):
            add(kind="block", name="gemm", start_ns=start + 11_000, end_ns=start + 60_000, sm=sm,
                device=0, partition="decode" if step % 2 else "prefill", parent=kernel)  # fmt: skip
    names = {name for row in rows for name in row}
    facts = {"devices": {"cuda:0": {"name": "NVIDIA H200", "index": 0, "sm_count": 4}},
             "partitions": PARTITIONS, "streams": {"1": {"name": "s1"}, "2": {"name": "s2"}},
             "windows_ns": [[1_000_000, 1_000_000 + steps * 100_000]], **metadata}  # fmt: skip
    return Trace.from_columns(
        {name: [row.get(name) for row in rows] for name in names}, edges, TraceMetadata(**facts)
    )


KERNELS = [12 + 5 * step for step in range(12)]
WHOLE = (1_000_000, 2_200_000)


@pytest.fixture
def shown():
    timeline = gs.Timeline(step_trace())
    yield timeline
    timeline.close()


@pytest.fixture
def sent(monkeypatch):
    """Messages that go to the browser's plot: properties of traces and of the layout."""
    seen: list[tuple[dict, dict]] = []
    send = Plot._send_update_msg

    def note(self, restyle_data, relayout_data, trace_indexes=None, source_view_id=None):
        seen.append((restyle_data, relayout_data))
        send(self, restyle_data, relayout_data, trace_indexes, source_view_id)

    monkeypatch.setattr(Plot, "_send_update_msg", note)
    return seen


def settle(timeline: gs.Timeline) -> None:
    assert timeline.wait(PATIENCE_S), "it is not drawn"


def test_a_frame_is_one_message_which_is_not_kept(shown, monkeypatch):
    settle(shown)
    messages = []
    monkeypatch.setattr(
        Plot, "_send", lambda _, message, buffers=None: messages.append((message, buffers))
    )
    shown.zoom(0.5)
    settle(shown)
    (frame, buffers), (after, none) = messages
    assert set(frame["state"]) == set(after["state"]) == {"_py2js_update"}
    assert frame["state"]["_py2js_update"]["layout_data"]["xaxis.range"]
    assert len(buffers) == len(frame["buffer_paths"])
    assert after["state"]["_py2js_update"] is None
    assert not none
    assert shown.figure.get_state("_py2js_update")["_py2js_update"] is None


def status(timeline: gs.Timeline) -> str:
    settle(timeline)
    assert not timeline.bar.state["problem"], timeline.bar.state["status"]
    return timeline.bar.state["status"]


def tell(timeline: gs.Timeline, do: str, **more) -> None:
    """As the toolbar's script does."""
    timeline.bar._handle_custom_msg({"do": do, **more}, [])


def drag_to(timeline: gs.Timeline, low_us: float, high_us: float) -> None:
    """As Plotly does when the plot was dragged."""
    moved = {"xaxis.range[0]": low_us, "xaxis.range[1]": high_us}
    timeline.figure.set_state({"_js2py_relayout": {"relayout_data": moved, "source_view_id": "1"}})


def until(condition, what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def bars(timeline: gs.Timeline) -> dict[str, int]:
    """Class → how many of its spans the last frame shows."""
    settle(timeline)
    scene, found = timeline.drawn.scene, Counter()
    colours = timeline.state.colours
    names = {kind: look(scene.tracks, kind, colours).name for kind in scene.tracks.classes}
    shown = {number for track in scene.shown for number in track.numbers}
    for (track, bar_class), group in scene.tracks.groups.items():
        if track in shown:
            count = scene.tracks.index.counts(scene.window_ns, [group])
            found[names[bar_class]] += int(count.sum())
    return dict(+found)


def test_it_shows_all_of_a_trace_at_first(shown):
    assert shown.window_ns == WHOLE
    assert status(shown) == "36 spans in view"
    assert bars(shown) == {"range": 12, "API call": 12, "prefill: kernel": 6, "decode: kernel": 6}
    assert shown.figure.layout.title.text == "<b>Timeline</b>"
    assert "measured on NVIDIA H200" in shown.figure.layout.title.subtitle.text


def test_a_notebook_gets_the_widget_and_a_picture_for_pages_without_scripts(shown):
    bundle = shown._repr_mimebundle_()
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == shown.model_id
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert repr(shown) == "<Timeline, 60 rows>"


def test_a_page_that_opens_later_gets_what_was_drawn(shown):
    settle(shown)
    state = shown.figure.get_state()
    assert {one["name"] for one in state["_widget_data"]} >= {"decode: kernel", "prefill: kernel"}
    assert state["_widget_layout"]["xaxis"]["range"] == [0.0, 1200.0]


def test_every_trait_says_what_it_is():
    source = Path(inspect.getfile(TimelineView)).read_text()
    for name in TimelineView.class_own_traits():
        assert re.search(rf'    {name} = traitlets\..*\n    """', source), name


def test_the_scripts_put_text_into_the_page_and_never_html():
    for file in (Path(inspect.getfile(TimelineView)).parent / "static").glob("*.js"):
        assert not re.search("innerHTML|outerHTML|insertAdjacent|document.write", file.read_text())


def test_what_was_drawn_while_a_page_opened_is_sent_again(shown, sent):
    settle(shown)
    shown._repr_mimebundle_()
    tell(shown, "opened")
    settle(shown)
    assert not sent, "it has that from the state"
    shown.window_ns = (1_100_000, 1_300_000)  # the page is still reading Plotly
    settle(shown)
    tell(shown, "opened")
    settle(shown)
    restyle, relayout = sent[-1]
    assert relayout["xaxis.range"] == [100, 300]
    assert "marker" in restyle


def test_zoom_and_pan_move_the_view(shown):
    shown.zoom(0.5)
    assert shown.window_ns == (1_300_000, 1_900_000)
    shown.zoom(0.5, at=0)
    assert shown.window_ns == (1_300_000, 1_600_000)
    shown.pan(0.5)
    assert shown.window_ns == (1_450_000, 1_750_000)
    assert status(shown).startswith("11 spans in view")
    shown.pan(100)
    assert shown.window_ns == (1_900_000, 2_200_000)
    shown.fit()
    assert shown.window_ns == WHOLE


def test_the_view_can_be_set_and_must_not_be_empty(shown, sent):
    shown.window_ns = (1_500_000, 1_600_000)
    settle(shown)
    assert sent[-1][1]["xaxis.range"] == [500.0, 600.0]
    with pytest.raises(traitlets.TraitError, match="ends at 5 ns, not after its start at 5 ns"):
        shown.window_ns = (5, 5)
    assert shown.window_ns == (1_500_000, 1_600_000)


def test_a_drag_in_the_plot_is_answered_with_what_is_there_now(shown, sent):
    settle(shown)
    drag_to(shown, 300, 700)
    assert shown.window_ns == (1_300_000, 1_700_000)
    settle(shown)
    assert tuple(shown.figure.layout.xaxis.range) == (300.0, 700.0)
    tell(shown, "range", low=400, high=800)  # told before Plotly does
    settle(shown)
    count = len(sent)
    drag_to(shown, 400, 800)
    settle(shown)
    assert len(sent) == count, "one drag was drawn twice"


def test_a_drag_to_where_nothing_is_comes_back(shown, sent):
    shown.window_ns = (1_000_000, 1_400_000)
    settle(shown)
    drag_to(shown, -300, 100)
    assert shown.window_ns == (1_000_000, 1_400_000)
    settle(shown)
    assert sent[-1][1]["xaxis.range"] == [0.0, 400.0]  # though the window stayed what it was


def test_what_changes_nothing_sends_nothing(shown, sent):
    settle(shown)
    frame = shown.bar.frame
    shown.window_ns = WHOLE
    tell(shown, "theme", dark=False)
    tell(shown, "size", pixels=880)
    settle(shown)
    assert not sent
    assert shown.bar.frame == frame


def test_a_frame_is_no_larger_for_a_larger_trace(sent):
    small, large = step_trace(2_000), step_trace(20_000)
    sizes = []
    for trace in (small, large):
        timeline = gs.Timeline(trace)
        settle(timeline)
        (restyle, _) = sent[-1]
        drawn = [value for value in restyle["x"] if value is not Undefined]
        assert max(len(value) for value in drawn) <= 3, "Plotly draws no bars"
        assert "narrow ones as columns" in status(timeline)
        scene = timeline.bar.scene
        sizes.append(len(repr(scene["root"]["names"])) + len(scene["root"]["data"]))
        timeline.close()
    assert sizes[1] < 1.3 * sizes[0]
    assert sizes[1] < 250_000


def test_names_are_searched_without_regard_to_case_and_workloads_too(shown):
    assert shown.find("GEMM") == 11
    assert shown.find("big") == 6  # the workload of every second kernel
    assert shown.find("step 1") == 3
    assert [shown.next(), shown.next(), shown.next(), shown.next()] == [15, 60, 65, 15]
    assert shown.previous() == 65
    settle(shown)
    assert shown.bar.state["match"] == 3
    assert shown.find("nothing of the kind") == 0
    assert shown.next() is None
    assert shown.find("") == 0


def test_the_next_match_is_the_first_from_the_view_on(shown):
    shown.find("step")
    shown.window_ns = (1_500_000, 1_600_000)
    assert shown.next() == 10 + 25
    shown.find("step")
    assert shown.previous() == 10 + 20


def test_calls_are_found_after_what_they_launched():
    kinds = ["api", "kernel", "api", "kernel"]
    trace = Trace.from_columns({
        "id": [1, 2, 3, 4], "kind": kinds, "name": ["gemm"] * 4, "source": ["cupti"] * 4,
        "start_ns": [0, 100, 200, 300], "end_ns": [50, 150, 250, 350], "stream": [None, 7, None, 7],
    })  # fmt: skip
    timeline = gs.Timeline(trace)
    timeline.find("gemm")
    assert [timeline.next() for _ in range(5)] == [2, 4, 1, 3, 2]
    timeline.show(trace.where(kind="api"))
    timeline.find("gemm")
    assert [timeline.next() for _ in range(3)] == [1, 3, 1]
    timeline.close()


def test_a_match_is_brought_into_view(shown):
    shown.window_ns = (1_000_000, 1_050_000)
    shown.find("step 7")
    shown.next()
    low, high = shown.window_ns
    assert low <= 1_700_000
    assert high >= 1_800_000


def test_a_selected_span_shows_all_that_is_known_of_it(shown):
    shown.select(KERNELS[5])
    assert shown.selected == KERNELS[5]
    until(lambda: shown.details.facts["why"], "no explanation")
    facts = shown.details.facts
    assert facts["title"] == "gemm"
    assert facts["subtitle"] == (
        "kernel · 60 µs · starts at 510.0 µs · partition decode (2 SMs), stream s2"
    )
    trace = step_trace()
    span = int(trace.array("id")[KERNELS[5]])
    assert facts["why"] == str(gs.telling.explain(trace, span))
    assert ["launched by", "api cudaLaunchKernel, 4 µs", "36"] in facts["related"]
    assert ["in", "range step 5, 100 µs", "35"] in facts["related"]
    assert ["follows (event wait)", "kernel gemm, 60 µs", "32"] in facts["related"]
    assert ["queued_ns", "1505000"] in facts["columns"]
    assert not any(name == "graph" for name, _ in facts["columns"])
    assert "selected: gemm, kernel" in status(shown)
    shown.select(None)
    assert shown.details.facts is None


@pytest.mark.parametrize(
    "windows_ns", [[], [[1_600_000_000_000_000_100, 1_600_000_000_009_000_000]]]
)
def test_details_say_when_a_span_starts_on_the_timelines_axis_to_a_tenth_of_a_us(windows_ns):
    first_ns = 1_600_000_000_000_000_000
    trace = Trace.from_columns(
        {"id": [1, 2], "kind": ["range", "range"], "name": ["a", "b"], "source": ["host", "host"],
         "start_ns": [first_ns, first_ns + 1_417_023_400], "end_ns": [first_ns + 9, None]},
        None, TraceMetadata(windows_ns=windows_ns),
    )  # fmt: skip
    assert "starts at 1,417,023.4 µs" in describe(trace, 1)["subtitle"]


def test_details_have_the_recorded_name_below_the_one_that_a_person_knows():
    recorded = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int)"
    )
    trace = Trace.from_columns(
        {"id": [1], "kind": ["kernel"], "name": [recorded], "source": ["cupti"], "stream": [9],
         "start_ns": [5], "end_ns": [9]},
        None, TraceMetadata(streams={"9": {"name": "stream 7 of context 1"}}),
    )  # fmt: skip
    facts = describe(trace, 0)
    assert facts["title"] == "vectorized fill (float32)"
    assert "PyTorch's default stream" in facts["subtitle"]
    assert ["name", recorded] in facts["columns"]


def test_what_a_selected_span_depends_on_is_highlighted(shown):
    shown.select(KERNELS[5])
    settle(shown)
    links = next(one for one in shown.figure.data if one.name == "links")
    assert list(links.x) == [505.0, 510.0, None, 470.0, 510.0, None]  # its call, and what it waited
    outlines = next(one for one in shown.figure.data if one.name == "selected")
    assert len(outlines.x) == 3 * 6


def test_a_span_that_is_not_there_is_an_error_that_names_it(shown):
    with pytest.raises(MissingEvidence, match="no row 999 is shown"):
        shown.select(999)
    tell(shown, "select", span="999")
    assert "no row 999" in shown.bar.state["status"]
    assert shown.bar.state["problem"]


def track_centre(timeline: gs.Timeline, label: str) -> float:
    settle(timeline)
    axis = timeline.figure.layout.yaxis
    place = list(axis.ticktext).index(label)
    return axis.tickvals[place] / axis.range[0]


def test_a_click_selects_the_span_under_it(shown):
    y = track_centre(shown, "decode (2 SMs) · s2")
    tell(shown, "click", x=0.45, y=y)  # 1,540 µs: kernel of step 5
    assert shown.selected == KERNELS[5]
    assert shown.window_ns == WHOLE
    tell(shown, "click", x=0.49, y=y)  # nothing ran there
    assert shown.selected is None


def test_a_click_on_a_column_selects_what_is_there():
    timeline = gs.Timeline(step_trace(3_000))
    y = track_centre(timeline, "decode (2 SMs) · s2")
    drawn = set(timeline.drawn.scene.rows.tolist())
    row = next(row for row in range(len(timeline.state.tracks)) if row not in drawn
               and timeline.state.tracks.track[row] >= 0
               and int(timeline.state.tracks.ids[row]) % 10 == 7)  # fmt: skip
    start = int(timeline.state.tracks.start_ns[row])
    tell(timeline, "click", x=(start + 30_000 - 1_000_000) / 3e8, y=y)
    assert timeline.selected is not None
    chosen = timeline.state.row(timeline.selected)
    assert abs(int(timeline.state.tracks.start_ns[chosen]) - start) <= 1_000_000
    timeline.close()


def test_the_arrow_keys_go_from_span_to_span(shown):
    tell(shown, "step", along=1, across=0)
    first = shown.selected  # the first call in view: a kernel of the first row
    assert [shown.step(1), shown.step(1), shown.step(-1)] == [first + 10, first + 20, first + 10]
    assert shown.step(across=-1) is None  # there is no track above
    assert shown.step(across=1) == first + 5
    assert "host, 2 rows" in shown.figure.layout.yaxis.ticktext[2]
    assert shown.step(across=1) in (first + 4, first + 6)
    assert shown.step(across=1) is None


def test_two_clicks_measure_and_hold_on_to_edges(shown):
    tell(shown, "measure")
    assert shown.bar.state["measuring"] or shown.wait(PATIENCE_S)
    assert "click the first point" in status(shown)
    y = track_centre(shown, "decode (2 SMs) · s2")
    tell(shown, "click", x=0.0915, y=y)  # next to the edge at 1,110 µs
    assert "click the second point" in status(shown)
    tell(shown, "click", x=0.8, y=y)
    assert shown.selected is None
    assert shown.measured_ns == 1_960_000 - 1_110_000
    assert "850 µs between the two points" in status(shown)
    assert not shown.bar.state["measuring"]
    tell(shown, "clear")
    assert shown.measured_ns is None
    assert shown.measure(1_000_000, 1_250_000) == 250_000


def test_tracks_can_be_hidden(shown):
    labels = [label for label, _ in shown.bar.state["tracks"]]
    assert labels == ["decode (2 SMs) · s2", "prefill (4 SMs) · s1", "ranges", "API calls"]
    tell(shown, "hide", track="API calls", hidden=True)
    assert shown.hidden == ("API calls",)
    assert bars(shown) == {"range": 12, "prefill: kernel": 6, "decode: kernel": 6}
    tell(shown, "host")
    settle(shown)
    ticks = list(shown.figure.layout.yaxis.ticktext)
    assert ticks == [*labels[:3], *["calls, by cause"] * 2]
    assert status(shown) == "24 spans in view"
    tell(shown, "hide", track="API calls", hidden=False)
    assert bars(shown)["API call"] == 12


def test_of_many_tracks_the_busiest_are_shown_and_listed_and_the_rest_is_counted():
    count = LISTED + 50
    columns = {
        "id": list(range(count)), "kind": ["kernel"] * count, "name": ["k"] * count,
        "stream": list(range(count)), "start_ns": [0] * count, "source": ["cupti"] * count,
        "end_ns": [1000 + n for n in range(count)],
    }  # fmt: skip
    shown = gs.Timeline(Trace.from_columns(columns))
    try:
        settle(shown)
        tracks = shown.bar.state["tracks"]
        assert [label for label, _ in tracks] == [
            f"whole GPU · stream {n}" for n in range(50, count)
        ]
        assert f"{count - MAX_TRACKS} less busy tracks not shown" in status(shown)
        shown.hidden = ("whole GPU · stream 3",)
        settle(shown)
        assert shown.bar.state["tracks"][-1] == ("whole GPU · stream 3", False)
    finally:
        shown.close()


def test_the_sms_can_be_shown_on_the_same_time_axis(shown):
    assert shown.bar.state["sms"] is False
    height = shown.figure.layout.height
    shown.sms = True
    settle(shown)
    layout = shown.figure._layout
    assert [one["yref"] for one in layout["images"]] == ["y2"]
    assert layout["yaxis2"]["range"] == [4, 0]
    assert layout["xaxis"]["anchor"] == "y2"
    assert layout["yaxis"]["domain"][0] > layout["yaxis2"]["domain"][1]
    assert layout["height"] == height
    shown.sms = False
    settle(shown)
    assert shown.figure._layout["images"] == []
    assert shown.figure._layout["yaxis"]["domain"] == [0, 1]


def test_without_thread_blocks_no_sms_are_offered():
    timeline = gs.Timeline(step_trace().where(kind=("kernel", "range")))
    assert timeline.bar.state["sms"] is None
    timeline.sms = True
    assert "spans in view" in status(timeline)
    timeline.close()


def test_it_follows_the_theme_of_the_page(shown, sent):
    tell(shown, "theme", dark=True)
    settle(shown)
    assert shown.bar.state["dark"]
    assert sent[-1][1]["font.color"] == DARK.ink
    assert shown.figure.layout.paper_bgcolor == "rgba(0,0,0,0)"  # the page's own


def test_foreign_names_are_text(shown):
    settle(shown)
    names = shown.bar.scene["root"]["names"]
    assert any(name.startswith("<script>") for name in names), "the page shows it as text"
    assert not any("\u202e" in name for name in names)
    exported = shown.figure.to_dict()["data"]
    texts = [text for one in exported if one["type"] == "bar" for text in one["hovertext"]]
    assert any("&lt;script&gt;" in text for text in texts)
    assert not any("<script" in text or "\u202e" in text for text in texts)
    shown.select(KERNELS[3])
    assert shown.details.facts["title"].startswith("<script>alert(1)</script>")  # shown as text
    assert "\u202e" not in shown.details.facts["title"]


@pytest.mark.parametrize(
    "message", [{}, {"do": "fly"}, {"do": "zoom"}, {"do": "zoom", "by": "x"}, {"do": "click"}]
)
def test_a_message_that_is_none_of_ours_does_no_harm(shown, message):
    shown.bar._handle_custom_msg(message, [])
    assert shown.bar.state["problem"]
    shown.zoom(0.5)
    assert "spans in view" in status(shown)


def test_what_cannot_be_drawn_is_said_in_the_status_line(shown, monkeypatch):
    settle(shown)

    def fail(*_):
        raise ValueError("no ink")

    with monkeypatch.context() as patch:
        patch.setattr("gpuscope.widgets.view.compose_frame", fail)
        shown.zoom(0.5)
        settle(shown)
    assert shown.bar.state["status"] == "ValueError: no ink"
    shown.zoom(0.5)
    assert "spans in view" in status(shown)


def test_another_trace_can_be_shown_in_the_same_plot(shown):
    settle(shown)
    count = len(shown.figure.data)
    shown.find("step")
    shown.select(KERNELS[1])
    shown.show(step_trace(3).where(kind=("kernel", "api")))
    assert bars(shown) == {"API call": 3, "prefill: kernel": 2, "decode: kernel": 1}
    assert (shown.selected, shown.search, shown.matches) == (None, "", 0)
    assert len(shown.figure.data) == count
    assert shown.window_ns == (1_001_000, 1_270_000)


def test_an_empty_trace_says_so():
    timeline = gs.Timeline(Trace.from_columns({}))
    assert status(timeline) == "0 spans in view"
    assert timeline.figure.layout.annotations[0].text == "no spans to draw here"
    assert timeline.step(1) is None
    timeline.fit()
    timeline.close()


# -- a recording that goes on -----------------------------------------------------------


@pytest.fixture
def gpu():
    return gs.open_device("sim:h200", quiet=True)


def launch(gpu, stream, count: int = 1) -> None:
    work = Spin(gpu, duration_ns=50_000, name="work")
    for number in range(count):
        with gs.annotate(f"step {number}"):
            work.execute(stream=stream)
    work.wait()


def rows(timeline: gs.Timeline) -> int:
    return len(timeline.state.tracks)


def live_threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "gpuscope-live"]


def test_rows_and_ranges_of_a_recording_arrive_while_it_goes_on(gpu):
    timeline = gs.Timeline()
    with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
        timeline.watch(recording)
        assert timeline.bar.state["live"] or timeline.wait(PATIENCE_S)
        launch(gpu, stream, 5)
        until(lambda: timeline.find("step") == 5, "ranges do not arrive")
        until(lambda: bars(timeline).get("stream s: kernel") == 5, "kernels are not drawn")
        assert "live (SIMULATED)" in timeline.figure.layout.title.text
        assert timeline.follow
        high = timeline.window_ns[1]
        assert high == timeline.state.extent_ns[1]
        launch(gpu, stream, 5)
        until(lambda: timeline.find("step") == 10, "later ranges do not arrive")
        assert timeline.window_ns[1] > high
    timeline.finish()
    assert not live_threads()
    assert rows(timeline) == len(recording.trace)
    assert not timeline.follow
    assert "all" not in status(timeline)
    assert not timeline.bar.state["live"]
    assert timeline.figure.layout.title.text == "<b>Timeline (SIMULATED)</b>"
    timeline.close()


def test_a_range_that_the_page_was_told_to_show_is_no_move_of_the_users(gpu):
    """Where the page puts ticks, Plotly tells of the range that the kernel had sent before."""
    timeline = gs.Timeline()
    with gs.profile(gpu) as recording:
        timeline.watch(recording)
        settle(timeline)
        told = list(timeline.figure.layout.xaxis.range)
        low, high = timeline.window_ns
        drag_to(timeline, *told)
        assert timeline.follow
        assert timeline.window_ns == (low, high)
        timeline.finish()
    timeline.close()


def test_panning_back_stands_still_and_follow_goes_on(gpu):
    timeline = gs.Timeline(followed_ns=200_000)
    with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
        timeline.watch(recording)
        launch(gpu, stream, 20)
        until(lambda: timeline.find("step") == 20, "ranges do not arrive")
        timeline.pan(-0.5)
        assert not timeline.follow
        here, before = timeline.window_ns, rows(timeline)
        launch(gpu, stream, 20)
        until(lambda: rows(timeline) > before, "no more rows arrive")
        assert timeline.window_ns == here
        tell(timeline, "follow", on=True)
        assert timeline.window_ns[1] == timeline.state.extent_ns[1]
        drag_to(timeline, 0, 100)
        assert not timeline.follow
        timeline.follow = True
        timeline.zoom(0.5)  # keeps the newest in view
        assert timeline.follow
        assert timeline.window_ns[1] == timeline.state.extent_ns[1]
    timeline.close()


def test_a_frame_on_its_way_does_not_say_that_following_has_ended(gpu, monkeypatch):
    timeline = gs.Timeline()
    draw, drawing, go_on = timeline.figure.draw, threading.Event(), threading.Event()

    def slowly(*frame):
        drawing.set()
        assert go_on.wait(PATIENCE_S)
        draw(*frame)

    said = []
    with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
        timeline.watch(recording)
        launch(gpu, stream, 5)
        until(lambda: timeline.find("step") == 5, "ranges do not arrive")
        settle(timeline)
        monkeypatch.setattr(timeline.figure, "draw", slowly)
        timeline.bar.observe(
            lambda change: said.append(
                (change["new"]["follow"], tuple(timeline.figure.layout.xaxis.range))
            ),
            "state",
        )
        timeline.window_ns = widened(timeline.window_ns, 1)
        assert drawing.wait(PATIENCE_S)
        timeline.pan(-0.5)
        go_on.set()
        settle(timeline)
        until(lambda: not timeline.bar.state["follow"], "the button stays pressed")
        ended = tuple(timeline.figure.layout.xaxis.range)
    assert {where for follows, where in said if not follows} == {ended}
    timeline.close()


def test_while_the_plot_is_held_no_frame_takes_it_out_of_the_hand(gpu):
    timeline = gs.Timeline()
    with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
        timeline.watch(recording)
        tell(timeline, "hold", on=True)
        settle(timeline)
        frame = timeline.bar.frame
        launch(gpu, stream, 5)
        until(lambda: timeline.find("step") == 5, "ranges do not arrive")
        settle(timeline)
        assert timeline.bar.frame <= frame + 1  # the search's own
        tell(timeline, "click", x=0.5, y=2, released=True)
        launch(gpu, stream, 1)
        until(lambda: timeline.bar.frame > frame + 1, "it stands still for ever")
    timeline.close()


def test_a_span_can_be_selected_while_the_recording_goes_on_and_stays_so(gpu):
    timeline = gs.Timeline()
    with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
        timeline.watch(recording)
        launch(gpu, stream, 3)
        until(lambda: timeline.find("step 1") == 1, "ranges do not arrive")
        span = timeline.next()
        assert timeline.details.facts["title"] == "step 1"
        timeline.measure(*timeline.window_ns)
        launch(gpu, stream, 3)
    timeline.finish()
    assert timeline.selected == span
    assert timeline.details.facts["title"] == "step 1"
    assert timeline.measured_ns is not None
    assert timeline.matches == 2
    timeline.close()


def test_closing_ends_its_threads_and_the_recording_goes_on(gpu):
    before_s = sys.getswitchinterval()
    with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
        timeline = gs.Timeline(recording)
        other = gs.Timeline(recording)
        assert live_threads()
        until(lambda: sys.getswitchinterval() < before_s, "frames wait for a busy cell")
        timeline.close()
        assert sys.getswitchinterval() < before_s
        other.close()
        assert not live_threads()
        assert sys.getswitchinterval() == before_s
        launch(gpu, stream, 2)
    assert recording.trace.kind_counts()["kernel"] == 2


def test_a_recording_that_ended_is_shown_whole_without_being_told(gpu):
    with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
        timeline = gs.Timeline(recording)
        launch(gpu, stream, 4)
    until(lambda: rows(timeline) == len(recording.trace) and not live_threads(), "not shown")
    assert timeline.window_ns == timeline.state.extent_ns, "the end of what was followed is empty"
    assert "0 spans" not in status(timeline)
    timeline.close()


def test_profile_live_shows_a_view_of_ones_own(gpu):
    told: list[tuple[str, object]] = []

    class View:
        def watch(self, recording):
            told.append(("watch", recording))

        def finish(self):
            told.append(("finish", told[0][1].trace))  # it has ended by now

    with pytest.raises(ZeroDivisionError), gs.profile(gpu, live=View) as recording:
        assert told == [("watch", recording)]
        1 / 0  # noqa: B018
    assert told == [("watch", recording), ("finish", recording.trace)]


def test_profile_live_shows_a_timeline_that_stays(gpu, monkeypatch, capsys):
    made: list[gs.Timeline] = []
    start = gs.Timeline.watch
    monkeypatch.setattr(
        gs.Timeline, "watch", lambda self, recording: (made.append(self), start(self, recording))
    )
    with gpu.create_stream(name="s") as stream, gs.profile(gpu, live=True) as recording:
        launch(gpu, stream, 4)
    (timeline,) = made
    assert "<Timeline" in capsys.readouterr().out  # as plain Python displays things
    assert rows(timeline) == len(recording.trace)
    assert bars(timeline)["stream s: kernel"] == 4
    assert not live_threads()
    timeline.close()


@pytest.mark.parametrize("live", [False, True])
def test_a_closed_timeline_is_forgotten_with_its_trace(gpu, live):
    with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
        timeline = gs.Timeline(recording) if live else None
        launch(gpu, stream, 4)
    trace = recording.trace
    timeline = timeline or gs.Timeline(trace)
    timeline.find("gemm")
    timeline.next()
    settle(timeline)
    kept = [weakref.ref(one) for one in (timeline, timeline.figure, timeline.state, trace)]
    timeline.close()
    del timeline, recording, trace, stream
    assert_collected(kept)


def test_no_widget_has_a_script_or_style_that_keeps_it():
    """anywidget has a file's contents call each widget, for ever, when they change."""
    for module in pkgutil.walk_packages(gs.__path__, "gpuscope."):
        if module.name.startswith(("gpuscope.widgets", "gpuscope_lessons")):
            importlib.import_module(module.name)
    widgets = set(below(anywidget.AnyWidget))
    assert {Plot, Bar, Details, Question} <= widgets
    for widget in widgets:
        if widget.__module__.startswith("gpuscope."):
            for name in ("_esm", "_css"):
                value = getattr(widget, name, "")  # a trait once there was an instance
                assert isinstance(value, str | traitlets.Unicode), (widget, name)


def below(base: type) -> Iterator[type]:
    for one in base.__subclasses__():
        yield one
        yield from below(one)


def assert_collected(kept: list[weakref.ref[Any]]) -> None:
    for thread in threading.enumerate():
        if thread.name == "gpuscope-explain":  # it has the trace in hand until it has explained
            thread.join()
    gc.collect()
    assert [one() for one in kept] == [None] * len(kept)


# -- Plotly's script ----------------------------------------------------------------------


def test_plotly_sets_up_bars_at_once_and_the_rest_when_idle():
    whole, ours = str(go.FigureWidget._esm), PLOTLY_SCRIPT
    register = re.compile(r"\.register\(\[[\w$]+\(\)\]\),\(\(plotly, kinds\)")
    assert len(register.findall(ours)) == 1, "Plotly's script is put together in another way"
    later = re.search(r"\}\)\(\w+,\[([\w$,]+)\]\)", ours[register.search(ours).start() :])[1]
    listed = re.search(r"\.register\(\[([^]]+)\]\)", whole[whole.rindex('"lib/index.js"') :])[1]
    assert later.split(",") == listed.replace("()", "").split(",")[1:]


def test_a_script_that_is_put_together_in_another_way_stays_as_it_is():
    other = 'x=({"lib/index.js"(e,r){t.register([a(),b()]),r.exports=t}})'
    assert _bars_first(other) == other
    assert _bars_first("") == ""
