"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # correctness is tested here, not speed
settings.load_profile("untimed")
