"""Two compared runs: the call at the p99 in both, where time goes, curves and differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from gpuscope._checks import door
from gpuscope._types import Array
from gpuscope.comparing.effects import Effect
from gpuscope.comparing.forecasts import FORECAST, RECORDED, times_us
from gpuscope.comparing.lanes import CallLanes, Lanes, part_look, step_lanes
from gpuscope.comparing.pair import CompareResult, headline_and_rest, of_pair
from gpuscope.comparing.pairing import Pairs
from gpuscope.comparing.split import SplitResult
from gpuscope.errors import MissingEvidence
from gpuscope.figures.latency_figure import curve, share_axis
from gpuscope.telling.explanation import in_words
from gpuscope.telling.finding import Finding
from gpuscope.timeline import style
from gpuscope.timeline.style import Properties
from gpuscope.timeline.text import duration, escape, notes_of, stated
from gpuscope.timeline.themed import ThemedFigure

_BELOW, _SHARE = 250, 0.68
"""Px below the calls, and the share of it that panels have: the rest is the time axis's."""
_PARTS = 6
"""Parts that changed, at most."""
_SAME, _BETTER, _WORSE = style.MUTED, "#00704F", "#C4004B"


@door(result=CompareResult, findings=(tuple, None), split=(SplitResult, None))
def compared(
    result: CompareResult,
    *,
    findings: tuple[Finding, ...] | None = None,
    split: SplitResult | None = None,
) -> go.Figure:
    """Draw a comparison of two runs.

    Above, on one axis on which each run's call at its p99 begins at 0: what the calls of its
    workload waited for, and which kernels ran. Below: what a mean call consists of, which
    share of calls is slower than …, and how far each number differs, with its 95 % interval. Of two
    programs: what the end of a typical step waited for, what ran, and which parts changed.

    Parameters
    ----------
    result
        What :func:`gpuscope.compare` returned.
    findings
        What it comes to, the headline first, if more is known than the comparison tells.
    split
        Of two programs, which parts of a step changed.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> one = {
    ...     "name": "one", "alone_repeats": 0, "streams": {"s": {}},
    ...     "workloads": {"w": {"kind": "spin", "duration_us": 100, "stream": "s", "repeats": 20}},
    ... }
    >>> trace = gs.run(one, gpu)["default"]
    >>> figure = gs.figures.compared(gs.compare(trace, trace))
    >>> [str(bar.name) for bar in figure.data if bar.xaxis == "x2" and bar.y[0] == "A"]
    ['in the launch call', 'on the way to the GPU', 'running', 'done but not seen by the host']
    """
    findings = findings or of_pair(result)
    workload = str(findings[0].subject["workload"])
    colours = style.colours_of(effect.workload for effect in result.differences)
    data = [*_differences(result.differences)]
    calls: Lanes | None = step_lanes(result)
    if calls is not None:
        data += calls.bars.values()
    if split is not None and workload not in result.pairs:
        data += [*_split(split)]
    if (pairs := result.pairs.get(workload)) is not None:
        calls = CallLanes(result, workload, pairs, colours)
        data += [*calls.bars.values(), *_means(result, workload, colours)]
        data += _curves(result, workload, pairs)
    seen = set()
    for trace in data:  # what stands in the legend, once
        if trace.setdefault("showlegend", True):
            trace["showlegend"] = trace["name"] not in seen
            seen.add(trace["name"])
    panels = _panels(result, calls, split if workload not in result.pairs else None)
    return ThemedFigure(data=data, layout=_layout(result, findings, calls, panels))


def _means(result: CompareResult, workload: str, colours: dict[str, str]) -> Iterator[Properties]:
    """Yield what a mean call consists of in either trace."""
    try:
        sums = result.parts(workload)
    except MissingEvidence:
        return
    for at, name in enumerate(result.names):
        for part in sums:
            mean_us = (part.first_ns, part.second_ns)[at] / part.calls / 1e3
            if mean_us:
                words = in_words(part.kind)
                yield {
                    "type": "bar",
                    "orientation": "h",
                    "x": [mean_us],
                    "y": [escape(name, 20)],
                    "xaxis": "x2",
                    "yaxis": "y2",
                    "width": 0.4,
                    "marker": part_look(part.kind, workload, part.holder, colours),
                    "name": words,
                    "legendgroup": words,
                    "hovertemplate": f"<b>{words}</b><br>{duration(mean_us * 1e3)}"
                    " of a mean call<extra></extra>",
                }


def _curves(result: CompareResult, workload: str, pairs: Pairs) -> Iterator[Properties]:
    """Yield which share of the calls is slower than a time; of a forecast with its band.

    Dashed is the first, but the forecast beside a recording.
    """
    sides: list[Array] = [pairs.first_ns, pairs.second_ns]
    counted = [1e3 * took_us for took_us in times_us(result.forecasts, workload)]
    at = int(bool(result.traces[1].metadata.forecast))
    axes = {"xaxis": "x3", "yaxis": "y3"}
    if counted:
        recorded, sides[at], *ends = counted
        edge = {"showlegend": False}
        band = {"fill": "tonextx", "fillcolor": "rgba(0,114,178,0.18)", "name": f"{FORECAST}, band"}
        for end, look in ((np.minimum(*ends), edge), (np.maximum(*ends), band)):
            yield curve(end, {"width": 0}) | axes | look
        if not at:  # what the forecast was made from
            line = {"color": style.HOST_COLOUR, "width": 1}
            yield curve(recorded, line) | axes | {"name": RECORDED}
    looks = (style.WHOLE_GPU_COLOUR, style.OKABE_ITO[0])
    for number, (name, took_ns) in enumerate(zip(result.names, sides, strict=True)):
        line = {"color": looks[number], "dash": "dash" if number == at else "solid"}
        yield curve(took_ns, line) | axes | {"name": escape(name, 40)}


