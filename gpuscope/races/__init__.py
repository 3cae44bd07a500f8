"""Races: which pieces of work share bytes, and whether anything orders them."""
