"""Tuning: the objective of every setting against what it costs, with intervals and the front."""

from __future__ import annotations

import plotly.graph_objects as go

from gpuscope._checks import door
from gpuscope.analysis.race import Goal, Verdict
from gpuscope.analysis.tuning_analysis import TunedSetting, Tuning
from gpuscope.errors import MissingEvidence
from gpuscope.telling.of_tuning import tuned_words
from gpuscope.timeline import style
from gpuscope.timeline.text import escape, notes_of, stated
from gpuscope.timeline.themed import ThemedFigure

_LOOKS: dict[Verdict, tuple[str, str, int]] = {
    "best": ("star", style.OKABE_ITO[0], 17),
    "equal": ("circle", style.OKABE_ITO[0], 12),
    "undecided": ("diamond", style.OKABE_ITO[1], 10),
    "no better": ("circle", style.OKABE_ITO[3], 9),
    "worse": ("circle", style.OKABE_ITO[3], 9),
    "misses SLO": ("x", style.OKABE_ITO[3], 9),
}
"""Verdict → symbol, colour, size."""


@door(result=Tuning)
def tuning(result: Tuning) -> go.Figure:
    """Draw the objective of each setting against what it costs.

    The cost is the first column of the SLO, or else the rate of another workload; without either,
    the settings stand side by side. Settings that were measured have the interval of their mean
    and their verdict; those that were only forecast are hollow. The Pareto front, what no other
    setting beats in the objective and all costs, is joined by a line.

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
    ['forecast, not measured', 'Pareto front', 'best', 'worse']
    """
    cost = next(iter(result.costs), None)
    measured = [
        setting for setting in result.settings if setting.mean(result.objective) is not None
    ]
    hollow = [setting for setting in result.settings if setting.forecast]
    if not measured and not hollow:
        raise MissingEvidence("nothing was measured or forecast: tune again")
    data = [_forecasts(hollow, result, cost)] if hollow else []
    front = list(result.front)
    if cost is not None:
        front.sort(key=lambda setting: setting.mean(cost) or 0.0)
    data.append(
        go.Scatter(
            x=[_x(setting, cost) for setting in front],
            y=[setting.mean(result.objective) for setting in front],
            mode="lines",
            line={"color": style.INK, "width": 1.2},
            name="Pareto front",
            hoverinfo="skip",
        )
    )
    for verdict in _LOOKS:
        of_verdict = [setting for setting in measured if setting.verdict == verdict]
        if of_verdict:
            data.append(_series(result, of_verdict, verdict, cost))
    words = tuned_words(result)
    better = "more" if result.objective.is_rate else "less"
    lines = notes_of(words.take or f"{result.objective.name}, {better} is better")
    notes = [words.outcome, words.method, result.forecasts]
    suffix, provenance = stated(result)
    layout = style.base_layout(
        "<br>".join(lines) + suffix,
        [*notes_of(*notes), *provenance],
        400,
        legend_rows=2,
        xaxis=style.x_axis(
            escape(cost.name, 60) if cost is not None else "setting", automargin=True
        ),
        yaxis=style.y_axis(escape(result.objective.name, 60)),
    )
    figure = ThemedFigure(data=data, layout=layout)
    for goal in result.slo:
        if cost is not None and goal.name == cost.name:
            figure.add_vline(
                x=goal.limit,
                line={"color": style.ESCAPED, "dash": "dash", "width": 1},
                annotation_text=escape(str(goal), 60),
            )
    return figure


def _x(setting: TunedSetting, cost: Goal | None) -> float | str | None:
    return escape(setting.label, 40) if cost is None else setting.mean(cost)


def _forecasts(settings: list[TunedSetting], result: Tuning, cost: Goal | None) -> go.Scatter:
    x, hover = [], []
    for setting in settings:
        label = escape(setting.label, 40)
        x.append(label if cost is None else setting.forecast.get(cost.name))
        numbers = [
            f"{escape(goal.name, 60)} {setting.forecast[goal.name]:,.4g}"
            for goal in dict.fromkeys((result.objective, *result.slo))
        ]
        verdict = [] if setting.values else [setting.verdict]
        title = f"<b>{escape(setting.label, 60)}</b>, forecast"
        hover.append("<br>".join([title, *numbers, *verdict]))
    return go.Scatter(
        x=x,
        y=[setting.forecast[result.objective.name] for setting in settings],
        mode="markers",
        marker={"symbol": "circle-open", "size": 8, "color": style.WHOLE_GPU_COLOUR},
        name="forecast, not measured",
        hovertext=hover,
        hoverinfo="text",
    )


def _series(
    result: Tuning, settings: list[TunedSetting], verdict: Verdict, cost: Goal | None
) -> go.Scatter:
    symbol, colour, size = _LOOKS[verdict]
    means, halves, hover = [], [], []
    for setting in settings:
        bounds = result.interval(setting)
        means.append(setting.mean(result.objective) or 0.0)
        halves.append((bounds[1] - bounds[0]) / 2 if bounds else 0.0)
        hover.append(
            f"<b>{escape(setting.label, 60)}</b>, {verdict}<br>{means[-1]:,.4g} ± "
            f"{halves[-1]:.3g} (n = {len(setting.values[result.objective.name])})"
        )
    return go.Scatter(
        x=[_x(setting, cost) for setting in settings],
        y=means,
        error_y={"type": "data", "array": halves, "color": colour, "thickness": 1.2},
        mode="markers+text",
        marker={"symbol": symbol, "size": size, "color": colour},
        text=[escape(setting.label, 40) for setting in settings] if cost is not None else None,
        textposition="top center",
        textfont={"size": 12, "color": style.INK},
        cliponaxis=False,
        name=verdict,
        hovertext=hover,
        hoverinfo="text",
    )
