"""Latency: of a handle as distributions, and against the throughput that another one keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from gpuscope import analysis
from gpuscope._checks import MappingOf, door
from gpuscope._types import Array
from gpuscope.analysis.latency_analysis import HandleLatency, durations_ns
from gpuscope.analysis.result import P99_NEEDS
from gpuscope.analysis.settings import SweepResult, of_slowest_rank
from gpuscope.errors import MissingEvidence
from gpuscope.timeline import style
from gpuscope.timeline.text import (
    clean,
    duration,
    escape,
    provenance_lines,
    provenance_of,
    suffix_of,
    title_suffix,
    wrapped,
)
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
    homes = {setting: _home(trace, handle) for setting, trace in traces.items()}
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
            data += _curve(setting, analysis.latency(trace)[handle], durations, look)
        else:
            absent.append(setting)
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
            **_log_axis(np.concatenate([curve.x for curve in data])),
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


def _log_axis(values: Array) -> style.Properties:
    """Return what makes an axis logarithmic, with several ticks however little it spans.

    Plotly chooses them, but over decades it would label every digit.
    """
    axis: style.Properties = {"type": "log", "tickformat": ",~f"}
    return axis | {"dtick": "D2"} if values.max() >= 10 * values.min() else axis


def _home(trace: Trace, handle: str) -> str | None:
    """Return the partition of the stream that a handle's first call went to."""
    calls = trace.where(kind="handle")
    of_handle = calls.where(category=handle)
    return next(
        iter((of_handle if len(of_handle) else calls.where(name=handle)).texts("partition")), None
    )


def _curve(
    setting: str, seen: HandleLatency, durations: Array, look: dict[str, str]
) -> list[go.Scatter]:
    count = len(durations)
    picked = np.unique(np.linspace(0, count - 1, min(count, _MAX_POINTS)).round().astype(np.int64))
    times_us = np.maximum(durations, 1) / 1e3
    marks = {"p50": seen.p50_ns, "p90": seen.p90_ns, "p99": seen.p99_ns}
    known = {name: value for name, value in marks.items() if value is not None}
    quantiles = ", ".join(f"{name} {duration(value)}" for name, value in known.items())
    few = "" if seen.p99_ns is not None else f"; no p99 below {P99_NEEDS:,} calls"
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


_MARKS = {"p99": "latency_p99_us", "p50": "latency_p50_us"}
"""Quantile → its column; the last one is drawn on top."""
_SYMBOLS = ("circle", "diamond", "triangle-up", "pentagon", "hexagram")
_PLAIN = "no partition"
_SHOWN = 3
"""Points left out that are named."""


@dataclass(frozen=True)
class _Point:
    """One setting at one point of a sweep.

    Attributes
    ----------
    case
        Values of the parameters that are no partition's: only points of one case compete.
    setting
        ``None`` where nothing was carved.
    """

    label: str
    case: tuple[Any, ...]
    setting: str | None
    kept: float
    latency_us: dict[str, float]
    n: int

    def beats(self, other: _Point, mark: str) -> bool:
        """Whether it is at least as good in both respects and better in one."""
        ours, theirs = (self.latency_us[mark], -self.kept), (other.latency_us[mark], -other.kept)
        return ours != theirs and ours[0] <= theirs[0] and ours[1] <= theirs[1]


