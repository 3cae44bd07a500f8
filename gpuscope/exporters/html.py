"""One HTML file: the report of a trace or a run."""

from __future__ import annotations

from pathlib import Path

from gpuscope._files import replacing
from gpuscope.errors import ExportError
from gpuscope.exporters.steps import Step, silent
from gpuscope.report import html_report, trace_report
from gpuscope.trace.model import Run, Trace


def write(trace: Trace | Run, path: str | Path, step: Step = silent) -> Path:
    """Write the report of a trace or a run.

    Raises
    ------
    ExportError
        The file is not whole.
    GpuscopeError
        The file cannot be written.
    """
    target = Path(path)
    rows = len(trace) if isinstance(trace, Trace) else sum(map(len, trace.values()))
    with replacing(target) as temporary:
        if isinstance(trace, Run):
            html_report(trace, temporary)
        else:
            trace_report(trace, temporary)
        with temporary.open("rb") as file:
            file.seek(-16, 2)
            if not file.read().endswith(b"</html>\n"):
                raise ExportError(f"{target.name!r} is cut off: check the disk and export again")
        step(rows)
    return target
