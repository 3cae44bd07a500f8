"""export: which format a file's name asks for, what may leave the machine, progress, cancel."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from gpuscope._checks import door
from gpuscope._files import make_folder, replacing
from gpuscope.errors import ExportError
from gpuscope.formats import registry
from gpuscope.formats.format import Format
from gpuscope.formats.private import public, public_run, run_without_code, without_code
from gpuscope.formats.progress import Step, steps
from gpuscope.trace.merging import split
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run


@registry.with_table
@door("path", "merge_into", "keep_private", "keep_code", "progress", "cancel")
def export(
    trace: Trace | Run,
    path: str | Path,
    *,
    merge_into: str | Path | None = None,
    keep_private: bool = False,
    keep_code: bool = True,
    progress: Callable[[int, int], None] | None = None,
    cancel: threading.Event | None = None,
) -> Path:
    """Write a trace to a file; the suffix of its name selects the format.

    {table:write}

    A merged trace and a path without a suffix give a folder with a file for each rank,
    ``rank-0.json.gz``…, in Chrome trace JSON, which HolisticTraceAnalysis opens as a whole.

    Plugins add formats by entry points in the group ``gpuscope.formats``.

    The file is verified after writing. It appears only when it is complete; until then an older
    file of that name remains.

    Parameters
    ----------
    trace
        A trace; or a run, as ``.html``, or in any format if it has only one setting.
    path
        The file to write.
    merge_into
        For ``.nsys-rep``: an existing report, of which the new file is a copy with the trace in
        it. The trace's times must be Unix times.
    keep_private
        Keep host names, and folders, passwords and tokens in texts, which are removed by default.
    keep_code
        Keep names of the program's functions and files, in launch sites and sampled stacks.
    progress
        Called from this thread with the rows written and the total.
    cancel
        An event to cancel the export, set from another thread.

    Returns
    -------
    Path
        The file or, of several ranks, the folder.

    Raises
    ------
    ExportError
        No format has the suffix, a run has several settings, a plugin failed, or the file does
        not match the trace.
    MissingDependency
        ``.nsys-rep`` without nsys, or ``.pftrace`` without the package perfetto. The message says
        what to install.
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
    if not keep_code:
        trace = without_code(trace) if isinstance(trace, Trace) else run_without_code(trace)
    whole = next(iter(trace.values())) if isinstance(trace, Run) and len(trace) == 1 else trace
    if isinstance(whole, Trace) and len(whole.metadata.ranks) > 1 and not target.suffix:
        ranks = whole if keep_private else public(whole)
        return _folder_of_ranks(ranks, target, steps(len(whole), progress, cancel))
    chosen, write_trace = writable(target)
    report = None if merge_into is None else _report(chosen, target, Path(merge_into))
    write: Callable[[Path, Step], object]
    if chosen.write_run is not None and isinstance(trace, Run):
        run = trace if keep_private else public_run(trace)
        rows = sum(map(len, run.values()))
        write = partial(chosen.write_run, run)
    else:
        single = _single(trace, target)
        rows = len(single)
        single = single if keep_private else public(single)
        write = partial(write_trace, single)
        if chosen.merge is not None and report is not None:
            write = partial(chosen.merge, single, report)
    return _written(chosen, write, target, steps(rows, progress, cancel))


def _written(
    chosen: Format, write: Callable[[Path, Step], object], target: Path, step: Step
) -> Path:
    step(0)  # which raises where it is cancelled already
    with replacing(target) as temporary, registry.naming(chosen):
        write(temporary, step)
    return target


def writable(target: Path) -> tuple[Format, Callable[[Trace, Path, Step], object]]:
    """Return the format that a file is to have, and what writes it.

    Raises
    ------
    ExportError
        No format that can be written has its suffix.
    """
    chosen = registry.of_suffix(target.name)
    if chosen is None or chosen.write is None:
        only = "" if chosen is None else f" that can be written ({chosen.label} is only read)"
        why = f"{target.name!r} does not say which format{only} it is to have: end its name in "
        raise ExportError(registry.with_problems(why + registry.suffixes("write")))
    return chosen, chosen.write


def _folder_of_ranks(trace: Trace, folder: Path, step: Step) -> Path:
    """Write a file for each rank: all of them or, if one fails, none."""
    make_folder(folder)
    names = {f"rank-{rank.rank}.json.gz" for rank in trace.metadata.ranks}
    foreign = sorted({path.name for path in folder.glob("rank-*.json.gz")} - names)
    if foreign:
        raise ExportError(
            f"{folder.name!r} holds {', '.join(foreign[:3])} of another trace, which readers of "
            "the folder would take for a rank of this one: choose another folder, or remove it"
        )
    with TemporaryDirectory(prefix=".", dir=folder) as hidden:
        for part in split(trace):
            path = Path(hidden, f"rank-{part.metadata.ranks[0].rank}.json.gz")
            chosen, write = writable(path)
            _written(chosen, partial(write, part), path, step)
        for name in sorted(names):
            Path(hidden, name).replace(folder / name)
    return folder


def _report(chosen: Format, target: Path, report: Path) -> Path:
    """Return the file to merge into, if it is there and the format can."""
    if chosen.merge is None:
        able = registry.suffixes("merge")
        raise ExportError(f"only a {able} can be merged into a report, not {target.name!r}")
    if not report.is_file():
        raise ExportError(f"there is no report {report.name!r} to merge into: check the path")
    if target.exists() and target.samefile(report):
        raise ExportError(
            f"a copy of {report.name!r} is made with the trace in it: give the copy another name"
        )
    return report


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
