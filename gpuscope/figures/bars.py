"""The marks of a timeline: bars for spans, pale blocks for omitted ones, arrows for waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import plotly.graph_objects as go

from gpuscope.figures import style
from gpuscope.figures.hover import hovers
from gpuscope.figures.text import escape
from gpuscope.figures.tracks import LANES, View

MAX_ARROWS = 200
_MAX_BLOCKS = 400
_MAX_TEXTS = 300


@dataclass
class Band:
    """One setting's part of a figure: a view and where its tracks are, px from the top.

    Attributes
    ----------
    lanes
        Position in ``view.drawn`` → line inside the track.
    depth
        Track → lines.
    crowded
        Tracks in which more spans overlap than there are lines.
    """

    view: View
    setting: str | None
    tops: list[float] = field(default_factory=list)
    lanes: list[int] = field(init=False)
    depth: list[int] = field(init=False)
    crowded: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.lanes, self.depth, crowded = _lanes(self.view)
        self.crowded = [self.view.tracks[index].label for index in crowded]

    @property
    def heights(self) -> list[float]:
        """Heights of the tracks, px."""
        return [
            26.0 if lines == 1 else 8.0 + lines * (18.0 if track.has_texts else 12.0)
            for track, lines in zip(self.view.tracks, self.depth, strict=True)
        ]

    def bar(self, place: int) -> tuple[float, float]:
        """Return centre and height of a drawn span's bar, px."""
        track = int(self.view.track[self.view.drawn[place]])
        size = (self.heights[track] - 6) / self.depth[track]
        return self.tops[track] + 3 + size * (self.lanes[place] + 0.5), size - 1


def _lanes(view: View) -> tuple[list[int], list[int], list[int]]:
    """Put spans that overlap in a track on lines of their own, the longest first."""
    depth = [1] * len(view.tracks)
    free: list[list[int]] = [[] for _ in view.tracks]
    lanes = [0] * len(view.drawn)
    crowded: set[int] = set()
    starts, ends = view.start_ns[view.drawn], view.end_ns[view.drawn]
    for place in np.lexsort((-ends, starts)).tolist():
        track = int(view.track[view.drawn[place]])
        busy_until = free[track]
        start, end = int(starts[place]), int(ends[place])
        lane = next((one for one, until in enumerate(busy_until) if until <= start), None)
        if lane is None and len(busy_until) < LANES:
            lane = len(busy_until)
            busy_until.append(0)
        elif lane is None:
            lane = LANES - 1
            crowded.add(track)
        busy_until[lane] = max(busy_until[lane], end)
        lanes[place] = lane
        depth[track] = max(depth[track], lane + 1)
    return lanes, depth, sorted(crowded)


@dataclass
class _Class:
    """Bars of one colour and kind, over all bands."""

    base: list[float] = field(default_factory=list)
    width: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    size: list[float] = field(default_factory=list)
    hover: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)


def bars(
    bands: list[Band], colours: dict[str, str], unit: str, unit_ns: float
) -> list[go.Bar]:  # fmt: skip
    """Return one bar trace a class; a class is a partition, a kind, and whether open."""
    classes: dict[tuple[str, str | None, bool], _Class] = {}
    for band in bands:
        view = band.view
        low, high = view.window_ns
        starts = np.maximum(view.start_ns, low)
        start = (starts - low).astype(np.float64) / unit_ns
        length = (np.minimum(view.end_ns, high) - starts).astype(np.float64) / unit_ns
        rows = view.trace.spans.take(view.drawn)
        texts: dict[str, list[Any]] = {
            name: rows.column(name).to_pylist() for name in ("kind", "name", "partition")
        }
        says = hovers(view, rows, unit, unit_ns)
        for place, row in enumerate(view.drawn.tolist()):
            partition = texts["partition"][place]
            if partition is None and not view.tracks[int(view.track[row])].is_host:
                partition = ""
            key = (texts["kind"][place], partition, bool(view.is_open[row]))
            one = classes.setdefault(key, _Class())
            centre, size = band.bar(place)
            one.base.append(float(start[row]))
            one.width.append(float(length[row]))
            one.y.append(centre)
            one.size.append(size)
            one.hover.append(says[place])
            if key[0] == "range":
                one.text.append(escape(texts["name"][place], 40))
    places = list(style.KIND_STYLES)
    names = list(colours)
    order = sorted(
        classes,
        key=lambda key: (
            key[1] is not None,
            names.index(key[1]) if key[1] in colours else -1,
            places.index(key[0]),
            key[2],
        ),
    )
    return [_bar(key, classes[key], colours) for key in order]


def _bar(key: tuple[str, str | None, bool], one: _Class, colours: dict[str, str]) -> go.Bar:
    kind, partition, is_open = key
    look = style.KIND_STYLES[kind]
    label = look.label + (", open" if is_open else "")
    if partition is None:
        colour, name = style.HOST_COLOUR, label
    elif not partition:
        colour, name = style.WHOLE_GPU_COLOUR, f"whole GPU: {label}"
    else:
        colour, name = colours[partition], f"{escape(partition, 24)}: {label}"
    marker: dict[str, Any] = {
        "color": style.tinted(colour, 0.7 * look.strength if is_open else look.strength),
        "line": {"width": 0.7, "color": style.darker(colour)},
    }
    if look.pattern or is_open:
        marker["pattern"] = {"shape": look.pattern or "-", "size": 6, "solidity": 0.35}
    with_text = bool(one.text) and len(one.text) <= _MAX_TEXTS
    return go.Bar(
        orientation="h",
        base=one.base,
        x=np.array(one.width, np.float64),
        y=np.array(one.y, np.float64),
        width=np.array(one.size, np.float64),
        hovertext=one.hover,
        hoverinfo="text",
        name=name,
        marker=marker,
        text=one.text if with_text else None,
        textposition="inside" if with_text else "none",
        insidetextanchor="start",
        textangle=0,
        textfont={"size": 11, "color": style.INK},
        cliponaxis=True,
    )


