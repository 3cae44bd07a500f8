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
from gpuscope.telling.of_setting import of_partition
from gpuscope.telling.of_trace import of_escapes
from gpuscope.timeline import style
from gpuscope.timeline.text import clean, duration, escape, notes_of, stated
from gpuscope.timeline.themed import ThemedFigure
from gpuscope.trace.model import Trace

_BAR, _LINE = 22.0, 18.0
_MOST = 400
"""Characters of a finding: names of kernels may have thousands."""
_LOOKS = {"resident": (1.0, ""), "allocated": (0.6, "/"), "simulated": (0.6, ".")}
"""Evidence → strength of its colour, and pattern."""


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
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> norm = gs.workloads.spin_kernel(gpu, "norm")
    >>> with gpu.carve({"decode": 16}) as parts, gpu.create_stream() as other:
    ...     guard = gs.CallerStreamGuard(parts["decode"].create_stream())
    ...     with gs.profile(gpu) as recording, guard:
    ...         other.launch(norm, 90_000, grid=16, block=32)
    >>> figure = gs.figures.confinement(recording.trace)
    >>> [bars.name for bars in figure.data]
    ['escaped, simulated']
    """
    result = analysis.confinement(judged) if isinstance(judged, Trace) else judged
    suffix, notes = stated({"": judged} if isinstance(judged, Trace) else judged)
    y, places, annotations, labels = 6.0, [], [], []
    font = {"size": 12, "color": style.INK}
    for part in result.partitions:
        places.append(y + _BAR / 2)
        count = "" if part.sm_count is None else f" ({part.sm_count} SMs)"
        labels.append(f"<b>{escape(part.partition, 24)}</b>{count}")
        y += _BAR + 2
        findings = [of_partition(part, result.incomplete), *of_escapes(part)]
        for line in notes_of(*(clean(finding.text, _MOST) for finding in findings)):
            annotations.append(style.heading(line, y + _LINE / 2, font=font))
            y += _LINE
        y += 12
    title = "share of the time of the work given to each partition"
    return ThemedFigure(
        data=_bars(result, places),
        layout=style.base_layout(
            f"Confinement to partitions{suffix}",
            [*notes, *notes_of(*result.notes)],
            y,
            legend_rows=2,
            barmode="overlay",
            annotations=annotations,
            xaxis=style.x_axis(title, range=[0, 1], tickformat=".0%", showgrid=False),
            yaxis=style.label_axis(places, labels, range=[y, 0]),
        ),
    )


def _bars(result: ConfinementResult, places: list[float]) -> list[go.Bar]:
    """Return the parts of all bars: inside by evidence, then escaped by evidence."""
    bars: list[go.Bar] = []
    for number, (partition, y) in enumerate(zip(result.partitions, places, strict=True)):
        colour, base = style.OKABE_ITO[number % len(style.OKABE_ITO)], 0.0
        for outside, part in itertools.product((False, True), partition.evidence):
            ns = part.escaped_ns if outside else part.time_ns - part.escaped_ns
            if ns <= 0:
                continue
            name = f"{'escaped' if outside else 'inside'}, {part.kind}"
            strength, pattern = _LOOKS[part.kind]
            bars.append(
                go.Bar(
                    orientation="h",
                    base=[base],
                    x=[ns / partition.time_ns],
                    y=[y],
                    width=[_BAR],
                    marker={
                        "color": style.INK if outside else style.tinted(colour, strength),
                        "line": {"width": 0.7, "color": style.INK},
                        "pattern": {
                            "shape": "x" if outside else pattern,
                            "size": 7,
                            "fillmode": "overlay",
                            "fgcolor": "white" if outside else style.INK,
                            "fgopacity": 0.5,
                        },
                    },
                    hovertext=[_hover(partition, part, ns, name, outside=outside)],
                    hoverinfo="text",
                    name=name,
                    legendgroup=name,
                    legendrank=EVIDENCE.index(part.kind) + 10 * outside,
                    showlegend=name not in {bar.name for bar in bars},
                )
            )
            base += ns / partition.time_ns
    return bars


def _hover(
    partition: PartitionConfinement, part: Evidence, ns: float, name: str, *, outside: bool
) -> str:
    lines = [
        f"<b>{escape(partition.partition, 40)}</b>: {name}",
        f"{duration(ns)} of {duration(partition.time_ns)}",
        f"{part.kernels:,} kernels judged by {part.observations:,} {part.judged_by}",
    ]
    if outside:
        escapes = of_escapes(partition, part.kind)
        lines += notes_of(*(clean(finding.text, _MOST) for finding in escapes))
        if ids := partition.escaping_sm_ids:
            more = f" and {len(ids) - 12:,} more" if len(ids) > 12 else ""
            lines.append(f"seen on SMs {', '.join(map(str, ids[:12]))}{more}")
    return "<br>".join(lines)
