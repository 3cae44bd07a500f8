"""How much of the work given to each partition stayed in it."""

from __future__ import annotations

import itertools

import plotly.graph_objects as go

from gpuscope import analysis
from gpuscope._checks import door
from gpuscope.analysis.confinement_analysis import (
    EVIDENCE,
    ConfinementResult,
    Evidence,
    PartitionConfinement,
)
from gpuscope.analysis.escapes import Escape
from gpuscope.timeline import style
from gpuscope.timeline.style import Properties
from gpuscope.timeline.text import (
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

_BAR = 22.0
_LINE = 18.0
_NAMED = 3
_STRENGTH = {"resident": 1.0, "allocated": 0.6, "simulated": 0.6}
_PATTERN = {"resident": "", "allocated": "/", "simulated": "."}


@door(judged=(Trace, ConfinementResult))
def confinement(judged: Trace | ConfinementResult) -> go.Figure:
    """Draw for each partition which share of the time of its work was spent inside it.

    A bar is all the time of the work given to a partition, inside by evidence, then escaped;
    below it stand the numbers, what escaped and where to, and what to know before trusting
    them. Definitions: :func:`gpuscope.analysis.confinement`.

    Parameters
    ----------
    judged
        A trace, or what ``analysis.confinement`` said of one.

    Raises
    ------
    MissingEvidence
        As :func:`gpuscope.analysis.confinement`.

    Examples
    --------
    >>> import gpuscope as gs
    >>> figure = gs.figures.confinement(gs.learn.case("A").trace)
    >>> [bars.name for bars in figure.data]
    ['inside, simulated', 'escaped, simulated', 'inside, simulated']
    """
    if isinstance(judged, Trace):
        result = analysis.confinement(judged)
        notes, suffix = provenance_lines({"": judged}), title_suffix([judged])
    else:
        result = judged
        notes, suffix = provenance_of(result.provenance), suffix_of(result)
    notes += [escape(line) for note in result.notes for line in wrapped(note)]
    names = [partition.partition for partition in result.partitions]
    colours = {
        name: style.OKABE_ITO[index % len(style.OKABE_ITO)] for index, name in enumerate(names)
    }
    y, places = 6.0, []
    annotations: list[Properties] = []
    font = {"size": 12, "color": style.INK}
    for partition in result.partitions:
        places.append(y + _BAR / 2)
        y += _BAR + 2
        for line in _lines(partition):
            annotations.append(style.heading(line, y + _LINE / 2, font=font))
            y += _LINE
        y += 12
    return ThemedFigure(
        data=_bars(result, places, colours),
        layout=style.base_layout(
            f"Confinement to partitions{suffix}",
            notes,
            y,
            legend_rows=2,
            barmode="overlay",
            annotations=annotations,
            xaxis=style.x_axis(
                "share of the time of the work given to each partition",
                range=[0, 1],
                tickformat=".0%",
                showgrid=False,
            ),
            yaxis=style.label_axis(
                places, [_label(partition) for partition in result.partitions], range=[y, 0]
            ),
        ),
    )


def _label(partition: PartitionConfinement) -> str:
    count = "" if partition.sm_count is None else f" ({partition.sm_count} SMs)"
    return f"<b>{escape(partition.partition, 24)}</b>{count}"


def _lines(partition: PartitionConfinement) -> list[str]:
    """Return what stands below a bar, safe for Plotly."""
    if partition.fraction is None:
        return ["no work was given to it"]
    evidence = ", ".join(
        f"{part.kind}: {_share(part.fraction)} of {part.observations:,} {part.judged_by}"
        for part in partition.evidence
    )
    inside = f"<b>{_share(partition.fraction)} inside</b> of {duration(partition.time_ns)}"
    lines = [f"{inside} in {partition.kernels:,} kernels; {evidence}"]
    lines += [
        f"× escaped: {_escape_line(escaped, partition)}" for escaped in partition.escapes[:_NAMED]
    ]
    if len(partition.escapes) > _NAMED:
        rest = sum(escaped.time_ns for escaped in partition.escapes[_NAMED:])
        lines.append(f"× and {len(partition.escapes) - _NAMED:,} more, {duration(rest)}")
    lines += [escape(line) for note in partition.notes for line in wrapped(note)]
    return lines


def _escape_line(escaped: Escape, partition: PartitionConfinement) -> str:
    blocks = "" if escaped.blocks is None else f" ({escaped.blocks:,} blocks)"
    return (
        f"<b>{escape(escaped.kernel, 36)}</b> ×{escaped.kernels:,} of {escaped.given:,}{blocks} → "
        f"{escape(escaped.where, 44)}: {duration(escaped.time_ns)}, "
        f"{_share(escaped.time_ns / partition.time_ns)}"
    )


def _share(fraction: float) -> str:
    """Write a share so that almost all is never written as all, nor almost none as none."""
    text = f"{fraction:.2%}"
    if text == "100.00%" and fraction < 1:
        return "just under 100%"
    return "below 0.01%" if text == "0.00%" and fraction > 0 else text


def _bars(result: ConfinementResult, places: list[float], colours: dict[str, str]) -> list[go.Bar]:
    """Return the parts of all bars: inside by evidence, then escaped by evidence."""
    bars = []
    named: set[str] = set()
    for partition, y in zip(result.partitions, places, strict=True):
        base = 0.0
        for outside, part in itertools.product((False, True), partition.evidence):
            ns = part.escaped_ns if outside else part.time_ns - part.escaped_ns
            if ns <= 0:
                continue
            width = ns / partition.time_ns
            name = f"{'escaped' if outside else 'inside'}, {part.kind}"
            fill = style.tinted(colours[partition.partition], _STRENGTH[part.kind])
            bars.append(
                go.Bar(
                    orientation="h",
                    base=[base],
                    x=[width],
                    y=[y],
                    width=[_BAR],
                    marker={
                        "color": style.INK if outside else fill,
                        "line": {"width": 0.7, "color": style.INK},
                        "pattern": {
                            "shape": "x" if outside else _PATTERN[part.kind],
                            "size": 7,
                            "fillmode": "overlay",
                            "fgcolor": "white" if outside else style.INK,
                            "fgopacity": 0.5,
                        },
                    },
                    hovertext=[_hover(partition, part, ns, outside=outside)],
                    hoverinfo="text",
                    name=name,
                    legendgroup=name,
                    legendrank=EVIDENCE.index(part.kind) + 10 * outside,
                    showlegend=name not in named,
                )
            )
            named.add(name)
            base += width
    return bars


def _hover(partition: PartitionConfinement, part: Evidence, ns: float, *, outside: bool) -> str:
    name = f"{'escaped' if outside else 'inside'}, {part.kind}"
    lines = [
        f"<b>{escape(partition.partition, 40)}</b>: {name}",
        f"{duration(ns)} of {duration(partition.time_ns)}, {_share(ns / partition.time_ns)}",
        f"{part.kernels:,} kernels judged by {part.observations:,} {part.judged_by}",
    ]
    if outside:
        named = [escaped for escaped in partition.escapes if escaped.evidence == part.kind]
        lines += [_escape_line(escaped, partition) for escaped in named[:10]]
        if len(named) > 10:
            lines.append(f"and {len(named) - 10:,} more")
        if partition.escaping_sm_ids:
            ids = partition.escaping_sm_ids
            more = f" and {len(ids) - 12:,} more" if len(ids) > 12 else ""
            lines.append(f"seen on SMs {', '.join(map(str, ids[:12]))}{more}")
    return "<br>".join(lines)
