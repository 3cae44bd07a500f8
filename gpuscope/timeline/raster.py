"""A timeline as a PNG, for viewers that run no JavaScript."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from html import unescape
from typing import Any

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont

from gpuscope._types import Array
from gpuscope.timeline import style
from gpuscope.timeline.alternative import table_of
from gpuscope.timeline.columns import MARK_PX, edges_of, heights, resampled, step_of
from gpuscope.timeline.hatches import CELL, ESCAPED, HATCHES, MARKS, TINT
from gpuscope.timeline.labels import MARKS_PX, Class
from gpuscope.timeline.look import Look, PartLook, layer_looks
from gpuscope.timeline.picture import Panel, Picture, arrow_colours
from gpuscope.timeline.plotly_parts import MARGIN
from gpuscope.timeline.scene import Arrows
from gpuscope.timeline.style import Properties
from gpuscope.timeline.text import clean
from gpuscope.timeline.themed import ThemedFigure
from gpuscope.timeline.waiting import PartClass

WIDTH = 840
"""A little less than a cell of JupyterLab has in a window of 1,280 px, its file browser open."""
_FONTS = (
    "DejaVuSans.ttf",
    "NotoSans-Regular.ttf",
    "LiberationSans-Regular.ttf",
    "Arial.ttf",
    "arial.ttf",
)
_LABEL_GAP = 8
_TICKS = 8
_ARROW, _DOT = 4, 8
_NAME, _LEAST_NAME_PX = 60, 12
"""Characters of a name in a bar at most, and room that the shortest one needs."""


class StaticFigure(ThemedFigure):
    """A figure that brings its PNG wherever a notebook shows it.

    JupyterLab shows the PNG, and draws the figure itself when the pointer comes to it.

    Parameters
    ----------
    picture
        What its PNG is painted from.
    """

    def __init__(self, *args: object, picture: Picture | None = None, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._picture = picture

    def __reduce__(self) -> tuple[object, ...]:
        make, arguments = super().__reduce__()[:2]
        return partial(make, picture=self._picture), arguments

    def _repr_mimebundle_(self, *args: object, **kwargs: object) -> Properties:
        bundle: Properties = super()._repr_mimebundle_(*args, **kwargs)
        if bundle:  # empty where figures open in a window of their own
            # A user may have added what is not drawn here, and must see the figure all the same.
            with suppress(KeyError, TypeError, ValueError):
                bundle["image/png"] = base64.b64encode(png(self)).decode()
        return bundle

    def table(self) -> str:
        """Return the spans that are drawn as a table in HTML; empty where there is no picture."""
        return "" if self._picture is None else table_of(self._picture)

    def _dark_picture(self) -> bytes | None:
        with suppress(KeyError, TypeError, ValueError):
            return png(self, dark=True)
        return None


def png(drawn: StaticFigure | Picture, *, dark: bool = False) -> bytes:
    """Paint a timeline: its scenes, and the layout around them.

    Parameters
    ----------
    drawn
        Of a figure, the layout may have been changed: titles, shapes and annotations are drawn.
    dark
        Whether it is for a dark page.

    Raises
    ------
    ValueError
        The figure shows other data than it was made with.
    """
    picture = drawn if isinstance(drawn, Picture) else drawn._picture
    layout = drawn.layout if isinstance(drawn, Picture) else drawn.layout.to_plotly_json()
    if picture is None or [*layout["xaxis"]["range"]] != picture.layout["xaxis"]["range"]:
        raise ValueError("the figure shows other data than it was made with")
    drawing = _Drawing(layout, dark=dark)
    for panel in picture.panels:
        drawing.columns(panel, picture.looks)
        drawing.bars(panel, picture.looks)
        drawing.waits(panel, picture.part_looks)
        drawing.counters(panel, picture.colours)
    for panel in picture.panels:
        drawing.marks(panel)
        drawing.arrows(panel, panel.scene.waits)
        drawing.arrows(panel, panel.scene.hazards, dotted=True)
    cells = {how.name: _cell(how) for how in picture.looks.values()}
    cells |= {how.name: _cell(how, TINT) for how in picture.part_looks.values()}
    cells |= {how.name: _cell(how) for how in picture.layer_looks}
    arrows = arrow_colours(panel.scene for panel in picture.panels)
    drawing.words(cells | {name: _plain_cell(colour) for name, colour in arrows.items()})
    file = io.BytesIO()
    # A better palette takes longer than all the drawing, and a timeline has few colours.
    few = drawing.image.quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    few.save(file, "PNG")
    return file.getvalue()


class _Drawing:
    """A picture with a time axis, and as many vertical axes as the figure has."""

    def __init__(self, layout: Properties, *, dark: bool) -> None:
        self._layout = layout
        self._is_dark = dark
        self._ink, self._muted = self._on_page(style.INK), self._on_page(style.MUTED)
        margin, height = layout["margin"], int(layout["height"])
        self._small, self._plain, self._large = (_font(size) for size in (12, 13, 18))
        self._axes = [layout[name] for name in ("yaxis", "yaxis2") if name in layout]
        labels = [_plain(text) for axis in self._axes for text in axis.get("ticktext") or ()]
        widest = max((self._small.getlength(label) for label in labels), default=0)
        left = max(margin["l"], int(widest) + 2 * _LABEL_GAP)
        self._box = (left, margin["t"], WIDTH - margin["r"], height - margin["b"])
        self.image = Image.new("RGB", (WIDTH, height), self._on_page(style.WHITE))
        self._draw = ImageDraw.Draw(self.image, "RGBA")
        for shape in layout.get("shapes") or ():
            self._shape(shape)
        for picture in layout.get("images") or ():
            self._picture(picture)
        self._time_axis()
        for axis in self._axes:
            for at, label in zip(
                axis.get("tickvals") or (), axis.get("ticktext") or (), strict=True
            ):
                where = (left - _LABEL_GAP, self._y(at, axis))
                self._draw.text(where, _plain(label), self._ink, self._small, anchor="rm")

    def _on_page(self, colour: str) -> str:
        return style.DARK.get(colour, colour) if self._is_dark else colour

    def _x(self, value: Any) -> Any:
        low, high = self._layout["xaxis"]["range"]
        left, _, right, _ = self._box
        return left + (value - low) / (high - low) * (right - left)

    def _y(self, value: Any, axis: Properties) -> Any:
        start, end = axis["range"]
        bottom, top = axis.get("domain") or (0, 1)
        _, upper, _, lower = self._box
        share = bottom + (value - start) / (end - start) * (top - bottom)
        return lower - share * (lower - upper)

    def _axis(self, reference: str) -> Properties:
        axis: Properties = self._layout[reference.replace("y", "yaxis")]
        return axis

    def _shape(self, shape: Properties) -> None:
        left, upper, right, lower = self._box
        if shape["xref"] == "x":  # a stretch of time, or a moment
            left, right = self._x(shape["x0"]), self._x(shape["x1"])
        if shape["yref"] != "y domain":
            axis = self._axis(shape["yref"])
            upper, lower = self._y(shape["y0"], axis), self._y(shape["y1"], axis)
        if shape["type"] != "rect":
            self._draw.line((left, upper, right, lower), fill=self._on_page(shape["line"]["color"]))
            return
        fill = self._on_page(shape["fillcolor"])
        self._draw.rectangle((left, upper, right, lower), _faint(fill, shape.get("opacity", 1)))

    def _picture(self, picture: Properties) -> None:
        axis = self._axis(picture["yref"])
        data = base64.b64decode(picture["source"].partition(",")[2])
        image = Image.open(io.BytesIO(data)).convert("RGBA")
        edges = [self._x(picture["x"]), self._x(picture["x"] + picture["sizex"])]
        heights = [self._y(picture["y"], axis), self._y(picture["y"] + picture["sizey"], axis)]
        size = (max(1, round(edges[1] - edges[0])), max(1, round(heights[1] - heights[0])))
        image = image.resize(size, Image.Resampling.BOX)
        at = (round(edges[0]), round(heights[0]))
        inside = (max(self._box[0] - at[0], 0), 0, min(self._box[2] - at[0], size[0]), size[1])
        image = image.crop(inside)
        self.image.paste(image, (at[0] + inside[0], at[1]), image)

    def _time_axis(self) -> None:
        axis = self._layout["xaxis"]
        low, high = axis["range"]
        step = step_of(high - low, _TICKS)
        left, upper, right, lower = self._box
        for number in range(math.ceil(low / step), math.floor(high / step) + 1):
            x = self._x(number * step)
            self._draw.line((x, upper, x, lower), fill=_faint(self._ink, 0.1))
            self._draw.line((x, lower, x, lower + 4), fill=self._muted)
            label = f"{round(number * step, 9):,.12g}"
            self._draw.text((x, lower + 6), label, self._ink, self._small, anchor="mt")
        self._draw.line((left, lower, right, lower), fill=self._muted)
        title = _plain(axis["title"]["text"])
        where = ((left + right) / 2, lower + 24)
        self._draw.text(where, title, self._ink, self._plain, anchor="mt")

    def bars(self, panel: Panel, looks: Mapping[Class, Look]) -> None:
        """Draw the spans of tracks that draw them, the classes in their order."""
        scene = panel.scene
        low, high = scene.window_ns
        begin = self._x(panel.x(np.maximum(scene.start_ns, low)))
        end = self._x(panel.x(np.minimum(scene.end_ns, high)))
        centre, size = panel.places.bars(scene.place, scene.lanes)
        top, bottom = (self._y(centre + side * size / 2, self._layout["yaxis"]) for side in (-1, 1))
        classes, number = scene.classed
        names = scene.tracks.coded["name"]
        for bar_class, how in looks.items():
            if bar_class not in classes:
                continue
            cell, has_pattern = _cell(how), bool(how.pattern)
            for bar in np.flatnonzero(number == classes.index(bar_class)).tolist():
                if end[bar] - begin[bar] < 2:
                    line = (begin[bar], top[bar], begin[bar], bottom[bar])
                    self._draw.line(line, fill=how.edge)
                    continue
                box = (begin[bar], top[bar], end[bar], bottom[bar])
                if has_pattern:
                    self._pattern([round(side) for side in box], cell)
                self._draw.rectangle(box, None if has_pattern else how.fill, outline=how.edge)
                room = end[bar] - begin[bar] - 6
                if room < _LEAST_NAME_PX:
                    continue
                name = clean(names.values[names.codes[scene.rows[bar]]], _NAME)
                name = _written(name.removeprefix("void "))
                if self._small.getlength(name) < room:
                    where = (begin[bar] + 4, (top[bar] + bottom[bar]) / 2)
                    around = 2 * has_pattern  # or it would run through the letters
                    font = self._small
                    self._draw.text(
                        where, name, how.text, font, anchor="lm", stroke_width=around,
                        stroke_fill=how.fill,
                    )  # fmt: skip

    def columns(self, panel: Panel, looks: Mapping[Class, Look]) -> None:
        """Draw the columns of tracks that have them, at the width of this picture."""
        scene, columns = panel.scene, panel.scene.columns
        classes = [bar_class for _, bar_class in scene.tracks.groups]
        left, right = (round(self._x(float(panel.x(edge)))) for edge in scene.window_ns)
        wide = right - left
        for track in np.flatnonzero(~scene.with_spans).tolist():
            groups, px = columns.of_row(track), panel.places.heights[track] - 2 * MARGIN
            share = columns.busy_ns[groups] / np.diff(columns.edges)
            is_busy = resampled(columns.is_there[groups], wide) > 0
            tall = heights(resampled(share, wide), is_busy, np.ones(wide), px)
            under = px - np.cumsum(tall, axis=0)
            at = np.arange(px)[:, None]
            pixels = np.zeros((px, wide, 4), np.uint8)
            for low, height, group in zip(under, tall, columns.rows[track].groups, strict=True):
                if height.any():
                    colour = (*style.rgb(looks[classes[group]].fill), 255)
                    pixels[(at >= low) & (at < low + height)] = colour
            strip = Image.fromarray(pixels)
            bottom = panel.places.tops[track] + panel.places.heights[track] - MARGIN
            corner = (left, round(self._y(bottom, self._layout["yaxis"])) - px)
            self.image.paste(strip, corner, strip)

    def waits(self, panel: Panel, looks: Mapping[PartClass, PartLook]) -> None:
        """Draw what calls waited for, in lanes, in columns of this picture's pixels."""
        scene, axis = panel.scene, self._layout["yaxis"]
        wide = round(self._x(float(panel.x(scene.window_ns[1])))) - self._box[0]
        waiting = scene.waiting
        boxes, high, low = panel.boxes(edges_of(scene.window_ns, max(1, wide)))
        x0, x1 = (
            np.rint(self._x(panel.x(np.clip(side, *scene.window_ns)))).astype(int)
            for side in (boxes.from_ns, boxes.to_ns)
        )
        y0, y1 = (np.rint(self._y(side, axis)).astype(int) for side in (high, low))
        cells = [_cell(looks[part], TINT) for part in waiting.classes]
        for number, *corners in zip(waiting.look[boxes.part].tolist(), x0, y0, x1, y1, strict=True):
            self._pattern(corners, cells[number])

    def counters(self, panel: Panel, colours: dict[str, str]) -> None:
        """Draw lanes of counters, in columns of this picture's pixels."""
        left, right = (round(self._x(float(panel.x(edge)))) for edge in panel.scene.window_ns)
        for spot, lane in panel.counters():
            tops = np.rint(lane.resampled(max(1, right - left)).tops).astype(int)
            tall = max(1, int(tops.max()))
            pixels = np.zeros((tall, tops.shape[1], 4), np.uint8)
            up, below = np.arange(tall, 0, -1)[:, None], np.zeros_like(tops[0])
            for above, how in zip(tops, layer_looks(lane.facts, colours), strict=True):
                pixels[(up > below) & (up <= above)] = (*style.rgb(how.fill), 255)
                below = above
            strip = Image.fromarray(pixels)
            bottom = round(self._y(spot.bottom, self._layout["yaxis"]))
            self.image.paste(strip, (left, bottom - tall), strip)

    def _pattern(self, corners: Sequence[int], cell: Array) -> None:
        """Fill a rectangle, at least 1 px wide, with what a square repeats."""
        x0, y0, x1, y1 = corners
        x1 = max(x1, x0 + 1)
        if y1 > y0:
            y, x = np.ogrid[y0:y1, x0:x1]
            tiled = Image.fromarray(cell[y % CELL, x % CELL])
            self.image.paste(tiled, (x0, y0), tiled)

    def arrows(self, panel: Panel, arrows: Arrows, *, dotted: bool = False) -> None:
        """Draw arrows between bars."""
        scene, axis = panel.scene, self._layout["yaxis"]
        colour = style.ESCAPED if dotted else self._ink
        points = []
        for times, bar in ((arrows.from_ns, arrows.cause), (arrows.to_ns, arrows.effect)):
            centre, _ = panel.places.bars(scene.place[bar], scene.lanes[bar])
            points.append(np.stack([self._x(panel.x(times)), self._y(centre, axis)], axis=1))
        left, _, right, _ = self._box
        for start, end in zip(*points, strict=True):
            length = max(float(np.hypot(*(end - start))), 1e-9)
            along = (end - start) / length
            first, last = 0.0, length
            if along[0]:  # what is outside the window is not drawn
                low, high = sorted(((left - start[0]) / along[0], (right - start[0]) / along[0]))
                first, last = max(first, low), min(last, high)
            step = _DOT if dotted else 2 * length  # a dot, and as much that is left out
            for at in np.arange(first, last, step):
                ends = start + along * at, start + along * min(last, at + step / 2)
                self._draw.line((*ends[0], *ends[1]), fill=colour, width=3 if dotted else 1)
            if last < length - 1:  # its end is outside
                continue
            across = np.array([-along[1], along[0]]) * _ARROW * 0.7
            head = end - along * 2 * _ARROW
            self._draw.polygon([*end, *(head + across), *(head - across)], fill=colour)

    def marks(self, panel: Panel) -> None:
        """Draw marks of escapes and hazards."""
        half = _ARROW + 2
        for what, (row, column, _) in panel.scene.marks(MARK_PX).items():
            x = self._x(panel.x(panel.scene.columns.edges[column]))
            y = self._y(np.array(panel.places.tops)[row] - MARKS_PX / 2, self._layout["yaxis"])
            for centre in np.stack([x, y - _ARROW + half], axis=1):
                corners = centre + half * np.array(MARKS[what].corners)
                self._draw.polygon(corners.ravel().tolist(), fill=style.ESCAPED, outline=self._ink)

    def words(self, legend: Mapping[str, Array]) -> None:
        """Write title, headings and legend: name → the square that its swatch repeats."""
        title = self._layout["title"]
        top = title["pad"]["t"]
        self._draw.text((14, top), _plain(title["text"]), self._ink, self._large)
        lines = title["subtitle"]["text"].split("<br>")
        for number, line in enumerate(lines):
            self._draw.text((14, top + 28 + 18 * number), _plain(line), self._muted, self._plain)
        left, _, right, _ = self._box
        for note in self._layout.get("annotations") or ():
            x = self._x(note["x"]) if note.get("xref") == "x" else left + note["x"] * (right - left)
            is_above = note["yref"] == "y domain"
            y = self._box[1] - 10 if is_above else self._y(note["y"], self._axis(note["yref"]))
            where = (min(x, right) + note.get("xshift", 0), y)
            anchor = {"left": "lm", "right": "rm"}.get(note.get("xanchor"), "mm")
            font = self._small if note.get("font", {}).get("size") == 11 else self._plain
            self._draw.text(where, _plain(note["text"]), self._ink, font, anchor=anchor)
        x, y = 14.0, self._box[3] + 50
        for text, cell in legend.items():
            name = _written(text)
            length = 18 + self._small.getlength(name) + 18
            if x + length > WIDTH and x > 14:
                x, y = 14.0, y + 20
            self._pattern((int(x), y, int(x) + 12, y + 12), cell)
            self._draw.rectangle((x, y, x + 11, y + 11), outline=self._muted)
            self._draw.text((x + 18, y + 6), name, self._ink, self._small, anchor="lm")
            x += length


