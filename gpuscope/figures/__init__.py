"""Drawing what was seen: a Trace or a result in, a Plotly figure out, never shown.

Every figure says on which device it was seen, by which source, and whether it was
simulated or measured. Names in a trace are foreign text and are escaped.
"""

from gpuscope import _plotly as _plotly
from gpuscope.figures.compare import compare as compare
from gpuscope.figures.confinement import confinement as confinement
from gpuscope.figures.interference import interference as interference
from gpuscope.figures.latency import latency as latency
from gpuscope.figures.sm_map import sm_map as sm_map
from gpuscope.figures.timeline import timeline as timeline
from gpuscope.figures.timeline import timelines as timelines
from gpuscope.figures.tradeoff import tradeoff as tradeoff
