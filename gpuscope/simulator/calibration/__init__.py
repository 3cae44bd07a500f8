"""Measuring a GPU and fitting the profile that it is simulated by."""
