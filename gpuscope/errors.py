"""Every error gpuscope raises on purpose.

Each message says what was asked, what was found, and what to do next. The base
class is turned into an exit code in one place only, :mod:`gpuscope.cli`.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuscope._text import clean_lines


class GpuscopeError(Exception):
    """Base of every error raised by gpuscope.

    What it says may quote names from anywhere: it is safe for a terminal.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(clean_lines(one) if isinstance(one, str) else one for one in args))


class MissingDependency(GpuscopeError, ImportError):
    """A feature needs a package that is not installed, or that conflicts with another."""


class DeviceUnavailable(GpuscopeError):
    """The device asked for does not exist here, or cannot be used."""


class CapabilityError(GpuscopeError):
    """The device or its driver cannot do what was asked; names what is required and found."""


class InvalidPartition(GpuscopeError, ValueError):
    """A carving that this GPU cannot grant; names the nearest counts that it can."""


class InvalidOperand(GpuscopeError, ValueError):
    """An array argument that a workload cannot take; names the argument."""


class InvalidArgument(GpuscopeError, ValueError):
    """An argument of another type or beyond its bounds; names it and what is needed."""


class InvalidProfile(GpuscopeError, ValueError):
    """A GPU profile file that does not validate; names the field's path."""


class InvalidExperiment(GpuscopeError, ValueError):
    """An experiment description that does not validate; names the field's path.

    Attributes
    ----------
    problems
        Path of each field that is wrong, as a tuple of names → what is wrong with it; empty
        where that is not known field by field.
    """

    def __init__(
        self, message: str = "", problems: Mapping[tuple[str, ...], str] | None = None
    ) -> None:
        super().__init__(message)
        self.problems = {place: clean_lines(words) for place, words in (problems or {}).items()}


class ClosedError(GpuscopeError, RuntimeError):
    """A stream, event, partition, handle or device was used after it was closed."""


class StreamError(GpuscopeError, RuntimeError):
    """A stream or a guard was used in a way that CUDA or its contract forbids."""


class NotFound(GpuscopeError, LookupError):
    """There is nothing of that name; says what there is."""


class TraceFormatError(GpuscopeError, ValueError):
    """Rows, or a file, that are no trace, or none that this version can read."""


class MissingEvidence(GpuscopeError):
    """A trace does not hold what an analysis needs; names what to record."""


class RecorderBusy(GpuscopeError, RuntimeError):
    """Another CUPTI client is recording in this process; names it and the ways out."""


class NothingRecorded(GpuscopeError):
    """A run, a sweep or a measurement was stopped before anything was recorded."""


class Cancelled(GpuscopeError):
    """Work was cancelled by the caller; nothing half done was left behind."""


class ExportError(GpuscopeError):
    """What was written does not hold what the trace does, or cannot be written in that form."""
