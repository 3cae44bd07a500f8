"""Figures as tables: the spans or points that the picture has, in words, harmless."""

from __future__ import annotations

import re

import numpy as np
import plotly.graph_objects as go

from gpuscope.timeline.alternative import folded, table_of_points
from gpuscope.timeline.timeline_figure import timeline
from gpuscope.trace.model import Trace


def table(count, name="k"):
    trace = Trace.from_columns(
        {
            "id": list(range(count)),
            "kind": ["kernel"] * count,
            "name": [name] * count,
            "stream": [7] * count,
            "start_ns": [1000 * number for number in range(count)],
            "end_ns": [1000 * number + 400 for number in range(count)],
            "source": ["cupti"] * count,
        }
    )
    return timeline(trace, window_ns=(0, 1000 * count)).table()


def test_a_table_has_row_name_start_and_duration_of_each_span_in_order():
    rows = re.findall(r"<tr>((?:<td>.*?</td>)+)</tr>", table(3))
    cells = [re.findall("<td>(.*?)</td>", row) for row in rows]
    assert [cell[1] for cell in cells] == ["k"] * 3
    assert len({cell[0] for cell in cells}) == 1
    starts = [float(cell[2].replace(",", "")) for cell in cells]
    assert starts[1] - starts[0] == starts[2] - starts[1] > float(cells[0][3]) > 0


def test_names_are_text_and_long_timelines_say_what_is_left_out():
    assert "&lt;b&gt;" in table(1, "<b>")
    assert "<b>" not in table(1, "<b>")
    assert "20 further spans" in table(120)
    assert table(120).count("<tr><td>") == 100


def cells(html):
    return [re.findall("<td>(.*?)</td>", row) for row in re.findall(r"<tr>(<td>.*?)</tr>", html)]


def test_a_curve_is_told_by_its_points_from_the_first_to_the_last():
    figure = go.Figure(go.Scatter(x=np.arange(1000), y=np.arange(1000) / 4, name="<b>a</b>"))
    figure.update_layout(xaxis_title="latency (µs)", yaxis_title="share")
    rows = cells(table_of_points(figure))
    assert rows[0] == ["share", "a", "0", "0"]
    assert rows[-1] == ["share", "a", "999", "249.8"]
    assert len(rows) == 100
    assert "latency (µs)" in table_of_points(figure)


def test_of_several_panels_each_series_is_told_with_its_own():
    figure = go.Figure([go.Bar(x=["8", "16"], y=[1, None]), go.Bar(x=["8"], y=[2], yaxis="y2")])
    figure.update_layout(yaxis_domain=[0, 0.4], yaxis2={"domain": [0.6, 1]})
    figure.add_annotation(text="<b>lower</b>", y=0.4, yref="paper")
    figure.add_annotation(text="upper", y=1, yref="paper")
    assert cells(table_of_points(figure)) == [["lower", "", "8", "1"], ["upper", "", "8", "2"]]


def test_what_has_no_points_has_no_table():
    assert table_of_points(go.Figure(go.Heatmap(z=[[1]]))) == ""


def test_a_title_names_the_picture_and_is_harmless():
    html = folded("", '<b>k</b> &lt;b&gt; "x"<br>SIMULATED')
    assert 'data-title="k &lt;b&gt; &quot;x&quot; SIMULATED"' in html
