"""Latency of a handle as cumulative distributions, one a setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from gpuscope import analysis
from gpuscope.analysis.latency import P99_NEEDS, HandleLatency
from gpuscope.errors import MissingEvidence
from gpuscope.figures import style
from gpuscope.figures.text import clean, duration, escape, provenance_lines, title_suffix, wrapped
from gpuscope.trace.model import Trace

_MAX_POINTS = 1000
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_SYMBOLS = {"p50": "circle", "p90": "diamond", "p99": "square"}


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
        seen = _seen(trace, handle)
        if seen is None:
            absent.append(setting)
        else:
            data += _curve(setting, seen, _durations_ns(trace, handle), index)
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
        notes += [escape(one) for one in wrapped(line)]
    layout = style.base_layout(
        f"Latency of {escape(handle, 60)}{title_suffix(traces.values())}",
        notes,
        340,
        legend_rows=len(data) // 2,
        xaxis=style.x_axis(
            "latency (µs, logarithmic)",
            type="log",
            dtick="D2",
            tickformat=",~f",
            automargin=True,
        ),
        yaxis={
            "title": {"text": "share of calls", "standoff": 10, "font": {"size": 13}},
            "range": [-0.02, 1.03],
            "tickformat": ".0%",
            "gridcolor": style.GRID,
            "zeroline": False,
            "automargin": True,
        },
    )
    return go.Figure(data=data, layout=layout)


def _seen(trace: Trace, handle: str) -> HandleLatency | None:
    try:
        handles = analysis.latency(trace).handles
    except MissingEvidence:
        return None
    return next((one for one in handles if one.name == handle), None)


def _durations_ns(trace: Trace, handle: str) -> np.ndarray[Any, Any]:
    rows = trace.where(kind="handle")
    ends = rows.array("end_ns", fill=-1)
    names = zip(rows.texts("category"), rows.texts("name"), strict=True)
    mine = np.array([(category or name) == handle for category, name in names], dtype=bool)
    return np.sort((ends - rows.array("start_ns"))[mine & (ends >= 0)])


def _curve(
    setting: str, seen: HandleLatency, durations: np.ndarray[Any, Any], index: int
) -> list[go.Scatter]:
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
