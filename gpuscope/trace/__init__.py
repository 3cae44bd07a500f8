"""Traces: immutable tables that open without a device."""

from gpuscope.trace.inside import put_inside as put_inside
from gpuscope.trace.model import Trace as Trace
from gpuscope.trace.run import Run as Run
from gpuscope.trace.store import save_trace as save_trace
