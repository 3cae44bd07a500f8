"""What a dashboard writes into the working folder, and what it calls it."""

from __future__ import annotations

import itertools
import re
import threading
from pathlib import Path

from gpuscope.formats.writing import export
from gpuscope.trace.run import Run

REPORT = ".html"
EXPORTS = [
    {"words": words, "suffix": suffix, "hint": hint}
    for words, suffix, hint in (
        ("Trace", ".parquet", "The trace, for gpuscope.load_trace, pandas, Polars and DuckDB"),
        (
            "Report",
            REPORT,
            "A report in one file that opens without a network, pinned runs beside it",
        ),
        ("Perfetto", ".json.gz", "For ui.perfetto.dev and chrome://tracing"),
        ("nsys stats", ".sqlite", "For `nsys stats`: a database in Nsight Systems' schema"),
    )
]
"""What a run can be saved as."""


def slug(name: str) -> str:
    """Return a name for a file."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:60] or "experiment"


def save(run: Run, number: int, suffix: str, cancel: threading.Event) -> Path:
    """Write a run to a new file in the working folder; return its path.

    Raises
    ------
    Cancelled
        ``cancel`` was set; no file is left.
    GpuscopeError
        It cannot be written.
    """
    stem = f"{slug(str(run.experiment['name']))}-run-{number}"
    names = itertools.chain([stem], (f"{stem}-{again}" for again in itertools.count(2)))
    paths = (Path.cwd() / f"{name}{suffix}" for name in names)
    return export(run, next(path for path in paths if not path.exists()), cancel=cancel)
