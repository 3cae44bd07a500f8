"""Comparing: by how much two sides differ, how sure that is, and which one to take."""
