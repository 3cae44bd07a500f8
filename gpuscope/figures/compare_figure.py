"""Two compared runs: the call at the p99 in both, where time goes, curves and differences."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from gpuscope._checks import door
from gpuscope._types import Array
from gpuscope.analysis.compare_analysis import Comparison, Difference, Pairs
from gpuscope.analysis.critical_path_analysis import critical_path
from gpuscope.analysis.forecasts import FORECAST, RECORDED, times_us
from gpuscope.analysis.intervals import by_workload, ended_kernels, union
from gpuscope.analysis.part import Part, PartKind
from gpuscope.analysis.split_analysis import SplitResult
from gpuscope.analysis.steps_analysis import Step, steps
from gpuscope.analysis.trace_parts import parts_by_cause, trace_parts
from gpuscope.errors import MissingEvidence
from gpuscope.figures.latency_figure import curve, share_axis
from gpuscope.telling.explanation import in_words
from gpuscope.telling.finding import Finding
from gpuscope.telling.of_pair import headline_and_rest, of_pair
from gpuscope.timeline import style
from gpuscope.timeline.look import PATTERNS
from gpuscope.timeline.style import Properties
from gpuscope.timeline.text import axis_unit, duration, escape, notes_of, stated
from gpuscope.timeline.themed import ThemedFigure
from gpuscope.trace.columns import is_open, rows_of
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import stream_names
from gpuscope.trace.schema import GPU_WORK

_OF_HOST = ("launch call", "on the way", "not looking", "host", "unexplained")
_OWN = ("running", "stream order")
_LANE, _ROW, _GAP = 20, 26, 22
"""Px of a lane of calls, of a row of kernels, and between the two traces."""
_BELOW, _SHARE = 250, 0.68
"""Px below the calls, and the share of it that panels have: the rest is the time axis's."""
_STREAMS, _PARTS = 3, 6
"""Rows of streams of either trace, and parts that changed."""
_OF_PATH: dict[str, PartKind] = {
    "running": "running",
    "copy": "running",
    "launch call": "launch call",
    "on the way": "on the way",
    "unexplained": "unexplained",
    "collective": "collective",
    "not looking": "not looking",
}
"""Kind of a part of a critical path → that whose look it has; of all others the host's."""
_SEPARATE = 500
"""Kernels of a row that are drawn one by one; of more, the time in which any ran."""
_SAME, _BETTER, _WORSE = style.MUTED, "#00704F", "#C4004B"


