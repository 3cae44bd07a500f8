"""Watching devices: each source turns what it saw into rows of a trace."""
