"""An observer: counts what a recording's devices launch."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec.structs import replace

from gpuscope.device.calls import Call
from gpuscope.record.observers import RecordingObserver


class LaunchCount(RecordingObserver):
    """Counts launches, by name; each is told once."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def note(self, noted: Any) -> None:
        if isinstance(noted, Call) and noted.kind == "launch":
            self.counts[f"launches of {noted.name}"] += 1

    def described(self, metadata: Any) -> Any:
        return replace(metadata, counts={**metadata.counts, **self.counts})


def observe(options: Any) -> LaunchCount | None:
    """Count in recordings of everything."""
    return LaunchCount() if options.keep_ns is None else None
