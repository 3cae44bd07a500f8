"""One HTML file: the report of a trace or a run."""

from __future__ import annotations

from pathlib import Path

from gpuscope.errors import ExportError
from gpuscope.exporters.progress import Step, silent
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run


def write(trace: Trace | Run, path: Path, step: Step = silent) -> None:
    """Write the report of a trace or a run.

    Raises
    ------
    ExportError
        The file is not whole.
    """
    from gpuscope.report import html_report, trace_report  # noqa: PLC0415 - loads Plotly

    if isinstance(trace, Run):
        html_report(trace, path)
    else:
        trace_report(trace, path)
    with path.open("rb") as file:
        file.seek(-16, 2)
        if not file.read().endswith(b"</html>\n"):
            raise ExportError(f"{path.name!r} is cut off: check the disk and export again")
    step(len(trace) if isinstance(trace, Trace) else sum(map(len, trace.values())))
