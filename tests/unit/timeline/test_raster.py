"""The PNG of a timeline: what a viewer without JavaScript gets."""

from __future__ import annotations

import base64
import io
import pickle

import numpy as np
import plotly.io as pio
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from PIL import Image

from gpuscope import figures
from gpuscope.timeline import hatches, raster
from gpuscope.timeline.raster import png
from gpuscope.timeline.style import ESCAPED, INK, OKABE_ITO, WHOLE_GPU_COLOUR
from gpuscope.trace.facts import HazardFacts
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace


def trace(count=3, **metadata):
    start = [index * 1000 for index in range(count)] * 2
    return Trace.from_columns(
        {
            "id": list(range(2 * count)),
            "kind": ["kernel"] * 2 * count,
            "name": ["k <b>µ</b>"] * 2 * count,
            "start_ns": start,
            "end_ns": [one + 700 for one in start],
            "source": ["cupti"] * 2 * count,
            "stream": [1] * count + [2] * count,
            "partition": ["p"] * count + [None] * count,
        },
        {"from": [0], "to": [count + 1], "kind": ["event wait"]},
        TraceMetadata(partitions={"p": {"color": OKABE_ITO[0]}}, **metadata),
    )


@pytest.fixture
def in_notebook(monkeypatch):
    """As in a notebook: figures are sent for a viewer to draw."""
    InteractiveShell.instance()
    before = pio.renderers.default
    pio.renderers.default = "plotly_mimetype"
    yield
    pio.renderers.default = before


