"""Figures: each function takes a Trace or a result and returns a Plotly figure.

Every figure states the device, the source, and whether the data was simulated or measured. Names
in a trace are untrusted text and are escaped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuscope import _plotly as _plotly
from gpuscope._lazy import public

if TYPE_CHECKING:
    from gpuscope.comparing.choice_figure import interference as interference
    from gpuscope.comparing.choice_figure import swept as swept
    from gpuscope.comparing.choice_figure import tuning as tuning
    from gpuscope.comparing.figure import compared as compared
    from gpuscope.figures.confinement_figure import confinement as confinement
    from gpuscope.figures.host_figure import host_times as host_times
    from gpuscope.figures.latency_figure import latency as latency
    from gpuscope.timeline.sm_map_figure import sm_map as sm_map
    from gpuscope.timeline.timeline_figure import timeline as timeline
    from gpuscope.timeline.timeline_figure import timelines as timelines

__getattr__, __dir__, __all__ = public(__name__)