@door(result=SweepResult, latency=str, throughput=str)
def tradeoff(result: SweepResult, *, latency: str, throughput: str) -> go.Figure:
    """Draw the latency of one workload against the throughput that another one keeps.

    One point for each setting at each point of the sweep, labelled with the parameters: its
    p50 and, from 1,000 calls on, its p99. The Pareto front, the points that no other point beats
    in both respects, has an outline and is joined by a line. If parameters other than
    partitions were varied, only points with equal values of these are compared. Points without
    partitions are references.

    Parameters
    ----------
    result
        Of :func:`gpuscope.search.sweep`.
    latency
        The workload whose latency is drawn; not a background workload.
    throughput
        The workload whose rate is drawn, relative to its rate alone on the whole GPU.

    Raises
    ------
    MissingEvidence
        No setting has both. The message says what is missing.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> gemm = {"kind": "gemm", "m": 512, "n": 512, "k": 512, "repeats": 5}
    >>> both = {
    ...     "name": "both", "alone_repeats": 2, "partitions": {"a": 16, "b": "rest"},
    ...     "streams": {"s": {"partition": "a"}, "t": {"partition": "b"}},
    ...     "workloads": {"small": {**gemm, "stream": "s"}, "load": {**gemm, "stream": "t"}},
    ... }
    >>> result = gs.search.sweep(both, {"partitions.a": [8, 16]}, gpu)
    >>> figure = gs.figures.tradeoff(result, latency="small", throughput="load")
    >>> figure.data[-1].text
    ('8', '16')
    """
    points, left_out = _points(result, latency, throughput)
    if not points:
        raise MissingEvidence(
            f"no point has both a latency of {latency!r} and a share that {throughput!r} keeps of "
            f"its rate alone: {'; '.join(left_out[:_SHOWN]) or 'no rows'}"
        )
    settings = list(dict.fromkeys(point.setting for point in points if point.setting is not None))
    data = [_pairs(points)]
    for mark in _MARKS:
        best: list[_Point] = []
        fronts = _fronts(points, mark)
        for index, front in enumerate(fronts):
            data.append(_line(front, mark, in_legend=not index))
            best += front
        for setting in [None, *settings]:
            of_case = [
                point for point in points if point.setting == setting and mark in point.latency_us
            ]
            if of_case:
                number = -1 if setting is None else settings.index(setting)
                data.append(_series(of_case, best, mark, number))
    counts = [point.n for point in points]
    calls = f"{min(counts):,}" + (f" to {max(counts):,}" if len(set(counts)) > 1 else "")
    varied = ", ".join(clean(path, 40) for path in result.parameters)
    notes = [
        f"latency: host time from entering execute() to completion seen, n = {calls} calls a point",
        f"p99 needs {P99_NEEDS:,} calls; throughput kept: rate over the rate alone, whole GPU",
        f"labels: {varied}; outlined: no other point is better in both (Pareto)",
        *(f"not drawn: {line}" for line in left_out[:_SHOWN]),
    ]
    if any(row["rank"] for row in result.rows()):
        notes.insert(2, "of several ranks: the slowest")
    if len(left_out) > _SHOWN:
        notes.append(f"not drawn: {len(left_out) - _SHOWN} more")
    if result.stopped:
        notes.insert(0, "stopped early: not every point is here")
    layout = style.base_layout(
        f"Latency of {escape(latency, 30)} against throughput of {escape(throughput, 30)}"
        f"{suffix_of(result)}",
        [
            *(escape(part) for note in notes for part in wrapped(note)),
            *provenance_of(result.provenance),
        ],
        400,
        legend_rows=1 + len(settings),
        xaxis=style.x_axis(
            f"throughput that {escape(throughput, 30)} keeps of its rate alone",
            tickformat=".0%",
            automargin=True,
        ),
        yaxis=style.y_axis(
            f"latency of {escape(latency, 30)} (µs, logarithmic)",
            **_log_axis(np.array([us for point in points for us in point.latency_us.values()])),
        ),
    )
    return ThemedFigure(data=data, layout=layout)


def _points(result: SweepResult, latency: str, throughput: str) -> tuple[list[_Point], list[str]]:
    """Return what can be drawn, and in plain text what not and why."""
    points: list[_Point] = []
    left_out: list[str] = []
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in result.rows():
        key = (*(row[path] for path in result.parameters), row["setting"])
        groups.setdefault(key, []).append(row)
    for (*values, setting), rows in groups.items():
        at = dict(zip(result.parameters, values, strict=True))
        by_workload = {row["workload"]: row for row in of_slowest_rank(rows)}
        fast, big = by_workload.get(latency, {}), by_workload.get(throughput, {})
        why = rows[0]["error"]
        if why is None and fast.get("latency_p50_us") is None:
            why = f"no latency of {latency!r}"
        if why is None and big.get("share_of_alone_on_whole_gpu") is None:
            why = f"no share of its rate alone of {throughput!r}"
        if why is not None:
            where = ", ".join(f"{path} = {value}" for path, value in at.items())
            where += "" if setting is None else f", {setting}"
            left_out.append(f"{clean(where, 80)}: {clean(why.partition('. ')[0], 180)}")
            continue
        case = tuple(value for path, value in at.items() if "partitions" not in path.split("."))
        is_whole = fast["partition"] is None and big["partition"] is None
        shown = (_PLAIN, *case) if is_whole else values
        points.append(
            _Point(
                label=", ".join(map(str, shown)),
                case=case,
                setting=None if is_whole else setting,
                kept=big["share_of_alone_on_whole_gpu"],
                latency_us={
                    mark: fast[column]
                    for mark, column in _MARKS.items()
                    if fast[column] is not None
                },
                n=fast["latency_n"],
            )
        )
    return points, left_out


