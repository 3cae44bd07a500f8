"""Timelines: what ran when, on which partition and stream, under which ranges."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from gpuscope._checks import MappingOf, SeveralOf, door
from gpuscope.errors import InvalidArgument
from gpuscope.timeline import style
from gpuscope.timeline.arrows import HAZARD, arrow_look, arrow_name
from gpuscope.timeline.columns import column_traces, mark_points, stretches
from gpuscope.timeline.frame import Frame, frame_of, look, mark_look, statement
from gpuscope.timeline.labels import Places, heading, in_order, nothing, stripe, y_axis
from gpuscope.timeline.raster import StaticFigure, png
from gpuscope.timeline.sm_map_figure import Blocks, HeldIndex, sm_axis, sm_image
from gpuscope.timeline.style import Properties
from gpuscope.timeline.text import (
    axis_unit,
    escape,
    provenance_lines,
    title_suffix,
    wrapped,
)
from gpuscope.timeline.tracks import Tracks, default_window_ns
from gpuscope.timeline.view import PIXELS, View
from gpuscope.trace.model import Trace

_HEADING_LINE, _HEADING_CHARACTERS = 18, 100
_EMPTY_BAND = 70
_SM_HEIGHT, _SM_GAP = 264, 24
_SM_NOTE = (
    "SMs: colour of the partition whose thread blocks held them longest; paler: held for less time"
)
# Plotly draws the grid over images: light lines would look like gaps.
_GRID = "rgba(27,31,36,0.1)"


@door(trace=Trace, window_ns=(SeveralOf(int, 2), None), max_spans=int, title=(str, None), sm=bool)
def timeline(
    trace: Trace,
    *,
    window_ns: tuple[int, int] | None = None,
    max_spans: int = 2000,
    title: str | None = None,
    sm: bool = False,
) -> go.Figure:
    """Draw a trace as a timeline: host ranges and calls, then one row per stream.

    Parameters
    ----------
    window_ns
        Start and end on the trace's clock. Default: the first recording window where
        there are several, else the whole trace.
    max_spans
        Spans drawn as themselves at most. A track draws all of its spans of the window, where half
        of them are at least 3 px wide, or columns: how high they are shows which share of the
        time the track was busy. Of too many spans, the tracks with the most draw columns.
    title
        Default ``"Timeline"``. That the trace is simulated is added.
    sm
        Whether to draw below, on the same time axis, which SMs were held by blocks of which
        partition; :func:`sm_map` shows more detail.

    Raises
    ------
    MissingEvidence
        ``sm`` is set and no finished thread block has a known SM.
    ValueError
        The window is empty or ``max_spans`` is below 1.

    Examples
    --------
    >>> import gpuscope as gs
    >>> from gpuscope.trace import Trace
    >>> trace = Trace.from_columns({
    ...     "id": [1, 2], "kind": ["kernel", "kernel"], "name": ["k", "k"], "stream": [7, 8],
    ...     "start_ns": [0, 60], "end_ns": [100, 160], "source": ["cupti", "cupti"],
    ... })
    >>> figure = gs.figures.timeline(trace, window_ns=(0, 100))
    >>> sum(len(bars.x) for bars in figure.data)
    2
    """
    window = default_window_ns(trace) if window_ns is None else window_ns
    view = View.of(Tracks.of(trace), window, max_spans=max_spans)
    blocks = HeldIndex(Blocks(trace, None)) if sm else None
    return StaticFigure(**_content([view], title or "Timeline", {"": trace}, held=blocks))


def of_view(view: View, trace: Trace, title: str = "Timeline") -> go.Figure:
    """Draw a view of a trace that is indexed already, as :func:`timeline` does."""
    return StaticFigure(**_content([view], title, {"": trace}))


def still(view: View, trace: Trace) -> bytes:
    """Return a view as a PNG, without Plotly: to check what it is given takes it longer."""
    return png(_content([view], "Timeline", {"": trace}))


@door(
    traces=MappingOf(Trace),
    windows_ns=(MappingOf(SeveralOf(int, 2)), None),
    max_spans=int,
    title=(str, None),
)
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
    title
        Default ``"Timelines by setting"``. That the traces are simulated is added.

    Raises
    ------
    ValueError
        There is no trace, a window is empty, or ``max_spans`` is below 1.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2}},
    ... }
    >>> run = gs.run({**one, "settings": {"first": {}, "second": {}}}, gpu)
    >>> figure = gs.figures.timelines(run)
    >>> [note.text.partition("<br>")[0] for note in figure.layout.annotations]
    ['<b>first</b>', '<b>second</b>']
    """
    if not traces:
        raise InvalidArgument("no trace to draw: give at least one setting")
    if max_spans < 1:
        raise InvalidArgument(f"max_spans is at least 1, not {max_spans}")
    share = max(1, max_spans // len(traces))
    views = []
    for setting, trace in traces.items():
        window = (windows_ns or {}).get(setting) or default_window_ns(trace)
        views.append(View.of(Tracks.of(trace), window, max_spans=share))
    title = title or "Timelines by setting"
    return StaticFigure(**_content(views, title, traces, settings=list(traces)))


def _content(
    views: Sequence[View],
    title: str,
    traces: Mapping[str, Trace],
    *,
    settings: Sequence[str] = (),
    held: HeldIndex | None = None,
) -> Properties:
    """Return data and layout of views, one under the other, each under its setting if any."""
    windows_ns = [view.window_ns for view in views]
    length_ns = max(high - low for low, high in windows_ns)
    unit, unit_ns = axis_unit(length_ns)
    partitions = {name for view in views for name in view.tracks.partitions()}
    colours = style.partition_colours(traces.values(), partitions)
    places, height, annotations, shapes = _place(views, settings)
    for view, place, (low, _) in zip(views, places, windows_ns, strict=True):
        bands, words = stretches(view, place, low, unit_ns)
        shapes += bands
        annotations += words
    zeros = [low for low, _ in windows_ns]
    data, left_out = traces_of(views, places, colours, zeros, unit, unit_ns)
    notes = provenance_lines(traces)
    if not settings:
        said = statement(views[0], besides=() if held is None else ("block",))
        notes += [escape(line) for line in wrapped(said)]
    if left_out:
        notes.append(f"{left_out:,} further waits have no arrow")
    images: list[Properties] = []
    axes: Properties = {"yaxis": y_axis(places, height)}
    time_below = "y"
    if held is not None:
        cells = held.cells(windows_ns[0], PIXELS)
        owners = held.blocks.colours(colours)
        images.append(sm_image(cells, owners, windows_ns[0][0], unit_ns))
        data.append(_point(yaxis="y2", showlegend=False))
        notes.append(_SM_NOTE)
        whole = height + _SM_GAP + _SM_HEIGHT
        axes["yaxis"]["domain"] = (1 - height / whole, 1)
        axes["yaxis2"] = {
            **sm_axis(held.blocks.height, _SM_HEIGHT),
            "domain": (0, _SM_HEIGHT / whole),
        }
        time_below, height = "y2", whole
    length = length_ns / unit_ns
    entries = sum(one.get("showlegend", True) for one in data)
    layout = style.base_layout(
        escape(title, 90) + title_suffix(traces.values()),
        notes,
        height,
        legend_rows=-(-entries // (2 if any(view.scene.escapes.any() for view in views) else 3)),
        barmode="overlay",
        uniformtext={"minsize": 10, "mode": "hide"},
        annotations=annotations,
        shapes=shapes,
        images=images,
        xaxis=style.x_axis(
            f"time since the window's start ({unit})",
            range=[0, length],
            minallowed=0,
            maxallowed=length,
            gridcolor=_GRID,
            anchor=time_below,
        ),
        **axes,
    )
    return {"data": data, "layout": layout}


def traces_of(
    views: Sequence[View],
    places: Sequence[Places],
    colours: dict[str, str],
    zeros_ns: Sequence[int],
    unit: str,
    unit_ns: float,
) -> tuple[list[Properties], int]:
    """Return the traces of views, and how many waits have no arrow.

    Parameters
    ----------
    zeros_ns
        Of each view, where the time axis starts to count.
    """
    each = list(zip(views, places, zeros_ns, strict=True))
    frames = [frame_of(view, place, zero_ns=zero, unit_ns=unit_ns) for view, place, zero in each]
    data = _bars(views, frames, colours, unit)
    for view, place, zero in each:
        data += column_traces(view, place, colours, zero, unit_ns, unit)
    _in_legend_once(data)
    for what, symbol in (("escape", "triangle-down"), ("hazard", "diamond")):
        points = _joined([
            mark_points(view, getattr(view.scene, f"{what}s"), place, zero, unit_ns, what)
            for view, place, zero in each
        ])  # fmt: skip
        if points["x"]:
            look_of = mark_look(style.INK, symbol)
            data.append({"type": "scatter", "name": f"{what}s", **look_of, **points})
    waits = _joined([frame.arrows for frame in frames])
    if waits["x"]:
        data.append({**arrow_look(arrow_name(views)), **waits})
    hazards = _joined([frame.hazards for frame in frames])
    if hazards["x"]:
        data.append({**arrow_look(HAZARD), **hazards})
    return data, sum(frame.left_out for frame in frames)


def _place(
    views: Sequence[View], settings: Sequence[str]
) -> tuple[list[Places], float, list[Properties], list[Properties]]:
    """Give every track its place; return these, the height, headings and stripes."""
    y = 4
    places: list[Places] = []
    annotations: list[Properties] = []
    shapes: list[Properties] = []
    for index, view in enumerate(views):
        if settings:
            said = textwrap.wrap(statement(view), _HEADING_CHARACTERS)
            lines = [f"<b>{escape(settings[index], 40)}</b>", *(escape(line) for line in said)]
            size = _HEADING_LINE * len(lines) + 8
            annotations.append(heading("<br>".join(lines), y + size / 2))
            shapes.append(stripe(y, y + size, style.HEADING))
            y += size
        place = Places.of(view.shown, view.depth, view.tracks.marked, y)
        places.append(place)
        annotations += place.annotations
        shapes += place.shapes
        y = place.bottom
        if not place.tracks:
            annotations.append(nothing(y + _EMPTY_BAND / 2))
            y += _EMPTY_BAND
        y += 6
    return places, y, annotations, shapes


def _bars(
    views: Sequence[View], frames: Sequence[Frame], colours: dict[str, str], unit: str
) -> list[Properties]:
    """Return one bar trace a class, over all bands."""
    data = []
    for bar_class in in_order((bar for drawn in frames for bar in drawn.bars), colours):
        parts = {
            index: drawn.bars[bar_class]
            for index, drawn in enumerate(frames)
            if bar_class in drawn.bars
        }
        tracks = views[min(parts)].tracks
        data.append({**look(tracks, bar_class, colours, unit), **_joined([*parts.values()])})
    return data


def _in_legend_once(data: list[Properties]) -> None:
    """Give a class that has bars and columns, or columns on several tracks, one entry."""
    seen = set()
    for trace in data:
        group = trace.setdefault("legendgroup", trace.get("name"))
        if trace.get("showlegend", True):
            trace["showlegend"] = group not in seen
            seen.add(group)


def _joined(parts: Sequence[Properties]) -> Properties:
    """Join arrays and lists of the same names."""
    return {
        name: np.concatenate([part[name] for part in parts]) if isinstance(first, np.ndarray)
        else [value for part in parts for value in part[name]]
        for name, first in parts[0].items()
    }  # fmt: skip


def _point(**more: object) -> Properties:
    """Return a trace that shows nothing in the plot: for a legend, or for an axis to appear."""
    return {"type": "scatter", "x": [None], "y": [None], "hoverinfo": "skip", **more}
