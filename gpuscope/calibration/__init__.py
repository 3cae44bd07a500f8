"""Measuring a GPU and fitting the profile that it is simulated by."""

from gpuscope.calibration.calibrator import calibrate as calibrate
