"""A timeline as a PNG, for viewers that run no JavaScript: drawn from the Plotly figure itself."""

from __future__ import annotations

import base64
import io
import math
import re
from contextlib import suppress
from functools import lru_cache
from html import unescape
from typing import Any

import numpy as np
import plotly.graph_objects as go
from PIL import Image, ImageColor, ImageDraw, ImageFont

from gpuscope.timeline import style
from gpuscope.timeline.scene import heights, resampled
from gpuscope.timeline.style import Properties
from gpuscope.timeline.themed import ThemedFigure

WIDTH = 840
"""A little less than a cell of JupyterLab has in a window of 1,280 px, its file browser open."""
_FONTS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "LiberationSans-Regular.ttf", "Arial.ttf",
          "arial.ttf")  # fmt: skip
_LABEL_GAP = 8
_TICKS = 8
_ARROW, _DOT = 4, 8


class StaticFigure(ThemedFigure):
    """A figure that brings its PNG wherever a notebook shows it.

    JupyterLab shows the PNG, and draws the figure itself when the pointer comes to it.
    """

    def _repr_mimebundle_(self, *args: object, **kwargs: object) -> Properties:
        bundle: Properties = super()._repr_mimebundle_(*args, **kwargs)
        if bundle:  # empty where figures open in a window of their own
            # A user may have added what is not drawn here, and must see the figure all the same.
            with suppress(KeyError, TypeError, ValueError):
                bundle["image/png"] = base64.b64encode(png(self)).decode()
        return bundle

    def _dark_picture(self) -> bytes | None:
        with suppress(KeyError, TypeError, ValueError):
            return png(self, dark=True)
        return None


