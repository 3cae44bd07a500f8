"""Figures: what is drawn, in which order, what is left out and said, and foreign names."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import plotly.graph_objects as go
import pytest
from PIL import Image

from gpuscope import figures
from gpuscope.errors import MissingEvidence
from gpuscope.timeline import style
from gpuscope.timeline.labels import MAX_TRACKS
from gpuscope.timeline.scene import LANES
from gpuscope.timeline.text import clean, duration, escape
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace

EVIL = "<script>alert(1)</script><a href='javascript:f()'>x</a> \u202eg\x00np\u2066 $\\href{y}{z}$"
LONE = EVIL + "\ud800"
"""Arrow takes no lone surrogate, but metadata and arguments do."""
RAW = ("<script", "<a ", "\u202e", "\u2066", "\x00", "\\u202e", "\\u2066", "\\ud800", "$")


def build(rows, edges=(), **metadata):
    """Build a trace from dicts; ids are positions."""
    rows = [{"id": index, "source": "cupti", "name": "k", **row} for index, row in enumerate(rows)]
    names = {name for row in rows for name in row}
    columns = {name: [row.get(name) for row in rows] for name in names}
    ends = {
        "from": [edge[0] for edge in edges],
        "to": [edge[1] for edge in edges],
        "kind": [edge[2] if len(edge) > 2 else "event wait" for edge in edges],
    }
    metadata.setdefault("devices", {"cuda:0": {"name": "NVIDIA H200", "index": 0}})
    return Trace.from_columns(columns, ends if edges else None, TraceMetadata(**metadata))


def kernel(start, end, stream=1, partition=None, **more):
    return {
        "kind": "kernel", "start_ns": start, "end_ns": end, "stream": stream,
        "partition": partition, "device": 0, **more,
    }  # fmt: skip


def spans(figure):
    return [one for one in figure.data if one.type == "bar"]


def fills(figure):
    """The columns of each class on each track."""
    return [one for one in figure.data if getattr(one, "fill", None) == "tonexty"]


def count(figure):
    return sum(len(one.y) for one in spans(figure))


def widths(figure):
    return sorted((float(x) for one in spans(figure) for x in one.x), reverse=True)


def said(bar, index):
    """What a browser shows of a bar: its text in the template of its class."""
    text = bar.hovertemplate.replace("%{hovertext}", bar.hovertext[index])
    return text.replace("%{base:,.3f}", f"{bar.base[index]:,.3f}")


def hovers(figure):
    return [said(one, index) for one in spans(figure) for index in range(len(one.y))]


def words(figure):
    """All text of title, subtitle and annotations."""
    title = figure.layout.title
    return " ".join(
        [title.text, title.subtitle.text, *(one.text or "" for one in figure.layout.annotations)]
    )


def labels(figure):
    return list(figure.layout.yaxis.ticktext)


def bar_of(figure, text):
    for one in spans(figure):
        for index in range(len(one.y)):
            if text in said(one, index):
                return one, index
    raise AssertionError(f"no bar says {text!r}")


def arrows(figure):
    """Start, end, and the heights of both, of each arrow."""
    found = []
    for one in figure.data:
        if one.name == "event wait":
            assert one.marker.symbol == "arrow"
            assert one.marker.angleref == "previous"
            assert list(one.marker.size[1::3]) == [9] * (len(one.x) // 3)
            found += zip(one.x[::3], one.x[1::3], one.y[::3], one.y[1::3], strict=True)
    return found


def pixels(figure):
    """The picture under the bars, as rows of RGBA."""
    (one,) = figure.layout.images
    data = base64.b64decode(one.source.removeprefix("data:image/png;base64,"))
    return one, np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))


@pytest.fixture
def mixed():
    host = {"process": 5, "thread": 9}
    return build(
        [
            kernel(100, 900, 2, "prefill"),
            kernel(200, 300, 1, "decode", intended_partition="prefill"),
            {"kind": "memcpy", "start_ns": 50, "end_ns": 90, "stream": 3, "device": 0},
            {"kind": "sync", "start_ns": 300, "end_ns": 800, **host},
            {"kind": "api", "start_ns": 20, "end_ns": 30, **host},
            {"kind": "handle", "start_ns": 10, "end_ns": 400, "category": "small", **host},
            {"kind": "range", "name": "step", "start_ns": 0, "end_ns": 1000, **host},
            {"kind": "range", "name": "inner", "start_ns": 10, "end_ns": 500, **host},
            {"kind": "mark", "name": "here", "start_ns": 600, **host},
        ],
        partitions={"decode": {"granted": 16}, "prefill": {"granted": 116}},
        streams={"1": {"name": "d0"}, "2": {"name": "p0"}, "3": {"name": "copies"}},
    )


def test_tracks_stand_in_order_streams_above_the_host(mixed):
    figure = figures.timeline(mixed, host=True)
    assert labels(figure) == [
        "decode (16 SMs) · d0", "prefill (116 SMs) · p0", "whole GPU · copies",
        "ranges", "handle small", "API calls", "synchronisation",
    ]  # fmt: skip
    folded = figures.timeline(mixed)
    assert labels(folded) == [*labels(figure)[:3], "▸ host, 4 rows"]
    places = list(figure.layout.yaxis.tickvals)
    assert places == sorted(places)
    low, high = figure.layout.yaxis.range
    assert low > high, "the first track stands on top"


def test_each_thread_and_process_has_rows_of_its_own():
    figure = figures.timeline(
        build(
            [
                {"kind": "range", "start_ns": 0, "end_ns": 9, "process": 1, "thread": 1},
                {"kind": "api", "start_ns": 0, "end_ns": 9, "process": 1, "thread": 2},
                {"kind": "range", "start_ns": 0, "end_ns": 9, "process": 2, "thread": 3},
                kernel(0, 9, process=2),
            ],
            thread_names={"1": "MainThread"},
            process_names={"2": "worker"},
        ),
        host=True,
    )
    assert labels(figure) == [
        "ranges · main thread", "API calls · thread 2 of 2", "whole GPU · stream 1",
        "ranges · thread 1 of 1",
    ]  # fmt: skip
    assert "process 1" in words(figure)
    assert "process worker" in words(figure)


def test_a_kernel_that_names_no_process_belongs_to_the_only_one(mixed):
    assert "process" not in words(figures.timeline(mixed))


def test_nested_ranges_do_not_hide_each_other(mixed):
    figure = figures.timeline(mixed, host=True)
    outer, first = bar_of(figure, "<b>step</b>")
    inner, second = bar_of(figure, "<b>inner</b>")
    assert outer.y[first] < inner.y[second]
    assert inner.y[second] - outer.y[first] >= inner.width[second]


def test_more_spans_at_once_than_lines_is_said():
    figure = figures.timeline(build([kernel(index, 100 + index) for index in range(LANES + 2)]))
    assert f"more than {LANES} at once share a line" in words(figure)
    assert count(figure) == LANES + 2


def test_partition_is_colour_and_also_words(mixed):
    figure = figures.timeline(mixed)
    decode, _ = bar_of(figure, "partition decode (16 SMs)")
    prefill, _ = bar_of(figure, "partition prefill (116 SMs)")
    assert decode.marker.color != prefill.marker.color
    assert decode.name == "<b>ESCAPED</b> to decode: kernel"
    assert decode.marker.color == style.ESCAPED != prefill.marker.color
    assert prefill.name == "prefill: kernel"


def test_bars_have_one_plain_colour_a_class_and_travel_as_float64(mixed):
    for one in spans(figures.timeline(mixed)):
        assert isinstance(one.marker.color, str)
        assert one.marker.colorscale is None
        assert one.orientation == "h"
        assert one.x.dtype == np.float64
        assert len(one.base) == len(one.x) == len(one.y)
    assert not any(one.type == "scattergl" for one in figures.timeline(mixed).data)


def test_times_are_relative_to_the_window_in_a_unit_that_suits_it():
    start = 1_700_000_000_000_000_000
    trace = build([kernel(start + 1_000, start + 3_500), kernel(start, start + 500)])
    figure = figures.timeline(trace)
    bar, index = bar_of(figure, "2.5 µs")
    assert (bar.base[index], bar.x[index]) == (1.0, 2.5)
    assert "(µs)" in figure.layout.xaxis.title.text
    longer = figures.timeline(trace, window_ns=(start, start + 50_000_000))
    assert "(ms)" in longer.layout.xaxis.title.text
    assert tuple(longer.layout.xaxis.range) == (0, 50)


def test_a_track_draws_all_of_its_spans_or_columns_and_that_is_said():
    rows = [kernel(1000 * index, 1000 * index + 1 + 2 * index) for index in range(300)]
    everything = figures.timeline(build(rows), window_ns=(200_000, 300_000))
    assert count(everything) == 100
    assert "all 100 spans" in words(everything)
    assert not fills(everything)
    rows += [kernel(0, 100_000, 2), kernel(200_000, 300_000, 2)]
    for figure in (
        figures.timeline(build(rows)),  # half of stream 1's are narrower than 3 px
        figures.timeline(build(rows), window_ns=(200_000, 300_000), max_spans=50),
    ):
        assert count(figure) == len(spans(figure)[0].y) < 3
        assert len(fills(figure)) == 1
    assert "2 of 302 spans drawn as themselves" in words(figures.timeline(build(rows)))
    assert "drawn in columns of 300 ns" in words(figures.timeline(build(rows)))


def test_instants_in_columns_still_show():
    marks = [
        {"kind": "mark", "start_ns": 1000 * at, "process": 1, "thread": 1} for at in range(500)
    ]
    figure = figures.timeline(build(marks))
    (mark,) = [one for one in fills(figure) if one.name == "mark"]
    line = figure.data[figure.data.index(mark) - 1]
    assert np.count_nonzero(np.array(line.y) - np.array(mark.y)) >= 500


def test_breaks_of_the_recording_are_marked_with_their_length():
    rows = [kernel(0, 10_000), kernel(50_000, 60_000)]
    trace = build(rows, windows_ns=[[0, 12_000], [45_000, 62_000]])
    figure = figures.timeline(trace, window_ns=(0, 62_000))
    bands = [one for one in figure.layout.shapes if one.xref == "x"]
    assert [(one.x0, one.x1) for one in bands] == [(12, 45)]
    assert "not recorded<br>33 µs" in words(figure)
    assert not [one for one in figures.timeline(trace).layout.shapes if one.xref == "x"]


def test_sms_stand_under_the_tracks_on_the_same_time_axis():
    blocks = [
        {"kind": "block", "start_ns": 100 * at, "end_ns": 100 * at + 90, "sm": at % 4, "device": 0,
         "partition": "a" if at % 4 < 3 else None}
        for at in range(100)
    ]  # fmt: skip
    trace = build(
        [kernel(0, 5000, 1, "a"), kernel(0, 10_000, 2), *blocks],
        devices={"cuda:0": {"name": "NVIDIA H200", "index": 0, "sm_count": 8}},
        partitions={"a": {"color": style.OKABE_ITO[0]}},
    )
    figure = figures.timeline(trace, sm=True, window_ns=(0, 5000))
    (image,) = figure.layout.images
    assert (image.yref, image.sizey) == ("y2", 8)
    assert tuple(figure.layout.yaxis2.range) == (8, 0)
    assert figure.layout.yaxis2.domain[1] < figure.layout.yaxis.domain[0]
    assert figure.layout.xaxis.anchor == "y2"
    assert any(one.yaxis == "y2" for one in figure.data)
    _, picture = pixels(figure)
    sms = picture.reshape(8, -1, *picture.shape[1:])[:, 0]
    used = [np.unique(row[row[:, 3] > 0][:, :3], axis=0).tolist() for row in sms]
    partition = list(bytes.fromhex(style.OKABE_ITO[0][1:]))
    assert (
        used == [[partition]] * 3 + [[list(bytes.fromhex(style.WHOLE_GPU_COLOUR[1:]))]] + [[]] * 4
    )
    busy = (sms[..., 3] > 0).mean(axis=1)[:4]
    assert busy == pytest.approx([0.225] * 4, abs=0.03)
    assert "thread blocks held them longest" in words(figure)
    assert "block" not in words(figure).split("SMs:")[0]
    plain = figures.timeline(trace)
    assert "block (100)" in words(plain)
    assert plain.layout.height < figure.layout.height
    with pytest.raises(MissingEvidence, match="thread blocks"):
        figures.timeline(build([kernel(0, 9)]), sm=True)


def test_a_figure_has_few_bars_and_bytes_however_many_spans_there_are():
    starts = np.arange(20_000) * 1000
    trace = build([kernel(int(start), int(start) + 300, name="n" * 500) for start in starts])
    figure = figures.timeline(trace, max_spans=2000)
    assert count(figure) == 0
    assert len(figure.to_json()) < 50_000


def test_a_window_shows_what_touches_it_clipped_with_its_true_duration():
    trace = build([kernel(0, 100), kernel(150, 260), kernel(300, 400), kernel(500, 600)])
    figure = figures.timeline(trace, window_ns=(200, 350))
    assert count(figure) == 2
    bar, index = bar_of(figure, "110 ns")
    assert (bar.base[index], bar.x[index]) == (0.0, pytest.approx(0.060))
    assert figure.layout.xaxis.minallowed == 0


def test_the_first_of_several_recording_windows_is_the_default():
    rows = [kernel(0, 10), kernel(1000, 1010)]
    assert count(figures.timeline(build(rows, windows_ns=[[0, 20], [990, 1020]]))) == 1
    assert count(figures.timeline(build(rows, windows_ns=[[0, 1020]]))) == 2


def test_open_spans_reach_the_windows_end_and_say_so():
    figure = figures.timeline(build([kernel(0, 1000), kernel(400, None, 2)]))
    bar, index = bar_of(figure, "OPEN")
    assert bar.base[index] + bar.x[index] == pytest.approx(1.0)
    assert bar.name.endswith("open")
    assert "1 open" in words(figure)


def test_a_mark_is_an_instant_and_not_open(mixed):
    bar, index = bar_of(figures.timeline(mixed), "<b>here</b>")
    assert bar.x[index] == 0
    assert "an instant" in said(bar, index)


def test_hover_says_what_is_known_of_a_span():
    trace = build(
        [
            kernel(
                1000, 16_000, 7, "decode", name="gemm", intended_partition="prefill",
                start_uncertainty_ns=250, end_uncertainty_ns=1500,
            )
        ],
        partitions={"decode": {"granted": 16}},
        streams={"7": {"name": "d0"}},
    )  # fmt: skip
    (hover,) = hovers(figures.timeline(trace))
    for part in (
        "<b>gemm</b>", "kernel, partition", "15 µs", "starts at 0.000 µs",
        "true start up to 250 ns later", "true end up to 1.5 µs earlier",
        "partition decode (16 SMs)",
        "intended for partition prefill", "stream d0", "source: cupti",
    ):  # fmt: skip
        assert part in hover


def test_an_intended_partition_that_was_met_is_not_repeated(mixed):
    trace = build([kernel(0, 9, partition="a", intended_partition="a")])
    assert "intended" not in hovers(figures.timeline(trace))[0]
    assert any("intended for partition prefill" in text for text in hovers(figures.timeline(mixed)))


def test_event_waits_are_arrows_from_the_end_of_one_to_the_start_of_the_other():
    trace = build(
        [kernel(0, 2000, 1, "a"), kernel(3000, 4000, 2, "b"), kernel(5000, 6000, 2, "b")],
        edges=[(0, 1), (0, 2, "launch")],
    )
    figure = figures.timeline(trace)
    ((begin, end, above, below),) = arrows(figure)
    assert (begin, end) == (2.0, 3.0)
    assert above < below


def test_event_waits_beyond_the_limit_are_counted():
    rows = [kernel(10 * index, 10 * index + 9, index % 2) for index in range(251)]
    trace = build(rows, edges=[(index, index + 1) for index in range(250)])
    figure = figures.timeline(trace)
    assert len(arrows(figure)) == 200
    assert "50 further waits have no arrow" in words(figure)


def test_provenance_and_uncertainty_are_in_every_figure():
    rows = [
        kernel(0, 900, end_uncertainty_ns=300),
        {"kind": "handle", "start_ns": 0, "end_ns": 900, "category": "small"},
    ]
    trace = build(rows, clocks={"cupti": {"residual_ns": 120.0}})
    for figure in (
        figures.timeline(trace),
        figures.timelines({"one": trace, "two": trace}),
        figures.latency({"one": trace}, "small"),
    ):
        for part in ("measured on NVIDIA H200", "cupti", "true ends up to 300 ns", "120 ns"):
            assert part in words(figure)
        assert "SIMULATED" not in words(figure)


def test_simulated_is_said_in_title_and_subtitle():
    rows = [kernel(0, 900), {"kind": "handle", "start_ns": 0, "end_ns": 900, "category": "small"}]
    simulated = build([{**row, "source": "simulated"} for row in rows], simulated=True)
    for figure in (
        figures.timeline(simulated, title="Mine"),
        figures.timelines({"one": simulated}),
        figures.latency({"one": simulated}, "small"),
    ):
        assert "SIMULATED" in figure.layout.title.text
        assert "<b>SIMULATED, not measured,</b>" in figure.layout.title.subtitle.text
    both = figures.timelines({"sim": simulated, "real": build(rows)})
    assert "partly SIMULATED" in both.layout.title.text
    assert "real: measured on" in words(both)


def test_foreign_names_are_harmless_everywhere():
    trace = build(
        [
            kernel(0, 100, 1, EVIL, name=EVIL, intended_partition=EVIL + "2", source="cupti"),
            {"kind": "range", "name": EVIL, "start_ns": 0, "end_ns": 9, "process": 1, "thread": 2},
            {"kind": "range", "name": "r", "start_ns": 0, "end_ns": 9, "process": 3, "thread": 4},
            {
                "kind": "handle", "start_ns": 0, "end_ns": 90, "category": EVIL, "process": 1,
                "thread": 2, "status": EVIL,
            },
            {"kind": EVIL, "start_ns": 0, "end_ns": 90},
        ],
        devices={"cuda:0": {"name": LONE}},
        partitions={EVIL: {"asked": LONE}},
        streams={"1": {"name": LONE}},
        thread_names={"2": LONE},
        process_names={"1": LONE},
    )  # fmt: skip
    for figure in (
        figures.timeline(trace, title=LONE),
        figures.timelines({LONE: trace}, title=LONE),
        figures.latency({LONE: trace}, EVIL),
    ):
        text = json.dumps(figure.to_plotly_json(), default=lambda value: value.tolist())
        for raw in RAW:
            assert raw not in text
        figure.to_json().encode()
        assert "&lt;script" in text


def test_escape_and_clean():
    assert escape("a<b>&$") == "a&lt;b&gt;&amp;&#36;"
    assert clean("a\u202eb\nc\ud800") == "a\ufffdb c\ufffd"
    short = clean("abcdefghij" * 9, 11)
    assert len(short) == 11
    assert "…" in short


@pytest.mark.parametrize(
    ("ns", "text"),
    [(12, "12 ns"), (15_200, "15.2 µs"), (1_234_000, "1.234 ms"), (2_500_000_000, "2.5 s")],
)
def test_durations_are_written_for_people(ns, text):
    assert duration(ns) == text


@pytest.mark.parametrize(
    "trace", [Trace.from_columns({}), build([{"kind": "counter", "start_ns": 0, "value": 1.0}])]
)
def test_a_trace_without_spans_says_so(trace):
    figure = figures.timeline(trace)
    assert "no spans" in words(figure)
    assert "no spans" in words(figures.timelines({"one": trace}))
    if len(trace):
        assert "counter (1)" in words(figure)


def test_settings_share_one_time_scale():
    one, two = build([kernel(1000, 2000)]), build([kernel(9000, 19_000), kernel(0, 5, 2)])
    figure = figures.timelines({"short": one, "long": two})
    assert tuple(figure.layout.xaxis.range) == (0, 19.0)
    assert "<b>short</b>" in words(figure)
    assert "<b>long</b>" in words(figure)
    assert len([name for name in figure.layout if name.startswith("xaxis")]) == 1
    closer = figures.timelines(
        {"short": one, "long": two}, windows_ns={"short": (0, 2000), "long": (0, 2000)}
    )
    assert tuple(closer.layout.xaxis.range) == (0, 2.0)


def test_settings_share_max_spans_and_partition_colours():
    rows = [kernel(10 * index, 10 * index + 5, 1, "p") for index in range(50)]
    both = figures.timelines({"a": build(rows), "b": build(rows)}, max_spans=20)
    assert count(both) == 0
    assert words(both).count("0 of 50 spans drawn as themselves") == 2
    assert len(fills(both)) == 2
    assert [one.showlegend for one in fills(both)] == [True, False]
    assert count(figures.timelines({"a": build(rows), "b": build(rows)}, max_spans=100)) == 100


def test_height_follows_the_tracks_and_the_busiest_stay():
    few = figures.timeline(build([kernel(0, 9)]))
    many = build([kernel(0, 10 + stream, stream) for stream in range(MAX_TRACKS + 20)])
    figure = figures.timeline(many)
    assert 150 < few.layout.height < figure.layout.height < 4000
    assert len(labels(figure)) == MAX_TRACKS
    assert "20 less busy tracks not shown" in words(figure)
    assert "whole GPU · stream 119" in labels(figure)


def test_nothing_offers_to_send_a_trace_away(mixed):
    assert "sendChartToCloud" in figures.timeline(mixed).layout.modebar.remove


def test_bad_arguments_are_refused(mixed):
    with pytest.raises(ValueError, match="max_spans"):
        figures.timeline(mixed, max_spans=0)
    with pytest.raises(ValueError, match="window"):
        figures.timeline(mixed, window_ns=(5, 5))
    with pytest.raises(ValueError, match="no trace"):
        figures.timelines({})


def handles(durations_ns, name="small"):
    return [
        {
            "kind": "handle",
            "start_ns": 10**6 * index,
            "end_ns": 10**6 * index + ns,
            "category": name,
        }
        for index, ns in enumerate(durations_ns)
    ]


def test_latency_is_a_distribution_with_its_quantiles():
    many = build(handles(range(1000, 2_001_000, 1000)))
    few = build(handles([10_000] * 20 + [30_000] * 20))
    figure = figures.latency({"many": many, "few": few}, "small")
    assert isinstance(figure, go.Figure)
    curves = figure.data
    assert len(curves) == 2
    assert all(np.all(np.diff(one.x) >= 0) and np.all(np.diff(one.y) < 0) for one in curves)
    for one, took_ns in zip(
        curves, (range(1000, 2_001_000, 1000), [10_000, 30_000] * 20), strict=True
    ):
        assert (one.y[0], one.y[-1]) == (1, 1 / len(took_ns))
        slower = [sum(1e3 * x <= each for each in took_ns) / len(took_ns) for x in one.x]
        assert all(share >= y for share, y in zip(slower, one.y, strict=True))
        assert len(one.x) <= 500
    assert curves[0].line.dash != curves[1].line.dash
    assert "p50 1 ms, p90 1.8 ms, p99 1.98 ms (n = 2,000)" in curves[0].name
    assert "no p99 below 1,000 calls" in curves[1].name


def test_a_latency_has_the_colour_of_its_partition_and_a_dash_of_its_own():
    def at(partition):
        calls = [{**call, "partition": partition} for call in handles([5000, 6000])]
        return build(calls, partitions={"a": {"sm_count": 16}} if partition else {})

    settings = {"plain": at(None), "priority": at(None), "16": at("a"), "16, bare": at("a")}
    curves = [one for one in figures.latency(settings, "small").data if one.mode == "lines"]
    own = style.partition_colours(settings.values(), ["a"])["a"]
    grey = style.WHOLE_GPU_COLOUR
    assert [one.line.color for one in curves] == [grey, grey, own, own]
    assert [one.line.dash for one in curves] == ["solid", "dash"] * 2


def test_latency_names_settings_without_the_handle_and_refuses_none():
    here, elsewhere = build(handles([5000] * 3)), build(handles([5000], "other"))
    assert "no finished call in: two" in words(
        figures.latency({"one": here, "two": elsewhere}, "small")
    )
    with pytest.raises(MissingEvidence, match="'absent'"):
        figures.latency({"one": here}, "absent")
    with pytest.raises(MissingEvidence):
        figures.latency({"one": build([kernel(0, 9)])}, "small")
