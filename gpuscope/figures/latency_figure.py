"""Latency of a handle as cumulative distributions, one a setting."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go

from gpuscope import analysis
from gpuscope._checks import MappingOf, door
from gpuscope._types import Array
from gpuscope.analysis.intervals import by_workload
from gpuscope.analysis.latency_analysis import HandleLatency
from gpuscope.analysis.result import P99_NEEDS
from gpuscope.errors import MissingEvidence
from gpuscope.figures import style
from gpuscope.figures.text import clean, duration, escape, provenance_lines, title_suffix, wrapped
from gpuscope.trace.columns import is_open
from gpuscope.trace.model import Trace

_MAX_POINTS = 1000
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_SYMBOLS = {"p50": "circle", "p90": "diamond", "p99": "square"}


@door(traces=MappingOf(Trace), handle=str)
def latency(traces: Mapping[str, Trace], handle: str) -> go.Figure:
    """Draw how the latency of one handle is distributed in each setting.

    The latency is the host time from entering ``execute()`` until its completion is seen
    (:func:`gpuscope.analysis.latency`); the curve at x is the share of calls that took at
    most x. No p99 is marked with fewer than 1,000 calls.

    Parameters
    ----------
    traces
        Setting → trace.
    handle
        The handle's workload, or its name where it has none.

    Raises
    ------
    MissingEvidence
        No setting holds a finished call of this handle.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "spin", "duration_us": 10, "stream": "s", "repeats": 2}},
    ... }
    >>> figure = gs.figures.latency(gs.run(one, gpu), "w")
    >>> figure.data[0].y.tolist()
    [0.0, 0.5, 1.0]
    """
    data: list[go.Scatter] = []
    absent: list[str] = []
    for index, (setting, trace) in enumerate(traces.items()):
        calls = _calls(trace, handle)
        seen = _seen(calls)
        if seen is None:
            absent.append(setting)
        else:
            data += _curve(setting, seen, _durations_ns(calls), index)
    if not data:
        raise MissingEvidence(
            f"no finished call of handle {handle!r} in {', '.join(traces) or 'any setting'}: "
            "record its execute() and wait for it"
        )
    notes = [
        "host time from entering execute() until its completion is seen",
        *provenance_lines(traces),
    ]
    if absent:
        line = f"no finished call in: {', '.join(clean(name, 40) for name in absent)}"
        notes += [escape(part) for part in wrapped(line)]
    layout = style.base_layout(
        f"Latency of {escape(handle, 60)}{title_suffix(traces.values())}",
        notes,
        340,
        legend_rows=len(data) // 2,
        xaxis=style.x_axis(
            "latency (µs, logarithmic)",
            **style.LOG_AXIS,
            automargin=True,
        ),
        yaxis={
            "title": style.titled("share of calls"),
            "range": [-0.02, 1.03],
            "tickformat": ".0%",
            "gridcolor": style.GRID,
            "zeroline": False,
            "automargin": True,
        },
    )
    return go.Figure(data=data, layout=layout)


def _seen(trace: Trace) -> HandleLatency | None:
    try:
        (found,) = analysis.latency(trace).handles
    except MissingEvidence:
        return None
    return found


def _calls(trace: Trace, handle: str) -> Trace:
    """Return the calls of one handle."""
    rows = trace.where(kind="handle")
    groups = by_workload(rows)
    return rows.where(np.array([label == handle for label in groups.labels], bool)[groups.code])


def _durations_ns(calls: Trace) -> Array:
    return np.sort((calls.array("end_ns", fill=0) - calls.array("start_ns"))[~is_open(calls)])


def _curve(setting: str, seen: HandleLatency, durations: Array, index: int) -> list[go.Scatter]:
    colour = style.OKABE_ITO[index % len(style.OKABE_ITO)]
    count = len(durations)
    picked = np.unique(np.linspace(0, count - 1, min(count, _MAX_POINTS)).round().astype(np.int64))
    times_us = np.maximum(durations, 1) / 1e3
    marks = {"p50": seen.p50_ns, "p90": seen.p90_ns, "p99": seen.p99_ns}
    known = {name: value for name, value in marks.items() if value is not None}
    said = ", ".join(f"{name} {duration(value)}" for name, value in known.items())
    few = "" if seen.p99_ns is not None else f"; no p99 below {P99_NEEDS:,} calls"
    name = f"{escape(setting, 40)}: {said} (n = {count:,}{few})"
    return [
        go.Scatter(
            x=np.r_[times_us[0], times_us[picked]],
            y=np.r_[0.0, (picked + 1) / count],
            mode="lines",
            line={
                "shape": "hv",
                "color": colour,
                "width": 2.2,
                "dash": _DASHES[index % len(_DASHES)],
            },
            name=name,
            legendgroup=f"setting {index}",
            hovertemplate="%{y:.1%} of calls took at most %{x:,.4~r} µs<extra></extra>",
        ),
        go.Scatter(
            x=[max(value, 1) / 1e3 for value in known.values()],
            y=[int(mark[1:]) / 100 for mark in known],
            mode="markers+text",
            marker={
                "symbol": [_SYMBOLS[mark] for mark in known],
                "size": 10,
                "color": colour,
                "line": {"width": 1.5, "color": "white"},
            },
            text=list(known),
            textposition="bottom right",
            textfont={"size": 12, "color": style.INK},
            cliponaxis=False,
            showlegend=False,
            legendgroup=f"setting {index}",
            hovertext=[
                f"{escape(setting, 40)}: {mark} {duration(value)}" for mark, value in known.items()
            ],
            hoverinfo="text",
        ),
    ]
