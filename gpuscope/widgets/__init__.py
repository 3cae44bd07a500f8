"""Widgets: state in, figures out. They reach devices through the session only."""

from gpuscope.widgets.dashboard import Dashboard as Dashboard
