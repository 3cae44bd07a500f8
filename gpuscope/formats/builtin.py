"""The built-in formats, declared as plugins declare theirs."""

from __future__ import annotations

from operator import methodcaller

from gpuscope.formats.chrome import events as chrome_events
from gpuscope.formats.chrome import read as from_chrome
from gpuscope.formats.chrome import write as chrome
from gpuscope.formats.format import Format
from gpuscope.formats.nsight import read as from_nsys
from gpuscope.formats.nsight import rep as nsys_rep
from gpuscope.formats.nsight import write as nsys_sqlite
from gpuscope.formats.own import parquet as from_parquet
from gpuscope.formats.own import simple

BUILT_IN = (
    Format(
        name="Chrome trace JSON",
        suffixes=(".json", ".json.gz"),
        description="For Perfetto, chrome://tracing and HolisticTraceAnalysis; from PyTorch's "
        "profiler, viztracer and others.",
        write=chrome.write,
        recognise=chrome_events.recognise,
        read=from_chrome.read_chrome,
    ),
    Format(
        name="Nsight Systems SQLite",
        suffixes=(".sqlite",),
        description="For `nsys stats`, and from `nsys export --type=sqlite`, any schema version.",
        write=nsys_sqlite.write,
        recognise=methodcaller("startswith", b"SQLite format 3\0"),
        read=from_nsys.read_nsys,
    ),
    Format(
        name="Nsight Systems report",
        suffixes=(".nsys-rep",),
        description="The spans as NVTX ranges; needs an installed Nsight Systems.",
        write=nsys_rep.write,
        merge=nsys_rep.merge,
        recognise=methodcaller("startswith", from_nsys.MAGIC),
        read=from_nsys.read_report,
    ),
    Format(
        name="Parquet",
        suffixes=(".parquet",),
        description="The whole trace; pandas, Polars and DuckDB read a row for each span.",
        write=simple.write_parquet,
        recognise=methodcaller("startswith", b"PAR1"),
        read=from_parquet.read,
    ),
    Format(
        name="CSV",
        suffixes=(".csv",),
        description="The spans as a table, times as whole ns; without edges and metadata.",
        write=simple.write_csv,
    ),
    Format(
        name="HTML report",
        suffixes=(".html",),
        description="A report in one file that opens without a network.",
        write=simple.write_html,
        write_run=simple.write_html,
    ),
)
"""In the order in which content is recognised and formats are listed."""
