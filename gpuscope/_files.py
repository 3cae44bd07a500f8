"""Writing files so that the final name never holds half of one."""

from __future__ import annotations

import csv
import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gpuscope import _locks
from gpuscope.errors import GpuscopeError

_SUFFIX = ".partial"


def make_folder(folder: Path) -> None:
    """Make a folder, with what is above it, if it is not there.

    Raises
    ------
    GpuscopeError
        It cannot be made.
    """
    try:
        str(folder).encode()  # Arrow takes no other names
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise GpuscopeError(
            f"cannot make the folder {folder.name!r}: {_why(error)}. Choose another path"
        ) from error


def make_empty_folder(folder: Path) -> None:
    """Make a folder; one that is there must be empty.

    Raises
    ------
    GpuscopeError
        It cannot be made, or there is something in it.

    Examples
    --------
    >>> from pathlib import Path
    >>> from gpuscope.extending import make_empty_folder
    >>> make_empty_folder(Path("made"))
    """
    make_folder(folder)
    if any(folder.iterdir()):
        raise GpuscopeError(f"{folder.name!r} is there already and not empty: choose a new folder")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path of the same name; rename it over ``path`` on success.

    It lies in a hidden folder of its own, which may be used for more and is removed. On any
    error, a full disk included, whatever stood under ``path`` before is still there, unchanged.
    The mode is the one of the file that was there, else what the umask leaves. A symbolic link
    stays, and what it points to is replaced; what is no file, such as a pipe, is written to.
    What a killed process left of the same name is removed.

    Raises
    ------
    GpuscopeError
        The folder does not exist or the file could not be written.
    """
    with _refusing(path):
        is_stream = _is_stream(path)
        target = path if is_stream else Path(os.path.realpath(path))
        parent = Path(tempfile.gettempdir()) if is_stream else target.parent
        _remove_stale(parent, target.name)
        folder, lock = _claimed_folder(parent, target.name)
    try:
        temporary = folder / path.name
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        mode = (target if target.exists() else temporary).stat().st_mode
        yield temporary
        if is_stream:
            with temporary.open("rb") as made, target.open("wb") as stream:
                shutil.copyfileobj(made, stream)
            return
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.chmod(stat.S_IMODE(mode))
        temporary.replace(target)
    except OSError as error:
        raise GpuscopeError(
            f"could not write {path.name!r}: {_why(error)}. Nothing was left under "
            "that name that was not there before; free some room or choose another folder."
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def check_new(*paths: Path, replace: bool = False) -> None:
    """Refuse paths before work begins whose results could not be written there.

    Parameters
    ----------
    paths
        Of the files.
    replace
        Whether the user said that files that are there may be lost.

    Raises
    ------
    GpuscopeError
        A folder does not exist or cannot be written, or a file is there that may not be replaced.

    Examples
    --------
    >>> from pathlib import Path
    >>> from gpuscope.extending import check_new
    >>> check_new(Path("table.csv"))
    """
    for path in paths:
        with _refusing(path):
            if _is_stream(path):
                continue
            target = Path(os.path.realpath(path))
            if target.exists() and not replace:
                raise GpuscopeError(
                    f"{path.name!r} is there already and was left as it is: choose another name, "
                    "or say --force to replace it"
                )
            folder, lock = _claimed_folder(target.parent, target.name)
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Say of what keeps a file from being written what to do about it."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise GpuscopeError(
            f"cannot write {path.name!r}: {_why(error)}. Choose a folder that exists and can be "
            "written, with room left, and a name that is no folder's."
        ) from error


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    r"""Write a table for spreadsheets, in which no text is read as a formula; returns the path.

    Parameters
    ----------
    path
        Of the file, which is replaced as a whole.
    columns, rows
        What is written.

    Raises
    ------
    GpuscopeError
        The file could not be written.

    Examples
    --------
    >>> from pathlib import Path
    >>> from gpuscope.extending import write_csv
    >>> write_csv(Path("sums.csv"), ["sum"], [["=1+1"]]).read_text()
    "sum\n'=1+1\n"
    """
    with (
        replacing(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8", errors="backslashreplace") as out,
    ):
        writer = csv.writer(out)
        writer.writerow(columns)
        writer.writerows([_cell(value) for value in row] for row in rows)
    return path


def _cell(value: object) -> object:
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return value


def write_text(path: Path, text: str) -> Path:
    """Write a ``text`` to a ``path``, whole or not at all; returns the path.

    Raises
    ------
    GpuscopeError
        The file could not be written.

    Examples
    --------
    >>> from pathlib import Path
    >>> from gpuscope.extending import write_text
    >>> write_text(Path("a.txt"), "hello").read_text()
    'hello'
    """
    with replacing(path) as temporary:
        temporary.write_text(text, "utf-8")
    return path


def _why(error: OSError | ValueError) -> str:
    return str((isinstance(error, OSError) and error.strerror) or error)


def _is_stream(path: Path) -> bool:
    """Whether it is written to rather than replaced.

    Raises
    ------
    OSError
        It is a folder.
    """
    folder = os.path.realpath(path.parent)  # in these, names stand for what a process has open
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return not stat.S_ISREG(mode) or folder == "/dev" or folder.startswith("/proc/")


def _claimed_folder(parent: Path, name: str) -> tuple[Path, int]:
    """Make a hidden folder; it is in use as long as the descriptor that comes with it is open."""
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=f".{name}.", suffix=_SUFFIX))
        with suppress(FileNotFoundError):  # taken for a stale one before it was locked
            opened = os.open(folder, os.O_RDONLY)
            _locks.lock(opened)
            if folder.exists():
                return folder, opened
            os.close(opened)


def _remove_stale(parent: Path, name: str) -> None:
    """Remove what killed processes left: the kernel has taken back their locks."""
    stale = re.compile(rf"\.{re.escape(name)}\.[a-z0-9_]{{8}}{re.escape(_SUFFIX)}")
    for entry in os.scandir(parent):
        if not stale.fullmatch(entry.name):
            continue
        with suppress(OSError):  # not ours to remove, or a file system without locks
            opened = os.open(entry, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if not _locks.try_lock(opened):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry)
                else:  # as older versions made it
                    Path(entry).unlink()
            finally:
                os.close(opened)
