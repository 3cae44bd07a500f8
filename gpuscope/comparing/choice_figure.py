"""What settings give and cost, with intervals: of a sweep, a tuning, or workloads side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from gpuscope._checks import door
from gpuscope._columns import COMPARED, heading
from gpuscope.analysis.interference_analysis import InterferenceResult, definition
from gpuscope.analysis.settings import SweepResult
from gpuscope.comparing.choice import Option, PointChoice, choices
from gpuscope.comparing.choice import swept as told_of
from gpuscope.comparing.race import Goal
from gpuscope.comparing.tunings import TunedSetting, Tuning, tuned_words
from gpuscope.errors import MissingEvidence
from gpuscope.telling.of_interference import interfered
from gpuscope.timeline import style
from gpuscope.timeline.style import Properties
from gpuscope.timeline.text import clean, duration, escape, notes_of, stated
from gpuscope.timeline.themed import ThemedFigure

_LOOKS = {
    "forecast": ("circle-open", style.WHOLE_GPU_COLOUR, 9),
    "not told from the best": ("circle", style.OKABE_ITO[0], 10),
    "worse": ("square", style.WHOLE_GPU_COLOUR, 9),
    "measured": ("circle", style.OKABE_ITO[1], 9),
}
"""Name → symbol, colour, size."""
_EQUAL = ("best", "equal", "undecided")
_TALL, _GAP = 150, 56
"""Px of a panel, and between two."""
_SHOWN = 3
"""Points left out that are named, and panels of what others keep."""


class _Mark(NamedTuple):
    """A number of one setting, in the panel of that title."""

    panel: str
    x: str
    y: float
    look: str
    low: float = -math.inf
    high: float = math.inf
    more: str = ""


@door(result=SweepResult, workload=(str, None))
def swept(result: SweepResult, workload: str | None = None) -> go.Figure:
    """Draw what each point of a sweep gives, with its interval, and what other workloads keep.

    Which point to take has a band. Squares: worse than the best, beyond noise. Of a collective
    also: its time, the least of the ranks' kernel durations at the median, and its bus bandwidth.

    Parameters
    ----------
    result
        Of :func:`gpuscope.search.sweep`.
    workload
        Whose numbers decide; by default the first that is not in the background.

    Raises
    ------
    MissingEvidence
        No point has a number to choose by. The message says what is missing.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> gemm = {"kind": "gemm", "m": 512, "n": 512, "k": 512, "repeats": 20}
    >>> both = {
    ...     "name": "both", "alone_repeats": 2, "partitions": {"a": 16, "b": "rest"},
    ...     "streams": {"s": {"partition": "a"}, "t": {"partition": "b"}},
    ...     "workloads": {"small": {**gemm, "stream": "s"}, "load": {**gemm, "stream": "t"}},
    ... }
    >>> result = gs.search.sweep(both, {"partitions.a": [8, 16]}, gpu)
    >>> gs.figures.swept(result).data[0].x
    ('8', '16')
    """
    every = choices(result, workload)
    left_out = [
        clean(", ".join([*(f"{path} = {row[path]}" for path in result.parameters), row["error"]]))
        for row in result.rows()
        if row["error"] is not None
    ]
    if not every:
        raise MissingEvidence(
            "no point has a number to choose by: " + ("; ".join(left_out[:_SHOWN]) or "no rows")
        )
    findings = [finding.text for finding in told_of(result, workload)]
    notes = [
        *(["stopped early: not every point is here"] if result.stopped else []),
        *findings[1:],
        "intervals: 95 %, widened by how much repeated measurements differ",
        *(["of several ranks: the slowest"] if any(row["rank"] for row in result.rows()) else []),
        *(f"not drawn: {line}" for line in dict.fromkeys(left_out[:_SHOWN])),
        *([f"not drawn: {len(left_out) - _SHOWN} more"] if len(left_out) > _SHOWN else []),
    ]
    marks = [mark for choice in every for mark in _of_choice(choice)]
    taken = [_name(choice.taken) for choice in every if choice.taken is not None]
    title = findings[0] if findings else f"{result.experiment.get('name')}, varied"
    axis = ", ".join(map(heading, result.parameters))
    return _drawn(marks, taken, (title, notes, axis), stated(result))


def _name(option: Option) -> str:
    return ", ".join(map(str, option.values))


def _of_choice(choice: PointChoice) -> Iterator[_Mark]:
    panel = f"{choice.workload}: {COMPARED[choice.column].heading}"
    for option in choice.options:
        look = "not told from the best" if option in choice.ties else "worse"
        look = look if choice.best is not None else "measured"
        value, low, high = choice.value(option)
        more = f"n = {option.rows[choice.workload]['latency_n'] or '–'}"
        yield _Mark(panel, _name(option), value, look, low, high, more)
        for column in ("collective_us", "bus_gb_per_s"):
            number = option.rows[choice.workload][column]
            if number is not None and column != choice.column:
                title = f"{choice.workload}: {COMPARED[column].heading}"
                yield _Mark(title, _name(option), number, look)
        for name, share in [*choice.kept(option).items()][:_SHOWN]:
            yield _Mark(f"{name} keeps of its rate alone (%)", _name(option), 100 * share, look)


@door(result=Tuning)
def tuning(result: Tuning) -> go.Figure:
    """Draw the objective of each setting, with its interval, and what it costs.

    Costs are the columns of the SLO, with their limits, or else the rates of other workloads.
    Settings that were only forecast are hollow; the one to take has a band.

    Parameters
    ----------
    result
        Of :func:`gpuscope.tune`.

    Raises
    ------
    MissingEvidence
        Nothing was measured or forecast.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "partitions": {"a": 8}, "streams": {"s": {"partition": "a"}},
    ...     "workloads": {"w": {"kind": "gemm", "m": 4096, "n": 4096, "k": 4096, "stream": "s",
    ...                         "repeats": 3}},
    ... }
    >>> result = gs.tune(one, {"partitions.a": [8, 64, 120]}, "w.tflop_per_s", device=gpu)
    >>> [trace.name for trace in gs.figures.tuning(result).data]
    ['forecast', 'not told from the best', 'worse']
    """
    goals = [*dict.fromkeys((result.objective, *result.costs))]
    marks = [mark for goal in goals for mark in _of_goal(result, goal)]
    if not marks:
        raise MissingEvidence("nothing was measured or forecast: tune again")
    words = tuned_words(result)
    better = "more" if result.objective.is_rate else "less"
    title = words.take or f"{result.objective.name}, {better} is better"
    taken = [] if result.recommended is None else [_label(result.recommended)]
    notes = [words.outcome, words.method, result.forecasts]
    limits = {goal.name: goal.limit for goal in result.slo if goal.limit is not None}
    axis = ", ".join(map(heading, result.parameters))
    return _drawn(marks, taken, (title, notes, axis), stated(result), limits)


def _label(setting: TunedSetting) -> str:
    return ", ".join(map(str, setting.point.values())) or setting.label


def _of_goal(result: Tuning, goal: Goal) -> Iterator[_Mark]:
    for setting in result.settings:
        if goal.name in setting.forecast:
            yield _Mark(goal.name, _label(setting), setting.forecast[goal.name], "forecast")
        mean = setting.mean(goal)
        if mean is not None:
            is_objective = goal.name == result.objective.name
            ends = (result.interval(setting) if is_objective else None) or (-math.inf, math.inf)
            look = "not told from the best" if setting.verdict in _EQUAL else "worse"
            more = f"{setting.verdict}, n = {len(setting.values[goal.name])}"
            yield _Mark(goal.name, _label(setting), mean, look, *ends, more)


@door(result=InterferenceResult)
def interference(result: InterferenceResult) -> go.Figure:
    """Draw how much longer each workload's kernels take while each other one runs.

    A mark for each pair, with the least and the greatest value of a round. Pairs that were only
    forecast are hollow, with their 80 % interval.

    Raises
    ------
    MissingEvidence
        The result has no pair.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> short = {"kind": "spin", "duration_us": 10, "partition": "a"}
    >>> long = {"kind": "spin", "duration_us": 200, "partition": "b"}
    >>> result = gs.search.measure_interference(
    ...     gpu, {"a": 16, "b": "rest"}, {"short": short, "long": long}, repeats=5, rounds=2)
    >>> gs.figures.interference(result).data[0].x
    ('short beside long', 'long beside short')
    """
    if not result.cells:
        raise MissingEvidence("the result has no pair of workloads: measure at least two")
    marks = []
    for cell in result.cells:
        numbers = (cell.value, cell.low, cell.high)
        if cell.forecast is not None:
            numbers = (cell.forecast, cell.forecast_low, cell.forecast_high)
        value, low, high = (math.nan if share is None else 100 * share for share in numbers)
        alone = "not measured" if cell.alone_ns is None else duration(cell.alone_ns)
        more = f"n = {cell.n:,}; alone {alone}, n = {cell.alone_n:,}"
        pair = f"{cell.of} beside {cell.given}"
        look = "measured" if cell.forecast is None else "forecast"
        marks.append(_Mark("longer than alone (%)", pair, value, look, low, high, more))
    untold = [cell for cell in result.cells if cell.value is None and cell.forecast is None]
    notes = [
        *(["stopped early: what was measured until then"] if result.stopped else []),
        *(f"{cell.of} beside {cell.given}: {cell.reason}" for cell in untold[:_SHOWN]),
        ", ".join(f"{name} on {where}" for name, where in result.partitions.items()),
        definition(result.cells[0].inside),
        result.forecasts,
    ]
    return _drawn(marks, [], (interfered(result).text, notes, ""), stated(result))


# -- the picture --------------------------------------------------------------------------
def _drawn(
    marks: Sequence[_Mark],
    taken: Iterable[str],
    words: tuple[str, Sequence[str], str],
    origin: tuple[str, Sequence[str]],
    limits: Mapping[str, float] | None = None,
) -> go.Figure:
    """Draw panels one below the other, on one axis of settings.

    Parameters
    ----------
    words
        Title, notes, and what the settings are called.
    limits
        Panel → where it has a line.
    """
    panels = [*dict.fromkeys(mark.panel for mark in marks)]
    settings = [*dict.fromkeys(mark.x for mark in marks)]
    title, notes, axis = words
    height = len(panels) * _TALL + (len(panels) - 1) * _GAP
    data = [
        _series(of, f"y{at + 1}", settings)
        for at, panel in enumerate(panels)
        for look in _LOOKS
        if (of := [mark for mark in marks if (mark.panel, mark.look) == (panel, look)])
    ]
    for number, series in enumerate(data):
        series["showlegend"] = series["name"] not in {earlier["name"] for earlier in data[:number]}
    layout = style.base_layout(
        "<br>".join(notes_of(title)) + origin[0],
        [*notes_of(*notes), *origin[1]],
        height,
        legend_rows=1,
        shapes=[
            {**style.stripe(0, 1, "rgba(0,114,178,0.13)"), "yref": "paper", "xref": "x"}
            | {"x0": position - 0.45, "x1": position + 0.45}
            for position in map(settings.index, taken)
        ],
        xaxis=style.x_axis(
            escape(axis, 60),
            type="category",
            categoryarray=[escape(name, 40) for name in settings],
            anchor=f"y{len(panels)}",
            automargin=True,
            showgrid=False,
        ),
    )
    for at, panel in enumerate(panels):
        top = 1 - at * (_TALL + _GAP) / height
        layout[f"yaxis{at + 1}"] = style.y_axis(
            "", domain=[max(0.0, top - _TALL / height), top], rangemode="tozero", anchor="x"
        )
        text = style.heading(f"<b>{escape(panel, 80)}</b>", top, yref="paper", yanchor="bottom")
        layout.setdefault("annotations", []).append(text)
        if limits and panel in limits:
            line = {"color": style.ESCAPED, "dash": "dash", "width": 1}
            ends = {"xref": "paper", "x0": 0, "x1": 1, "yref": f"y{at + 1}"}
            at_limit = {"y0": limits[panel], "y1": limits[panel]}
            layout["shapes"].append({"type": "line", "line": line, **ends, **at_limit})
    return ThemedFigure(data=data, layout=layout)


def _series(marks: Sequence[_Mark], axis: str, settings: Sequence[str]) -> Properties:
    symbol, colour, size = _LOOKS[marks[0].look]
    ordered = sorted(marks, key=lambda mark: settings.index(mark.x))
    with_interval = [mark if math.isfinite(mark.high - mark.low) else None for mark in ordered]
    hovers = [
        f"<b>{escape(mark.x, 60)}</b>, {mark.look}<br>{mark.y:,.4g}"
        + (f" ({mark.low:,.4g} to {mark.high:,.4g})" if interval else "")
        + (f"<br>{escape(mark.more, 60)}" if mark.more else "")
        for mark, interval in zip(ordered, with_interval, strict=True)
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [escape(mark.x, 40) for mark in ordered],
        "y": [mark.y for mark in ordered],
        "xaxis": "x",
        "yaxis": axis,
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [mark.high - mark.y if mark else None for mark in with_interval],
            "arrayminus": [mark.y - mark.low if mark else None for mark in with_interval],
            "color": colour,
            "thickness": 1.5,
            "width": 4,
        },
        "marker": {"symbol": symbol, "color": colour, "size": size},
        "name": marks[0].look,
        "legendgroup": marks[0].look,
        "cliponaxis": False,
        "hovertext": hovers,
        "hoverinfo": "text",
    }
