"""How much of a foreign file is read, and what is said when it holds more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from gpuscope._checks import count
from gpuscope.errors import GpuscopeError, TraceFormatError

ROW_BYTES = 200
_LEAST_ROOM = 1 << 20
_PLACE_BYTES = 600
"""What the facts of a stream or a partition take."""


@dataclass(frozen=True)
class Limits:
    """Limits on the size of a file. A larger file is an error, not a truncated trace.

    Attributes
    ----------
    file_bytes
        Size of the file.
    text_bytes
        Size of uncompressed JSON, which is held in memory as a whole.
    rows
        Rows and events in all.

    Loading takes no more memory than 8 × the lowest of ``file_bytes``, ``text_bytes`` and 200
    bytes × ``rows``, whatever a file claims. So one low limit also lowers the effect of the
    others.

    Raises
    ------
    InvalidArgument
        A limit is no whole number of at least 1.

    Examples
    --------
    >>> import gpuscope as gs
    >>> from gpuscope.formats import Limits
    >>> from gpuscope.trace import Trace
    >>> trace = Trace.from_columns({
    ...     "id": [1, 2], "kind": ["kernel", "kernel"], "name": ["k", "k"], "stream": [7, 8],
    ...     "start_ns": [0, 60], "end_ns": [100, 160], "source": ["cupti", "cupti"],
    ... })
    >>> path = gs.export(trace, "two.parquet")
    >>> gs.load_trace(path, limits=Limits(rows=1))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gpuscope.errors.TraceFormatError: ...
    """

    file_bytes: int = 16 << 30
    text_bytes: int = 2 << 30
    rows: int = 10_000_000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            count(name, value, least=1, most=2**62)

    @property
    def room(self) -> int:
        """Bytes that text or rows may take as they are read, before they are joined and copied."""
        return max(min(self.file_bytes, self.text_bytes, ROW_BYTES * self.rows), _LEAST_ROOM)

    @property
    def rows_in_room(self) -> int:
        """Rows that may be read."""
        return min(self.rows, self.room // ROW_BYTES)

    def check(self, name: str, what: str, count: int) -> None:
        """Refuse a file with more than ``limits.<name>`` of something.

        Raises
        ------
        TraceFormatError
            ``count`` is more.
        """
        self._refuse(what, count, getattr(self, name), name)

    def check_rows(self, what: str, count: int) -> None:
        """Refuse a file with more rows than may be read.

        Raises
        ------
        TraceFormatError
            There are more.
        """
        self._refuse(what, count, self.rows_in_room, self._lowest())

    def check_room(self, what: str, count: int) -> None:
        """Refuse a file with more bytes of text than there is room for.

        Raises
        ------
        TraceFormatError
            There are more.
        """
        self._refuse(what, count, self.room, self._lowest())

    def check_text(self, what: str, count: int) -> None:
        """Refuse a file with more text than ``text_bytes``, or than there is room for.

        Raises
        ------
        TraceFormatError
            There is more.
        """
        self.check("text_bytes", what, count)
        self.check_room(what, count)

    def check_places(self, count: int) -> None:
        """Refuse a file with more streams and partitions than there is room for.

        Raises
        ------
        TraceFormatError
            There are more.
        """
        self.check_room("bytes for facts of streams and partitions", _PLACE_BYTES * count)

    def _lowest(self) -> str:
        """Return the limit that lets in the fewest rows."""
        text_rows, file_rows = self.text_bytes // ROW_BYTES, self.file_bytes // ROW_BYTES
        rows = {"rows": self.rows, "text_bytes": text_rows, "file_bytes": file_rows}
        return min(rows, key=rows.__getitem__)

    @staticmethod
    def _refuse(what: str, count: int, allowed: int, name: str) -> None:
        if count > allowed:
            raise TraceFormatError(
                f"{what}: {count:,} or more, where {allowed:,} is the limit. If you trust the "
                f"file, load_trace(path, limits=gpuscope.formats.Limits({name}=…)) reads more"
            )


def reserve(nbytes: int) -> None:
    """Find out whether there is room for so many bytes: decoders end the process without it.

    Raises
    ------
    MemoryError
        There is not.
    """
    np.empty(nbytes, np.uint8)  # of memory that is not touched, only the addresses are taken


@contextmanager
def reading(name: str, what: str) -> Iterator[None]:
    """Turn whatever goes wrong while a foreign file is read into an error of ours.

    Parameters
    ----------
    name
        The file's name.
    what
        What it seems to be, for the message.

    Raises
    ------
    TraceFormatError
        Anything but an error of ours was raised: a file that no writer of this format makes.
    """
    try:
        yield
    except GpuscopeError:
        raise
    except OSError as error:
        raise GpuscopeError(
            f"{name!r} could not be read to its end: {error.strerror or error}. Load it again, "
            "from where it stays"
        ) from error
    except RecursionError as error:
        raise TraceFormatError(
            f"{name!r} is no readable {what}: it nests deeper than anything that is a trace"
        ) from error
    except MemoryError as error:
        raise TraceFormatError(
            f"{name!r} does not fit in memory: load it on a larger machine, or record less"
        ) from error
    except Exception as error:
        raise TraceFormatError(
            f"{name!r} is no readable {what}: damaged, or not what it says it is "
            f"({type(error).__name__}: {str(error)[:200]}). Export it again, or name another file"
        ) from error
