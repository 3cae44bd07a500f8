"""Nsight Systems reports with a trace's spans as NVTX ranges, by nsys's own writer.

A stream of the GPU, a host thread, a handle is a scope; spans that overlap without nesting get
a scope for each lane. Ranges and marks keep their domains, all else is in the domain
``gpuscope``, its kind as category. An open span is a range that starts and does not end.
"""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import cast

import numpy as np
import pyarrow as pa

from gpuscope import _nsys
from gpuscope._types import Array, Untyped
from gpuscope.errors import ExportError, MissingDependency
from gpuscope.formats.progress import Step
from gpuscope.formats.tracks import OPEN, layout, names, nested, times
from gpuscope.trace.columns import codes, combined
from gpuscope.trace.model import Trace
from gpuscope.trace.tracks import TrackKey

BACKEND = "NSYS_WRITER_BACKEND"
"""Variable that names nsys's library behind the writer."""
DOMAIN = "gpuscope"

_ROWS = 10_000
_INSTANTS = ("mark", "event", "counter")


def write(trace: Trace, path: Path, step: Step) -> None:
    """Write a trace as a report.

    Raises
    ------
    MissingDependency
        nsys's writer is not installed; says how it is.
    ExportError
        nsys's writer fails, or what it wrote is not what the trace holds.
    """
    _write(trace, path, step, None)


def merge(trace: Trace, report: Path, path: Path, step: Step) -> None:
    """Write a copy of a report with the trace in it.

    Raises
    ------
    MissingDependency, ExportError
        As :func:`write`, or the trace is on another clock than the report.
    """
    if trace.metadata.time_base != "unix":
        raise ExportError(
            f"the trace's times are {trace.metadata.time_base}, the report's are Unix times: only "
            "a trace that was measured can be merged into a report"
        )
    _write(trace, path, step, report)


def _write(trace: Trace, path: Path, step: Step, merge_into: Path | None) -> None:
    writer = _writer()
    options = {"time_base": writer.TimeBase.UTC}
    base_ns = 0
    if trace.metadata.time_base != "unix":
        options = {"time_base": writer.TimeBase.RELATIVE}
        base_ns = int(trace.array("start_ns").min()) if len(trace) else 0
    if merge_into is not None:
        options["report_merge"] = str(merge_into)
    folder = path.with_name("work")
    folder.mkdir()
    name = folder / "made"  # to which the writer appends its suffix
    with _failing(path), writer.Session(str(name), **options) as session:
        sent = _send(session, trace, base_ns, step)
    made = name.with_name(f"{name.name}.nsys-rep")
    if not made.exists():
        raise ExportError(f"nsys's writer made no report for {path.name!r}")
    _count(made, sent, merge_into)
    made.replace(path)


def _writer() -> ModuleType:
    """Return nsys's package, and let it find its library."""
    folders: list[Path] = []
    with contextlib.suppress(MissingDependency):
        folder = _nsys.root(_nsys.find("nsys"))
        folders = sorted(folder.glob("target-linux-*/python/packages/nsys_writer"))
        for library in folder.glob("host-linux-*/libNvtxwBackend.so"):
            os.environ.setdefault(BACKEND, str(library))
    try:
        import nsys_writer  # type: ignore[import-not-found]  # noqa: PLC0415 - finds it now
    except ImportError as error:
        package = "target-linux-x64/python/packages/nsys_writer"
        where = str(folders[0]) if folders else f"<Nsight Systems' folder>/{package}"
        install = "" if folders else "install a current Nsight Systems, then "
        setting = f", and set {BACKEND} to its host-linux-x64/libNvtxwBackend.so"
        backend = "" if BACKEND in os.environ else setting
        raise MissingDependency(
            f"a .nsys-rep is written by Nsight Systems' own writer, the package nsys_writer, which "
            f"cannot be imported ({error}): {install}run {Path(sys.executable).name} -m pip "
            f"install {where}{backend}. Without it: export .sqlite, which nsys stats reads, or "
            "record with gpuscope.experiments.nsight.profile()"
        ) from error
    return cast("ModuleType", nsys_writer)


@contextlib.contextmanager
def _failing(target: Path) -> Iterator[None]:
    """Turn what the writer raises into errors of ours."""
    from nvtx.writer import WriterError  # noqa: PLC0415 - loads a compiled module

    try:
        yield
    except (WriterError, OSError, RuntimeError) as error:
        raise ExportError(f"nsys's writer could not write {target.name!r}: {error}") from error


