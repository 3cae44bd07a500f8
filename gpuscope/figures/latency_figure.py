"""Latency of a handle, as distributions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go

from gpuscope._checks import MappingOf, door
from gpuscope._types import Array, Floats
from gpuscope.analysis.intervals import Groups
from gpuscope.analysis.latency_analysis import durations_ns, quantiles_by_group
from gpuscope.analysis.result import P99_NEEDS
from gpuscope.analysis.settings import home_of
from gpuscope.errors import MissingEvidence
from gpuscope.timeline import style
from gpuscope.timeline.text import clean, duration, escape, notes_of, stated
from gpuscope.timeline.themed import ThemedFigure
from gpuscope.trace.model import Trace

_POINTS = 500
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


@door(traces=MappingOf(Trace), handle=str)
def latency(traces: Mapping[str, Trace], handle: str) -> go.Figure:
    """Draw how the latency of one handle is distributed in each setting.

    The latency is the host time from entering ``execute()`` until its completion is seen
    (:func:`gpuscope.analysis.latency`); the curve at x is the share of calls that took x or
    longer. No p99 is named with fewer than 1,000 calls. A curve has the colour of the partition
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
    [1.0, 0.5]
    """
    data: list[style.Properties] = []
    absent: list[str] = []
    homes = {setting: home_of(trace, handle) for setting, trace in traces.items()}
    colours = style.partition_colours(traces.values(), set(filter(None, homes.values())))
    drawn: Counter[str | None] = Counter()
    for setting, trace in traces.items():
        calls, took, _ = durations_ns(trace)
        if handle in calls.labels:
            durations = took[calls.rows(calls.labels.index(handle))]
            home = homes[setting]
            look = {
                "color": style.WHOLE_GPU_COLOUR if home is None else colours[home],
                "dash": _DASHES[drawn[home] % len(_DASHES)],
            }
            drawn[home] += 1
            data.append(curve(durations, look) | {"name": _told(setting, durations)})
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
        legend_rows=len(data),
        xaxis=style.x_axis("latency (µs)", rangemode="tozero", automargin=True),
        yaxis=share_axis(),
    )
    return ThemedFigure(data=data, layout=layout)


def slower(took_ns: Array) -> tuple[Array, Floats]:
    """Return times, and which share of the calls took at least as long; the tail step by step."""
    count = len(took_ns)
    left = np.unique(np.geomspace(count, 1, min(count, _POINTS)).round().astype(np.int64))[::-1]
    return np.sort(took_ns)[count - left], left / count


def curve(took_ns: Array, line: style.Properties) -> style.Properties:
    """Return the share of calls that are slower than a time, as Plotly draws it."""
    times_ns, shares = slower(took_ns)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": times_ns / 1e3,
        "y": shares,
        "line": {"shape": "vh", "width": 2, **line},
        "hovertemplate": "%{y:.3p} of calls took %{x:,.4~r} µs or more<extra></extra>",
    }


def share_axis(**more: object) -> style.Properties:
    """Return the axis of such shares."""
    return style.y_axis("share slower", type="log", tickformat="~%", dtick=1, **more)


def _told(setting: str, durations: Array) -> str:
    """Return a setting with its quantiles."""
    calls = Groups.of(np.zeros(len(durations), np.int64), [setting])
    ((_, _, p50, p90, p99, _),) = quantiles_by_group(calls, durations)
    marks = {"p50": p50, "p90": p90, "p99": p99}
    quantiles = (f"{mark} {duration(value)}" for mark, value in marks.items() if value is not None)
    few = "" if p99 is not None else f"; no p99 below {P99_NEEDS:,} calls"
    return f"{escape(setting, 40)}: {', '.join(quantiles)} (n = {len(durations):,}{few})"
