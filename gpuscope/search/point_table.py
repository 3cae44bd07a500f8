"""A table of points as it grows: lines of one file in a folder, to which each is appended."""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

import msgspec
import pyarrow as pa

from gpuscope import _foreign, _locks
from gpuscope._files import make_folder
from gpuscope._text import clean
from gpuscope.device.api import DeviceInfo
from gpuscope.errors import GpuscopeError
from gpuscope.experiments.experiment import Experiment
from gpuscope.search.former_points import former_files, former_points
from gpuscope.search.grid import Value
from gpuscope.search.points import (
    MeasuredDevice,
    MeasuredPoint,
    SavedPoints,
    SweepFacts,
    schema_of,
)

POINTS = "points.jsonl"
"""The file of a folder that holds the points of all its tables."""
_MOST_BYTES = 1 << 30
"""Of that file; a point has some 2,000, and more with several workloads."""
_MALFORMED = (
    ValueError, TypeError, KeyError, OverflowError, RecursionError, msgspec.MsgspecError
)  # fmt: skip


class _Line(msgspec.Struct, omit_defaults=True):
    """A line of the file: what was asked for, or what came of a point."""

    table: str
    asked: msgspec.Raw = msgspec.Raw()
    point: MeasuredPoint | None = None


_read_line = msgspec.json.Decoder(_Line).decode
"""Of a point all is typed and nothing is nested; what was asked for is read as other JSON is."""


class PointTable:
    """A table of points to which each is appended: in the file of a folder, or in memory.

    Several processes may append to one file, each a line at a time that holds its lock.

    Parameters
    ----------
    name
        Of the table, as a file holds several.
    parameters
        As :func:`gpuscope.search.grid.checked` returns them.
    info
        The GPU, or one like those of all workers; ``None`` where they may differ.
    path
        The folder; ``None`` keeps them in memory alone.
    reference
        What is measured on each GPU, if that is so.

    Raises
    ------
    GpuscopeError
        The folder cannot be used.
    """

    def __init__(
        self,
        name: str,
        experiment: Experiment,
        parameters: Mapping[str, Sequence[Value]],
        info: DeviceInfo | None,
        path: str | Path | None,
        *,
        reference: Experiment | None = None,
    ) -> None:
        device: MeasuredDevice | None = None
        if info is not None:  # what must not change between measurements
            device = {"name": info.name, "sm_count": info.sm_count, "driver": info.driver}
        self.facts: SweepFacts = {
            "experiment": experiment.to_dict(),
            "parameters": {name: list(values) for name, values in parameters.items()},
            "order": list(parameters),
            "device": device,
            "reference": None if reference is None else reference.to_dict(),
        }
        self._name = name
        types = schema_of(self.facts)
        self._texts = [path for path in parameters if types.field(path).type == pa.string()]
        self._folder = None if path is None else Path(path)
        if self._folder is not None:
            make_folder(self._folder)
        self._has_asked = False
        self._unsaved: list[MeasuredPoint] = []

    def add(self, point: MeasuredPoint) -> None:
        """Append what came of a point."""
        rows = [
            {name: str(value) if name in self._texts else value for name, value in row.items()}
            for row in point.rows
        ]
        plain = msgspec.structs.replace(point, rows=rows)
        if self._folder is None:
            self._unsaved.append(plain)
        else:
            try:
                self._append(self._folder / POINTS, plain)
            except OSError as error:
                raise GpuscopeError(
                    f"cannot save point {point.number} in {self._folder.name!r}: {error}. The same "
                    "call goes on from what is there"
                ) from error

    def _append(self, path: Path, point: MeasuredPoint) -> None:
        line = msgspec.json.encode(_Line(self._name, point=point)) + b"\n"
        with path.open("ab+", buffering=0) as file:
            is_locked = _locks.lock(file)
            if not self._has_asked:
                self.all()  # another sweep may have begun to fill it meanwhile
                asked = {"table": self._name, "asked": self.facts}
                line = json.dumps(asked).encode() + b"\n" + line
            _append_to(file, line, is_alone=is_locked)
        self._has_asked = True

    def all(self) -> SavedPoints:
        """Return all points: those of this process, and what is in the folder by now.

        Raises
        ------
        GpuscopeError
            The folder holds measurements of another experiment, of other parameters or another
            device, or cannot be read.
        """
        if self._folder is None:
            return SavedPoints(self.facts, self._unsaved)
        wanted = json.loads(json.dumps(self.facts))
        saved_points = saved(self._folder, self._name) or SavedPoints(wanted, [])
        if differs := [*_differences(saved_points.facts, wanted)]:
            more = f" and {len(differs) - 3} more" if len(differs) > 3 else ""
            raise GpuscopeError(
                f"{str(self._folder)!r} holds another sweep, which stays as it is: "
                f"{'; '.join(differs[:3])}{more}. Choose another folder (--out, "
                "path=), or run the same sweep"
            )
        return saved_points


