"""A collective over the SMs of its partition: time, bus bandwidth, and what others keep."""

from __future__ import annotations

from collections.abc import Iterator

import plotly.graph_objects as go

from gpuscope._checks import door
from gpuscope.analysis.rates import RATES
from gpuscope.analysis.result import Row
from gpuscope.analysis.settings import SweepResult
from gpuscope.errors import MissingEvidence
from gpuscope.timeline import style
from gpuscope.timeline.text import clean, escape, notes_of, stated
from gpuscope.timeline.themed import ThemedFigure

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_HEIGHT = 190


@door(result=SweepResult, collective=str, beside=(str, None))
def collectives(result: SweepResult, *, collective: str, beside: str | None = None) -> go.Figure:
    """Draw a collective's time and bus bandwidth over the SMs of its partition.

    The time is the least of the ranks' kernel durations, at the median
    (:func:`gpuscope.analysis.collectives`). A setting without partitions is a horizontal line.

    Parameters
    ----------
    result
        Of :func:`gpuscope.search.sweep` over the SMs of the collective's partition, as
        ``{"partitions.comm": [8, 16, 32]}``.
    collective
        The workload that is the collective.
    beside
        Another workload: how much of its rate alone on the whole GPU it keeps, the least of the
        ranks, is drawn below.

    Raises
    ------
    MissingEvidence
        No point has such a collective, or the SMs of its partition were not varied.

    Examples
    --------
    >>> import gpuscope as gs
    >>> plan = {
    ...     "name": "sums", "devices": ["sim:h200", "sim:h200"], "alone_repeats": 0,
    ...     "partitions": {"comm": 16}, "streams": {"s": {"partition": "comm"}},
    ...     "workloads": {
    ...         "sum": {"kind": "all_reduce", "nbytes": "128 MiB", "stream": "s", "repeats": 2},
    ...     },
    ... }
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> result = gs.search.sweep(plan, {"partitions.comm": [8, 16]}, gpu)
    >>> figure = gs.figures.collectives(result, collective="sum")
    >>> [round(time_us) for time_us in figure.data[0].y]
    [917, 630]
    """
    points = _points(result, collective, beside)
    sizes = sorted({point["sms"] for point in points if point["sms"] is not None})
    if not sizes:
        raise MissingEvidence(
            f"no point has a collective {collective!r} on a partition whose SMs were varied: sweep "
            "an experiment with several devices over its partition, as in "
            "{'partitions.comm': [8, 16, 32]}"
        )
    rows = [
        ("time (µs)", "collective_us", ",.4~r"),
        ("bus bandwidth (GB/s)", "bus_gb_per_s", ",.4~r"),
    ]
    if beside is not None:
        rows.append((f"{escape(beside, 24)} keeps", "kept", ".0%"))
    cases = list(dict.fromkeys(point["case"] for point in points))
    data = [
        scatter
        for row, (_, value, form) in enumerate(rows)
        for number, case in enumerate(cases)
        for scatter in _lines(
            [point for point in points if point["case"] == case], value, form, row, number
        )
    ]
    skews = [point["collective_skew_us"] for point in points]
    notes = [
        "time: the least of the ranks' kernel durations, median",
        f"skew, first to last arrival: {min(skews):,.3g} to {max(skews):,.3g} µs at the median",
        "bus bandwidth: bytes that cross a rank's link, as nccl-tests counts them",
    ]
    if beside is not None:
        notes.append(f"{clean(beside, 24)} keeps: its rate over that alone on the whole GPU")
    suffix, provenance = stated(result)
    layout = style.base_layout(
        f"{escape(collective, 30)} by SMs{suffix}",
        [*notes_of(*notes), *provenance],
        _HEIGHT * len(rows),
        legend_rows=len(cases),
        xaxis=style.x_axis(
            "SMs of its partition",
            anchor=f"y{len(rows) if len(rows) > 1 else ''}",
            tickvals=sizes,
        ),
    )
    layout["xaxis2"] = {"overlaying": "x", "range": [0, 1], "visible": False, "fixedrange": True}
    for row, (title, _, form) in enumerate(rows):
        top = 1 - row / len(rows)
        layout[f"yaxis{row + 1 if row else ''}"] = style.y_axis(
            title,
            domain=[top - 1 / len(rows) + (0.05 if row + 1 < len(rows) else 0), top],
            rangemode="tozero",
            tickformat=form if form == ".0%" else ",",
        )
    return ThemedFigure(data=data, layout=layout)


def _lines(points: list[Row], value: str, form: str, row: int, number: int) -> Iterator[go.Scatter]:
    """Draw one case in one row: a line over its SMs, or one at the height of what has none."""
    known = [point for point in points if point[value] is not None]
    colour = style.OKABE_ITO[number % len(style.OKABE_ITO)]
    name = ", ".join(f"{escape(key, 30)} = {escape(what, 30)}" for key, what in points[0]["case"])
    shared = {
        "name": name or "the collective",
        "legendgroup": str(number),
        "showlegend": not row,
        "yaxis": f"y{row + 1 if row else ''}",
        "hovertemplate": f"%{{y:{form}}}<extra>{name}</extra>",
    }
    on_sms = [point for point in known if point["sms"] is not None]
    on_sms.sort(key=lambda point: int(point["sms"]))
    if on_sms:
        yield go.Scatter(
            x=[point["sms"] for point in on_sms],
            y=[point[value] for point in on_sms],
            mode="lines+markers",
            line={"color": colour, "width": 2.2, "dash": _DASHES[number % len(_DASHES)]},
            marker={"size": 9, "line": {"width": 1.5, "color": style.WHITE}},
            cliponaxis=False,
            **shared,
        )
    for point in [point for point in known if point["sms"] is None][:1]:
        yield go.Scatter(
            x=[0, 1],
            y=[point[value]] * 2,
            xaxis="x2",
            mode="lines",
            line={"color": style.darker(style.WHOLE_GPU_COLOUR), "width": 1.6, "dash": "dash"},
            **shared,
        )


def _points(result: SweepResult, collective: str, beside: str | None) -> list[Row]:
    """Return the collective's row of each point and setting, with what is drawn besides.

    ``sms`` are those of its partition, where they were varied; ``kept`` is the share that
    ``beside`` keeps; ``case`` holds the values of the other parameters, and the setting if there
    are several.
    """
    rows = result.rows()
    several = len({row["setting"] for row in rows}) > 1
    paths = [*result.parameters, *(["setting"] if several else [])]
    kept: dict[tuple[object, ...], float] = {}
    points: dict[tuple[object, ...], Row] = {}
    for row in rows:
        key, share = tuple(row[path] for path in paths), row[RATES[0]]
        if row["workload"] == beside and share is not None:
            kept[key] = min(share, kept.get(key, share))
        if row["workload"] == collective and row["collective_us"] is not None:
            points.setdefault(key, row)
    for key, row in points.items():
        path = f"partitions.{row['partition']}"
        sms = row.get(path)
        row |= {
            "sms": sms if isinstance(sms, int) else None,
            "kept": kept.get(key),
            "case": tuple((name, row[name]) for name in paths if name != path or sms is None),
        }
    return [*points.values()]
