"""The observer that looks for hazards, which recordings find by its name."""

from __future__ import annotations

from contextlib import AbstractContextManager

from msgspec.structs import replace

from gpuscope.races.hazard_log import HazardLog
from gpuscope.races.libraries import watching_libraries
from gpuscope.record.observers import RecordingObserver
from gpuscope.record.source import Options, Ordered
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace


class HazardObserver(HazardLog, RecordingObserver):
    """Adds the hazards of a recording to its metadata."""

    def watching(self) -> AbstractContextManager[None]:
        """Watch the libraries that are imported by now."""
        return watching_libraries(self)

    def described(self, metadata: TraceMetadata) -> TraceMetadata:
        """Return the metadata with the hazards."""
        return replace(metadata, hazards=self.facts())

    def placed(self, trace: Trace, *orders: Ordered) -> Trace:
        """Return the trace with hazards between its rows, also those of other libraries' work."""
        return trace.with_metadata(hazards=self.outside.placed(self.facts(), trace, *orders))


def observe(options: Options) -> HazardObserver | None:
    """Return what finds hazards in a recording, where they are looked for."""
    return HazardObserver() if options.hazards else None