def _append_to(file: FileIO, lines: bytes, *, is_alone: bool) -> None:
    """Write lines behind the whole ones of a file; where that fails, it stays as it was.

    Parameters
    ----------
    is_alone
        Whether no other process writes: nothing is taken away from a file otherwise.
    """
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - 1))
    if file.read() not in (b"", b"\n"):
        file.seek(0)
        content = file.readall()
        whole = content.rfind(b"\n") + 1
        if is_alone and _read_whole(content[whole:]) is None:  # a killed process wrote half of it
            end = whole
            file.truncate(end)
        else:
            lines = b"\n" + lines
    if file.write(lines) < len(lines):
        if is_alone:
            file.truncate(end)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def holds_points(folder: Path, name: str) -> bool:
    """Whether a folder has points of a table."""
    if former_files(folder, name):
        return True
    with _readable(folder / POINTS):
        return any(line.table == name for line in _lines(folder / POINTS))


def saved(folder: Path, name: str) -> SavedPoints | None:
    """Return the points of a table that a folder holds, if there are any.

    Raises
    ------
    GpuscopeError
        A file in it is damaged, or they are of several sweeps.
    """
    asked: list[SweepFacts] = []
    points: list[MeasuredPoint] = []
    with _readable(folder):
        former_paths = former_files(folder, name)
    for path in former_paths:
        with _readable(path):
            facts, former = former_points(path)
            asked.append(facts)
            points += former
    with _readable(folder / POINTS):
        lines = [line for line in _lines(folder / POINTS) if line.table == name]
        texts = [bytes(line.asked) for line in lines]
        asked += [msgspec.convert(_foreign.loads(text), SweepFacts) for text in texts if text]
        points += [line.point for line in lines if line.point]
        if not points:
            return None
        if not asked or set(asked[0]["order"]) != set(asked[0]["parameters"]):
            raise ValueError("what was asked for is missing, or its parameters are in no order")
        msgspec.convert(asked[0]["experiment"].get("workloads", {}), dict[str, dict[str, object]])
        if any(other != asked[0] for other in asked):
            raise GpuscopeError(
                f"{folder.name!r} holds points of several sweeps: go on in a folder of your own"
            )
        return SavedPoints(asked[0], points)


def _lines(path: Path) -> list[_Line]:
    """Read the lines that are whole; warns of those that are damaged."""
    try:
        *lines, last = _foreign.read_bytes(path, _MOST_BYTES).split(b"\n")
    except FileNotFoundError:
        return []
    read = [line for text in lines if (line := _read_whole(text)) is not None]
    if lines and not read:
        raise ValueError("none of its lines can be read")
    if len(read) < len(lines):
        warnings.warn(
            f"{len(lines) - len(read)} of {len(lines)} lines of {path.name!r} in "
            f"{path.parent.name!r} cannot be read: the same call measures again what is missing",
            stacklevel=4,
        )
    if (line := _read_whole(last)) is not None:  # an editor may leave out the end of a line
        read.append(line)
    return read


def _read_whole(text: bytes) -> _Line | None:
    """Read a line; ``None`` if it is damaged, or is being written."""
    with suppress(*_MALFORMED):
        return _read_line(text)
    return None


def _differences(there: object, now: object, path: str = "") -> Iterator[str]:
    """Say field by field what differs."""
    if isinstance(there, dict) and isinstance(now, dict):
        for key in [*there, *(key for key in now if key not in there)]:
            inside = f"{path}.{key}" if path else key
            yield from _differences(there.get(key), now.get(key), inside)
    elif there != now:
        yield f"{clean(path)} is {there!r} there, {now!r} now"


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Say of a file that it is damaged, if reading it fails."""
    try:
        yield
    except (pa.ArrowException, OSError, *_MALFORMED) as error:
        raise GpuscopeError(
            f"{path.name!r} in {path.parent.name!r} holds no readable points of a sweep ({error}): "
            "move it away, and its points are measured again"
        ) from error
