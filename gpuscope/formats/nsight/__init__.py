"""Nsight Systems: its SQLite exports, and reports in its own format."""