@door(result=Comparison, findings=(tuple, None), split=(SplitResult, None))
def compared(
    result: Comparison,
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
    colours = style.colours_of(each.workload for each in result.differences)
    data = [*_differences(result.differences)]
    calls: _Lanes | None = _steps_of(result)
    if calls is not None:
        data += calls.bars.values()
    if split is not None and workload not in result.pairs:
        data += [*_split(split)]
    if (pairs := result.pairs.get(workload)) is not None:
        calls = _Calls(result, workload, pairs, colours)
        data += [*calls.bars.values(), *_means(result, workload, colours)]
        data += _curves(result, workload, pairs)
    seen = set()
    for trace in data:  # what stands in the legend, once
        if trace.setdefault("showlegend", True):
            trace["showlegend"] = trace["name"] not in seen
            seen.add(trace["name"])
    panels = _panels(result, calls, split if workload not in result.pairs else None)
    return ThemedFigure(data=data, layout=_layout(result, findings, calls, panels))


class _Lanes:
    """Lanes of two traces on one axis, on which both begin at 0."""

    def __init__(self, colours: dict[str, str], around_ns: tuple[int, int]) -> None:
        self._colours, self._around_ns = colours, around_ns
        unit, self._unit_ns = axis_unit(around_ns[1] - around_ns[0])
        self.title = f"({unit})"
        self.labels: dict[float, str] = {}
        self.annotations: list[Properties] = []
        self._y = 0.0
        self.bars: dict[str, Properties] = {}

    @property
    def height(self) -> int:
        """What all lanes take, px."""
        return int(self._y) + 8

    def _heading(self, name: str, took_ns: int) -> None:
        """Say above the lane that was drawn whose it is, and how long the call or step took."""
        text = f"<b>{escape(name, 24)}: {duration(took_ns)}</b>"
        note = style.heading(text, self._y - _LANE - 9, xref="x", x=0, font={"size": 12})
        self.annotations.append(note)

    def _row(self, label: str, spans: Array, look: Properties, what: str) -> None:
        """Draw a row of kernels; of many, the time in which any ran."""
        spans = spans[(spans[:, 1] > self._around_ns[0]) & (spans[:, 0] < self._around_ns[1])]
        spans = union(*spans.T) if len(spans) > _SEPARATE else spans
        centre = self._y + _ROW / 2
        self.labels[centre] = label
        for low, high in spans.tolist():
            self._bar(low, high, centre, _ROW - 4, look, what)
        self._y += _ROW

    def _bar(
        self, low_ns: int, high_ns: int, y: float, height: float, look: Properties, what: str
    ) -> None:
        """Add a bar, beside those of the same look."""
        took, name = duration(high_ns - low_ns), escape(what, 60)
        low, high = np.clip((low_ns, high_ns), *self._around_ns).tolist()
        same: Properties = {"type": "bar", "orientation": "h", "name": name, "marker": look}
        alike = self.bars.setdefault(repr((name, look)), {**same, "showlegend": False})
        columns = {
            "base": low / self._unit_ns,
            "x": (high - low) / self._unit_ns,
            "y": y,
            "width": height,
            "hovertemplate": f"<b>{name}</b><br>{took}<extra></extra>",
        }
        for column, value in columns.items():
            alike.setdefault(column, []).append(value)


class _Calls(_Lanes):
    """The call at the p99 in both traces, with what ran around it."""

    def __init__(
        self, result: Comparison, workload: str, pairs: Pairs, colours: dict[str, str]
    ) -> None:
        mark, (first, second) = pairs.slow
        longest = int(max(pairs.first_ns[first], pairs.second_ns[second]))
        super().__init__(colours, (-longest, 2 * longest))
        self._workload = workload
        self.title = f"time since the call at the {mark} of either was entered {self.title}"
        sides = zip(
            result.names,
            result.traces,
            (pairs.first, pairs.second),
            (pairs.first_ns, pairs.second_ns),
            (first, second),
            strict=True,
        )
        for name, trace, ids, took_ns, at in sides:
            self._y += _GAP
            known = trace_parts(trace)
            zero_ns = int(known.rows.starts[known.rows.position(int(ids[at]))])
            self._calls(name, trace, ids, zero_ns, int(ids[at]))
            self._heading(name, int(took_ns[at]))
            self._kernels(name, trace, zero_ns)

    def _calls(self, name: str, trace: Trace, ids: Array, zero_ns: int, chosen: int) -> None:
        """Draw a lane of the parts of the calls in view; the chosen one has an outline."""
        known = trace_parts(trace)
        centre = self._y + _LANE / 2
        self.labels[centre] = f"{escape(name, 20)}: calls of {escape(self._workload, 20)}"
        for span in ids.tolist():
            row = known.rows.position(span)
            low, high = (int(ns) - zero_ns for ns in (known.rows.starts[row], known.rows.ends[row]))
            if high <= self._around_ns[0] or low >= self._around_ns[1]:
                continue
            edge = 1.6 if span == chosen else 0.5
            try:
                parts = [*parts_by_cause(trace, span)]
            except MissingEvidence:
                parts = [(Part("unexplained", low + zero_ns, high + zero_ns), "")]
            for part, holder in parts:
                low, high = part.start_ns - zero_ns, part.end_ns - zero_ns
                look = part_look(part.kind, self._workload, holder, self._colours, edge)
                self._bar(low, high, centre, _LANE - 4, look, in_words(part.kind))
        self._y += _LANE

    def _kernels(self, name: str, trace: Trace, zero_ns: int) -> None:
        """Draw a row of kernels for each workload, that of the calls first."""
        kernels = ended_kernels(trace)
        groups = by_workload(kernels)
        for label in sorted(groups.labels, key=lambda label: label != self._workload):
            of = groups.of_label(label)
            spans = np.c_[kernels.array("start_ns")[of], kernels.array("end_ns")[of]] - zero_ns
            fill = self._colours.get(label, style.WHOLE_GPU_COLOUR)
            look: Properties = {"color": fill, "line": {"width": 1, "color": style.WHITE}}
            title = f"{escape(name, 20)}: {escape(label, 20)}"
            self._row(title, spans, look, f"kernel of {label}")


class _Steps(_Lanes):
    """The typical step of a program in both traces: what its end waited for, and what ran."""

    def __init__(self, result: Comparison, known: Sequence[Step]) -> None:
        longest = max(step.length_ns for step in known)
        margin = longest // 20
        super().__init__({}, (-margin, longest + margin))
        self.title = f"time since the typical step of either began {self.title}"
        for name, trace, step in zip(result.names, result.traces, known, strict=True):
            self._y += _GAP
            centre = self._y + _LANE / 2
            self.labels[centre] = f"{escape(name, 20)}: critical path"
            for part in critical_path(trace, step).parts:
                low, high = part.start_ns - step.start_ns, part.end_ns - step.start_ns
                kind = _OF_PATH.get(part.kind, "host")
                look = part_look(kind, "", "", {})
                self._bar(low, high, centre, _LANE - 4, look, part.kind)
            self._y += _LANE
            self._heading(name, step.length_ns)
            self._streams(name, trace, step)

    def _streams(self, name: str, trace: Trace, step: Step) -> None:
        """Draw a row of work for each stream, those with most work in view first."""
        works = trace.where(
            np.isin(trace.array("id"), trace.array("id")[rows_of(trace, *GPU_WORK)])
        )
        works = works.where(~is_open(works))
        spans = np.c_[works.array("start_ns"), works.array("end_ns")] - step.start_ns
        inside = (spans[:, 1] > self._around_ns[0]) & (spans[:, 0] < self._around_ns[1])
        stream, called = works.array("stream", fill=-1), stream_names(trace)
        took = {
            number: int((spans[of, 1] - spans[of, 0]).sum())
            for number in np.unique(stream[inside]).tolist()
            if (of := inside & (stream == number)).any()
        }
        for number in sorted(took, key=lambda number: -took[number])[:_STREAMS]:
            fill = style.OKABE_ITO[list(took).index(number) % len(style.OKABE_ITO)]
            look: Properties = {"color": fill, "line": {"width": 1, "color": style.WHITE}}
            who = escape(called.get(number, f"stream {number}"), 20)
            label = f"{escape(name, 20)}: {who}"
            self._row(label, spans[stream == number], look, f"work on {who}")


def _steps_of(result: Comparison) -> _Steps | None:
    """Return the typical steps of two programs, if both have steps."""
    if any(trace.metadata.experiment for trace in result.traces):
        return None
    typical = [steps(trace).typical for trace in result.traces]
    known = [step for step in typical if step is not None]
    if len(known) < len(typical):
        return None
    with contextlib.suppress(MissingEvidence):
        return _Steps(result, known)
    return None


def part_colour(kind: PartKind, workload: str, holder: str, colours: Mapping[str, str]) -> str:
    """Return the colour of who a part of a call is of: itself, who held it up, or the host."""
    who = workload if kind in _OWN else holder
    return style.HOST_COLOUR if kind in _OF_HOST else colours.get(who, style.WHOLE_GPU_COLOUR)


def part_look(
    kind: PartKind, workload: str, holder: str, colours: Mapping[str, str], edge: float = 0.5
) -> Properties:
    """Return the marker of a part of a call: its colour says who, its pattern says what."""
    colour = part_colour(kind, workload, holder, colours)
    line = {"width": edge, "color": style.INK if edge > 1 else colour}
    shape = PATTERNS[kind]
    if not shape:
        return {"color": colour, "line": line}
    pattern = {"shape": "." if shape == "o" else shape, "size": 5, "solidity": 0.4}  # no circles
    pattern |= {"fgcolor": colour, "bgcolor": style.WHITE}
    return {"color": style.WHITE, "line": line, "pattern": pattern}


def _means(result: Comparison, workload: str, colours: dict[str, str]) -> Iterator[Properties]:
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


def _curves(result: Comparison, workload: str, pairs: Pairs) -> Iterator[Properties]:
    """Yield which share of the calls is slower than a time; of a forecast with its band.

    Dashed is the first, but the forecast beside a recording.
    """
    sides: list[Array] = [pairs.first_ns, pairs.second_ns]
    counted = [1e3 * each for each in times_us(result.forecasts, workload)]
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


def difference_look(each: Difference) -> tuple[str, str]:
    """Return the colour and the shape of a number: grey where no difference is seen."""
    if not each.is_seen:
        return _SAME, "circle"
    return (_BETTER, "triangle-up") if each.is_better else (_WORSE, "square")


def _differences(differences: Sequence[Difference]) -> Iterator[Properties]:
    """Yield a dot and an interval for each number; those that differ have a colour and a shape."""
    for each in reversed(differences):
        if not np.isfinite(each.change):
            continue
        is_known = np.isfinite(each.high - each.low)
        low, high = (each.low, each.high) if is_known else (each.change, each.change)
        colour, symbol = difference_look(each)
        texts = [each.about.text(number) for number in (each.before, each.after)]
        unit = f" {each.about.title}" if each.about.is_rate else ""
        values = " → ".join([texts[0].removesuffix(unit), texts[1]])
        name = each.about.title if each.about.is_rate else each.about.quantity
        title = escape(f"{each.workload} {name}", 40)
        yield {
            "type": "scatter",
            "mode": "markers",
            "x": [100 * each.change],
            "y": [f"{title}<br>{escape(values)}"],
            "xaxis": "x4",
            "yaxis": "y4",
            "error_x": {
                "type": "data",
                "symmetric": False,
                "array": [100 * (high - each.change)],
                "arrayminus": [100 * (each.change - low)],
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
    result: Comparison, calls: _Lanes | None, split: SplitResult | None
) -> dict[int, tuple[str, tuple[float, float]]]:
    """Return number of an axis → its title and domain, of the panels below the calls."""
    is_band = result.bands is not None and result.traces[1].metadata.forecast
    of_change = f"change (%), {'band' if is_band else '95 % interval'}"
    if isinstance(calls, _Calls):
        panels = {2: ("a mean call (µs)", (0, 0.28)), 3: ("latency (µs)", (0.36, 0.63))}
        return {**panels, 4: (of_change, (0.8, 1))}
    if split is not None and split.changed:
        return {2: (f"change of {split.unit} (µs)", (0.24, 0.6)), 4: (of_change, (0.8, 1))}
    return {4: (of_change, (0.3, 1))}


def _layout(
    result: Comparison,
    findings: Sequence[Finding],
    calls: _Lanes | None,
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
    if isinstance(calls, _Calls):
        layout["yaxis2"]["autorange"] = "reversed"
        layout["yaxis3"] = share_axis(**layout["yaxis3"])
    return layout
