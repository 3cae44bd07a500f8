"""One FigureWidget for a widget's life: opening one sends 5 MB, so it is kept and updated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import plotly.graph_objects as go

from gpuscope import figures
from gpuscope.figures.style import MUTED, base_layout
from gpuscope.trace.model import Trace

WINDOW_NS = 3_000_000
"""How much of a trace the picture shows: its end."""
LIVE_SPANS, SPANS = 500, 2000
HEIGHT = 500
"""Px, for ever: a page that jumps is hard to watch, and Plotly stops following the width of
its place once a height is changed."""
_PLACE = {"autosize": True, "height": HEIGHT}


class Picture:
    """A FigureWidget that is given one figure after the other.

    Attributes
    ----------
    figure
        The FigureWidget, the same for ever.
    """

    def __init__(self) -> None:
        words = f"Nothing has run yet. The last {WINDOW_NS // 1_000_000} ms of a run show here."
        empty = {"visible": False, "fixedrange": True}
        layout = base_layout("", [], 0, legend_rows=0, xaxis=empty, yaxis=empty)
        layout["annotations"] = [
            {"text": words, "x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper",
             "showarrow": False, "font": {"size": 15, "color": MUTED}}
        ]  # fmt: skip
        self.figure = go.FigureWidget(layout={**layout, **_PLACE})
        self.figure._config = {**self.figure._config, "responsive": True}
        # Plotly and PyArrow load pandas at first use, which must not happen in two threads.
        figures.timeline(Trace.from_columns({}))

    def show_end(
        self, trace: Trace, *, live: bool, of: str | None = None, partitions: Iterable[str] = ()
    ) -> None:
        """Draw the last part of a trace.

        Parameters
        ----------
        live
            Whether the run goes on.
        of
            The workload whose last kernel ends the picture; without it any row does.
        partitions
            Every name in the order of the carving, which colours and tracks then follow.
        """
        rows = trace.where(kind="kernel", category=of) if of is not None else trace
        ends = (rows if len(rows) else trace).array("end_ns", fill=0)
        if not len(ends):
            return
        end = int(np.max(ends))
        known = trace.metadata.partitions
        names = dict.fromkeys([*partitions, *known])
        title = f"Timeline, last {WINDOW_NS // 1_000_000} ms"
        drawn = figures.timeline(
            trace.with_metadata(partitions={name: known.get(name, {}) for name in names}),
            window_ns=(end - WINDOW_NS, end),
            max_spans=LIVE_SPANS if live else SPANS,
            title=f"{title}, live" if live else title,
        )
        self.show(drawn)

    def show(self, figure: go.Figure) -> None:
        """Make the widget look like ``figure``, in one message where its traces stay the same."""
        new = figure.to_plotly_json()
        traces, layout = new["data"], {**new["layout"], **_PLACE}
        mine = self.figure
        if [_key(one) for one in mine.data] != [_key(one) for one in traces]:
            mine.data = ()
            mine.add_traces(list(figure.data))
        with mine.batch_update():
            for one, wanted in zip(mine.data, traces, strict=True):
                _assign(one, wanted)
            _assign(mine.layout, layout)


def _key(trace: Any) -> tuple[str, str]:
    return trace["type"], trace["name"]


def _assign(target: Any, wanted: dict[str, Any]) -> None:
    """Give ``target`` exactly these properties; it sends only those that change."""
    for name in target.to_plotly_json().keys() - wanted.keys() - {"type", "uid"}:
        target[name] = None
    for name, value in wanted.items():
        if name not in ("type", "uid"):
            target[name] = value
