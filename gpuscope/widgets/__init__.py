"""Widgets: state in, figures out. They reach devices through the session only."""