def _send(session: Untyped, trace: Trace, base_ns: int, step: Step) -> int:
    """Write every row, stream by stream; returns how many ranges and marks that were.

    A mark at the first row says what of the trace is missing.
    """
    spans = trace.spans
    starts, ends = times(trace, base_ns)
    kind, kinds = codes(spans.column("kind"))
    instant = np.array([name in _INSTANTS for name in kinds])[kind] & (ends == OPEN)
    tracks, track = layout(trace).of(trace)
    order, lane = nested(track, starts, np.where(instant, starts, ends))
    is_nvtx = np.array([name in ("range", "mark") for name in kinds])[kind]
    domain, domains = codes(spans.column("domain"))
    which = np.where(is_nvtx, domain, -1) + 1
    first, stream_code = combined(track, lane, which)
    by_place = order[np.argsort(stream_code[order], kind="stable")]
    bounds = np.searchsorted(stream_code[by_place], np.arange(len(first) + 1))
    names: set[str] = set()
    sent = 0
    if missing := trace.metadata.incomplete:
        home, name = session.get_domain(DOMAIN), f"{DOMAIN}/incomplete"
        names.add(name)
        with session.create_stream(name, domain=home, scope=home.get_scope(DOMAIN)) as stream:
            at = int(starts.min()) if len(starts) else 0
            message = home.get_registered_string(_text(missing))
            stream.write_mark(at, message=message, color=None, category="incomplete")
        sent = 1
    for number, row in enumerate(first.tolist()):
        domain_name = domains[domain[row]] if is_nvtx[row] else DOMAIN
        home = session.get_domain(None if domain_name is None else _text(domain_name))
        path = _scope(trace, tracks[track[row]], int(lane[row]))
        name = f"{domain_name or ''}/{path}"
        while name in names:
            name += "'"
        names.add(name)
        with session.create_stream(_text(name), domain=home, scope=home.get_scope(path)) as stream:
            rows = by_place[bounds[number] : bounds[number + 1]]
            for low in range(0, len(rows), _ROWS):
                some = rows[low : low + _ROWS]
                taken = spans.take(pa.array(some))
                sent += _send_rows(stream, home, taken, starts[some], ends[some])
                step(len(some))
    return sent


def _send_rows(
    stream: Untyped, domain: Untyped, spans: pa.Table, starts: Array, ends: Array
) -> int:
    samples = 0
    needed = ("id", "kind", "name", "category", "color", "range_style", "value")
    columns = [spans.column(name).to_pylist() for name in needed]
    times = zip(starts.tolist(), ends.tolist(), strict=True)
    rows = zip(times, zip(*columns, strict=True), strict=True)
    for (start, end), (number, kind, name, category, color, style, value) in rows:
        if kind == "counter" and value is not None and math.isfinite(value):
            stream.write_counter_sample(domain.get_counter(_text(name), float), start, value)
            samples += 1
            continue
        label = category if kind in ("range", "mark") else kind
        label = None if label is None else _text(label)
        message = domain.get_registered_string(_text(name))
        facts = {"message": message, "color": color, "category": label}
        if end == OPEN and kind in _INSTANTS:
            stream.write_mark(start, **facts)
        elif end == OPEN:
            stream.write_start(start, range_id=number + 1, **facts)
        else:
            is_startend = style == "start/end"
            send = stream.write_startend if is_startend else stream.write_pushpop
            send(start, end, **facts)
    return len(starts) - samples


def _scope(trace: Trace, track: TrackKey, lane: int) -> str:
    """Return where Nsight shows a lane: process or GPU, then row."""
    owner, row = (
        "".join(f"\\{char}" if char in "\\/[]" else char for char in _text(name))
        for name in names(track, trace)
    )
    return f"{owner}/{row} ({lane + 1})" if lane else f"{owner}/{row}"


def _text(name: str) -> str:
    """Return a name for C, where a zero would end it."""
    return name.replace("\0", "\N{SYMBOL FOR NULL}")


def _count(report: Path, rows: int, merged: Path | None) -> None:
    """Have nsys read the report; warn where it finds other counts, or is not here to say.

    Which tables a version of nsys puts what its writer wrote into is not documented: other
    counts are a reason to look, not to throw the report away.
    """
    try:
        nsys = _nsys.find("nsys")
    except MissingDependency:
        warnings.warn(
            "nsys is not here to read the report back: what it holds was not counted", stacklevel=6
        )
        return
    count = _events(report, nsys) - (_events(merged, nsys) if merged is not None else 0)
    if count != rows:
        warnings.warn(
            f"nsys reads {count:,} ranges and marks back where {rows:,} were written: look whether "
            "the report is whole; .sqlite and .json are counted exactly",
            stacklevel=6,
        )


def _events(report: Path, nsys: Path) -> int:
    """Return how many ranges and marks nsys finds in a report."""
    with tempfile.TemporaryDirectory() as folder:
        exported = _nsys.export_sqlite(report, Path(folder) / "report.sqlite", nsys)
        with contextlib.closing(sqlite3.connect(exported)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            if "NVTX_EVENTS" not in tables:
                return 0
            text = "SELECT count(*) FROM NVTX_EVENTS WHERE eventType NOT IN (33, 75, 76)"
            return int(database.execute(text).fetchone()[0])
