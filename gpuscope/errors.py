"""Every error gpuscope raises on purpose.

Each message says what was asked, what was found, and what to do next. The base
class is turned into an exit code in one place only, :mod:`gpuscope.cli`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpuscope._text import clean, clean_lines

_LONG = 400
_LONG_WORD = re.compile(rf"\S{{{_LONG},}}")


class GpuscopeError(Exception):
    """Base of every error raised by gpuscope.

    Messages may quote names from untrusted sources: they are safe to print in a terminal, and
    very long words lose their middle.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(
            *(_readable(argument) if isinstance(argument, str) else argument for argument in args)
        )


def _readable(message: str) -> str:
    return _LONG_WORD.sub(lambda word: clean(word[0], _LONG), clean_lines(message))


class MissingDependency(GpuscopeError, ImportError):
    """A feature needs a package that is not installed, or that conflicts with another."""


class DeviceUnavailable(GpuscopeError):
    """The requested device does not exist or cannot be used."""


class CapabilityError(GpuscopeError):
    """The device or driver cannot do this. The message names what is required and found."""


class InvalidPartition(GpuscopeError, ValueError):
    """The GPU cannot grant these partitions. The message names the nearest counts.

    Attributes
    ----------
    may_round
        Whether another ``rounding`` would grant some.
    """

    def __init__(self, *args: object, may_round: bool = False) -> None:
        super().__init__(*args)
        self.may_round = may_round


class InvalidOperand(GpuscopeError, ValueError):
    """A workload cannot use an array argument. The message names the argument."""


class InvalidArgument(GpuscopeError, ValueError):
    """An argument has a wrong type or value. The message names it and what is required."""


class InvalidProfile(GpuscopeError, ValueError):
    """A GPU profile is invalid. The message names the field's path."""


class InvalidExperiment(GpuscopeError, ValueError):
    """An experiment is invalid. The message names the field's path.

    Attributes
    ----------
    problems
        Path of each invalid field, as a tuple of names → what is wrong with it; empty if the
        error does not concern single fields.
    """

    def __init__(
        self, message: str = "", problems: Mapping[tuple[str, ...], str] | None = None
    ) -> None:
        super().__init__(message)
        self.problems = {where: clean_lines(words) for where, words in (problems or {}).items()}


class ClosedError(GpuscopeError, RuntimeError):
    """A stream, event, partition, handle or device was used after it was closed."""


class StreamError(GpuscopeError, RuntimeError):
    """A stream or a guard was used in a way that CUDA or its contract forbids."""


class NotFound(GpuscopeError, KeyError):
    """The name does not exist. The message lists the existing names."""

    __str__ = Exception.__str__  # a KeyError shows its message as a literal


class TraceFormatError(GpuscopeError, ValueError):
    """Rows or a file are not a valid trace, or not one that this version can read."""


class AlignmentError(GpuscopeError):
    """Traces cannot be put on one clock. The message says what is missing or contradicts it."""


class MissingEvidence(GpuscopeError):
    """A trace lacks what an analysis needs. The message says what to record."""


class RecorderBusy(GpuscopeError, RuntimeError):
    """Another CUPTI client is recording in this process. The message says what to do."""


class WorkerLost(GpuscopeError):
    """The worker of a job died or was lost, as often as it was tried."""


class NothingRecorded(GpuscopeError):
    """A run, a sweep or a measurement was stopped before anything was recorded."""


class Cancelled(GpuscopeError):
    """The caller cancelled the work. Nothing incomplete is left behind."""


class ExportError(GpuscopeError):
    """The file does not match the trace, or the trace cannot be written in this format."""
