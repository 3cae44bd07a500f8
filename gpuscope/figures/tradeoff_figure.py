"""Latency of one workload against the throughput that another one keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from gpuscope._checks import door
from gpuscope.analysis.result import P99_NEEDS
from gpuscope.analysis.settings import SweepResult, of_slowest_rank
from gpuscope.errors import MissingEvidence
from gpuscope.figures.latency_figure import log_axis
from gpuscope.timeline import style
from gpuscope.timeline.text import clean, duration, escape, notes_of, stated
from gpuscope.timeline.themed import ThemedFigure

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
            shown = [
                point for point in points if point.setting == setting and mark in point.latency_us
            ]
            if shown:
                at = -1 if setting is None else settings.index(setting)
                data.append(_series(shown, best, mark, at))
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
    suffix, provenance = stated(result)
    layout = style.base_layout(
        f"Latency of {escape(latency, 30)} against throughput of {escape(throughput, 30)}{suffix}",
        [*notes_of(*notes), *provenance],
        400,
        legend_rows=1 + len(settings),
        xaxis=style.x_axis(
            f"throughput that {escape(throughput, 30)} keeps of its rate alone",
            tickformat=".0%",
            automargin=True,
        ),
        yaxis=style.y_axis(
            f"latency of {escape(latency, 30)} (µs, logarithmic)",
            **log_axis(np.array([us for point in points for us in point.latency_us.values()])),
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
            left_out.append(f"{clean(where, 80)}: {clean(why, 180)}")
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
        shown = [point for point in points if point.case == case and mark in point.latency_us]
        best = [point for point in shown if not any(other.beats(point, mark) for other in shown)]
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


def _series(points: Sequence[_Point], best: Sequence[_Point], mark: str, at: int) -> go.Scatter:
    """Draw one setting's points; its position gives it a colour and a symbol, −1: the whole GPU."""
    colour, symbol = style.WHOLE_GPU_COLOUR, "x"
    if at >= 0:
        colour = style.OKABE_ITO[at % len(style.OKABE_ITO)]
        symbol = _SYMBOLS[at % len(_SYMBOLS)]
    is_p50 = mark == "p50"
    below = at > 0 and at % 2 == 1  # so that two settings at one place do not collide
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
