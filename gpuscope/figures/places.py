"""Vertical layout of a timeline's tracks: positions, stripes, headings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuscope.figures import style
from gpuscope.figures.labels import Track
from gpuscope.figures.style import Properties
from gpuscope.figures.text import escape

_PROCESS = 24
_GAP = 4


@dataclass(frozen=True)
class Places:
    """Tracks one under the other, px from the top of the plotting area, all even numbers.

    Attributes
    ----------
    tops, heights, lines
        One a track.
    bottom
        Where the last track ends.
    marks
        Annotations and shapes for Plotly: processes, stripes, what parts host and GPU.
    """

    tracks: tuple[Track, ...]
    tops: list[int]
    heights: list[int]
    lines: list[int]
    bottom: int
    annotations: list[Properties]
    shapes: list[Properties]

    @classmethod
    def of(cls, tracks: Sequence[Track], lines: Sequence[int], top: int = 4) -> Places:
        """Place tracks that have these numbers of lines for spans that overlap."""
        y = top
        tops, heights = [], []
        annotations: list[Properties] = []
        shapes: list[Properties] = []
        process, was_host = None, True
        for index, (track, count) in enumerate(zip(tracks, lines, strict=True)):
            if track.process is not None and track.process != process:
                annotations.append(heading(f"process {escape(track.process)}", y + _PROCESS / 2))
                y += _PROCESS
            elif was_host and not track.is_host and index:
                shapes.append(_line(y + _GAP / 2))
                y += _GAP
            process, was_host = track.process, track.is_host
            height = 26 if count == 1 else 8 + count * (18 if track.has_texts else 12)
            if index % 2 == 0:
                shapes.append(stripe(y, y + height, style.STRIPE))
            tops.append(y)
            heights.append(height)
            y += height
        return cls(tuple(tracks), tops, heights, list(lines), y, annotations, shapes)

    def bar(self, place: int, line: int) -> tuple[float, float]:
        """Return centre and height of a bar on a line of a track, px."""
        size = (self.heights[place] - 6) / self.lines[place]
        return self.tops[place] + 3 + size * (min(line, self.lines[place] - 1) + 0.5), size - 1

    def ticks(self) -> tuple[list[float], list[str]]:
        """Return centres and labels of the tracks."""
        centres = [top + height / 2 for top, height in zip(self.tops, self.heights, strict=True)]
        return centres, [escape(track.label) for track in self.tracks]


def y_axis(places: Sequence[Places], height: float, **more: object) -> Properties:
    """Return the vertical axis: px from the top, the tracks' labels as ticks."""
    ticks = [place.ticks() for place in places]
    return style.label_axis(
        height,
        [centre for centres, _ in ticks for centre in centres],
        [label for _, labels in ticks for label in labels],
        tickfont={"size": 12},
        **more,
    )


def heading(text: str, y: float, **more: object) -> Properties:
    """Return a text at the left, safe for Plotly already."""
    return {
        "text": text, "x": 0, "xref": "paper", "xanchor": "left", "y": y, "yref": "y",
        "yanchor": "middle", "showarrow": False, "font": {"size": 13}, "align": "left", **more,
    }  # fmt: skip


def nothing(y: float) -> Properties:
    """Return what stands where there is no track."""
    return {
        "text": "no spans to draw here", "x": 0.5, "xref": "paper", "y": y, "yref": "y",
        "showarrow": False, "font": {"size": 15, "color": style.MUTED},
    }  # fmt: skip


def stripe(top: float, bottom: float, colour: str) -> Properties:
    """Return a band of colour behind a track."""
    return {
        "type": "rect", "xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": top, "y1": bottom,
        "fillcolor": colour, "line": {"width": 0}, "layer": "below",
    }  # fmt: skip


def _line(y: float) -> Properties:
    return {
        "type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": y, "y1": y,
        "line": {"width": 1, "color": style.HOST_COLOUR}, "layer": "below",
    }  # fmt: skip
