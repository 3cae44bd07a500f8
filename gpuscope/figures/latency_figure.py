"""Latency of a handle, as distributions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go

from gpuscope._checks import MappingOf, door
from gpuscope._types import Array
from gpuscope.analysis.intervals import Groups
from gpuscope.analysis.latency_analysis import durations_ns, quantiles_by_group
from gpuscope.analysis.result import P99_NEEDS
from gpuscope.analysis.settings import home_of
from gpuscope.errors import MissingEvidence
from gpuscope.timeline import style
from gpuscope.timeline.text import clean, duration, escape, notes_of, stated
from gpuscope.timeline.themed import ThemedFigure
from gpuscope.trace.model import Trace

_MAX_POINTS = 1000
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_MARK_SYMBOLS = {"p50": "circle", "p90": "diamond", "p99": "square"}


@door(traces=MappingOf(Trace), handle=str)
def latency(traces: Mapping[str, Trace], handle: str) -> go.Figure:
    """Draw how the latency of one handle is distributed in each setting.

    The latency is the host time from entering ``execute()`` until its completion is seen
    (:func:`gpuscope.analysis.latency`); the curve at x is the share of calls that took at
    most x. No p99 is marked with fewer than 1,000 calls. A curve has the colour of the partition
    that the calls went to, as in timelines; settings of one colour differ by their dashes.

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
    homes = {setting: home_of(trace, handle) for setting, trace in traces.items()}
    colours = style.partition_colours(traces.values(), set(filter(None, homes.values())))
    drawn: Counter[str | None] = Counter()
    for setting, trace in traces.items():
        calls, took, _ = durations_ns(trace)
        if handle in calls.labels:
            durations = np.sort(took[calls.rows(calls.labels.index(handle))])
            home = homes[setting]
            look = {
                "color": style.WHOLE_GPU_COLOUR if home is None else colours[home],
                "dash": _DASHES[drawn[home] % len(_DASHES)],
            }
            drawn[home] += 1
            data += _curve(setting, durations, look)
        else:
            absent.append(setting)
    if not data:
        raise MissingEvidence(
            f"no finished call of handle {handle!r} in {', '.join(traces) or 'any setting'}: "
            "record its execute() and wait for it"
        )
    suffix, provenance = stated(traces)
    notes = ["host time from entering execute() until its completion is seen", *provenance]
    if absent:
        notes += notes_of(f"no finished call in: {', '.join(clean(name, 40) for name in absent)}")
    layout = style.base_layout(
        f"Latency of {escape(handle, 60)}{suffix}",
        notes,
        340,
        legend_rows=len(data) // 2,
        xaxis=style.x_axis(
            "latency (µs, logarithmic)",
            **log_axis(np.concatenate([curve.x for curve in data])),
            automargin=True,
        ),
        yaxis=style.y_axis(
            "share of calls",
            range=[-0.02, 1.03],
            tickvals=[0, 0.25, 0.5, 0.75, 0.9, 0.99],
            ticktext=["0 %", "25 %", "p50", "75 %", "p90", "p99"],
        ),
    )
    return ThemedFigure(data=data, layout=layout)


def log_axis(values: Array) -> style.Properties:
    """Return what makes an axis logarithmic, with several ticks however little it spans.

    Plotly chooses them, but over decades it would label every digit.
    """
    axis: style.Properties = {"type": "log", "tickformat": ",~f"}
    return axis | {"dtick": "D2"} if values.max() >= 10 * values.min() else axis


def _curve(setting: str, durations: Array, look: dict[str, str]) -> list[go.Scatter]:
    count = len(durations)
    picked = np.unique(np.linspace(0, count - 1, min(count, _MAX_POINTS)).round().astype(np.int64))
    times_us = np.maximum(durations, 1) / 1e3
    calls = Groups.of(np.zeros(count, np.int64), [setting])
    ((_, _, p50, p90, p99, _),) = quantiles_by_group(calls, durations)
    marks = {"p50": p50, "p90": p90, "p99": p99}
    known = {name: value for name, value in marks.items() if value is not None}
    quantiles = ", ".join(f"{name} {duration(value)}" for name, value in known.items())
    few = "" if p99 is not None else f"; no p99 below {P99_NEEDS:,} calls"
    name = f"{escape(setting, 40)}: {quantiles} (n = {count:,}{few})"
    return [
        go.Scatter(
            x=np.r_[times_us[0], times_us[picked]],
            y=np.r_[0.0, (picked + 1) / count],
            mode="lines",
            line={"shape": "hv", "width": 2.2, **look},
            name=name,
            legendgroup=escape(setting, 40),
            hovertemplate="%{y:.1%} of calls took at most %{x:,.4~r} µs<extra></extra>",
        ),
        go.Scatter(
            x=[max(value, 1) / 1e3 for value in known.values()],
            y=[int(mark[1:]) / 100 for mark in known],
            mode="markers",
            marker={
                "symbol": [_MARK_SYMBOLS[mark] for mark in known],
                "size": 10,
                "color": look["color"],
                "line": {"width": 1.5, "color": style.WHITE},
            },
            cliponaxis=False,
            showlegend=False,
            legendgroup=escape(setting, 40),
            hovertext=[
                f"{escape(setting, 40)}: {mark} {duration(value)}" for mark, value in known.items()
            ],
            hoverinfo="text",
        ),
    ]
