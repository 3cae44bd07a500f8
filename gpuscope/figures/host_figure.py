"""Flame graphs of Python's threads: while a GPU waited, and while all worked."""

from __future__ import annotations

from typing import NamedTuple

import plotly.graph_objects as go

from gpuscope import analysis
from gpuscope._checks import door
from gpuscope.analysis.host_times_analysis import HostTimesResult, StackTime
from gpuscope.timeline import style
from gpuscope.timeline.text import duration, escape, stated
from gpuscope.timeline.themed import ThemedFigure
from gpuscope.trace.model import Trace

_LEAST = 0.002
"""Share of a graph's time below which a box is left out: the one above it has room there."""
_DEEPEST, _HEIGHT = 40, 520.0
_TITLES = ("while a GPU waited", "while all worked")


@door(judged=(Trace, HostTimesResult))
def host_times(judged: Trace | HostTimesResult) -> go.Figure:
    """Draw where Python's threads were while a GPU waited, beside where they were else.

    Two flame graphs: a box is a function, below it stand those it called, as wide as it took long.
    A click opens a box. Boxes below 0.2 % of the time are left out.

    Parameters
    ----------
    judged
        A trace, or what :func:`gpuscope.analysis.host_times` said of one.

    Raises
    ------
    MissingEvidence
        As :func:`gpuscope.analysis.host_times`.

    Examples
    --------
    >>> import gpuscope as gs
    >>> from gpuscope.trace import Trace
    >>> trace = Trace.from_columns({
    ...     "id": [1, 2, 3], "kind": ["kernel", "stack", "kernel"], "name": ["k", "f", "k"],
    ...     "start_ns": [0, 0, 90], "end_ns": [10, 100, 100], "thread": [None, 7, None],
    ...     "value": [None, 10, None], "payload": [None, '[["a.py", 3, "f"]]', None],
    ...     "source": ["cupti", "host", "cupti"]})
    >>> times = gs.analysis.host_times(trace, (0, 100))
    >>> [graph.labels[-1] for graph in gs.figures.host_times(times).data]
    ['f', 'f']
    """
    result = analysis.host_times(judged) if isinstance(judged, Trace) else judged
    suffix, notes = stated({"": judged} if isinstance(judged, Trace) else judged)
    figure = ThemedFigure()
    for number, (title, field) in enumerate(zip(_TITLES, ("waited_ns", "worked_ns"), strict=True)):
        boxes = _boxes(result.stacks, field, title)
        figure.add_trace(
            go.Icicle(
                ids=[box.number for box in boxes],
                labels=[escape(box.label, 60) for box in boxes],
                parents=[box.parent for box in boxes],
                values=[box.ns for box in boxes],
                text=[duration(box.ns) for box in boxes],
                hovertext=[
                    f"{escape(box.label, 120)}{escape(box.file, 120)}<br>{duration(box.ns)}"
                    for box in boxes
                ],
                hoverinfo="text",
                branchvalues="total",
                tiling={"orientation": "v"},
                marker={
                    "colors": [style.HOST_COLOUR if box.parent else style.HEADING for box in boxes]
                },
                sort=False,
                name=title,
                domain={"x": [0.51 * number, 0.51 * number + 0.49]},
            )
        )
    figure.update_layout(
        style.base_layout(f"What Python did meanwhile{suffix}", notes, _HEIGHT, legend_rows=0)
    )
    return figure


class _Box(NamedTuple):
    number: str
    parent: str
    label: str
    file: str
    ns: float


def _boxes(stacks: tuple[StackTime, ...], field: str, title: str) -> list[_Box]:
    """Return boxes: one of all time, those of threads, then what these called."""
    times_ns: dict[tuple[tuple[str, str], ...], float] = {}
    for stack in stacks:
        ns = getattr(stack, field)
        path: tuple[tuple[str, str], ...] = ()
        names = [(f"{title}, of all threads", ""), (stack.thread, "")]
        names += [(line.function, f" ({line.file})") for line in stack.lines]
        for name in names[:_DEEPEST] if ns else ():
            path = (*path, name)
            times_ns[path] = times_ns.get(path, 0.0) + ns
    whole_ns = sum(ns for path, ns in times_ns.items() if len(path) == 1)
    shown = [path for path, ns in times_ns.items() if ns >= _LEAST * whole_ns]
    numbers = {path: str(number) for number, path in enumerate(shown)}
    return [
        _Box(numbers[path], numbers.get(path[:-1], ""), *path[-1], times_ns[path])
        for path in sorted(shown, key=lambda path: (len(path), path))
    ]
