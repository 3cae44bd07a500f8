"""What was graded so far, beside the table: a run that is started again goes on from there."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import msgspec

from gpuscope.errors import GpuscopeError
from gpuscope.extending import loads, try_lock
from gpuscope_lessons.grades import Grade


@dataclass(frozen=True)
class Entry:
    """A notebook that was graded.

    Attributes
    ----------
    notebook
        As in :class:`gpuscope_lessons.Grade`.
    digests
        Of the notebook's bytes, of its lesson's (of all lessons', where it was none of them), and
        of how it was graded.
    grades
        What came of it.
    cpu_s
        Time of processors that it took.
    not_held
        As in :class:`gpuscope_lessons.Grades`.
    """

    notebook: str
    digests: tuple[str, str, str]
    grades: tuple[Grade, ...]
    cpu_s: float
    not_held: tuple[str, ...]


class GradeJournal:
    """A file of what was graded, a line each, that one run at a time reads and appends to.

    Parameters
    ----------
    path
        Of the file; made if it is not there.
    lessons
        As they were given out.
    settings
        Of the run: another judge or other limits grade all again.

    Raises
    ------
    GpuscopeError
        The file cannot be written, or another run has it.
    """

    def __init__(self, path: Path, lessons: Sequence[Path], settings: Sequence[object]) -> None:
        self._lessons = {lesson.name: _digest(lesson.read_bytes()) for lesson in lessons}
        self._settings = _digest(repr(settings).encode())
        self._lock = threading.Lock()
        try:
            self._file = path.open("a+b")
            is_held = try_lock(self._file)
        except OSError as error:
            raise GpuscopeError(f"cannot write {path.name!r}: {error.strerror}") from error
        if not is_held:
            self._file.close()
            raise GpuscopeError(
                f"another run of gpuscope grade writes {path.name!r}: wait for it, or choose "
                "another name for the table"
            )
        self._entries: dict[str, Entry] = {}
        self._file.seek(0)
        for line in self._file:
            with suppress(ValueError, msgspec.MsgspecError):  # a run was killed while it wrote it
                entry = msgspec.convert(loads(line), Entry)
                self._entries[entry.notebook] = entry
        if self._file.tell() and not line.endswith(b"\n"):
            self._file.write(b"\n")

    def __enter__(self) -> GradeJournal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def known(self, notebook: str, path: Path) -> Entry | None:
        """Return what came of a notebook, if neither it nor its lesson or the run is another."""
        entry = self._entries.get(notebook)
        if entry is None or entry.digests != self._digests(path, entry.grades):
            return None
        return entry

    def add(
        self,
        notebook: str,
        path: Path,
        grades: Iterable[Grade],
        cpu_s: float,
        not_held: Iterable[str],
    ) -> None:
        """Append what came of a notebook, so that it is there whatever happens next."""
        notebook_grades = tuple(grades)
        digests = self._digests(path, notebook_grades)
        if digests is None:
            return
        entry = Entry(notebook, digests, notebook_grades, cpu_s, tuple(not_held))
        with self._lock:
            self._file.write(msgspec.json.encode(entry) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def _digests(self, path: Path, grades: Sequence[Grade]) -> tuple[str, str, str] | None:
        lesson = self._lessons.get(grades[0].lesson) or _digest(repr(self._lessons).encode())
        try:
            return (_digest(path.read_bytes()), lesson, self._settings) if path.is_file() else None
        except OSError:
            return None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
