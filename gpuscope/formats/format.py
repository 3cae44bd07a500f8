"""Format: the declaration of one trace format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpuscope.errors import InvalidArgument
from gpuscope.formats.limits import Limits
from gpuscope.formats.progress import Step
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run


class Reader(Protocol):
    """Reads a file whose beginning the format has recognised.

    The file is not trusted: run nothing in it, and refuse more than ``limits`` allow. Unless
    ``keep_private``, leave out host names, folders, passwords and tokens.
    """

    def __call__(self, path: Path, limits: Limits, *, keep_private: bool) -> Trace:
        """Return the trace."""


@dataclass(frozen=True, kw_only=True)
class Format:
    r"""A trace format: its file suffixes, and how its files are written and read.

    The built-in formats are instances of this class. A package adds a format with an entry point
    in the group ``gpuscope.formats`` that names an instance.

    Attributes
    ----------
    name
        Name for display: ``"Chrome trace JSON"``.
    suffixes
        Suffixes of its file names, in lower case, with the dot: ``(".json", ".json.gz")``.
    description
        One sentence for help texts and tables: the purpose of the format.
    write
        Writes a trace to a path and regularly calls ``step``, which raises to cancel. The path is
        in a temporary folder; the file gets its final name once ``write`` has returned. Without
        ``write``, the format is read-only.
    write_run
        The same for a run of several settings, if one file can hold it.
    merge
        Writes a copy of an existing file, its second argument, with the trace in it.
    recognise
        Whether a file is of this format, from its first 4,096 bytes.
    read
        Reads such a file. Requires ``recognise``; without both, the format is write-only.
    origin
        The plugin that provides it; empty for built-in formats. Set by the registry.

    Raises
    ------
    InvalidArgument
        The declaration is incomplete. The message says what is missing.

    Examples
    --------
    >>> from gpuscope.formats import Format
    >>> def write(trace, path, step):
    ...     path.write_text("\n".join(trace.texts("name")))
    ...     step(len(trace))
    >>> Format(name="Names", suffixes=(".names",), description="Names of spans.", write=write).ways
    'write'
    """

    name: str
    suffixes: tuple[str, ...]
    description: str
    write: Callable[[Trace, Path, Step], object] | None = None
    write_run: Callable[[Run, Path, Step], object] | None = None
    merge: Callable[[Trace, Path, Path, Step], object] | None = None
    recognise: Callable[[bytes], bool] | None = None
    read: Reader | None = None
    origin: str = ""

    def __post_init__(self) -> None:
        good = isinstance(self.suffixes, tuple) and all(
            isinstance(suffix, str) and suffix[:1] == "." and suffix == suffix.lower() != "."
            for suffix in self.suffixes
        )
        if not good or not self.suffixes:
            raise InvalidArgument(
                f"format {self.name!r}: suffixes is {self.suffixes!r}; a tuple of lower-case texts "
                "that begin with a dot is needed"
            )
        if (self.recognise is None) != (self.read is None):
            raise InvalidArgument(f"format {self.name!r}: recognise and read go together")
        if self.write is None and self.read is None:
            raise InvalidArgument(f"format {self.name!r} has neither write nor read")

    @property
    def ways(self) -> str:
        """``"read, write"``, ``"read"`` or ``"write"``."""
        return ", ".join(way for way in ("read", "write") if getattr(self, way) is not None)

    @property
    def label(self) -> str:
        """The name, and the plugin it comes from."""
        return f"{self.name} ({self.origin})" if self.origin else self.name
