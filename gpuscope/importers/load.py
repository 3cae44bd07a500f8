"""The entry: which format a file has is told by its content, whatever its name."""

from __future__ import annotations

import gzip
import io
import stat
import zlib
from pathlib import Path

from gpuscope._checks import door
from gpuscope.errors import GpuscopeError, TraceFormatError
from gpuscope.importers.chrome import read_chrome
from gpuscope.importers.limits import Limits, reading
from gpuscope.importers.nsys import read_nsys
from gpuscope.importers.nsys_report import MAGIC, read_report
from gpuscope.trace.model import Trace
from gpuscope.trace.store import read_parquet

_PARQUET, _SQLITE, _GZIP = b"PAR1", b"SQLite format 3\0", b"\x1f\x8b"
_BLANKS = b" \t\r\n\xef\xbb\xbf"
_LONGEST_HEAD = 4096
_CHUNK = 1 << 20
_UNPACKED_AT_LEAST = 64 << 20
_RATIO = 200
"""Traces as JSON become some 10 to 40 times smaller: what unpacks to more is a bomb."""


@door(path=(str, Path), limits=(Limits, None))
def load_trace(
    path: str | Path, *, limits: Limits | None = None, keep_private: bool = False
) -> Trace:
    """Read a trace: ours, or another tool's. The content says which, not the name.

    - Parquet that :func:`gpuscope.export` wrote;
    - SQLite of Nsight Systems (``nsys export --type=sqlite``), of any version of its schema;
    - a report of Nsight Systems, ``.nsys-rep``, where nsys is on PATH to export it;
    - Chrome trace JSON, also gzipped: PyTorch's profiler, viztracer, ours.

    Foreign files are not trusted: nothing in them is run, and size, nesting and time have
    limits. What a file holds that a trace has no place for is counted and named in
    ``metadata.counts`` and ``metadata.notes``.

    Parameters
    ----------
    limits
        How large a file may be; without it :class:`gpuscope.importers.Limits`'s own.
    keep_private
        Keep host names, folders, passwords and tokens, which are left out of others' traces by
        default. Environment and users are never read.

    Raises
    ------
    TraceFormatError
        The file is damaged, holds more than ``limits``, or is none of these.
    MissingDependency
        It is a ``.nsys-rep`` and there is no nsys.
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
    if head.startswith(_PARQUET):
        with reading(source.name, "gpuscope trace"):
            return read_parquet(source, most_rows=limits.rows_in_room, most_bytes=2 * limits.room)
    if head.startswith(_SQLITE):
        return read_nsys(source, limits, keep_private=keep_private)
    if head.startswith(MAGIC):
        return read_report(source, limits, keep_private=keep_private)
    if head.startswith(_GZIP) or head.lstrip(_BLANKS)[:1] in (b"{", b"["):
        with reading(source.name, "JSON file"):
            text = _text(source, limits, packed=head.startswith(_GZIP))
        return read_chrome(text, source.name, limits, keep_private=keep_private)
    if len(head) < len(_SQLITE):
        raise TraceFormatError(
            f"{source.name!r} is no readable trace: truncated, as it has {len(head)} bytes only"
        )
    raise TraceFormatError(
        f"{source.name!r} is no readable trace: its content is neither Parquet, SQLite, an Nsight "
        "Systems report nor JSON. Name a trace, or export one as .sqlite or .json"
    )


def _head(source: Path, limits: Limits) -> bytes:
    """Return the beginning of a file that can be read: never of a pipe, which might never end."""
    head = b""
    try:
        found = source.stat()
        if stat.S_ISREG(found.st_mode):
            with source.open("rb") as file:
                head = file.read(_LONGEST_HEAD)
    except FileNotFoundError as error:
        raise GpuscopeError(f"there is no file {source.name!r}: check the path") from error
    except (OSError, ValueError) as error:
        told = getattr(error, "strerror", None) or error
        raise GpuscopeError(
            f"{source.name!r} cannot be read: {told}. Get access, or name another file"
        ) from error
    if stat.S_ISDIR(found.st_mode):
        raise GpuscopeError(f"{source.name!r} is a folder: name a file in it")
    if not stat.S_ISREG(found.st_mode):
        raise GpuscopeError(f"{source.name!r} is no regular file: save the trace to one")
    limits.check("file_bytes", f"bytes of {source.name!r}", found.st_size)
    return head


def _text(source: Path, limits: Limits, *, packed: bool) -> bytes:
    """Return the whole of a JSON file, unpacked as far as an honest one goes."""
    size = source.stat().st_size
    if not packed:
        limits.check("text_bytes", f"bytes of JSON in {source.name!r}", size)
        limits.check_room(f"bytes of JSON in {source.name!r}", size)
        with source.open("rb") as file:
            return file.read(size)
    most = min(limits.text_bytes, limits.room, max(_UNPACKED_AT_LEAST, _RATIO * size))
    found = io.BytesIO()
    with reading(source.name, "gzip file"), gzip.open(source) as file:
        try:
            while chunk := file.read(_CHUNK):
                found.write(chunk)
                if found.tell() > most:
                    limits.check("text_bytes", f"unpacked bytes of {source.name!r}", found.tell())
                    limits.check_room(f"unpacked bytes of {source.name!r}", found.tell())
                    raise TraceFormatError(
                        f"{source.name!r} unpacks to more than {_RATIO} times its size, as no "
                        "trace does: if you trust it, unpack it yourself"
                    )
        except (EOFError, zlib.error) as error:
            raise TraceFormatError(
                f"{source.name!r} is damaged or cut off inside its gzip stream: get it again"
            ) from error
    if found.getbuffer()[:4096].tobytes().lstrip(_BLANKS)[:1] not in (b"{", b"["):
        raise TraceFormatError(
            f"{source.name!r} is gzip, but not of JSON: unpack it, and load what was in it"
        )
    return found.getvalue()
