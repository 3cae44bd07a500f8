"""The simulated GPU: engine, models of work, profiles, calibration, forecasts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuscope._lazy import public

if TYPE_CHECKING:
    from gpuscope.simulator.calibration.calibrator import calibrate as calibrate
    from gpuscope.simulator.calibration.this_host import calibrate_host as calibrate_host
    from gpuscope.simulator.forecast.what_if import what_if as what_if

__getattr__, __dir__, __all__ = public(__name__)