def _faint(colour: str, opacity: float) -> tuple[int, ...]:
    return (*ImageColor.getrgb(colour), round(255 * opacity))


def _plain_cell(colour: str) -> Array:
    """Return a square of one colour, as rows, columns and red, green, blue and opacity."""
    cell = np.full((CELL, CELL, 4), 255, np.uint8)
    cell[..., :3] = style.rgb(colour)
    return cell


def _cell(how: Look | PartLook, tint: float = 0.0) -> Array:
    """Return the square that a look repeats, as canvases draw it.

    Parameters
    ----------
    tint
        Opacity between the strokes of a pattern.
    """
    cell = _plain_cell(how.fill)
    if isinstance(how, Look) and how.escaped:
        strokes = ESCAPED.mask(0)[..., None]
        cell[..., :3] = np.rint(
            cell[..., :3] * (1 - strokes) + np.array(style.rgb(style.INK)) * strokes
        )
    elif how.pattern:
        cell[..., 3] = np.rint(255 * HATCHES[how.pattern].mask(tint))
    return cell


@lru_cache(maxsize=8)
def _font(size: int) -> Any:
    """Return a font of the system, as the one that Pillow brings has little more than ASCII."""
    for name in _FONTS:
        try:
            return ImageFont.truetype(name, size)
        except OSError:
            continue
    return ImageFont.load_default(size)


def _plain(text: str) -> str:
    """Return Plotly's subset of HTML as plain text."""
    return _written(unescape(re.sub(r"<[^<>]*>", "", text.replace("<br>", "\n"))))


def _written(text: str) -> str:
    return text if isinstance(_font(12).path, str) else text.replace("µ", "u")