def merged_bars(
    bands: list[Band], colours: dict[str, str], unit: str, unit_ns: float
) -> list[go.Bar]:
    """Return pale blocks where the omitted spans are: neighbours closer than a pixel are one."""
    found: dict[str, _Class] = {}
    for band in bands:
        view = band.view
        low = view.window_ns[0]
        for track, first, last, count in _blocks(view):
            row = view.tracks[track]
            colour = style.WHOLE_GPU_COLOUR if row.partition is None else colours[row.partition]
            one = found.setdefault(style.HOST_COLOUR if row.is_host else colour, _Class())
            one.base.append((first - low) / unit_ns)
            one.width.append((last - first) / unit_ns)
            one.y.append(band.tops[track] + band.heights[track] / 2)
            one.size.append(band.heights[track] - 6)
            one.hover.append(
                f"{count:,} narrow spans not drawn one by one<br>between "
                f"{(first - low) / unit_ns:,.3f} and {(last - low) / unit_ns:,.3f} {unit}<br>"
                f"{escape(row.label)}"
            )
    return [
        go.Bar(
            orientation="h",
            base=one.base,
            x=np.array(one.width, np.float64),
            y=np.array(one.y, np.float64),
            width=np.array(one.size, np.float64),
            hovertext=one.hover,
            hoverinfo="text",
            name="omitted spans, merged",
            legendgroup="merged",
            showlegend=not index,
            marker={"color": style.tinted(colour, 0.35), "line": {"width": 0}},
        )
        for index, (colour, one) in enumerate(found.items())
    ]


def _blocks(view: View) -> list[tuple[int, int, int, int]]:
    """Return track, start, end and number of spans of each merged block."""
    low, high = view.window_ns
    omitted = view.omitted
    tracks = np.unique(view.track[omitted])
    blocks = []
    for track in tracks:
        rows = omitted[view.track[omitted] == track]
        rows = rows[np.argsort(view.start_ns[rows], kind="stable")]
        starts = np.maximum(view.start_ns[rows], low)
        ends = np.maximum.accumulate(np.minimum(view.end_ns[rows], high))
        idle = starts[1:] - ends[:-1]
        gap = (high - low) / 1000
        while np.count_nonzero(idle > gap) >= max(1, _MAX_BLOCKS // len(tracks)):
            gap *= 2
        last = np.flatnonzero(np.r_[idle > gap, True])
        first = np.r_[0, last[:-1] + 1]
        blocks += [
            (int(track), int(starts[one]), int(ends[other]), int(other - one + 1))
            for one, other in zip(first, last, strict=True)
        ]
    return blocks


def arrows(bands: list[Band], unit_ns: float) -> tuple[list[dict[str, Any]], int]:
    """Return the earliest event waits as arrows, and how many more there are."""
    found: list[tuple[int, dict[str, Any]]] = []
    left_out = 0
    for band in bands:
        view = band.view
        waits = _waits(view)
        room = MAX_ARROWS // len(bands)
        left_out += max(0, len(waits) - room)
        place = {row: index for index, row in enumerate(view.drawn.tolist())}
        low = view.window_ns[0]
        for cause, effect in waits[:room]:
            found.append(
                (
                    int(view.start_ns[effect]),
                    {
                        "ax": float(view.end_ns[cause] - low) / unit_ns,
                        "x": float(view.start_ns[effect] - low) / unit_ns,
                        "ay": _centre(band, place, cause),
                        "y": _centre(band, place, effect),
                        "axref": "x", "ayref": "y", "xref": "x", "yref": "y",
                        "text": "", "showarrow": True, "arrowhead": 2, "arrowsize": 1.2,
                        "arrowwidth": 1.4, "arrowcolor": style.INK,
                    },
                )
            )  # fmt: skip
    return [arrow for _, arrow in found], left_out


def _centre(band: Band, place: dict[int, int], row: int) -> float:
    if row in place:
        return band.bar(place[row])[0]
    track = int(band.view.track[row])
    return band.tops[track] + band.heights[track] / 2


def _waits(view: View) -> list[tuple[int, int]]:
    """Return rows (first, follower) of event waits between spans in the window, in order."""
    edges = view.trace.edges
    if not edges.num_rows:
        return []
    chosen = np.asarray(edges.column("kind").to_pylist(), dtype=object) == "event wait"
    ids = view.trace.array("id")
    order = np.argsort(ids, kind="stable")
    pairs = []
    for name in ("from", "to"):
        wanted = np.asarray(edges.column(name).to_numpy())[chosen]
        pairs.append(order[np.searchsorted(ids[order], wanted)])
    waits = [
        (int(cause), int(effect))
        for cause, effect in zip(*pairs, strict=True)
        if view.track[cause] >= 0 and view.track[effect] >= 0
    ]
    return sorted(waits, key=lambda pair: int(view.start_ns[pair[1]]))
