"""The app with every command registered."""

from __future__ import annotations

from gpuscope.cli import calibration, doctor, experiments, machine, traces
from gpuscope.cli.app import app

__all__ = ["app", "calibration", "doctor", "experiments", "machine", "traces"]
