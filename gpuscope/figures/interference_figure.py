"""Interference as a matrix: how much longer A takes given B, with numbers in the cells."""

from __future__ import annotations

import textwrap

import plotly.graph_objects as go

from gpuscope._checks import door
from gpuscope.analysis.interference_analysis import Interference, InterferenceResult, definition
from gpuscope.errors import MissingEvidence
from gpuscope.timeline import style
from gpuscope.timeline.text import clean, duration, escape, notes_of, stated
from gpuscope.timeline.themed import ThemedFigure

_CELL = 104
_STRONGEST = 0.5
"""Interference from which on the colour is at its strongest."""
_LINE = 96
"""Characters that fit side by side in all cells of a row."""
_MOST_LINES = 6


@door(result=InterferenceResult)
def interference(result: InterferenceResult) -> go.Figure:
    """Draw how much longer each workload's kernels take while each other one runs.

    Rows are the workloads measured, columns those that were busy meanwhile; in each cell stand
    the interference, its least and greatest value of a round and n, or why there is none. On
    the diagonal: the median kernel time alone. Colour repeats what the numbers say.

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
    >>> figure = gs.figures.interference(result)
    >>> figure.layout.title.text
    '<b>Interference of A given B (SIMULATED)</b>'
    """
    if not result.cells:
        raise MissingEvidence("the result has no pair of workloads: measure at least two")
    names = list(result.workloads)
    shapes: list[dict[str, object]] = []
    texts: list[dict[str, object]] = []
    colours, hovers = [], []
    for row, of in enumerate(names):
        colours.append([0.0] * len(names))
        hovers.append([""] * len(names))
        for column, given in enumerate(names):
            if of == given:
                lines, filled = _alone(result, of), style.GRID
                hover = lines
            else:
                cell = result.cell(of, given)
                lines, hover = _lines(cell, _LINE // len(names)), _hover(cell)
                filled = style.STRIPE if cell.value is None else ""
                colours[row][column] = cell.value or 0.0
            hovers[row][column] = "<br>".join(hover)
            look = {"font": {"size": 12, "color": style.INK}, "align": "center"}
            where = {"x": column, "xref": "x", "xanchor": "auto", "yanchor": "auto"}
            texts.append(style.heading("<br>".join(lines), row, **look, **where))
            if filled:
                sides = {"xref": "x", "x0": column - 0.49, "x1": column + 0.49, "layer": "above"}
                shapes.append(style.stripe(row - 0.48, row + 0.48, filled, **sides))
    picture = go.Heatmap(
        z=colours,
        zmin=-_STRONGEST,
        zmax=_STRONGEST,
        xgap=3,
        ygap=3,
        showscale=False,
        colorscale=[
            [0, style.tinted(style.OKABE_ITO[0], 0.55)],
            [0.5, "#FFFFFF"],
            [1, style.tinted(style.ESCAPED, 0.6)],
        ],
        hovertext=hovers,
        hoverinfo="text",
    )
    inside = result.cells[0].inside
    suffix, provenance = stated(result)
    notes = [*notes_of(definition(inside)), *provenance]
    if result.stopped:
        notes.insert(0, "<b>stopped early</b>: what was measured until then")
    layout = style.base_layout(
        f"Interference of A given B{suffix}",
        notes,
        _CELL * len(names) + 34,
        legend_rows=0,
        plot_bgcolor=style.GRID,
        shapes=shapes,
        annotations=texts,
        xaxis=_axis("B, busy in the background", result, side="bottom"),
        yaxis=_axis("A, measured", result, autorange="reversed"),
    )
    return ThemedFigure(data=[picture], layout=layout)


def _alone(result: InterferenceResult, of: str) -> list[str]:
    cell = next(measured for measured in result.cells if measured.of == of)
    if cell.alone_ns is None:
        return ["alone:", "not measured"]
    return ["alone", f"<b>{duration(cell.alone_ns)}</b>", f"n = {cell.alone_n:,}"]


def _lines(cell: Interference, width: int) -> list[str]:
    """Return what stands in a cell."""
    if cell.value is None or cell.low is None or cell.high is None:
        return ["<b>no value</b>", *map(escape, _broken(str(cell.reason), width, _MOST_LINES - 1))]
    return [
        f"<b>{_signed(cell.value)} %</b>",
        f"{_signed(cell.low)} to {_signed(cell.high)} %",
        f"n = {cell.n:,}",
    ]


def _hover(cell: Interference) -> list[str]:
    title = f"<b>{escape(cell.of, 40)}</b> given <b>{escape(cell.given, 40)}</b>"
    if cell.value is None or cell.median_ns is None or cell.alone_ns is None:
        return [title, *map(escape, _broken(f"no value: {cell.reason}", 60))]
    return [
        title,
        *_lines(cell, 60),
        f"median {duration(cell.median_ns)}",
        f"alone {duration(cell.alone_ns)}, n = {cell.alone_n:,}",
    ]


def _signed(value: float) -> str:
    return f"{round(100 * value, 1) + 0.0:+.1f}"  # + 0.0: not minus zero


def _broken(line: str, width: int, most: int | None = None) -> list[str]:
    return textwrap.wrap(
        clean(line), width, break_on_hyphens=False, max_lines=most, placeholder=" …"
    )


def _axis(title: str, result: InterferenceResult, **more: object) -> dict[str, object]:
    labels = [
        f"<b>{escape(name, 24)}</b><br>{escape(partition, 28)}"
        for name, partition in result.partitions.items()
    ]
    return style.label_axis(
        list(range(len(labels))),
        labels,
        title=style.titled(title),
        ticks="",
        tickangle=0,
        ticklabelstandoff=4,
        **more,
    )
