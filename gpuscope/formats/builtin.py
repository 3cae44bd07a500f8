"""The built-in formats, declared as plugins declare theirs."""

from __future__ import annotations

from operator import methodcaller

from gpuscope.formats.chrome.events import recognise as is_json
from gpuscope.formats.chrome.read import read_chrome
from gpuscope.formats.chrome.write import write_chrome
from gpuscope.formats.format import Format
from gpuscope.formats.nsight import rep
from gpuscope.formats.nsight.read import MAGIC, read_report, read_sqlite
from gpuscope.formats.nsight.write import write_sqlite
from gpuscope.formats.own import simple
from gpuscope.formats.perfetto.archive import write_archive
from gpuscope.formats.perfetto.write import write_perfetto
from gpuscope.formats.stacks import write_folded, write_speedscope

BUILT_IN = (
    Format(
        name="Chrome trace JSON",
        suffixes=(".json", ".json.gz"),
        description="For Perfetto, chrome://tracing and HolisticTraceAnalysis; from PyTorch's "
        "profiler, Triton's Proton, viztracer and others.",
        write=write_chrome,
        recognise=is_json,
        read=read_chrome,
    ),
    Format(
        name="Nsight Systems SQLite",
        suffixes=(".sqlite",),
        description="For `nsys stats`, and from `nsys export --type=sqlite`, any schema version.",
        write=write_sqlite,
        recognise=methodcaller("startswith", b"SQLite format 3\0"),
        read=read_sqlite,
    ),
    Format(
        name="Nsight Systems report",
        suffixes=(".nsys-rep",),
        description="The spans as NVTX ranges; needs an installed Nsight Systems.",
        write=rep.write,
        merge=rep.merge,
        recognise=methodcaller("startswith", MAGIC),
        read=read_report,
    ),
    Format(
        name="Perfetto trace",
        suffixes=(".pftrace", ".perfetto-trace"),
        description="Perfetto's protobuf: typed events of GPUs, times in ns; needs the extra "
        "`perfetto`.",
        write=write_perfetto,
    ),
    Format(
        name="Perfetto archive",
        suffixes=(".pftrace.zip",),
        description="A Perfetto trace of each rank, joined by a manifest; Perfetto 58 or newer "
        "opens it.",
        write=write_archive,
    ),
    Format(
        name="Parquet",
        suffixes=(".parquet",),
        description="The whole trace; pandas, Polars and DuckDB read a row for each span.",
        write=simple.write_parquet,
        recognise=methodcaller("startswith", b"PAR1"),
        read=simple.read_own,
    ),
    Format(
        name="CSV",
        suffixes=(".csv",),
        description="The spans as a table, times as whole ns; without edges and metadata.",
        write=simple.write_csv,
    ),
    Format(
        name="Speedscope JSON",
        suffixes=(".speedscope.json",),
        description="Sampled stacks of each Python thread, for speedscope.app.",
        write=write_speedscope,
    ),
    Format(
        name="Folded stacks",
        suffixes=(".folded",),
        description="Sampled stacks as `thread;outer;inner samples`, for flamegraph.pl.",
        write=write_folded,
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
