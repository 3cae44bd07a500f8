"""Traces as files of other tools: a module a format, and the one entry that picks by suffix."""
