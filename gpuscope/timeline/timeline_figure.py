"""Timelines: what ran when, on which partition and stream, under which ranges."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace

import plotly.graph_objects as go

from gpuscope._checks import MappingOf, SeveralOf, door
from gpuscope.errors import InvalidArgument
from gpuscope.timeline import plotly_parts, style
from gpuscope.timeline.extent import default_window_ns
from gpuscope.timeline.picture import Panel, Picture, arrow_colours, looks_of
from gpuscope.timeline.raster import StaticFigure, png
from gpuscope.timeline.scene import PIXELS, Scene
from gpuscope.timeline.sm_map_figure import ON_SM_AXIS, sm_axis, sm_image
from gpuscope.timeline.sms import Blocks, HeldIndex
from gpuscope.timeline.style import Properties
from gpuscope.timeline.text import axis_unit, escape, notes_of, stated
from gpuscope.timeline.tracks import Tracks
from gpuscope.timeline.words import statement
from gpuscope.trace.model import Trace

_HEADING_LINE, _HEADING_CHARACTERS = 18, 100
_EMPTY_BAND = 70
_SM_HEIGHT, _SM_GAP = 264, 24
_SM_NOTE = (
    "SMs: colour of the partition whose thread blocks held them longest; paler: held for less time"
)
# Plotly draws the grid over images: light lines would look like gaps.
_GRID = "rgba(27,31,36,0.1)"


@door(
    trace=Trace,
    window_ns=(SeveralOf(int, 2), None),
    max_spans=int,
    title=(str, None),
    sm=bool,
    host=bool,
)
def timeline(
    trace: Trace,
    *,
    window_ns: tuple[int, int] | None = None,
    max_spans: int = 2000,
    title: str | None = None,
    sm: bool = False,
    host: bool = False,
) -> go.Figure:
    """Draw a trace as a timeline: one row per stream, what its calls waited for, and the host.

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
    host
        Whether to draw each row of the host; else all of them are one.

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
    scene = Scene.of(Tracks.of(trace), window, max_spans=max_spans, host=host)
    blocks = HeldIndex(Blocks(trace, None)) if sm else None
    return _figure(_picture([scene], title or "Timeline", {"": trace}, sm_index=blocks))


def still(scene: Scene, trace: Trace) -> bytes:
    """Return a scene as a PNG, without Plotly: to check what it is given takes it longer."""
    return png(_picture([scene], "Timeline", {"": trace}))


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
    >>> notes = [note.text.partition("<br>")[0] for note in figure.layout.annotations]
    >>> [note for note in notes if note.startswith("<b>")]
    ['<b>first</b>', '<b>second</b>']
    """
    if not traces:
        raise InvalidArgument("no trace to draw: give at least one setting")
    if max_spans < 1:
        raise InvalidArgument(f"max_spans is at least 1, not {max_spans}")
    share = max(1, max_spans // len(traces))
    scenes = []
    for setting, trace in traces.items():
        window = (windows_ns or {}).get(setting) or default_window_ns(trace)
        scenes.append(Scene.of(Tracks.of(trace), window, max_spans=share))
    title = title or "Timelines by setting"
    return _figure(_picture(scenes, title, traces, settings=list(traces)))


def _figure(picture: Picture) -> StaticFigure:
    data = plotly_parts.traces_of(picture)
    if "yaxis2" in picture.layout:
        data.append(ON_SM_AXIS)
    panels = tuple(replace(panel, scene=panel.scene.alone()) for panel in picture.panels)
    return StaticFigure(data=data, layout=picture.layout, picture=replace(picture, panels=panels))


def _picture(
    scenes: Sequence[Scene],
    title: str,
    traces: Mapping[str, Trace],
    *,
    settings: Sequence[str] = (),
    sm_index: HeldIndex | None = None,
) -> Picture:
    """Place scenes one under the other, each under its setting if any."""
    windows_ns = [scene.window_ns for scene in scenes]
    length_ns = max(high - low for low, high in windows_ns)
    unit, unit_ns = axis_unit(length_ns)
    partitions = {name for scene in scenes for name in scene.tracks.partitions()}
    colours = style.partition_colours(traces.values(), partitions)
    panels, height, annotations, shapes = _placed(scenes, settings, unit_ns)
    suffix, notes = stated(traces)
    if not settings:
        notes += notes_of(statement(scenes[0], besides=() if sm_index is None else ("block",)))
    left_out = sum(scene.waits.left_out for scene in scenes)
    if left_out:
        notes.append(f"{left_out:,} further waits have no arrow")
    images: list[Properties] = []
    axes: Properties = {
        "yaxis": plotly_parts.track_axis([panel.places for panel in panels], height)
    }
    time_below = "y"
    if sm_index is not None:
        cells = sm_index.cells(windows_ns[0], PIXELS)
        images.append(sm_image(cells, sm_index.blocks.colours(colours), windows_ns[0][0], unit_ns))
        notes.append(_SM_NOTE)
        whole = height + _SM_GAP + _SM_HEIGHT
        axes["yaxis"]["domain"] = (1 - height / whole, 1)
        axes["yaxis2"] = {
            **sm_axis(sm_index.blocks.height, _SM_HEIGHT),
            "domain": (0, _SM_HEIGHT / whole),
        }
        time_below, height = "y2", whole
    length = length_ns / unit_ns
    looks = looks_of(scenes, colours)
    escaped = any(how.escaped for how in looks.values())
    parts = {part for scene in scenes for part in scene.waiting.classes}
    layers = Picture(tuple(panels), colours, unit, {}).layer_looks
    entries = len(looks) + len(parts) + len(layers) + len(arrow_colours(scenes))
    rows = -(-entries // (2 if escaped or parts or layers else 3))
    layout = style.base_layout(
        escape(title, 90) + suffix,
        notes,
        height,
        legend_rows=rows,
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
    layout["margin"]["r"] = plotly_parts.RIGHT
    return Picture(tuple(panels), colours, unit, layout)


def _placed(
    scenes: Sequence[Scene], settings: Sequence[str], unit_ns: float
) -> tuple[list[Panel], float, list[Properties], list[Properties]]:
    """Give every track its place; return panels, the height, annotations and shapes."""
    y = 4
    panels: list[Panel] = []
    annotations: list[Properties] = []
    shapes: list[Properties] = []
    for index, scene in enumerate(scenes):
        if settings:
            words = textwrap.wrap(statement(scene), _HEADING_CHARACTERS)
            lines = [f"<b>{escape(settings[index], 40)}</b>", *(escape(line) for line in words)]
            size = _HEADING_LINE * len(lines) + 8
            annotations.append(style.heading("<br>".join(lines), y + size / 2))
            shapes.append(style.stripe(y, y + size, style.HEADING))
            y += size
        places = scene.tracks.placed(scene.shown, scene.depth, y)
        panel = Panel(scene, places, scene.window_ns[0], unit_ns)
        panels.append(panel)
        bands, labels = plotly_parts.missing(panel)
        annotations += plotly_parts.headings(places) + plotly_parts.shares(panel) + labels
        shapes += plotly_parts.behind(places) + plotly_parts.grants(places) + bands
        y = places.bottom
        if not places.tracks:
            annotations.append(plotly_parts.nothing(y + _EMPTY_BAND / 2))
            y += _EMPTY_BAND
        y += 6
    return panels, y, annotations, shapes
