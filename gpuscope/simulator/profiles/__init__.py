"""Profiles of GPUs: what the simulated one is made from."""
