"""The app with every command registered."""

from __future__ import annotations

from gpuscope.cli import calibration, classroom, experiments, machine, recording, series, traces
from gpuscope.cli.app import app

__all__ = [
    "app",
    "calibration",
    "classroom",
    "experiments",
    "machine",
    "recording",
    "series",
    "traces",
]
