"""The shading of tracks by spans that have no bar of their own, as one small image."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from gpuscope._types import Array
from gpuscope.figures import style
from gpuscope.figures.places import Places
from gpuscope.figures.style import Properties
from gpuscope.trace.query import Selection

SHADES = 10
_FAINTEST, _STRONGEST = 0.2, 0.85
_PX = 2
_MARGIN = 2
"""Px of a track above and below its part of the picture."""


def track_colours(places: Places, colours: dict[str, str]) -> list[str]:
    """Return the colour of each track."""
    return [
        style.HOST_COLOUR if track.is_host
        else style.WHOLE_GPU_COLOUR if track.partition is None
        else colours[track.partition]
        for track in places.tracks
    ]  # fmt: skip


def coverage_image(
    found: Selection, places: Places, colours: dict[str, str], zero_ns: int, unit_ns: float
) -> Properties | None:
    """Return the picture as a layout image for Plotly; ``None`` if every span has a bar.

    A column is as opaque as its time is covered, and never quite empty where a span begins.
    """
    if not found.merged:
        return None
    names = track_colours(places, colours)
    palette = list(dict.fromkeys(names))
    shade = np.maximum(np.ceil(found.coverage * SHADES), found.begins > 0).astype(np.uint8)
    first = np.array([palette.index(name) * SHADES for name in names], np.uint8)[:, None]
    spare = np.zeros((1, shade.shape[1]), np.uint8)
    pixels = np.concatenate([np.where(shade, first + shade, 0), spare]).astype(np.uint8)
    track = np.full(places.bottom // _PX, -1)
    for index, (top, height) in enumerate(zip(places.tops, places.heights, strict=True)):
        track[(top + _MARGIN) // _PX : (top + height - _MARGIN) // _PX] = index
    return layout_image(
        png(pixels[track], palette),
        x=(found.origin_ns - zero_ns) / unit_ns,
        length=found.coverage.shape[1] * found.column_ns / unit_ns,
        height=places.bottom,
    )


def layout_image(
    picture: bytes, *, x: float, length: float, height: float, axis: str = ""
) -> Properties:
    """Return a picture as a layout image that lies under the traces and moves with the axes."""
    return {
        "source": "data:image/png;base64," + base64.b64encode(picture).decode(),
        "xref": "x", "x": x, "sizex": length, "xanchor": "left",
        "yref": f"y{axis}", "y": 0, "sizey": height, "yanchor": "top",
        "sizing": "stretch", "layer": "below",
    }  # fmt: skip


def png(pixels: Array, colours: Sequence[str]) -> bytes:
    """Encode rows of pixels: 0 is empty, else colour · ``SHADES`` + shade, shades from 1 on."""
    alphas = np.linspace(255 * _FAINTEST, 255 * _STRONGEST, SHADES).astype(np.uint8).tobytes()
    image = Image.fromarray(pixels)
    image.putpalette(b"\0\0\0" + b"".join(bytes.fromhex(colour[1:]) * SHADES for colour in colours))
    file = io.BytesIO()
    # More compression takes eight times as long and saves a fifth.
    image.save(file, "PNG", transparency=b"\0" + alphas * len(colours), compress_level=1)
    return file.getvalue()