def _fronts(points: Sequence[_Point], mark: str) -> list[list[_Point]]:
    """Return for each case the points that no other beats, by throughput."""
    fronts = []
    for case in dict.fromkeys(point.case for point in points):
        of_case = [point for point in points if point.case == case and mark in point.latency_us]
        best = [
            point for point in of_case if not any(other.beats(point, mark) for other in of_case)
        ]
        if best:
            fronts.append(sorted(best, key=lambda point: point.kept))
    return fronts


def _pairs(points: Sequence[_Point]) -> go.Scatter:
    """Join the quantiles of each point."""
    return go.Scatter(
        x=[x for point in points for x in (*(point.kept for _ in point.latency_us), None)],
        y=[y for point in points for y in (*point.latency_us.values(), None)],
        mode="lines",
        line={"color": style.HOST_COLOUR, "width": 1},
        showlegend=False,
        hoverinfo="skip",
    )


def _line(front: Sequence[_Point], mark: str, *, in_legend: bool) -> go.Scatter:
    return go.Scatter(
        x=[point.kept for point in front],
        y=[point.latency_us[mark] for point in front],
        mode="lines",
        line={"color": style.INK, "width": 1.2, "dash": "solid" if mark == "p50" else "dot"},
        name=f"Pareto front, {mark}",
        showlegend=in_legend,
        hoverinfo="skip",
    )


def _series(points: Sequence[_Point], best: Sequence[_Point], mark: str, place: int) -> go.Scatter:
    """Draw one setting's points; its place gives it a colour and a symbol, −1 is the whole GPU."""
    colour, symbol = style.WHOLE_GPU_COLOUR, "x"
    if place >= 0:
        colour = style.OKABE_ITO[place % len(style.OKABE_ITO)]
        symbol = _SYMBOLS[place % len(_SYMBOLS)]
    is_p50 = mark == "p50"
    below = place > 0 and place % 2 == 1  # so that two settings at one place do not collide
    labels: list[str] = []
    for point in points:  # a label stands at the outer one of the two marks, and once
        text = escape(point.label, 40)
        is_outer = is_p50 if below else not is_p50 or "p99" not in point.latency_us
        labels.append(text if is_outer and text not in labels else "")
    setting = points[0].setting
    return go.Scatter(
        x=[point.kept for point in points],
        y=[point.latency_us[mark] for point in points],
        mode="markers+text",
        marker={
            "symbol": symbol,
            "size": 9 if is_p50 else 15,
            "color": colour if is_p50 else style.tinted(colour, 0.35),
            "line": {
                "width": [1.8 if point in best else 1 for point in points],
                "color": [style.INK if point in best else colour for point in points],
            },
        },
        text=labels,
        textposition="bottom center" if below else "top center",
        textfont={"size": 12, "color": style.INK},
        cliponaxis=False,
        name=f"{_PLAIN if setting is None else escape(setting, 40)}, {mark}",
        hovertext=[
            f"<b>{escape(point.label, 60)}</b>, {escape(point.setting or _PLAIN, 40)}<br>"
            f"{mark} {duration(point.latency_us[mark] * 1e3)} (n = {point.n:,})<br>"
            f"keeps {point.kept:.1%}{'<br>on the Pareto front' if point in best else ''}"
            for point in points
        ],
        hoverinfo="text",
    )
