"""Forecasts: what a recorded run would do in another setting."""