def opened(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


def share(picture, colour):
    wanted = np.array(list(bytes.fromhex(colour[1:])))
    return (np.abs(picture - wanted).max(axis=-1) <= 4).mean(axis=-1)


def test_bars_are_where_the_figure_has_them():
    figure = figures.timeline(trace())
    picture = opened(png(figure))
    assert picture.shape == (figure.layout.height, raster.WIDTH, 3)
    margin = figure.layout.margin
    height = figure.layout.yaxis.range[0]
    upper, lower = margin.t, figure.layout.height - margin.b
    for centre, colour in zip(
        figure.layout.yaxis.tickvals, (OKABE_ITO[0], WHOLE_GPU_COLOUR), strict=True
    ):
        row = round(upper + centre / height * (lower - upper)) + 5
        covered = share(picture, colour)[row] * 1000
        plot = covered / (1000 - margin.l - margin.r)
        assert 0.5 < plot < 0.85, "three spans of 0.7 µs in 2.7 µs, less labels and outlines"


def test_columns_have_the_colour_of_their_partition():
    columns = opened(png(figures.timeline(trace(1000))))
    rows = share(columns, OKABE_ITO[0]) > 0.7
    # 0.7 of 30 px, seen from below: labels and shares leave most of the width.
    assert 20 <= rows.sum() <= 22


def test_bars_have_the_patterns_that_canvases_draw():
    """Between the strokes of a copy is paper; those of what escaped are ink on its colour."""
    long = Trace.from_columns({
        "id": [0, 1],
        "kind": ["memcpy", "kernel"],
        "name": ["", ""],
        "start_ns": [0, 0],
        "end_ns": [1000, 1000],
        "source": ["cupti", "cupti"],
        "stream": [1, 2],
        "partition": ["p", "q"],
        "intended_partition": ["p", "p"],
    })  # fmt: skip
    figure = figures.timeline(long)
    picture = opened(png(figure))
    margin, height = figure.layout.margin, figure.layout.yaxis.range[0]
    lower = figure.layout.height - margin.b
    bars = {}
    for name, centre in zip("pq", figure.layout.yaxis.tickvals, strict=True):
        row = round(margin.t + centre / height * (lower - margin.t))
        bars[name] = picture[row - 6 : row + 6, margin.l + 50 : margin.l + 350]
    copy, escaped = bars["p"], bars["q"]
    between, strokes = hatches.HATCHES["/"].mask(0) == 0, hatches.ESCAPED.mask(0)
    assert (copy.min(axis=-1) > 250).mean() == pytest.approx(between.mean(), abs=0.02)
    assert share(escaped, ESCAPED).mean() == pytest.approx((strokes == 0).mean(), abs=0.02)
    assert share(escaped, INK).mean() == pytest.approx((strokes == 1).mean(), abs=0.02)


def test_a_title_and_what_is_simulated_are_written():
    """Nobody reads letters here; that there are more of them is seen."""
    measured = opened(png(figures.timeline(trace())))
    simulated = opened(png(figures.timeline(trace(simulated=True))))
    assert (simulated[10:34] < 128).sum() > 1.5 * (measured[10:34] < 128).sum()


def test_nothing_to_draw_is_drawn_too():
    assert opened(png(figures.timeline(Trace.from_columns({})))).min() < 100


def test_several_settings_and_all_kinds_of_marks():
    figure = figures.timelines({"one": trace(), "two": trace()}, max_spans=3)
    assert opened(png(figure)).shape[0] == figure.layout.height


def test_a_notebook_gets_the_figure_and_the_png(in_notebook):
    figure = figures.timeline(trace())
    bundle = figure._repr_mimebundle_()
    assert set(bundle) == {"application/vnd.plotly.v1+json", "image/png"}
    assert base64.b64decode(bundle["image/png"]) == png(figure)
    for show in (figure._ipython_display_, figure.show):
        with capture_output() as captured:
            show()
        themed, output, below = captured.outputs
        assert "data-jp-theme-light" in themed.data["text/html"], "white on a dark page"
        assert set(output.data) == set(bundle)
        assert figure.table() in below.data["text/html"], "for who does not see it"
    assert pickle.loads(pickle.dumps(figure))._repr_mimebundle_().keys() == bundle.keys()  # noqa: S301


def test_a_figure_keeps_of_its_trace_what_it_shows_alone():
    few, many = (figures.timeline(trace(count), window_ns=(0, 3000)) for count in (3, 30_000))
    assert len(pickle.dumps(many)) < 1.5 * len(pickle.dumps(few))
    assert png(pickle.loads(pickle.dumps(many))) == png(many)  # noqa: S301


def test_a_renderer_that_is_asked_for_is_plotlys_matter(in_notebook):
    with capture_output() as captured:
        figures.timeline(trace()).show(renderer="json")
    assert "image/png" not in captured.outputs[0].data


def test_what_a_user_changes_is_in_the_png_or_does_no_harm(in_notebook):
    figure = figures.timeline(trace())
    before = png(figure)
    figure.update_layout(title_text="Another")
    assert png(figure) != before
    figure.add_vline(x=1.0)
    figure.add_scatter(x=[0, 1], y=[0, 10])
    figure.update_xaxes(range=None)
    assert "application/vnd.plotly.v1+json" in figure._repr_mimebundle_()


@pytest.mark.parametrize(
    ("starts", "ends"),
    [([10_500, 10_200], [15_000, 10_900]), ([10_500, 7_000], [15_000, 10_900]),
     ([9_000, 7_000], [10_500, 11_000])],
    ids=["from outside", "through it", "to outside"],
)  # fmt: skip
def test_arrows_end_where_the_window_does(starts, ends):
    """An end of the arrow is outside the window, as the bar there is drawn in part."""
    found = {"kind": "read after write", "first": 0, "second": 1}
    columns = {
        "id": [0, 1], "kind": ["kernel"] * 2, "name": ["k"] * 2, "stream": [1, 2],
        "start_ns": starts, "end_ns": ends, "source": ["cupti"] * 2,
    }  # fmt: skip
    trace = Trace.from_columns(columns, metadata=TraceMetadata(hazards=HazardFacts(found=[found])))
    figure = figures.timeline(trace, window_ns=(10_000, 12_000))
    picture = opened(png(figure))
    margin = figure.layout.margin
    left, right = picture.shape[1] - raster.WIDTH + margin.l, raster.WIDTH - margin.r
    wanted = np.array(list(bytes.fromhex(ESCAPED[1:])))
    coloured = np.abs(picture[:, :, :3] - wanted).max(axis=-1) <= 4
    coloured = coloured[margin.t : -margin.b]
    assert coloured[:, left:right].any()
    assert not coloured[:, : left - 8].any()
    assert not coloured[:, right + 8 :].any()
