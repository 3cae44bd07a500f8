"""A prediction over what was measured, with the error of each."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go

from gpuscope import analysis
from gpuscope._checks import MappingOf, door
from gpuscope.analysis.prediction_analysis import MAKESPAN, PredictionResult
from gpuscope.timeline import style
from gpuscope.timeline.style import Properties
from gpuscope.timeline.text import duration, escape, notes_of, provenance_of, stated, uncertainty
from gpuscope.timeline.themed import ThemedFigure
from gpuscope.trace.model import Trace

_ROW = 30
_HEADING = 26
_PREDICTED, _MEASURED = style.OKABE_ITO[1], style.OKABE_ITO[0]
_FONT = {"size": 13, "color": style.INK}
_COLUMNS = (("predicted", 0.78), ("measured", 0.9), ("error", 1.0))
"""Heading → where a column of the table ends, as a share of the figure's width."""


@door(predicted=(Trace, MappingOf(Trace)), measured=(Trace, MappingOf(Trace)))
def prediction(
    predicted: Mapping[str, Trace] | Trace, measured: Mapping[str, Trace] | Trace
) -> go.Figure:
    """Draw a prediction over a measurement: each workload's kernel time and each makespan.

    One line for each, with a table of both times and the error beside it
    (:func:`gpuscope.analysis.prediction`).

    Parameters
    ----------
    predicted, measured
        Two runs of one experiment, or two traces, matched by setting and workload. The first is
        simulated.

    Raises
    ------
    MissingEvidence
        They do not match, or hold no finished kernel; what differs is said.
    ValueError
        One argument is a run and the other a trace, or the first one is not simulated.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2}},
    ... }
    >>> figure = gs.figures.prediction(gs.experiments.predict(one), gs.run(one, gpu))
    >>> figure.layout.title.text
    '<b>Predicted and measured (SIMULATED)</b>'
    """
    result = analysis.prediction(predicted, measured)
    y, places, annotations = float(_HEADING), [], []
    annotations += [_text(f"<b>{name}</b>", x, y / 2) for name, x in _COLUMNS]
    shapes: list[Properties] = []
    setting = None
    for time in result.times:
        if time.setting and time.setting != setting:
            setting_name = f"<b>{escape(time.setting, 40)}</b>"
            annotations.append(style.heading(setting_name, y + _HEADING / 2, font=_FONT))
            shapes.append(style.stripe(y, y + _HEADING, "#E3E9EF"))
            y += _HEADING
        setting = time.setting
        places.append(y + _ROW / 2)
        texts = (
            duration(time.predicted_ns),
            duration(time.measured_ns),
            f"<b>{time.error:+.1%}</b>",
        )
        cells = zip(texts, _COLUMNS, strict=True)
        annotations += [_text(text, x, y + _ROW / 2) for text, (_, x) in cells]
        y += _ROW
    suffix = ("" if result.is_simulated else " (prediction SIMULATED)") + stated(result)[0]
    layout = style.base_layout(
        f"Predicted and measured{suffix}",
        _notes(result, predicted, measured),
        y,
        legend_rows=1,
        annotations=annotations,
        shapes=shapes,
        xaxis=style.x_axis(
            "time (µs, logarithmic): median, and the middle 80 %",
            type="log",
            tickformat=",~r",
            dtick=1,
            domain=[0, 0.65],
        ),
        yaxis=style.label_axis(
            places,
            [
                f"<i>{MAKESPAN}</i>" if time.of == MAKESPAN else escape(time.of, 24)
                for time in result.times
            ],
            range=[y, 0],
        ),
    )
    return ThemedFigure(data=_marks(result, places), layout=layout)


def _marks(result: PredictionResult, places: list[float]) -> list[go.Scatter]:
    """Return a line between each pair, then both with their spread."""
    joined: list[float | None] = []
    heights: list[float | None] = []
    for time, height in zip(result.times, places, strict=True):
        joined += [time.predicted_ns / 1e3, time.measured_ns / 1e3, None]
        heights += [height, height, None]
    between = go.Scatter(
        x=joined,
        y=heights,
        mode="lines",
        hoverinfo="skip",
        showlegend=False,
        line={"color": style.HOST_COLOUR, "width": 1, "dash": "dot"},
    )
    marks = [between]
    for name, colour, symbol, shift in (
        ("measured", _MEASURED, "circle", 3),
        ("predicted", _PREDICTED, "diamond-open", -3),
    ):
        sides = [
            (
                getattr(time, f"{name}_ns"),
                *getattr(time, f"{name}_range_ns"),
                getattr(time, f"{name}_n"),
            )
            for time in result.times
        ]
        marks.append(
            go.Scatter(
                x=[middle / 1e3 for middle, *_ in sides],
                y=[height + shift for height in places],
                mode="markers",
                name=name,
                marker={
                    "symbol": symbol,
                    "size": 11,
                    "color": colour,
                    "line": {"width": 2 if symbol.endswith("open") else 0, "color": colour},
                },
                error_x={
                    "type": "data",
                    "symmetric": False,
                    "array": [(high - middle) / 1e3 for middle, _, high, _ in sides],
                    "arrayminus": [(middle - low) / 1e3 for middle, low, _, _ in sides],
                    "color": colour,
                    "thickness": 1.6,
                    "width": 0,
                },
                hovertext=[
                    f"<b>{escape(time.of, 40)}</b> {escape(time.setting, 40)}<br>{name} "
                    f"{duration(middle)} (n = {count:,})<br>middle 80 %: {duration(low)} to "
                    f"{duration(high)}<br>error of the prediction {time.error:+.1%}"
                    for time, (middle, low, high, count) in zip(result.times, sides, strict=True)
                ],
                hoverinfo="text",
                cliponaxis=False,
            )
        )
    return marks


def _notes(
    result: PredictionResult,
    predicted: Mapping[str, Trace] | Trace,
    measured: Mapping[str, Trace] | Trace,
) -> list[str]:
    notes = [f"error: predicted / measured − 1; median of the workloads {result.median_error:.1%}"]
    for what, line, traces in (
        ("predicted", result.predicted, predicted),
        ("measured", result.measured, measured),
    ):
        trace = traces if isinstance(traces, Trace) else next(iter(traces.values()))
        notes += provenance_of(f"{what}: {line}; {uncertainty(trace)}")
    left_out = "; ".join(result.left_out)
    return notes + notes_of(f"not compared: {left_out}" if left_out else "")


def _text(text: str, x: float, y: float) -> Properties:
    return style.heading(text, y, x=x, xanchor="right", font=_FONT)