def png(figure: go.Figure | Properties, *, dark: bool = False) -> bytes:
    """Draw a timeline; what it shows is read from the figure, or from its content.

    Parameters
    ----------
    dark
        Whether it is for a dark page.
    """
    content = figure if isinstance(figure, dict) else figure.to_plotly_json()
    drawing = _Drawing(content["layout"], dark=dark)
    for number, trace in enumerate(content["data"]):
        if trace["type"] == "bar":
            drawing.bars(trace)
        elif "meta" in trace:
            drawing.columns(_track(content["data"], number))
        elif trace.get("mode") == "lines+markers":
            drawing.arrows(trace)
        elif trace.get("mode") == "markers" and "customdata" in trace:
            drawing.marks(trace)
    drawing.words([trace for trace in content["data"] if trace.get("showlegend", True)])
    file = io.BytesIO()
    # A better palette takes longer than all the drawing, and a timeline has few colours.
    few = drawing.image.quantize(
        256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE
    )  # fmt: skip
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

    def _x(self, value: float) -> float:
        low, high = self._layout["xaxis"]["range"]
        left, _, right, _ = self._box
        return float(left + (value - low) / (high - low) * (right - left))

    def _y(self, value: float, axis: Properties) -> float:
        start, end = axis["range"]
        bottom, top = axis.get("domain") or (0, 1)
        _, upper, _, lower = self._box
        share = bottom + (value - start) / (end - start) * (top - bottom)
        return float(lower - share * (lower - upper))

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
        held = Image.open(io.BytesIO(data)).convert("RGBA")
        edges = [self._x(picture["x"]), self._x(picture["x"] + picture["sizex"])]
        heights = [self._y(picture["y"], axis), self._y(picture["y"] + picture["sizey"], axis)]
        size = (max(1, round(edges[1] - edges[0])), max(1, round(heights[1] - heights[0])))
        held = held.resize(size, Image.Resampling.BOX)
        at = (round(edges[0]), round(heights[0]))
        inside = (
            max(self._box[0] - at[0], 0), 0, min(self._box[2] - at[0], size[0]), size[1]
        )  # fmt: skip
        held = held.crop(inside)
        self.image.paste(held, (at[0] + inside[0], at[1]), held)

    def _time_axis(self) -> None:
        axis = self._layout["xaxis"]
        low, high = axis["range"]
        step = 10 ** math.floor(math.log10((high - low) / _TICKS))
        step *= next(times for times in (1, 2, 5, 10) if (high - low) / (step * times) <= _TICKS)
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

    def bars(self, trace: Properties) -> None:
        """Draw a bar trace."""
        axis = self._axis(trace.get("yaxis") or "y")
        fill, line = _fill(trace["marker"]), trace["marker"]["line"]["color"]
        texts = trace.get("text") or [""] * len(trace["base"])
        left, _, right, _ = self._box
        columns = [_numbers(trace[name]) for name in ("base", "x", "y", "width")]
        for base, x, y, width, text in zip(*columns, texts, strict=True):
            begin, end = max(self._x(base), left), min(self._x(base + x), right)
            if end < left or begin > right:
                continue
            top, bottom = self._y(y - width / 2, axis), self._y(y + width / 2, axis)
            if end - begin < 2:
                self._draw.line((begin, top, begin, bottom), fill=line)
                continue
            self._draw.rectangle((begin, top, end, bottom), fill=fill, outline=line)
            said = _plain(text)
            if said and self._small.getlength(said) < end - begin - 6:
                where = (begin + 4, (top + bottom) / 2)
                self._draw.text(where, said, trace["textfont"]["color"], self._small, anchor="lm")

    def columns(self, traces: list[Properties]) -> None:
        """Draw the columns of a track, at the width of this picture: a line and a fill a class."""
        lines, fills = traces[::2], traces[1::2]
        share = np.array([_numbers(one["customdata"])[:-1] for one in fills], float)
        seen = np.array([np.not_equal(_numbers(line["y"]), _numbers(fill["y"]))[:-1]
                         for line, fill in zip(lines, fills, strict=True)])  # fmt: skip
        left = round(self._x(lines[0]["x0"]))
        wide = round(self._x(lines[0]["x0"] + share.shape[1] * lines[0]["dx"])) - left
        px = lines[0]["meta"]
        tall = heights(resampled(share, wide), resampled(seen, wide) > 0, np.ones(wide), px)
        under = px - np.cumsum(tall, axis=0)
        at = np.arange(px)[:, None]
        pixels = np.zeros((px, wide, 4), np.uint8)
        for low, height, fill in zip(under, tall, fills, strict=True):
            colour = (*ImageColor.getrgb(fill["fillcolor"]), 255)
            pixels[(at >= low) & (at < low + height)] = colour
        picture = Image.fromarray(pixels)
        bottom = self._y(_numbers(lines[0]["y"])[0], self._axis("y"))
        self.image.paste(picture, (left, round(bottom) - px), picture)

    def arrows(self, trace: Properties) -> None:
        """Draw a line trace of arrows: a start, an end, a gap."""
        axis, line = self._axis(trace.get("yaxis") or "y"), trace["line"]
        colour = self._on_page(line["color"])
        xs, ys = _numbers(trace["x"]), _numbers(trace["y"])
        for place in range(0, len(xs), 3):
            (x0, x1), (y0, y1) = xs[place : place + 2], ys[place : place + 2]
            start = np.array([self._x(x0), self._y(y0, axis)])
            end = np.array([self._x(x1), self._y(y1, axis)])
            length = max(float(np.hypot(*(end - start))), 1e-9)
            along = (end - start) / length
            step = _DOT if "dash" in line else 2 * length  # a dot, and as much that is left out
            for at in np.arange(0, length, step):
                ends = start + along * at, start + along * min(length, at + step / 2)
                self._draw.line((*ends[0], *ends[1]), fill=colour, width=round(line["width"]))
            across = np.array([-along[1], along[0]]) * _ARROW * 0.7
            head = end - along * 2 * _ARROW
            self._draw.polygon([*end, *(head + across), *(head - across)], fill=colour)

    def marks(self, trace: Properties) -> None:
        """Draw triangles that point down, or diamonds."""
        axis, marker, half = self._axis(trace.get("yaxis") or "y"), trace["marker"], _ARROW + 2
        for x, y in zip(_numbers(trace["x"]), _numbers(trace["y"]), strict=True):
            at, top = self._x(x), self._y(y, axis) - _ARROW
            corners = [(at - half, top), (at + half, top), (at, top + 2 * half)]
            if marker["symbol"] == "diamond":
                corners = [(at - half, top + half), (at, top), (at + half, top + half),
                           (at, top + 2 * half)]  # fmt: skip
            self._draw.polygon(corners, fill=marker["color"], outline=self._ink)

    def words(self, traces: list[Properties]) -> None:
        """Write title, headings and legend."""
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
            where = (min(x, right), y)
            anchor = {"left": "lm", "right": "rm"}.get(note.get("xanchor"), "mm")
            self._draw.text(where, _plain(note["text"]), self._ink, self._plain, anchor=anchor)
        x, y = 14.0, self._box[3] + 50
        for trace in traces:
            name = _plain(trace["name"])
            length = 18 + self._small.getlength(name) + 18
            if x + length > WIDTH and x > 14:
                x, y = 14.0, y + 20
            colour = trace.get("fillcolor") or _fill(trace["marker"])
            self._draw.rectangle((x, y, x + 11, y + 11), fill=colour, outline=self._muted)
            self._draw.text((x + 18, y + 6), name, self._ink, self._small, anchor="lm")
            x += length


def _track(data: list[Properties], first: int) -> list[Properties]:
    """Return the traces of a track's columns, whose first line is at a place."""
    end = first + 2
    while end + 1 < len(data) and "fill" in data[end + 1] and "meta" not in data[end]:
        end += 2
    return data[first:end]


def _numbers(values: Any) -> list[Any]:
    """Return numbers that Plotly may hold as base64."""
    if isinstance(values, dict):
        values = np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"])
    return list(values)


def _faint(colour: str, opacity: float) -> tuple[int, ...]:
    return (*ImageColor.getrgb(colour), round(255 * opacity))


def _fill(marker: Properties) -> str:
    """Return a bar's colour, paler where Plotly draws a pattern."""
    return style.tinted(marker["color"], 0.55) if marker.get("pattern") else str(marker["color"])


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
    said = unescape(re.sub(r"<[^<>]*>", "", text.replace("<br>", "\n")))
    return said if isinstance(_font(12).path, str) else said.replace("µ", "u")
