"""Traces that others wrote, and ours: told apart by content, read with limits, never trusted."""
