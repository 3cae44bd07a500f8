"""The observer that looks for hazards, which recordings find by its name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from msgspec.structs import replace

from gpuscope.races.cupy_calls import CuPy
from gpuscope.races.hazard_log import HazardLog, Streams
from gpuscope.races.operators import pytorch
from gpuscope.races.outside import RowOf
from gpuscope.races.pytorch import PyTorch
from gpuscope.record.observers import Happened, RecordingObserver
from gpuscope.record.source import Options, Ordered
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace


class HazardObserver(HazardLog, RecordingObserver):
    """Adds the hazards of a recording to its metadata."""

    _row: RowOf | None = None
    """Finds the rows of the trace that :meth:`placed` made, of a GPU."""

    def happened(self) -> list[Happened]:
        """Return all pieces from the first mark on, with their rows in the trace."""
        row, pieces = self._row, super().happened()
        if row is None:
            return pieces
        return [piece._replace(row=row(piece.row, piece.name)) for piece in pieces]

    def watching(self) -> AbstractContextManager[None]:
        """Watch the libraries that are imported by now."""
        return watching_libraries(self)

    def described(self, metadata: TraceMetadata) -> TraceMetadata:
        """Return the metadata with the hazards."""
        return replace(metadata, hazards=self.facts())

    def placed(self, trace: Trace, *orders: Ordered) -> Trace:
        """Return the trace with hazards between its rows, also those of other libraries' work."""
        self._row = self.outside.rows_in(trace)
        return trace.with_metadata(hazards=self.outside.placed(self.facts(), trace, *orders))


@contextmanager
def watching_libraries(log: HazardLog) -> Iterator[None]:
    """Tell of what the libraries do, PyTorch and CuPy, that are imported by now."""
    streams, torch, cupy = Streams(), pytorch(), sys.modules.get("cupy")
    with ExitStack() as undo:
        if torch is not None:
            undo.enter_context(PyTorch(torch, log, streams).watching())
        if cupy is not None:
            undo.enter_context(CuPy(cupy, log, streams).watching())
        yield


def observe(options: Options) -> HazardObserver | None:
    """Return what finds hazards in a recording, where they are looked for."""
    return HazardObserver() if options.hazards else None
