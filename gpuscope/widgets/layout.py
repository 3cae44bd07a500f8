"""The dashboard's boxes, laid out by ``controls.css``, and its timeline's room in them."""

from __future__ import annotations

import ipywidgets as ipw

from gpuscope.widgets.base import close_look
from gpuscope.widgets.timeline import Timeline

_MARGINS = {"t": 8, "b": 44}


def box(name: str, *children: ipw.Widget) -> ipw.Box:
    """Lay children out as ``controls.css`` says under a name."""
    container = ipw.Box(children)
    container.add_class(name)
    return container


def close(widget: ipw.Widget) -> None:
    """Close a widget with all that is in it."""
    if type(widget) is ipw.Box:
        for child in widget.children:
            close(child)
    widget.close()
    close_look(widget)


def compact(timeline: Timeline) -> Timeline:
    """Leave out of a timeline what the dashboard says itself: title, legend, and their room."""
    layout = timeline.figure.layout
    height = layout.height - layout.margin.t - layout.margin.b + sum(_MARGINS.values())
    timeline.figure.update_layout(
        margin=_MARGINS, height=height, showlegend=False, xaxis_tickfont_size=10
    )
    timeline.bar.height = int(height)
    return timeline
