"""Figures: each function takes a Trace or a result and returns a Plotly figure.

Every figure states the device, the source, and whether the data was simulated or measured. Names
in a trace are untrusted text and are escaped.
"""

from gpuscope import _plotly as _plotly
from gpuscope.figures.confinement_figure import confinement as confinement
from gpuscope.figures.interference_figure import interference as interference
from gpuscope.figures.latency_figure import latency as latency
from gpuscope.figures.latency_figure import tradeoff as tradeoff
from gpuscope.figures.prediction_figure import prediction as prediction
from gpuscope.figures.sm_map_figure import sm_map as sm_map
from gpuscope.figures.timeline_figure import timeline as timeline
from gpuscope.figures.timeline_figure import timelines as timelines
