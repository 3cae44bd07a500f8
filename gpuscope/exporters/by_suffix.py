"""The entry: which format a file's name asks for, what may leave the machine, progress, cancel."""

from __future__ import annotations

import dataclasses
import importlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa

from gpuscope._checks import door
from gpuscope.errors import ExportError
from gpuscope.exporters.steps import steps
from gpuscope.importers.private import public_text, scrub
from gpuscope.trace.model import Run, Trace

FORMATS = {
    ".json": "chrome", ".json.gz": "chrome", ".sqlite": "nsys_sqlite", ".nsys-rep": "nsys_rep",
    ".parquet": "parquet", ".html": "html",
}  # fmt: skip
"""End of a file's name → the module here that writes it."""


@door(path=(str, Path), merge_into=(str, Path, None))
def export(
    trace: Trace | Run,
    path: str | Path,
    *,
    merge_into: str | Path | None = None,
    keep_private: bool = False,
    progress: Callable[[int, int], None] | None = None,
    cancel: threading.Event | None = None,
) -> Path:
    """Write a trace as a file of another tool; the end of the name says which.

    ``.json``, ``.json.gz``
        Chrome trace JSON: Perfetto, chrome://tracing, HolisticTraceAnalysis.
    ``.sqlite``
        Nsight Systems' SQLite schema, readable by ``nsys stats``. Handles, thread blocks and
        counters, for which it has no table, stand in tables of ours.
    ``.nsys-rep``
        An Nsight Systems report with the spans as NVTX ranges, by nsys's own writer.
    ``.parquet``
        Ours, whole; pandas, Polars and DuckDB read it, and :func:`gpuscope.load_trace`.
    ``.html``
        A report in one file that opens without a network.

    What the file holds is counted after writing. Its name appears only when it is whole, and
    an older file of that name stays until then.

    Parameters
    ----------
    trace
        A trace. A run as ``.html``, and in the other forms if it has one setting only.
    path
        Where to.
    merge_into
        For ``.nsys-rep``: an existing report, of which the new file is a copy with the trace in
        it. The trace's times must be Unix times.
    keep_private
        Keep host names, and folders, passwords and tokens in texts, which are left out by default.
    progress
        Called with rows written and rows in all, from this thread.
    cancel
        Set it, from another thread, to stop.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ExportError
        The name's end is no format's, a run has several settings, or what was written is not
        what the trace holds.
    MissingDependency
        ``.nsys-rep`` without nsys's writer; says what to install.
    Cancelled
        ``cancel`` was set; no file is left.
    GpuscopeError
        The file cannot be written (no such folder, no room).

    Examples
    --------
    >>> import gpuscope as gs, tempfile, pathlib
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> with gpu.create_stream() as stream, gs.profile(gpu) as recording:
    ...     _ = gs.Gemm(gpu, m=64, n=64, k=64).execute(stream=stream)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     gs.export(recording.trace, pathlib.Path(folder) / "run.json").name
    'run.json'
    """
    target = Path(path)
    suffix = _suffix(target)
    if merge_into is not None and suffix != ".nsys-rep":
        raise ExportError(f"only a .nsys-rep can be merged into a report, not {target.name!r}")
    if suffix == ".html" and isinstance(trace, Run):
        what: Trace | Run = Run(
            {name: one if keep_private else public(one) for name, one in trace.items()},
            trace.comparison, _public_experiment(trace.experiment) or {}, trace.stopped,
        )  # fmt: skip
        rows = sum(map(len, trace.values()))
    else:
        single = _single(trace, target)
        what = single if keep_private else public(single)
        rows = len(single)
    step = steps(rows, progress, cancel)
    step(0)
    writer = importlib.import_module(f"gpuscope.exporters.{FORMATS[suffix]}")
    more = {} if merge_into is None else {"merge_into": Path(merge_into)}
    written: Path = writer.write(what, target, step, **more)
    return written


def _suffix(target: Path) -> str:
    name = target.name.lower()
    for suffix in sorted(FORMATS, key=len, reverse=True):
        if name.endswith(suffix) and name != suffix:
            return suffix
    raise ExportError(
        f"{target.name!r} does not say which format it is to have: end its name in "
        + ", ".join(FORMATS)
    )


def _single(trace: Trace | Run, target: Path) -> Trace:
    if isinstance(trace, Trace):
        return trace
    if not isinstance(trace, Run):
        raise ExportError(f"a trace or a run is exported, not {type(trace).__name__}")
    if len(trace) == 1:
        return next(iter(trace.values()))
    names = ", ".join(map(repr, trace))
    raise ExportError(
        f"the run has {len(trace)} settings, {names}, which took turns on one clock: export one "
        f"of them, export(run[{next(iter(trace))!r}], {target.name!r}), or all of them as a "
        "report, .html"
    )


def public(trace: Trace) -> Trace:
    """Return a trace without what tells of the machine it was made on: hosts, folders, secrets.

    Names of partitions, streams, workloads and settings stay as they are.
    """
    spans = scrub(trace.spans)
    hosts = spans.column("host")
    if not pa.types.is_null(hosts.type):
        place = spans.schema.get_field_index("host")
        spans = spans.set_column(place, "host", pa.nulls(len(spans)))
    facts = trace.metadata
    metadata = dataclasses.replace(
        facts,
        process_names=_without_folders(facts.process_names),
        thread_names={key: public_text(name) for key, name in facts.thread_names.items()},
        experiment=_public_experiment(facts.experiment),
        notes=tuple(map(public_text, facts.notes)),
    )
    return Trace(spans, trace.edges, metadata)


def _public_experiment(experiment: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return a description without paths in what functions of the user's are called with."""
    workloads = (experiment or {}).get("workloads")
    if experiment is None or not isinstance(workloads, Mapping):
        return experiment
    return {**experiment, "workloads": {key: _public_args(one) for key, one in workloads.items()}}


def _public_args(workload: Any) -> Any:
    args = workload.get("args") if isinstance(workload, Mapping) else None
    if not isinstance(args, Mapping):
        return workload
    plain = {
        name: public_text(value) if isinstance(value, str) else value
        for name, value in args.items()
    }
    return {**workload, "args": plain}


def _without_folders(names: Mapping[str, str]) -> dict[str, str]:
    return {key: PurePath(name.split(" ")[0]).name if name.startswith("/") else name
            for key, name in names.items()}  # fmt: skip
