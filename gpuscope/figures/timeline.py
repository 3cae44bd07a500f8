"""Timelines: what ran when, on which partition and stream, under which ranges."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go

from gpuscope.figures import style
from gpuscope.figures.bars import Band, arrows, bars, merged_bars
from gpuscope.figures.text import (
    axis_unit,
    clean,
    escape,
    provenance_lines,
    title_suffix,
    wrapped,
)
from gpuscope.figures.tracks import LANES, view
from gpuscope.trace.model import Trace

_HEADING = 34
_EMPTY_BAND = 70


def timeline(
    trace: Trace,
    *,
    window_ns: tuple[int, int] | None = None,
    max_spans: int = 2000,
    title: str | None = None,
) -> go.Figure:
    """Draw a trace as a timeline: ranges and calls of the host, then one row a stream.

    Parameters
    ----------
    window_ns
        Start and end on the trace's clock. Default: the first recording window where
        there are several, else the whole trace.
    max_spans
        Spans drawn one by one, widest first; the figure says how many are left out, and
        shows where they are as pale merged blocks.
    title
        Default ``"Timeline"``. That the trace is simulated is added.

    Raises
    ------
    ValueError
        The window is empty or ``max_spans`` is below 1.

    Examples
    --------
    >>> timeline(trace, window_ns=(0, 2_000_000)).show()  # doctest: +SKIP
    """
    band = Band(view(trace, window_ns, max_spans), None)
    return _draw([band], title or "Timeline", {"": trace})


def timelines(
    traces: Mapping[str, Trace],
    *,
    windows_ns: Mapping[str, tuple[int, int]] | None = None,
    max_spans: int = 2000,
    title: str | None = None,
) -> go.Figure:
    """Draw several settings one under the other, on one time scale, to compare them.

    Parameters
    ----------
    traces
        Setting → trace.
    windows_ns
        Setting → window, as in :func:`timeline`; each starts at 0 on the common axis,
        which is as long as the longest.
    max_spans
        For the whole figure; every setting gets the same share.

    Raises
    ------
    ValueError
        There is no trace, a window is empty, or ``max_spans`` is below 1.
    """
    if not traces:
        raise ValueError("no trace to draw: give at least one setting")
    if max_spans < 1:
        raise ValueError(f"max_spans is at least 1, not {max_spans}")
    share = max(1, max_spans // len(traces))
    windows = windows_ns or {}
    bands = [
        Band(view(trace, windows.get(setting), share), setting)
        for setting, trace in traces.items()
    ]  # fmt: skip
    return _draw(bands, title or "Timelines by setting", traces)


def _draw(bands: list[Band], title: str, traces: Mapping[str, Trace]) -> go.Figure:
    length_ns = max(high - low for low, high in (band.view.window_ns for band in bands))
    unit, unit_ns = axis_unit(length_ns)
    height, annotations, shapes = _place(bands)
    partitions = {
        name for band in bands for name in band.view.trace.texts("partition") if name is not None
    }
    colours = style.partition_colours(traces.values(), partitions)
    notes = provenance_lines(traces)
    pointing, left_out = arrows(bands, unit_ns)
    if len(bands) == 1 and bands[0].setting is None:
        notes += [escape(line) for line in wrapped(_statement(bands[0]))]
    if left_out:
        notes.append(f"{left_out:,} further event waits have no arrow")
    data = [*merged_bars(bands, colours, unit, unit_ns), *bars(bands, colours, unit, unit_ns)]
    if pointing:
        data.append(_arrow_key())
    length = length_ns / unit_ns
    layout = style.base_layout(
        escape(title, 90) + title_suffix(traces.values()),
        notes,
        height,
        legend_rows=-(-sum(one.showlegend is not False for one in data) // 3),
        barmode="overlay",
        uniformtext={"minsize": 10, "mode": "hide"},
        annotations=annotations + pointing,
        shapes=shapes,
        xaxis=style.x_axis(
            f"time since the window's start ({unit})",
            range=[0, length],
            minallowed=0,
            maxallowed=length,
        ),
        yaxis=_y_axis(bands, height),
    )
    return go.Figure(data=data, layout=layout)


def _place(bands: list[Band]) -> tuple[float, list[dict[str, object]], list[dict[str, object]]]:
    """Give every track its place, px from the top; return the height, headings and stripes."""
    y = 4.0
    annotations: list[dict[str, object]] = []
    shapes: list[dict[str, object]] = []
    for band in bands:
        if band.setting is not None:
            text = f"<b>{escape(band.setting, 40)}</b>  {escape(_statement(band))}"
            annotations.append(_heading(text, y + _HEADING / 2))
            shapes.append(_stripe(y, y + _HEADING, "#E3E9EF"))
            y += _HEADING
        process, was_host = None, True
        for index, track in enumerate(band.view.tracks):
            if track.process is not None and track.process != process:
                annotations.append(_heading(f"process {escape(track.process)}", y + 12))
                y += 24
            elif was_host and not track.is_host and index:
                shapes.append(_line(y + 2))
                y += 4
            process, was_host = track.process, track.is_host
            band.tops.append(y)
            if index % 2 == 0:
                shapes.append(_stripe(y, y + band.heights[index], style.STRIPE))
            y += band.heights[index]
        if not band.view.tracks:
            annotations.append(_nothing(y + _EMPTY_BAND / 2))
            y += _EMPTY_BAND
        y += 6
    return y, annotations, shapes


def _statement(band: Band) -> str:
    """Say in plain text what is drawn and what is not."""
    seen = band.view
    total, drawn = len(seen.start_ns), len(seen.drawn)
    if total > drawn:
        which = "narrower ones" if not seen.hidden_tracks else "others"
        where = " (pale: where they are)" if len(seen.omitted) else ""
        left = f"{total - drawn:,} {which} omitted{where}"
        said = [f"{drawn:,} of {total:,} spans drawn, widest first; {left}"]
        if seen.hidden_tracks:
            said.append(f"{seen.hidden_tracks:,} less busy tracks not shown")
    elif total:
        said = [f"all {total:,} spans of the window drawn"]
    else:
        said = ["no spans in the window"]
    opened = int(seen.is_open.sum())
    if opened:
        said.append(f"{opened:,} open, drawn to the window's end")
    if band.crowded:
        names = ", ".join(clean(name, 30) for name in band.crowded[:3])
        said.append(f"more than {LANES} at once share a line in {names}")
    if seen.elsewhere:
        kinds = ", ".join(f"{count:,} {clean(kind)}" for kind, count in seen.elsewhere.items())
        said.append(f"rows of other kinds not shown: {kinds}")
    return "; ".join(said)


def _y_axis(bands: list[Band], height: float) -> dict[str, object]:
    places, labels = [], []
    for band in bands:
        for index, track in enumerate(band.view.tracks):
            places.append(band.tops[index] + band.heights[index] / 2)
            labels.append(escape(track.label))
    return {
        "range": [height, 0],
        "tickmode": "array",
        "tickvals": places,
        "ticktext": labels,
        "tickfont": {"size": 12},
        "showgrid": False,
        "zeroline": False,
        "ticklabelstandoff": 6,
        "automargin": True,
        "fixedrange": True,
    }


def _heading(text: str, y: float) -> dict[str, object]:
    return {
        "text": text, "x": 0, "xref": "paper", "xanchor": "left", "y": y, "yref": "y",
        "yanchor": "middle", "showarrow": False, "font": {"size": 13}, "align": "left",
    }  # fmt: skip


def _nothing(y: float) -> dict[str, object]:
    return {
        "text": "no spans to draw here", "x": 0.5, "xref": "paper", "y": y, "yref": "y",
        "showarrow": False, "font": {"size": 15, "color": style.MUTED},
    }  # fmt: skip


def _stripe(top: float, bottom: float, colour: str) -> dict[str, object]:
    return {
        "type": "rect", "xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": top, "y1": bottom,
        "fillcolor": colour, "line": {"width": 0}, "layer": "below",
    }  # fmt: skip


def _line(y: float) -> dict[str, object]:
    return {
        "type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": y, "y1": y,
        "line": {"width": 1, "color": style.HOST_COLOUR}, "layer": "below",
    }  # fmt: skip


def _arrow_key() -> go.Scatter:
    return go.Scatter(
        x=[None],
        y=[None],
        mode="markers",
        marker={"symbol": "arrow-right", "size": 10, "color": style.INK},
        name="event wait",
    )
