"""Figures on a dark page."""

from __future__ import annotations

import io
import itertools
import re
import webbrowser

import numpy as np
import plotly.io as pio
import pytest
from PIL import Image

from gpuscope import figures
from gpuscope.errors import GpuscopeError
from gpuscope.timeline import style
from gpuscope.timeline.raster import png
from gpuscope.timeline.themed import ThemedFigure
from gpuscope.trace import Trace


def figure_trace(name="k"):
    return Trace.from_columns(
        {
            "id": [1, 2], "kind": ["kernel", "range"], "name": [name, "r"], "stream": [7, None],
            "start_ns": [0, 0], "end_ns": [90, 100], "source": ["cupti", "nvtx"],
        }
    )  # fmt: skip


@pytest.fixture
def figure():
    return figures.timeline(figure_trace())


def luminance(colour: str) -> float:
    parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_words_can_be_read_on_either_page():
    for paper, colour in ((style.WHITE, str), (style.DARK[style.WHITE], style.DARK.__getitem__)):
        for words in (style.INK, style.MUTED):
            for behind in (style.WHITE, style.STRIPE, style.HEADING):
                assert contrast(colour(words), colour(behind)) > 4.5
        assert contrast(style.ESCAPED, paper) > 3


def test_a_dark_page_replaces_each_neutral_colour_and_no_other(figure):
    assert isinstance(figure, ThemedFigure)
    said = figure._style()
    for light, dark in style.DARK.items():
        red, green, blue = (int(light[at : at + 2], 16) for at in (1, 3, 5))
        assert f'fill: rgb({red}, {green}, {blue})"]' in said
        assert f"fill:{dark} !important" in said
    assert not {*style.DARK} & {*style.OKABE_ITO, style.ESCAPED, style.HOST_COLOUR}
    assert "<script" not in said


def test_the_picture_has_a_dark_one_beside_it(figure):
    light, dark = (
        np.asarray(Image.open(io.BytesIO(png(figure, dark=dark))).convert("RGB")).astype(int)
        for dark in (False, True)
    )
    assert light.shape == dark.shape
    assert np.median(light) > 240
    assert np.median(dark) < 40
    assert re.search(r"\.plot-img\{content:url\(data:image/png;base64,", figure._style())


def test_a_figures_dark_picture_does_not_stand_in_for_another_figures(figure):
    other = figures.timeline(figure_trace(name="other"))
    selects = [
        re.search(r":has\(\.([\w-]+)\)[^:{]*\.plot-img\{content", one._style()).group(1)
        for one in (figure, other)
    ]
    assert len(set(selects)) == 2
    for one, selected in zip((figure, other), selects, strict=True):
        (classes,) = re.findall(r'^<style class="([^"]+)">', one._style())
        assert selected in classes.split()


def test_what_text_stands_on_decides_its_colour():
    for colour in (*style.OKABE_ITO, style.ESCAPED, style.HOST_COLOUR, style.WHOLE_GPU_COLOUR):
        assert contrast(style.on(colour), colour) > 3.5


def test_a_partition_has_its_colour_wherever_it_is_carved():
    alone = {name: style.colours_of([name])[name] for name in ("small", "load", "decode", "rest")}
    assert style.colours_of(["small", "load", "rest"]) == style.colours_of(
        ["rest", "load", "small"]
    )
    assert style.colours_of(["load", "small"])["load"] == alone["load"] != alone["small"]
    many = style.colours_of([f"p{number}" for number in range(9)])
    assert {*many.values()} > {*style.OKABE_ITO}
    assert style.ESCAPED not in many.values()


# Machado, Oliveira and Fernandes (2009): what protanopes and deuteranopes see of linear RGB.
SEEN = {
    "everything": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
               [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                 [-0.011820, 0.042940, 0.968881]],
}  # fmt: skip
NOTICED = 2.3
"""The least difference that is just noticed, in CIELAB."""
TO_XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]


def lab(colour, eyes):
    parts = np.array(style.rgb(colour)) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt(TO_XYZ @ np.clip(SEEN[eyes] @ linear, 0.001, 1) / [0.9505, 1, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("eyes", SEEN)
def test_fifteen_partitions_differ_to_every_eye(eyes):
    colours = [*style.colours_of([f"p{number:02}" for number in range(15)]).values()]
    places = [lab(colour, eyes) for colour in colours]
    pairs = itertools.combinations(places, 2)
    assert min(float(np.linalg.norm(one - other)) for one, other in pairs) > 4 * NOTICED


def test_without_a_browser_a_terminal_says_so_in_one_line(figure, monkeypatch, capsys):
    def get(*_):
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "get", get)
    monkeypatch.setattr(pio.renderers, "default", "browser")
    with pytest.raises(GpuscopeError, match="write_html"):
        figure.show()
    figure._ipython_display_()
    (line,) = capsys.readouterr().out.splitlines()
    assert "write_html" in line