def _split(split: SplitResult) -> Iterator[Properties]:
    """Yield the parts that changed most, each with its change."""
    parts = split.changed[:_PARTS][::-1]
    colours = [_WORSE if part.change_ns > 0 else _BETTER for part in parts]
    texts = [
        part.name if part.cause == "kernels" else f"{part.cause}: {part.name}" for part in parts
    ]
    titles = [escape(f"{number}. {text}", 34) for number, text in enumerate(texts, 1)]
    changes = [part.change_ns / 1e3 for part in parts]
    yield {
        "type": "bar",
        "orientation": "h",
        "x": changes,
        "y": titles,
        "xaxis": "x2",
        "yaxis": "y2",
        "marker": {"color": colours},
        "width": 0.6,
        "name": "change",
        "showlegend": False,
        "customdata": [duration(abs(part.change_ns)) for part in parts],
        "hovertemplate": "<b>%{y}</b><br>%{customdata}<extra></extra>",
    }


def difference_look(each: Effect) -> tuple[str, str]:
    """Return the colour and the shape of a number: grey where no difference is seen."""
    if not each.is_seen:
        return _SAME, "circle"
    return (_BETTER, "triangle-up") if each.is_better else (_WORSE, "square")


def _differences(differences: Sequence[Effect]) -> Iterator[Properties]:
    """Yield a dot and an interval for each number; those that differ have a colour and a shape."""
    for effect in reversed(differences):
        if not np.isfinite(effect.change):
            continue
        is_known = np.isfinite(effect.high - effect.low)
        low, high = (effect.low, effect.high) if is_known else (effect.change, effect.change)
        colour, symbol = difference_look(effect)
        texts = [effect.about.text(number) for number in (effect.before, effect.after)]
        unit = f" {effect.about.title}" if effect.about.is_rate else ""
        values = " → ".join([texts[0].removesuffix(unit), texts[1]])
        name = effect.about.title if effect.about.is_rate else effect.about.quantity
        title = escape(f"{effect.workload} {name}", 40)
        yield {
            "type": "scatter",
            "mode": "markers",
            "x": [100 * effect.change],
            "y": [f"{title}<br>{escape(values)}"],
            "xaxis": "x4",
            "yaxis": "y4",
            "error_x": {
                "type": "data",
                "symmetric": False,
                "array": [100 * (high - effect.change)],
                "arrayminus": [100 * (effect.change - low)],
                "color": colour,
                "thickness": 1.5,
                "width": 4,
            },
            "marker": {"color": colour, "symbol": symbol, "size": 10},
            "showlegend": False,
            "hovertemplate": f"<b>{title}</b><br>%{{x:+.3g}} &#37;, 95 &#37; interval "
            f"{100 * low:+.3g} to {100 * high:+.3g} &#37;<extra></extra>",
        }


def _panels(
    result: CompareResult, calls: Lanes | None, split: SplitResult | None
) -> dict[int, tuple[str, tuple[float, float]]]:
    """Return number of an axis → its title and domain, of the panels below the calls."""
    is_band = result.bands is not None and result.traces[1].metadata.forecast
    of_change = f"change (%), {'band' if is_band else '95 % interval'}"
    if isinstance(calls, CallLanes):
        panels = {2: ("a mean call (µs)", (0, 0.28)), 3: ("latency (µs)", (0.36, 0.63))}
        return {**panels, 4: (of_change, (0.8, 1))}
    if split is not None and split.changed:
        return {2: (f"change of {split.unit} (µs)", (0.24, 0.6)), 4: (of_change, (0.8, 1))}
    return {4: (of_change, (0.3, 1))}


def _layout(
    result: CompareResult,
    findings: Sequence[Finding],
    calls: Lanes | None,
    panels: Mapping[int, tuple[str, tuple[float, float]]],
) -> Properties:
    suffix, provenance = stated(dict(zip(result.names, result.traces, strict=True)))
    headline, rest = headline_and_rest(findings)
    above = calls.height if calls else 0
    layout = style.base_layout(
        "<br>".join(notes_of(headline)) + suffix,
        [*notes_of(*rest), *provenance],
        above + _BELOW,
        legend_rows=2,
        barmode="relative",
    )
    top = _BELOW / (above + _BELOW)
    if calls:
        layout["annotations"] = calls.annotations
        layout["xaxis"] = style.x_axis(calls.title, anchor="y")
        layout["yaxis"] = style.label_axis(
            [*calls.labels], [*calls.labels.values()], range=[above, 0], tickfont={"size": 12}
        ) | {"domain": [top, 1], "anchor": "x"}
        top *= _SHARE
    for number, (title, domain) in panels.items():
        layout[f"xaxis{number}"] = style.x_axis(
            title, domain=domain, anchor=f"y{number}", rangemode="tozero"
        )
        axis = {"domain": [0, top], "anchor": f"x{number}", "automargin": True}
        layout[f"yaxis{number}"] = axis | {"tickfont": {"size": 11}, "gridcolor": style.GRID}
    layout["xaxis4"] |= {"zeroline": True, "zerolinecolor": style.MUTED}
    if isinstance(calls, CallLanes):
        layout["yaxis2"]["autorange"] = "reversed"
        layout["yaxis3"] = share_axis(**layout["yaxis3"])
    return layout
