"""Figures: each function takes a Trace or a result and returns a Plotly figure.

Every figure states the device, the source, and whether the data was simulated or measured. Names
in a trace are untrusted text and are escaped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuscope import _plotly as _plotly
from gpuscope._lazy import public

if TYPE_CHECKING:
    from gpuscope.figures.collectives_figure import collectives as collectives
    from gpuscope.figures.confinement_figure import confinement as confinement
    from gpuscope.figures.interference_figure import interference as interference
    from gpuscope.figures.latency_figure import latency as latency
    from gpuscope.figures.prediction_figure import prediction as prediction
    from gpuscope.figures.tradeoff_figure import tradeoff as tradeoff
    from gpuscope.figures.tuning_figure import tuning as tuning
    from gpuscope.timeline.sm_map_figure import sm_map as sm_map
    from gpuscope.timeline.timeline_figure import timeline as timeline
    from gpuscope.timeline.timeline_figure import timelines as timelines

_HOMES = {
    "collectives": "gpuscope.figures.collectives_figure",
    "confinement": "gpuscope.figures.confinement_figure",
    "interference": "gpuscope.figures.interference_figure",
    "latency": "gpuscope.figures.latency_figure",
    "tradeoff": "gpuscope.figures.tradeoff_figure",
    "prediction": "gpuscope.figures.prediction_figure",
    "sm_map": "gpuscope.timeline.sm_map_figure",
    "timeline": "gpuscope.timeline.timeline_figure",
    "timelines": "gpuscope.timeline.timeline_figure",
    "tuning": "gpuscope.figures.tuning_figure",
}
__all__ = [*_HOMES]  # noqa: PLE0604 - every key is a string
__getattr__, __dir__ = public(__name__, _HOMES)
