"""load_trace: the content of a file says which format it has, whatever its name."""

from __future__ import annotations

import stat
from contextlib import suppress
from pathlib import Path

from gpuscope._checks import door
from gpuscope.errors import GpuscopeError, TraceFormatError
from gpuscope.formats.format import Format
from gpuscope.formats.limits import Limits, reading
from gpuscope.formats.private import public
from gpuscope.formats.registry import known_formats, of_suffix, with_problems, with_table
from gpuscope.trace.model import Trace

_LONGEST_HEAD = 4096
_SHORTEST = 16
"""Bytes below which a file that nothing recognises was cut off."""


@with_table
@door("path", "limits")
def load_trace(
    path: str | Path, *, limits: Limits | None = None, keep_private: bool = False
) -> Trace:
    """Read a trace of gpuscope or another tool. The content selects the format, not the name.

    {table:read}

    Files are not trusted: nothing in them is executed, and size, nesting and time are limited.
    ``metadata.counts`` and ``metadata.notes`` count and name the content that a trace cannot
    represent.

    Parameters
    ----------
    limits
        How large a file may be. Default: the defaults of :class:`gpuscope.formats.Limits`.
    keep_private
        Keep host names, folders, passwords and tokens, which are removed from other tools' traces
        by default. Environment variables and user names are never read.

    Raises
    ------
    TraceFormatError
        The file is damaged, exceeds ``limits``, or has none of these formats.
    MissingDependency
        The file is a ``.nsys-rep`` and nsys is not installed.
    GpuscopeError
        The file cannot be read.

    Examples
    --------
    >>> import gpuscope as gs
    >>> from gpuscope.trace import Trace
    >>> trace = Trace.from_columns({
    ...     "id": [1, 2], "kind": ["kernel", "kernel"], "name": ["k", "k"], "stream": [7, 8],
    ...     "start_ns": [0, 60], "end_ns": [100, 160], "source": ["cupti", "cupti"],
    ... })
    >>> path = gs.export(trace, "two.parquet")
    >>> gs.load_trace(path).kind_counts()
    {'kernel': 2}
    >>> gs.load_trace("report.sqlite").metadata.counts  # doctest: +SKIP
    {'received': 3272, 'rows of PROFILER_OVERHEAD not taken': 36}
    """
    source = Path(path)
    limits = limits or Limits()
    head = _head(source, limits)
    chosen = _recognised(source.name, head)
    if chosen is not None and chosen.origin:
        return _from_plugin(chosen, source, limits, keep_private=keep_private)
    if chosen is not None and chosen.read is not None:
        return chosen.read(source, limits, keep_private=keep_private)
    if len(head) < _SHORTEST:
        raise TraceFormatError(
            f"{source.name!r} is no readable trace: truncated, as it has {len(head)} bytes only"
        )
    names = ", ".join(
        trace_format.label for trace_format in known_formats() if trace_format.read is not None
    )
    why = f"{source.name!r} is no readable trace: its content is none of {names}"
    raise TraceFormatError(with_problems(f"{why}. Name a trace, or export one as one of these"))


def _recognised(name: str, head: bytes) -> Format | None:
    """Return the format of some content; where several take it, the one that has the suffix.

    Otherwise built-in formats come first, so that no plugin takes their files.
    """
    named = of_suffix(name)
    if named is not None and not named.origin and named.recognise and named.recognise(head):
        return named  # and no plugin is imported
    matching: list[Format] = []
    for trace_format in known_formats():
        if trace_format.recognise is None or (
            trace_format.origin and matching and trace_format is not named
        ):
            continue
        # A broken plugin recognises nothing.
        with suppress(*(Exception,) if trace_format.origin else ()):
            if trace_format.recognise(head):
                matching.append(trace_format)
    return named if named in matching else next(iter(matching), None)


def _from_plugin(chosen: Format, source: Path, limits: Limits, *, keep_private: bool) -> Trace:
    """Read by a plugin, and hold the result to what built-in readers promise."""
    with reading(source.name, chosen.label):
        trace = chosen.read and chosen.read(source, limits, keep_private=keep_private)
    if not isinstance(trace, Trace):
        raise TraceFormatError(
            f"{chosen.label} read {source.name!r} as {type(trace).__name__}, not as a Trace: tell "
            "its authors"
        )
    limits.check_rows(f"rows of {source.name!r}", len(trace))
    return trace if keep_private else public(trace)


def _head(source: Path, limits: Limits) -> bytes:
    """Return the beginning of a file that can be read: never of a pipe, which might never end."""
    head = b""
    try:
        status = source.stat()
        if stat.S_ISREG(status.st_mode):
            with source.open("rb") as file:
                head = file.read(_LONGEST_HEAD)
    except FileNotFoundError as error:
        raise GpuscopeError(f"there is no file {source.name!r}: check the path") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise GpuscopeError(
            f"{source.name!r} cannot be read: {reason}. Get access, or name another file"
        ) from error
    if stat.S_ISDIR(status.st_mode):
        raise GpuscopeError(f"{source.name!r} is a folder: name a file in it")
    if not stat.S_ISREG(status.st_mode):
        raise GpuscopeError(f"{source.name!r} is no regular file: save the trace to one")
    limits.check("file_bytes", f"bytes of {source.name!r}", status.st_size)
    return head
